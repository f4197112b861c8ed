import { isIPv4, isIPv6 } from 'node:net';
import type { Answer } from 'dns-packet';
import type { MxRecord } from './answer.ts';
import { canonicalName } from './names.ts';
import type { RecordType } from './wire.ts';

/** What can be asked, and how its records are read. Null means that a record is malformed. */
export type Question<T> = { type: RecordType; read: (content: Answer) => T | null };

export const questions = {
  a: {
    type: 'A',
    read: (content) => (content.type === 'A' && isIPv4(content.data) ? content.data : null),
  } satisfies Question<string>,
  aaaa: {
    type: 'AAAA',
    read: (content) => (content.type === 'AAAA' && isIPv6(content.data) ? content.data : null),
  } satisfies Question<string>,
  mx: { type: 'MX', read: readMx } satisfies Question<MxRecord>,
  txt: { type: 'TXT', read: readText } satisfies Question<string>,
  cname: { type: 'CNAME', read: readAlias } satisfies Question<string>,
  ptr: {
    type: 'PTR',
    read: (content) => (content.type === 'PTR' ? canonicalName(content.data) : null),
  } satisfies Question<string>,
};

/** The name that an alias stands for. */
export function readAlias(content: Answer): string | null {
  return content.type === 'CNAME' ? canonicalName(content.data) : null;
}

function readMx(content: Answer): MxRecord | null {
  if (content.type !== 'MX') return null;
  // The root as exchange is the null MX: the domain takes no mail (RFC 7505).
  const exchange = content.data.exchange === '.' ? '' : canonicalName(content.data.exchange);
  return exchange === null ? null : { exchange, preference: content.data.preference ?? 0 };
}

/**
 * The strings of one record joined (RFC 7208 section 3.3), as UTF-8 (RFC 8616); octets that are none become U+FFFD.
 * So does NUL, which no record that we look for has, and which PostgreSQL refuses in a text.
 */
function readText(content: Answer): string | null {
  if (content.type !== 'TXT') return null;
  const parts = Array.isArray(content.data) ? content.data : [content.data];
  const bytes = Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)));
  return bytes.toString('utf8').replaceAll('\0', '\ufffd');
}
