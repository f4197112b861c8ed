import { RECURSION_DESIRED, decode, encode } from 'dns-packet';
import type { Answer } from 'dns-packet';
import { canonicalName } from './names.ts';

/** DNS messages (RFC 1035 section 4) as octets and as values. Nothing that comes from a server is trusted. */

export type RecordType = 'A' | 'AAAA' | 'MX' | 'TXT' | 'CNAME' | 'PTR';

export type Query = {
  message: Buffer;
  /** The question section as it is sent; a reply must repeat it. The name is in lower case. */
  question: string;
};

export type ReplyRecord = { name: string; ttlSeconds: number; content: Answer };

/** A reply that says something definite: the code is NOERROR or NXDOMAIN. */
export type Reply = {
  isNameUnknown: boolean;
  records: ReplyRecord[];
  /** The SOA of an absence: what it speaks for, and how long it may be remembered (RFC 2308 section 5). */
  absence: { zone: string; ttlSeconds: number } | null;
  /** Nothing but "ask those servers there": it was not a recursive server that was asked (RFC 2308 section 2.2). */
  isReferral: boolean;
};

/** What fits into a packet of IPv6's least size, so that no datagram is fragmented (DNS Flag Day 2020). */
export const udpBytesMax = 1_232;

export const rcodes = { noError: 0, formatError: 1, serverFailure: 2, nameUnknown: 3, refused: 5 };

/** More aliases in a row than anyone needs; a circle ends here at the latest. */
export const aliasesMax = 8;
/** Records given to the caller. Fewer would cut off domains that collect TXT records of every service they use. */
export const recordsMax = 100;

const headerBytes = 12;
const responseFlag = 0x8000;
const authoritativeFlag = 0x0400;
const truncatedFlag = 0x0200;
const recursionAvailableFlag = 0x0080;
const opcodeMask = 0x7800;
const rcodeMask = 0x000f;

/**
 * Records that are decoded at all. A hostile message of 64 kB has room for 3,000 records, each with a name that takes
 * 8,000 compression pointers to read: 430 to 780 ms for all of them, 14 to 19 ms for this many.
 */
const answersMax = recordsMax + aliasesMax;
const authoritiesMax = 16;

export function encodeQuery(
  id: number,
  { name, type }: { name: string; type: RecordType },
  hasEdns: boolean,
): Query {
  const option: Answer = {
    type: 'OPT',
    name: '.',
    udpPayloadSize: udpBytesMax,
    extendedRcode: 0,
    ednsVersion: 0,
    flags: 0,
    flag_do: false,
    options: [],
  };
  const message = encode({
    type: 'query',
    id,
    flags: RECURSION_DESIRED,
    questions: [{ name, type, class: 'IN' }],
    additionals: hasEdns ? [option] : [],
  });
  return { message, question: questionOf(message, name.length + 6) };
}

/**
 * Whether the message answers this query: same id, same question. Names are compared without regard to case
 * (RFC 4343). A server that could not read the question repeats none, and can say nothing but that.
 */
export function isReplyTo({ message: query, question }: Query, message: Buffer): boolean {
  if (message.length < headerBytes || message.readUInt16BE(0) !== query.readUInt16BE(0)) return false;
  const flags = message.readUInt16BE(2);
  if ((flags & responseFlag) === 0 || (flags & opcodeMask) !== 0) return false;
  const questions = message.readUInt16BE(4);
  if (questions === 0) return ![rcodes.noError, rcodes.nameUnknown].includes(rcodeOf(message));
  return questions === 1 && questionOf(message, question.length) === question;
}

function questionOf(message: Buffer, bytes: number): string {
  return message.toString('latin1', headerBytes, headerBytes + bytes).toLowerCase();
}

export function rcodeOf(message: Buffer): number {
  return message.readUInt16BE(2) & rcodeMask;
}

export function isTruncated(message: Buffer): boolean {
  return (message.readUInt16BE(2) & truncatedFlag) !== 0;
}

/**
 * Reads a message that is a reply with one question, and overwrites the counts in its header. Null if it is no
 * proper DNS message.
 */
export function decodeReply(message: Buffer): Reply | null {
  const flags = message.readUInt16BE(2);
  const answers = Math.min(message.readUInt16BE(6), answersMax);
  const isCut = answers < message.readUInt16BE(6);
  message.writeUInt16BE(answers, 6);
  message.writeUInt16BE(isCut ? 0 : Math.min(message.readUInt16BE(8), authoritiesMax), 8);
  // The additional section was not asked for.
  message.writeUInt16BE(0, 10);
  try {
    const packet = decode(message);
    const records = (packet.answers ?? []).flatMap(readRecord);
    const authorities = (packet.authorities ?? []).flatMap(readRecord);
    const absence = authorities.flatMap(readAbsence)[0] ?? null;
    const isFromKnowledge = (flags & (authoritativeFlag | recursionAvailableFlag)) !== 0;
    const isReferral =
      !isFromKnowledge && absence === null && authorities.some(({ content }) => content.type === 'NS');
    return { isNameUnknown: rcodeOf(message) === rcodes.nameUnknown, records, absence, isReferral };
  } catch {
    return null;
  }
}

function readRecord(content: Answer): ReplyRecord[] {
  if (content.type === 'OPT' || content.class !== 'IN') return [];
  const name = content.name === '.' ? '' : canonicalName(content.name);
  if (name === null) return [];
  const ttl = content.ttl ?? 0;
  // RFC 2181 section 8: a time to live with its highest bit set is none.
  return [{ name, ttlSeconds: ttl > 0x7fffffff ? 0 : ttl, content }];
}

function readAbsence({ name, ttlSeconds, content }: ReplyRecord): { zone: string; ttlSeconds: number }[] {
  if (content.type !== 'SOA') return [];
  return [{ zone: name, ttlSeconds: Math.min(ttlSeconds, content.data.minimum ?? 0) }];
}
