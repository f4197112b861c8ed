import { mediaTypeOf, decodeTransfer, splitAtBoundary } from '../channels/email/mime-parts.ts';
import { parseContentType } from '../channels/email/content-type.ts';
import { decodeUtf8, type Head, readParameters, splitHead, valueOf } from './header-fields.ts';

/**
 * A message as its program meant it: what people read, and files.
 *
 * The parts are told apart by a reader of our own. The general one takes 30 µs a line (postal-mime 4.0, measured: 3.7 s for
 * 256 kB of empty lines), which would be minutes for a message of 30 MB; this one goes over it once for each level.
 */

export type MessageParts = {
  /** In the order in which they are read. Each has one form, or both as alternatives. */
  blocks: readonly TextBlock[];
  files: readonly MessageFile[];
};

export type TextBlock = { text: string | null; html: string | null };

export type MessageFile = {
  /** Empty where the part has none. */
  filename: string;
  /** Without the name in it; empty where there is none that can be read. */
  contentType: string;
  /** Without angle brackets; empty where there is none. */
  contentId: string;
  content: Buffer;
};

/** A sentence for the client. */
export type UnreadableMessage = { problem: string };

/** As mail programs write them. More would let a sender keep us busy for longer. */
const depthMax = 16;
const partsMax = 200;

/** Taken apart, a signature would be that of another message, and nothing could be read (RFC 1847, RFC 8551). */
const sealedTypes: ReadonlySet<string> = new Set([
  'multipart/signed',
  'multipart/encrypted',
  'application/pkcs7-mime',
  'application/x-pkcs7-mime',
]);
const sealed =
  'The message is signed or encrypted by its program (S/MIME or OpenPGP), and would not arrive as it was.';

type Reading = { blocks: TextBlock[]; files: MessageFile[]; parts: number };

class Unreadable extends Error {}

/** `head` is that of the message. */
export function readParts(head: Head): MessageParts | UnreadableMessage {
  const reading: Reading = { blocks: [], files: [], parts: 0 };
  try {
    readPart(reading, head, depthMax);
    return reading;
  } catch (cause) {
    if (cause instanceof Unreadable) return { problem: cause.message };
    throw cause;
  }
}

function readPart(reading: Reading, part: Head, depth: number): void {
  reading.parts += 1;
  if (reading.parts > partsMax) throw new Unreadable(`The message has more than ${partsMax} parts.`);
  const contentType = valueOf(part, 'content-type');
  const type = mediaTypeOf(contentType);
  if (sealedTypes.has(type)) throw new Unreadable(sealed);
  if (type.startsWith('multipart/')) {
    readMultipart(reading, part, { type, contentType, depth });
    return;
  }
  const parameters = readParameters(contentType);
  const disposition = valueOf(part, 'content-disposition');
  const filename = readParameters(disposition).get('filename') ?? parameters.get('name') ?? '';
  const isText = type === 'text/plain' || type === 'text/html';
  const content = decodeTransfer(part.body, valueOf(part, 'content-transfer-encoding'));
  if (isText && filename === '' && !/^\s*attachment/i.test(disposition)) {
    const text = decodeText(content, parameters.get('charset') ?? '').replaceAll('\r\n', '\n');
    reading.blocks.push(type === 'text/html' ? { text: null, html: text } : { text, html: null });
    return;
  }
  reading.files.push({
    filename,
    contentType: contentType === '' ? '' : withoutName(contentType, type),
    contentId: valueOf(part, 'content-id').replace(/^<|>$/g, '').trim(),
    content: Buffer.from(content, 'latin1'),
  });
}

/**
 * Of alternatives people read the last form that is text, and the first that is HTML: one of each, if there are several. All
 * other kinds are read as a sequence (RFC 2046 §5.1.7).
 */
function readMultipart(
  reading: Reading,
  part: Head,
  { type, contentType, depth }: { type: string; contentType: string; depth: number },
): void {
  if (depth === 0) throw new Unreadable(`The message has parts in more than ${depthMax} levels.`);
  const boundary = readParameters(contentType).get('boundary') ?? '';
  const bodies = boundary === '' ? [] : splitAtBoundary(part.body, boundary, partsMax + 1);
  if (bodies.length === 0) throw new Unreadable(`The message has a ${type} without parts.`);
  const isAlternative = type === 'multipart/alternative';
  const inside: Reading = isAlternative ? { ...reading, blocks: [] } : reading;
  for (const body of bodies) {
    const head = splitHead(body);
    if (head === null) throw new Unreadable('The message has a part whose header cannot be read.');
    readPart(inside, head, depth - 1);
  }
  if (!isAlternative) return;
  reading.parts = inside.parts;
  const text = inside.blocks.findLast((block) => block.text !== null)?.text ?? null;
  const html = inside.blocks.find((block) => block.html !== null)?.html ?? null;
  if (inside.blocks.length > 0) reading.blocks.push({ text, html });
}

function decodeText(octets: string, charset: string): string {
  const bytes = Buffer.from(octets, 'latin1');
  if (charset === '' || /^(?:us-ascii|utf-?8|unknown-8bit)$/i.test(charset)) return decodeUtf8(bytes);
  try {
    return new TextDecoder(charset).decode(bytes);
  } catch {
    throw new Unreadable('The message has a text in a charset that is not known.');
  }
}

function withoutName(contentType: string, type: string): string {
  const parsed = parseContentType(contentType.replace(/\s+/g, ' ').trim());
  if (parsed === null) return type;
  const kept = parsed.parameters.filter(({ name }) => !/^(?:name|x-[\w-]*)(?:\*\d*)?\*?$/.test(name));
  return [parsed.mediaType, ...kept.map(({ name, value }) => `${name}=${quote(value)}`)].join('; ');
}

function quote(value: string): string {
  return /^[\w.+-]+$/.test(value) ? value : `"${value.replace(/["\\]/g, '\\$&')}"`;
}
