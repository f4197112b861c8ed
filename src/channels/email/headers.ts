/**
 * Header fields as they go on the wire: ASCII, folded, one CRLF at the end of each. Nothing that a caller hands in
 * can begin a field of its own, since every line end and control character becomes a space first.
 */

/** RFC 5322 §2.1.1, without the CRLF. */
const lineLengthMax = 998;
/** RFC 5322 §2.1.1 again: what a line should not pass. */
const lineLengthWanted = 78;

/** RFC 2047 §2: an encoded word has at most 75 characters, 12 of them for `=?utf-8?B?` and `?=`. */
const encodedWordLengthMax = 75;
const encodedWordFrameLength = 12;

/** Longer runs without a space are sent as encoded words, which can be folded. */
const wordLengthMax = 66;

/** Also what some readers of mail take for a line end, although SMTP does not: NEL, LS and PS. */
const breakPattern = /[\0-\x1f\x7f-\x9f\u2028\u2029]/;
const breaksPattern = /\r\n|[\0-\x1f\x7f-\x9f\u2028\u2029]/g;

/** Line ends and control characters become spaces. */
export function flattenText(text: string): string {
  return breakPattern.test(text) ? text.replace(breaksPattern, ' ') : text;
}

/** Printable words with single spaces between them: what survives folding and unfolding as it is. */
const plainTextPattern = /^[!-~]+(?: [!-~]+)*$/;

/** A field whose value is prose (RFC 5322 §3.6.5), in encoded words (RFC 2047) where ASCII does not do. */
export function writeTextField(name: string, text: string): string {
  const flat = flattenText(text);
  if (flat === '') return `${name}:\r\n`;
  return isPlainText(flat)
    ? writeField(name, flat.split(' '))
    : `${name}: ${encodeWords(flat, name.length + 2)}\r\n`;
}

function isPlainText(text: string): boolean {
  if (!plainTextPattern.test(text) || text.includes('=?')) return false;
  return text.length <= wordLengthMax || text.split(' ').every((word) => word.length <= wordLengthMax);
}

const fieldNamePattern = /^[!-9;-~]{1,76}$/;

/**
 * A field of ready-made ASCII words, folded between them (RFC 5322 §2.2.3). Throws where a field can't be written
 * at all: that is a mistake of the program, since what comes from outside is checked before.
 */
export function writeField(name: string, words: readonly string[]): string {
  if (!fieldNamePattern.test(name)) throw new Error('not the name of a header field');
  let field = `${name}:`;
  let column = field.length;
  for (const [index, word] of words.entries()) {
    if (word.length > lineLengthMax - name.length - 2 || !/^[ -~]*$/.test(word)) {
      throw new Error(`the value of ${name} can't be written as a header field`);
    }
    const fits = index === 0 || column + 1 + word.length <= lineLengthWanted;
    field += fits ? ` ${word}` : `\r\n ${word}`;
    column = fits ? column + 1 + word.length : 1 + word.length;
  }
  return `${field}\r\n`;
}

/** `address` or `name <address>` (RFC 5322 §3.4) as words to fold between; the address must be plain ASCII. */
export function writeMailbox(fieldName: string, address: string, name: string | null): string {
  const flat = flattenText(name ?? '').trim();
  if (flat === '') return writeField(fieldName, [address]);
  if (!isPhrase(flat) && !isQuotable(flat)) {
    return `${fieldName}: ${encodeWords(flat, fieldName.length + 2)}\r\n <${address}>\r\n`;
  }
  const written = isPhrase(flat) ? flat : `"${flat.replace(/["\\]/g, '\\$&')}"`;
  return writeField(fieldName, [written, `<${address}>`]);
}

function isPhrase(name: string): boolean {
  return name.length <= wordLengthMax && /^[\w!#$%&'*+\-/^`{|}~]+(?: [\w!#$%&'*+\-/^`{|}~]+)*$/.test(name);
}

function isQuotable(name: string): boolean {
  return (
    name.length <= wordLengthMax && /^[ -~]*$/.test(name) && !name.includes('=?') && !name.includes('  ')
  );
}

/** The text as encoded words, folded; none of them splits a character. `column` is where the first one begins. */
function encodeWords(text: string, column: number): string {
  const words: string[] = [];
  let wordBytesMax = countWordBytes(lineLengthWanted - column);
  let word = '';
  let wordBytes = 0;
  for (const character of text) {
    const bytes = Buffer.byteLength(character);
    if (wordBytes + bytes > wordBytesMax) {
      words.push(encodeWord(word));
      wordBytesMax = countWordBytes(encodedWordLengthMax);
      word = '';
      wordBytes = 0;
    }
    word += character;
    wordBytes += bytes;
  }
  words.push(encodeWord(word));
  return words.join('\r\n ');
}

function countWordBytes(length: number): number {
  const base64Length = Math.min(length, encodedWordLengthMax) - encodedWordFrameLength;
  // At least one character of four bytes goes into each word, or the loop above would make empty ones.
  return Math.max(6, Math.floor(base64Length / 4) * 3);
}

function encodeWord(text: string): string {
  return `=?utf-8?B?${Buffer.from(text).toString('base64')}?=`;
}

/** What needs neither quoting with backslashes, which clients mishandle, nor an encoding. */
const plainParameterPattern = /^[ !#-[\]-~]*$/;
const parameterLengthMax = 60;
/** With the longest name of a section before it and the semicolon after it, a line of 78. */
const sectionLengthMax = 54;

/**
 * `; name="value"`, folded before each parameter. Other values than short and plain ones are written in sections
 * and percent-encoded (RFC 2231 §3 and §4).
 */
export function writeParameter(name: string, value: string): string {
  const flat = flattenText(value);
  if (isPlainParameter(flat)) return `;\r\n ${name}="${flat}"`;
  const sections = listSections(flat);
  return sections
    .map((section, index) => {
      const number = sections.length === 1 ? '' : `*${index}`;
      return `;\r\n ${name}${number}*=${index === 0 ? "utf-8''" : ''}${section}`;
    })
    .join('');
}

/**
 * The same for clients that do not know RFC 2231: encoded words inside a quoted string. No standard allows it, and
 * next to every client reads it.
 */
export function writeFallbackParameter(name: string, value: string): string {
  const flat = flattenText(value);
  return isPlainParameter(flat)
    ? `;\r\n ${name}="${flat}"`
    : `;\r\n ${name}="${encodeWords(flat, name.length + 4)}"`;
}

function isPlainParameter(value: string): boolean {
  return value.length <= parameterLengthMax && plainParameterPattern.test(value) && !value.includes('=?');
}

function listSections(value: string): string[] {
  const sections: string[] = [];
  let section = '';
  for (const character of value) {
    const encoded = /^[A-Za-z0-9._-]$/.test(character) ? character : percentEncode(character);
    if (section.length + encoded.length > sectionLengthMax) {
      sections.push(section);
      section = '';
    }
    section += encoded;
  }
  sections.push(section);
  return sections;
}

function percentEncode(character: string): string {
  return Buffer.from(character).toString('hex').toUpperCase().replace(/../g, '%$&');
}

/** RFC 5322 §3.3, in UTC. */
export function writeDate(date: Date): string {
  return date.toUTCString().replace('GMT', '+0000');
}
