/**
 * Header fields as they go on the wire: ASCII, folded, one CRLF at the end of each. Nothing that a caller hands in
 * can begin a field of its own, since every line end and control character becomes a space first. Only addresses beyond
 * ASCII may leave in UTF-8 (RFC 6532), in copies for those who have such an address: a character an octet.
 */
import { toOctetText } from './pieces.ts';

/** RFC 5322 §2.1.1, without the CRLF. */
const lineLengthMax = 998;
/** RFC 5322 §2.1.1 again: what a line should not pass. */
const lineLengthWanted = 78;

/** RFC 2047 §2: an encoded word has at most 75 characters, 12 of them for `=?utf-8?B?` and `?=`. */
const encodedWordLengthMax = 75;
const encodedWordFrameLength = 12;

/** Longer words are sent as encoded words, which can be folded. */
const wordLengthMax = 66;

/** Also what some readers of mail take for a line end, although SMTP does not: NEL, LS and PS. */
export const breakPattern = /[\0-\x1f\x7f-\x9f\u2028\u2029]/;
const breaksPattern = /\r\n|[\0-\x1f\x7f-\x9f\u2028\u2029]/g;

/** Line ends and control characters become spaces. */
export function flattenText(text: string): string {
  return breakPattern.test(text) ? text.replace(breaksPattern, ' ') : text;
}

/** The words of a text: blanks at its ends and runs of them, which folding does not keep, are no part of what it says. */
function listWords(text: string): string[] {
  return flattenText(text)
    .trim()
    .split(' ')
    .filter((word) => word !== '');
}

/** A field whose value is prose (RFC 5322 §3.6.5), in encoded words (RFC 2047) where ASCII does not do. */
export function writeTextField(name: string, text: string): string {
  const words = listWords(text);
  if (words.length === 0) return `${name}:\r\n`;
  return isPlainText(words)
    ? writeField(name, words)
    : `${name}: ${encodeWords(words.join(' '), name.length + 2)}\r\n`;
}

/** What no reader takes for an encoded word, and a line can hold. */
function isPlainText(words: readonly string[]): boolean {
  return words.every((word) => word.length <= wordLengthMax && /^[!-~]+$/.test(word) && !word.includes('=?'));
}

const asciiPattern = /^[ -~]*$/;
const octetsPattern = /^[ -~\x80-\xff]*$/;
const fieldNamePattern = /^[!-9;-~]{1,76}$/;

/**
 * A field of ready-made ASCII words, folded between them (RFC 5322 §2.2.3). Throws where a field can't be written
 * at all: that is a mistake of the program, since what comes from outside is checked before.
 */
export function writeField(name: string, words: readonly string[]): string {
  return foldField(name, words, asciiPattern);
}

/** The same of words that may be UTF-8, folded by octets. */
export function writeUtf8Field(name: string, words: readonly string[]): string {
  return foldField(name, words.map(toOctetText), octetsPattern);
}

