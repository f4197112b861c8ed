/** A media type as RFC 2045 §5.1 writes it, taken apart. */
export type ContentType = {
  /** `type/subtype`, lower-cased. */
  mediaType: string;
  parameters: readonly ContentTypeParameter[];
};

export type ContentTypeParameter = {
  /** Lower-cased. */
  name: string;
  /** Without its quotes. */
  value: string;
};

/** Longer than any registered type with its parameters, and short enough to stand on one line of a header. */
export const contentTypeLengthMax = 255;

const token = "[\\w!#$%&'*+\\-.^`{|}~]+";
const mediaTypePattern = new RegExp(`${token}/${token}`, 'y');
const parameterPattern = new RegExp(
  `[ \\t]*;[ \\t]*(${token})=(?:(${token})|"((?:[\\t \\x21\\x23-\\x5b\\x5d-\\x7e]|\\\\[\\t\\x20-\\x7e])*)")`,
  'y',
);

/** Takes `type/subtype; name=value; name="value"` apart (RFC 2045 §5.1, no comments), or null if it is anything else. */
export function parseContentType(text: string): ContentType | null {
  if (text.length > contentTypeLengthMax) return null;
  mediaTypePattern.lastIndex = 0;
  const mediaType = mediaTypePattern.exec(text)?.[0];
  if (mediaType === undefined) return null;
  const parameters: ContentTypeParameter[] = [];
  let position = mediaType.length;
  // Ends at the latest with the text, of which every round takes something.
  while (position < text.length) {
    parameterPattern.lastIndex = position;
    const match = parameterPattern.exec(text);
    if (match === null) return null;
    const value = match[2] ?? (match[3] ?? '').replace(/\\(.)/g, '$1');
    parameters.push({ name: (match[1] ?? '').toLowerCase(), value });
    position = parameterPattern.lastIndex;
  }
  return { mediaType: mediaType.toLowerCase(), parameters };
}

/** Whether a text can be sent as a Content-Type: RFC 2045 tokens, no line ends, at most 255 characters. */
export function isContentType(text: string): boolean {
  return parseContentType(text) !== null;
}
