import { setImmediate as nextTurn } from 'node:timers/promises';
import { CsvError } from './csv-reader.ts';

/**
 * Reads the objects of a JSON file of any size, a part at a time: those of an array, be it the whole file (SendGrid) or a
 * field of its one object (`{ "items": […] }`, as pages of lists are); of several such texts after each other, as a script
 * leaves them that saves page after page; or one object a line (NDJSON). Only an object that is open is kept in memory.
 *
 * What is no JSON within an object is an error of that object alone. Where brackets do not match, reading stops with a
 * CsvError.
 */
export type JsonItem = {
  /** Of the file, counted from 1: where the object begins. */
  line: number;
  bytes: number;
  /** Null if it is no JSON. */
  value: Readonly<Record<string, unknown>> | null;
};

/** Records of suppressions have some hundred octets. Larger keeps more of a broken file in memory. */
const itemLengthMax = 65_536;
/** Those of providers are five deep. */
const depthMax = 32;

export async function* readJsonItems(
  source: AsyncIterable<Buffer>,
): AsyncGenerator<JsonItem[], void, undefined> {
  const decoder = new TextDecoder();
  const reader = createReader();
  for await (const part of source) {
    yield* takeItems(reader, decoder.decode(part, { stream: true }));
    await nextTurn();
  }
  yield* takeItems(reader, decoder.decode());
  reader.end();
}

/** What was read before an error comes first. */
function* takeItems(reader: Reader, text: string): Generator<JsonItem[], void, undefined> {
  const items: JsonItem[] = [];
  try {
    reader.push(text, items);
  } catch (cause) {
    if (items.length > 0) yield items;
    throw cause;
  }
  if (items.length > 0) yield items;
}

type Reader = { push: (text: string, items: JsonItem[]) => void; end: () => void };

function createReader(): Reader {
  /** The brackets that are open. */
  let open = '';
  let isInString = false;
  let isEscaped = false;
  let line = 1;
  /** How many brackets are open around the object that is read; null where none is. */
  let depth: number | null = null;
  let begunInLine = 1;
  let held = '';

  const begin = () => {
    depth = open.length;
    begunInLine = line;
  };
  /** What an object stands in that is to be read: nothing, an array, or an array of what was taken for one itself. */
  const isItem = () =>
    depth === null ? open === '' || open.endsWith('[') : depth === 0 && open.endsWith('[');

  return {
    push: (text, items) => {
      let from = 0;
      for (let at = 0; at < text.length; at += 1) {
        const character = text[at];
        if (isInString) {
          if (isEscaped) isEscaped = false;
          else if (character === '\\') isEscaped = true;
          else if (character === '"') isInString = false;
        } else if (character === '"') {
          isInString = true;
        } else if (character === '\n') {
          line += 1;
        } else if (character === '{' || character === '[') {
          if (character === '{' && isItem()) {
            begin();
            held = '';
            from = at;
          }
          open += character;
          if (open.length > depthMax) throw new CsvError(`What begins in line ${line} is nested too deeply.`);
        } else if (character === '}' || character === ']') {
          if (open.at(-1) !== (character === '}' ? '{' : '['))
            throw new CsvError(`Line ${line} has a bracket that closes none.`);
          open = open.slice(0, -1);
          if (open.length === depth) {
            items.push(toItem(held + text.slice(from, at + 1), begunInLine));
            depth = null;
            held = '';
          }
        }
      }
      if (depth !== null) held += text.slice(from);
      if (held.length > itemLengthMax)
        throw new CsvError(
          `The object that begins in line ${begunInLine} is longer than ${itemLengthMax} characters.`,
        );
    },
    end: () => {
      if (open !== '' || isInString) throw new CsvError('The file ends before its last bracket is closed.');
    },
  };
}

function toItem(text: string, line: number): JsonItem {
  const bytes = Buffer.byteLength(text);
  try {
    // It begins and ends with the brackets of an object.
    return { line, bytes, value: JSON.parse(text) as Readonly<Record<string, unknown>> };
  } catch {
    return { line, bytes, value: null };
  }
}