function foldField(name: string, words: readonly string[], allowed: RegExp): string {
  if (!fieldNamePattern.test(name)) throw new Error('not the name of a header field');
  let field = `${name}:`;
  let column = field.length;
  for (const [index, word] of words.entries()) {
    if (word.length > lineLengthMax - name.length - 2 || !allowed.test(word)) {
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
  const words = listWords(name ?? '');
  if (words.length === 0) return writeField(fieldName, [address]);
  const written = writePhrase(words);
  return isPlainText(written)
    ? writeField(fieldName, [...written, `<${address}>`])
    : `${fieldName}: ${encodeWords(words.join(' '), fieldName.length + 2)}\r\n <${address}>\r\n`;
}

/** The name of whoever has an address of a list, as words to fold between; none where it says nothing. */
export function writeName(name: string, fieldName: string): readonly string[] {
  const words = listWords(name);
  if (words.length === 0) return [];
  const written = writePhrase(words);
  return isPlainText(written) ? written : encodeWords(words.join(' '), fieldName.length + 2).split('\r\n ');
}

/**
 * Who has an address that ASCII cannot write, for readers who are reached in ASCII alone: a group with the address as its
 * name and without members (RFC 6857 §3.1.8), as words to fold between, the last one with the separator after it.
 */
export function writeUnreachable(address: string, separator: string): string[] {
  return `${encodeWords(address, ' :;,'.length)}:;${separator}`.split('\r\n ');
}

/** A name as atoms, or else as a quoted string, which may be folded at its blanks as well (RFC 5322 §3.2.4). */
function writePhrase(words: readonly string[]): readonly string[] {
  const isPhrase = words.every((word) => /^[\w!#$%&'*+\-/^`{|}~]+$/.test(word));
  return isPhrase ? words : `"${words.join(' ').replace(/["\\]/g, '\\$&')}"`.split(' ');
}

/**
 * The text as encoded words, folded; none of them splits a character. In the encoding that is shorter, which for mostly
 * ASCII is the one that people can read (RFC 2047 §4). `column` is where the first one begins.
 */
function encodeWords(text: string, column: number): string {
  const encoding = chooseEncoding(text);
  const words: string[] = [];
  let lengthMax = wordRoom(lineLengthWanted - column);
  let word = '';
  let length = 0;
  for (const character of text) {
    const added = encoding.measure(character);
    if (encoding.lengthOf(length + added) > lengthMax && word !== '') {
      words.push(encoding.write(word));
      lengthMax = wordRoom(encodedWordLengthMax);
      word = '';
      length = 0;
    }
    word += character;
    length += added;
  }
  words.push(encoding.write(word));
  return words.join('\r\n ');
}

/** The characters of an encoded word between its frame; the longest character takes twelve. */
function wordRoom(length: number): number {
  return Math.max(12, Math.min(length, encodedWordLengthMax) - encodedWordFrameLength);
}

type WordEncoding = {
  /** What a character adds to a word, and how long a word becomes by the sum of it. */
  measure: (character: string) => number;
  lengthOf: (measured: number) => number;
  write: (text: string) => string;
};

function chooseEncoding(text: string): WordEncoding {
  let quotedLength = 0;
  for (const character of text) quotedLength += measureQuoted(character);
  return quotedLength <= measureBase64(Buffer.byteLength(text)) ? quotedEncoding : base64Encoding;
}

const base64Encoding: WordEncoding = {
  measure: (character) => Buffer.byteLength(character),
  lengthOf: measureBase64,
  write: (text) => `=?utf-8?B?${Buffer.from(text).toString('base64')}?=`,
};

function measureBase64(bytes: number): number {
  return Math.ceil(bytes / 3) * 4;
}

const quotedEncoding: WordEncoding = {
  measure: measureQuoted,
  lengthOf: (measured) => measured,
  write: (text) => `=?utf-8?Q?${[...text].map(quoteCharacter).join('')}?=`,
};

/** What may stand for itself also in a name (RFC 2047 §5, rule 3). */
const unquotedPattern = /^[A-Za-z0-9!*+\-/]$/;

function measureQuoted(character: string): number {
  return character === ' ' || unquotedPattern.test(character) ? 1 : 3 * Buffer.byteLength(character);
}

function quoteCharacter(character: string): string {
  if (character === ' ') return '_';
  return unquotedPattern.test(character) ? character : escapeOctets(character, '=');
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
    const encoded = /^[A-Za-z0-9._-]$/.test(character) ? character : escapeOctets(character, '%');
    if (section.length + encoded.length > sectionLengthMax) {
      sections.push(section);
      section = '';
    }
    section += encoded;
  }
  sections.push(section);
  return sections;
}

function escapeOctets(character: string, sign: '%' | '='): string {
  return Buffer.from(character).toString('hex').toUpperCase().replace(/../g, `${sign}$&`);
}

let lastDate = { second: NaN, field: '' };

/** RFC 5322 §3.3, in UTC. Of thousands of copies a second all have the same. */
export function writeDateField(date: Date): string {
  const second = Math.floor(date.getTime() / 1_000);
  if (second !== lastDate.second) {
    lastDate = { second, field: writeField('Date', [date.toUTCString().replace('GMT', '+0000')]) };
  }
  return lastDate.field;
}
