import { parseAddress } from './address.ts';
import { parseContentType } from './content-type.ts';

/** What decides whether a calendar file is an invitation, and who is invited. */
export type Calendar = {
  /** The METHOD of the calendar (RFC 5545 §3.7.2) in upper case, or null where it has none. */
  method: string | null;
  /** The normalised addresses of all attendees, each once. */
  attendees: string[];
};

/** A larger file is read up to here. Less would miss attendees after long descriptions, more only takes time. */
const calendarBytesMax = 4 * 1024 * 1024;

/** An email has 50 recipients; this many can be asked for by way of lists of rooms and guests. */
const attendeesMax = 10_000;

/** RFC 5545 sets none. What comes after it is dropped: attachments within a calendar are on lines like that. */
const lineLengthMax = 16_384;

/**
 * Reads the METHOD and the attendees of an iCalendar file (RFC 5545), in one pass. It checks nothing else: a broken
 * calendar has no method or no attendees.
 */
export function readCalendar(bytes: Uint8Array): Calendar {
  const attendees = new Set<string>();
  let method: string | null = null;
  let depth = 0;
  for (const line of unfoldLines(bytes)) {
    const property = splitProperty(line);
    if (property === null) continue;
    if (property.name === 'BEGIN') depth += 1;
    if (property.name === 'END') depth -= 1;
    // A METHOD further in belongs to no calendar, and the attendees of an alarm are those that it notifies.
    if (depth === 1 && property.name === 'METHOD') method ??= property.value.trim().toUpperCase();
    if (depth === 2 && property.name === 'ATTENDEE' && attendees.size < attendeesMax) {
      const address = readAttendee(property);
      if (address !== null) attendees.add(address);
    }
  }
  return { method: method === '' ? null : method, attendees: [...attendees] };
}

/** The method that a content type names, if it makes a calendar file an invitation or takes one back. */
export function readInvitationMethod(contentType: string): 'REQUEST' | 'CANCEL' | null {
  const parsed = parseContentType(contentType);
  if (parsed?.mediaType !== 'text/calendar') return null;
  const method = parsed.parameters.find((parameter) => parameter.name === 'method')?.value.toUpperCase();
  return method === 'REQUEST' || method === 'CANCEL' ? method : null;
}

/** Content lines (RFC 5545 §3.1). A fold may stand within a character, so bytes are joined before they are decoded. */
function* unfoldLines(bytes: Uint8Array): Generator<string> {
  const end = Math.min(bytes.length, calendarBytesMax);
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, end).toString('latin1');
  let parts: string[] = [];
  let length = 0;
  let position = 0;
  while (position < text.length) {
    const lineFeed = text.indexOf('\n', position);
    const lineEnd = lineFeed === -1 ? text.length : lineFeed;
    const isFolded = text[position] === ' ' || text[position] === '\t';
    if (!isFolded && parts.length > 0) {
      yield decodeLine(parts);
      parts = [];
      length = 0;
    }
    const partEnd = text[lineEnd - 1] === '\r' ? lineEnd - 1 : lineEnd;
    const part = text.slice(isFolded ? position + 1 : position, Math.max(partEnd, position));
    if (length < lineLengthMax) parts.push(part.slice(0, lineLengthMax - length));
    length += part.length;
    position = lineEnd + 1;
  }
  if (parts.length > 0) yield decodeLine(parts);
}

function decodeLine(parts: readonly string[]): string {
  return Buffer.from(parts.join(''), 'latin1')
    .toString('utf8')
    .replace(/^\ufeff/, '');
}

type Property = { name: string; parameters: string; value: string };

/** `NAME;PARAMETER="a:b":value`: the value begins after the first colon outside of quotes. */
function splitProperty(line: string): Property | null {
  const nameEnd = line.search(/[;:]/);
  if (nameEnd === -1) return null;
  let isQuoted = false;
  for (let index = nameEnd; index < line.length; index += 1) {
    if (line[index] === '"') isQuoted = !isQuoted;
    if (line[index] !== ':' || isQuoted) continue;
    return {
      name: line.slice(0, nameEnd).toUpperCase(),
      parameters: line.slice(nameEnd, index),
      value: line.slice(index + 1),
    };
  }
  return null;
}

/** `mailto:` with the address (RFC 6068), or the EMAIL parameter (RFC 7986 §6.2) beside another kind of link. */
function readAttendee(property: Property): string | null {
  const link = /^mailto:([^?]*)/i.exec(property.value.trim())?.[1];
  const address = link ?? /;EMAIL="?([^";:]*)/i.exec(property.parameters)?.[1];
  return address === undefined ? null : (parseAddress(decodePercent(address))?.normalised ?? null);
}

function decodePercent(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    // Not percent-encoded at all: a local part may have a percent sign of its own.
    return text;
  }
}
