import { channels } from '../channels/channel.ts';
import { PublicError, validationError } from '../platform/http/errors.ts';
import { showKey } from '../platform/http/json-text.ts';
import type { PageRequest } from '../platform/http/route.ts';
import { isUnstorable } from '../platform/http/validation.ts';
import { isUuid } from '../platform/ids.ts';
import type { SandboxPage } from './store.ts';

/** Which messages are meant: those of a list, or those that are deleted. */
export type SandboxQuery = SandboxPage & { search: string | null };

const defaultLimit = '20';
const limitMax = 100;
/** No address is longer: 64 octets, an at sign, 255 octets (RFC 5321 §4.5.3.1), with room for a full push token. */
const recipientLengthMax = 4_096;
const searchLengthMax = 1_000;

/** `token` is no filter: it lets in. */
const filters = ['channel', 'to', 'search', 'token'];
const listFilters = [...filters, 'after', 'limit'];

/**
 * Throws a PublicError (422) that names everything wrong with the query. A filter that is unknown, or given twice, is
 * refused: left out, it would list messages that were not meant, or delete them.
 */
export function readListQuery(request: PageRequest): SandboxQuery {
  return readQuery(request, listFilters);
}

/**
 * The same for what is deleted, which has no pages. A filter that is given and empty is refused too: a variable of a
 * test that was never set would delete everything.
 */
export function readDeletionQuery(request: PageRequest): SandboxQuery {
  const empty = filters.filter((name) => name !== 'token' && request.query[name]?.trim() === '');
  const issues = empty.map((name) => `${name} must have a value, or be left out`);
  return readQuery(request, filters, issues);
}

function readQuery(
  { query, repeatedQuery }: PageRequest,
  known: readonly string[],
  furtherIssues: readonly string[] = [],
): SandboxQuery {
  const { channel = '', to = '', search = '', after = '', limit = defaultLimit } = query;
  const page = /^\d{1,3}$/.test(limit) ? Number(limit) : 0;
  const unknown = [...Object.keys(query), ...repeatedQuery].filter((name) => !known.includes(name));
  const allowed = known.filter((name) => name !== 'token').join(', ');
  const issues = [
    ...furtherIssues,
    ...unknown.map((name) => `${showKey(name)} is not a filter; the filters are ${allowed}`),
    ...repeatedQuery.filter((name) => known.includes(name)).map((name) => `${name} must be given once`),
    channel === '' || channels.some((name) => name === channel)
      ? null
      : `channel must be one of ${channels.join(', ')}`,
    isText(to, recipientLengthMax) ? null : 'to must be an address',
    isText(search, searchLengthMax) ? null : `search must be a text of at most ${searchLengthMax} characters`,
    after === '' || isUuid(after) ? null : 'after must be a UUID',
    page >= 1 && page <= limitMax ? null : `limit must be a number from 1 to ${limitMax}`,
  ].filter((issue) => issue !== null);
  if (issues.length > 0) throw new PublicError(validationError, issues.join(', '));
  return {
    channel: channel || null,
    recipient: to || null,
    search: search.trim() || null,
    after: after || null,
    limit: page,
  };
}

function isText(text: string, lengthMax: number): boolean {
  return text.length <= lengthMax && !isUnstorable(text);
}
