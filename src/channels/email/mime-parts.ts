/**
 * A message taken apart, for whoever reads what anyone may have written: as text with one character an octet, of which parts
 * are slices, and with nothing that takes longer than its length.
 */

/** What stands between the lines that consist of the boundary (RFC 2046 §5.1.1), the first `partsMax` of them. */
export function splitAtBoundary(body: string, boundary: string, partsMax: number): string[] {
  const delimiter = `--${boundary}`;
  const parts: string[] = [];
  let partStart: number | null = null;
  let at = body.indexOf(delimiter);
  while (at !== -1 && parts.length < partsMax) {
    const behind = at + delimiter.length;
    const isLineStart = at === 0 || body.charAt(at - 1) === '\n';
    restOfDelimiter.lastIndex = behind;
    // A boundary may be the beginning of another one, which is then that of a part within.
    if (isLineStart && restOfDelimiter.test(body)) {
      if (partStart !== null) parts.push(body.slice(partStart, at).replace(/\r?\n$/, ''));
      const lineEnd = body.indexOf('\n', behind);
      partStart = lineEnd === -1 ? body.length : lineEnd + 1;
      if (body.startsWith('--', behind)) return parts;
    }
    at = body.indexOf(delimiter, behind);
  }
  // Cut off, or never closed.
  if (partStart !== null && parts.length < partsMax) parts.push(body.slice(partStart));
  return parts;
}

/** Of its line; a closing one has two more dashes. */
const restOfDelimiter = /(?:--)?[ \t]{0,200}(?:\r?\n|$)/y;

/** In lower case; plain text where the field says nothing that can be read. */
export function mediaTypeOf(contentType: string): string {
  return /^\s*([\w.+-]{1,100}\/[\w.+-]{1,100})/.exec(contentType)?.[1]?.toLowerCase() ?? 'text/plain';
}

/** A parameter of `Content-Type`, quoted or not; an empty text where there is none. */
export function readParameter(contentType: string, name: 'boundary' | 'charset'): string {
  const found = parameterForms[name].exec(contentType);
  return (found?.[1] ?? found?.[2] ?? '').slice(0, 200).trimEnd();
}

const parameterForms = {
  boundary: /;\s{0,100}boundary\s{0,10}=\s{0,10}(?:"([^"]{1,200})"|([^\s";]{1,200}))/i,
  charset: /;\s{0,100}charset\s{0,10}=\s{0,10}(?:"([^"]{1,60})"|([^\s";]{1,60}))/i,
};

/** Of a body with one character an octet, as the octets that it stands for. */
export function decodeTransfer(body: string, encoding: string): string {
  switch (encoding.trim().toLowerCase()) {
    case 'base64':
      return Buffer.from(body, 'base64').toString('latin1');
    case 'quoted-printable':
      return body.replace(/=(?:([0-9a-f]{2})|[ \t]{0,4}\r?\n)/gi, (_, hex: string | undefined) =>
        hex === undefined ? '' : String.fromCharCode(Number.parseInt(hex, 16)),
      );
    default:
      return body;
  }
}

/** Octets that are one character each, as text in their charset; UTF-8 where that is none, or is not known. */
export function decodeText(octets: string, charset: string): string {
  const bytes = Buffer.from(octets, 'latin1');
  try {
    return new TextDecoder(charset === '' ? 'utf-8' : charset).decode(bytes);
  } catch {
    return new TextDecoder().decode(bytes);
  }
}
