/**
 * Placeholders and blocks of other template languages go out as they are written, since no text is refused for what it
 * says. They are rarely meant to, so that they are named. What could also be prose, code or CSS is left alone:
 * `100%%`, `{{"json": 1}}` and `style={{color: 'red'}}` are nothing foreign.
 */

const names = [
  /** `{{#if x}}`, `{{/if}}`, `{{^x}}`, `{{> partial}}`, `{{! comment}}` (Mustache, Handlebars). */
  'foreign_block',
  /** `{{name|there}}`, `{{first name}}`, `{{user["name"]}}`, `{{.Name}}`, `{{${name}}}` (Liquid, Go, Braze). */
  'foreign_expression',
  /** `{% if x %}` (Liquid, Jinja, Twig). */
  'foreign_tag',
  /** `*|FNAME|*` (Mailchimp). */
  'foreign_merge_tag',
  /** `%%name%%` (Salesforce). */
  'foreign_percent_tag',
] as const;

export type ForeignName = (typeof names)[number];

/** `example` is the first of them as it is written; of a long one the beginning. */
export type ForeignSyntax = { name: ForeignName; example: string };

type Language = {
  open: string;
  close: string;
  /** What is longer between the two is none. */
  innerLengthMax: number;
  /** What is between the two; null if it is nothing foreign. `before` is the character in front of them. */
  classify: (inner: string, before: string) => ForeignName | null;
};

const ownName = /^[ \t]*[A-Za-z_][A-Za-z0-9_.]*[ \t]*$/;
const block = /^~?\s*(?:[#^/>]\s*[\p{L}_]|!)/u;
const expression =
  /^(?:~|-\s)?\s*[$.@&]?\{?[\p{L}_][\p{L}\p{N}_.$-]*(?:\s*\||\s*(?:~|-)?$|[\s[(][\p{L}\p{N}_.\s"'=[\]()@$-]*$)/u;

const languages: readonly Language[] = [
  {
    open: '{{',
    close: '}}',
    innerLengthMax: 200,
    classify: (inner) => {
      if (ownName.test(inner)) return null;
      if (block.test(inner)) return 'foreign_block';
      return expression.test(inner) ? 'foreign_expression' : null;
    },
  },
  {
    open: '{%',
    close: '%}',
    innerLengthMax: 500,
    classify: (inner) => (/^[-+~]?\s*[A-Za-z_]/.test(inner) ? 'foreign_tag' : null),
  },
  {
    open: '*|',
    close: '|*',
    innerLengthMax: 200,
    classify: (inner) => (/^[A-Z][A-Z0-9_]*(?::[^*|\r\n]*)?$/.test(inner) ? 'foreign_merge_tag' : null),
  },
  {
    open: '%%',
    close: '%%',
    innerLengthMax: 100,
    // `100%%off%%` is a number, however its sign came to be two.
    classify: (inner, before) =>
      /^[A-Za-z_][A-Za-z0-9_.-]*$/.test(inner) && !/[\p{L}\p{N}%]/u.test(before)
        ? 'foreign_percent_tag'
        : null,
  },
];

const exampleLengthMax = 100;
/**
 * Of each language in a text, which takes some milliseconds. Fewer would miss what comes late in a long email; more would
 * be the time of others: a template of 2 MB can have 400,000, and is looked through whenever it is read.
 */
const marksMax = 10_000;

/** In texts as their author wrote them, not as they are with values. Each kind once, in the order of their names. */
export function findForeignSyntax(texts: readonly (string | null | undefined)[]): ForeignSyntax[] {
  const examples = new Map<ForeignName, string>();
  for (const text of texts) {
    if (!text) continue;
    for (const language of languages) lookThrough(text, language, examples);
  }
  return names.flatMap((name) => {
    const example = examples.get(name);
    return example === undefined ? [] : [{ name, example }];
  });
}

/** Walks forwards only, and looks at what is between two marks once, so that a text of marks alone takes no longer. */
function lookThrough(
  text: string,
  { open, close, innerLengthMax, classify }: Language,
  examples: Map<ForeignName, string>,
): void {
  let end = -1;
  let start = text.indexOf(open);
  for (let seen = 0; start !== -1 && seen < marksMax; seen += 1) {
    let innerStart = start + open.length;
    // Of a longer run the innermost count.
    while (text[innerStart] === open[1]) innerStart += 1;
    if (end < innerStart) end = text.indexOf(close, innerStart);
    if (end === -1) return;
    const next = text.indexOf(open, innerStart);
    const isInnermost = next === -1 || next >= end;
    const inner = isInnermost && end - innerStart <= innerLengthMax ? text.slice(innerStart, end) : null;
    const name = inner === null ? null : classify(inner, text[start - 1] ?? '');
    if (name !== null && !examples.has(name)) {
      const written = text.slice(start, Math.min(end + close.length, start + exampleLengthMax));
      examples.set(name, written.toWellFormed());
    }
    start = next;
  }
}

/** `found` is what was found in parts of one message. */
export function nameForeignSyntax(...found: readonly (readonly ForeignSyntax[])[]): ForeignName[] {
  const all = found.flat();
  return all.length === 0 ? [] : names.filter((name) => all.some((each) => each.name === name));
}

/** In words for the author. */
export function describeForeignSyntax(texts: readonly (string | null | undefined)[]): string[] {
  return findForeignSyntax(texts).map(
    ({ example }) => `${example} is of another template language, and stays as written.`,
  );
}
