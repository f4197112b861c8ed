/**
 * W3C Trace Context: whoever calls the API may say in `traceparent` which trace a request is part of. What is kept of it
 * is the id of the trace, which joins the lines of our log with theirs. A header that breaks the rules is ignored, and
 * `tracestate`, which is for other vendors, is not read.
 */
const traceParent = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$/;

const unknownVersion = 'ff';
const knownVersion = '00';

/**
 * The id of the trace, 32 hexadecimal digits in lower case; null if there is none. Of later versions the part that is
 * known is read, as the recommendation says; of this one there may be no more than that. Two headers arrive as one text
 * with a comma, which is neither.
 */
export function readTraceId(header: string | string[] | undefined): string | null {
  if (typeof header !== 'string') return null;
  const [, version, traceId, parentId, rest] = traceParent.exec(header) ?? [];
  if (version === undefined || traceId === undefined || parentId === undefined) return null;
  if (version === unknownVersion || (version === knownVersion && rest !== undefined)) return null;
  return isAllZero(traceId) || isAllZero(parentId) ? null : traceId;
}

function isAllZero(id: string): boolean {
  return /^0+$/.test(id);
}
