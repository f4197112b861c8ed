/** Reads the markup of a gallery template, small and strict XML, into a tree. */
import { Parser } from 'htmlparser2';

export type MarkupElement = {
  name: string;
  attributes: Readonly<Record<string, string>>;
  children: MarkupNode[];
};

/** Text stays as it was written: its entities and placeholders go into the HTML unchanged. */
export type MarkupNode = MarkupElement | string;

/**
 * The one element at the top of a document. Throws where the parser would have to guess: an element that is not
 * closed, or a second one at the top.
 */
export function parseMarkup(markup: string): MarkupElement {
  const top: MarkupElement = { name: '', attributes: {}, children: [] };
  const open = [top];
  const parser = new Parser(
    {
      onopentag(name, attributes) {
        const element = { name, attributes, children: [] };
        open.at(-1)?.children.push(element);
        open.push(element);
      },
      ontext(text) {
        open.at(-1)?.children.push(text);
      },
      onclosetag(name, isImplied) {
        // To the parser, `<name />` is implied as well.
        const isSelfClosed = markup[parser.endIndex - 1] === '/';
        if (isImplied && !isSelfClosed) throw new Error(`<${name}> is not closed`);
        open.pop();
      },
    },
    { xmlMode: true, decodeEntities: false, recognizeSelfClosing: true },
  );
  parser.end(markup);
  const [root, ...others] = listElements(top);
  if (root === undefined || others.length > 0) throw new Error('there must be one element at the top');
  return root;
}

/** The child elements of an element that holds no text of its own. */
export function listElements(element: MarkupElement): MarkupElement[] {
  return element.children.filter((child) => {
    if (typeof child !== 'string') return true;
    if (child.trim() !== '') throw new Error(`text stands in <${element.name}>: "${child.trim()}"`);
    return false;
  }) as MarkupElement[]; // Strings were filtered out, which the compiler does not see.
}
