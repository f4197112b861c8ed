import { type Bound, type Connection, statement, unpreparedStatement } from '../postgres/database.ts';
import { stopUnless, isNotStopped } from '../postgres/stop.ts';
import { hasKeyOf } from '../postgres/lookup.ts';
import { toPredicate } from '../postgres/predicate.ts';
import { deleteOldRows } from '../postgres/old-rows.ts';
import { isEqualDigest, type Secrets, sha256 } from '../secrets.ts';
import { defineError, PublicError } from './errors.ts';
import { canonicalJson } from './json-text.ts';

/**
 * A key makes a request safe to repeat: its response is committed in the same transaction as what it did, and
 * sent again when the request is repeated within 24 hours. While a first request is under way, on any node, an advisory
 * lock of its transaction is held on the key; it is gone with the process, so that a crash leaves the key free.
 * Only what was carried out is kept: a refused request leaves the key free as well.
 *
 * What a request was is kept as a keyed hash. A body may hold a one-time code: by a plain one, whoever reads the database
 * could try a million codes and find it.
 */

export const invalidIdempotencyKey = defineError(
  400,
  'invalid_idempotency_key',
  'The Idempotency-Key is empty or longer than 256 characters.',
);
export const invalidIdempotentRequest = defineError(
  409,
  'invalid_idempotent_request',
  'The Idempotency-Key was used with a different request.',
);
export const concurrentIdempotentRequests = defineError(
  503,
  'concurrent_idempotent_requests',
  'An earlier request with the same Idempotency-Key is still being processed.',
);

export const idempotencyErrors = [
  invalidIdempotencyKey,
  invalidIdempotentRequest,
  concurrentIdempotentRequests,
];

const keyLengthMax = 256;
export const retentionMs = 24 * 60 * 60 * 1_000;

/** The header's value as a key, or null without the header. Throws a PublicError (400). */
export function readIdempotencyKey(header: string | string[] | undefined): string | null {
  if (header === undefined) return null;
  const key = Array.isArray(header) ? header.join(', ') : header;
  if (key.trim() === '' || key.length > keyLengthMax) {
    throw new PublicError(
      invalidIdempotencyKey,
      `The Idempotency-Key must have 1 to ${keyLengthMax} characters.`,
    );
  }
  return key;
}

/** A key in its scope: one organization, one endpoint (method and route pattern). */
export type ScopedKey = {
  organizationId: string;
  endpoint: string;
  key: string;
  fingerprint: Buffer;
};

/** Of a request's digest. All processes of an installation make the same one of it, and nobody without its first key. */
export function fingerprintOf({ keyedHash }: Pick<Secrets, 'keyedHash'>, digest: Buffer): Buffer {
  return keyedHash(digest.toString('hex'), 'idempotent request');
}

/** The key of a request with these parameters and this body, of which the digest is that of its canonical JSON. */
export function toScopedKey(
  secrets: Pick<Secrets, 'keyedHash'>,
  {
    organizationId,
    endpoint,
    key,
    params,
    bodyDigest,
  }: {
    organizationId: string;
    endpoint: string;
    key: string;
    params: unknown;
    bodyDigest: Uint8Array | null;
  },
): ScopedKey {
  const parts = [Buffer.from(canonicalJson(params)), Buffer.from('\n'), bodyDigest ?? Buffer.of()];
  return { organizationId, endpoint, key, fingerprint: fingerprintOf(secrets, sha256(Buffer.concat(parts))) };
}

/** `headers` are those that the answer has besides what every answer has; names in lower case. */
export type StoredResponse = { statusCode: number; text: string; headers: Readonly<Record<string, string>> };

export type KeyState =
  | { kind: 'free' }
  | { kind: 'concurrent' }
  | { kind: 'different_request' }
  | { kind: 'replay'; response: StoredResponse };

const lockKeys = statement<{ is_locked: boolean }>(
  'idempotency_lock_keys',
  `select pg_try_advisory_xact_lock(hashtextextended(concat_ws(' ', organization_id, endpoint, key), 0)) as is_locked
   from unnest($1::uuid[], $2::text[], $3::text[]) with ordinality as wanted (organization_id, endpoint, key, position)
   order by position`,
);

const selectKeys = statement<{
  position: number;
  fingerprint: Buffer;
  status_code: number;
  response: string;
  headers: Record<string, string> | null;
}>(
  'idempotency_select_keys',
  `select wanted.position, kept.fingerprint, kept.status_code, kept.response, kept.headers
   from unnest($1::uuid[], $2::text[], $3::text[]) with ordinality as wanted (organization_id, endpoint, key, position)
   join idempotency_keys kept using (organization_id, endpoint, key)
   where kept.created_at > $4`,
);

/**
 * Claims each key until the transaction ends, or says what stands in the way. The look-up is a statement of its
 * own after the lock: one snapshot for both could miss a response that was committed in between.
 * Within one process the caller must keep two requests with one key apart, since its lock would let both in.
 */
export async function claimKeys(
  transaction: Connection,
  keys: readonly ScopedKey[],
  time: { expiredBefore: Date },
): Promise<KeyState[]> {
  if (keys.length === 0) return [];
  const values = [
    keys.map(({ organizationId }) => organizationId),
    keys.map(({ endpoint }) => endpoint),
    keys.map(({ key }) => key),
  ];
  const [locks, kept] = await Promise.all([
    transaction.rows(lockKeys, values),
    transaction.rows(selectKeys, [...values, time.expiredBefore]),
  ]);
  const keptByPosition = new Map(kept.map((row) => [row.position, row]));
  return keys.map((key, index) => {
    const row = keptByPosition.get(index + 1);
    if (row !== undefined) {
      return isEqualDigest(row.fingerprint, key.fingerprint)
        ? {
            kind: 'replay',
            response: { statusCode: row.status_code, text: row.response, headers: row.headers ?? {} },
          }
        : { kind: 'different_request' };
    }
    return locks[index]?.is_locked === true ? { kind: 'free' } : { kind: 'concurrent' };
  });
}

const selectKey = statement(
  'idempotency_select_key',
  `select from idempotency_keys
   where organization_id = $1 and endpoint = $2 and key = $3 and created_at > $4`,
);

/**
 * Whether an answer is kept under a key: for requests that are refused before they could claim it, and that cannot be
 * those which were answered.
 */
export async function isKeyUsed(
  transaction: Connection,
  { organizationId, endpoint, key }: Omit<ScopedKey, 'fingerprint'>,
  time: { expiredBefore: Date },
): Promise<boolean> {
  const rows = await transaction.rows(selectKey, [organizationId, endpoint, key, time.expiredBefore]);
  return rows.length > 0;
}

/** The error for a key that stands in the way. */
export function keyConflict(kind: 'concurrent' | 'different_request'): PublicError {
  return kind === 'concurrent'
    ? new PublicError(
        concurrentIdempotentRequests,
        `${concurrentIdempotentRequests.when} Try again in a moment.`,
        {
          'retry-after': '1',
        },
      )
    : new PublicError(
        invalidIdempotentRequest,
        `${invalidIdempotentRequest.when} Use a new key for a new request.`,
      );
}

const insertKeys = statement(
  'idempotency_insert_keys',
  `insert into idempotency_keys as kept
     (organization_id, endpoint, key, fingerprint, status_code, response, headers, created_at)
   select organization_id, endpoint, key, decode(fingerprint, 'hex'), status_code, response, headers::jsonb, $8
   from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], $7::text[])
     as response (organization_id, endpoint, key, fingerprint, status_code, response, headers)
   where ${isNotStopped}
   on conflict (organization_id, endpoint, key) do update
   set fingerprint = excluded.fingerprint,
     status_code = excluded.status_code,
     response = excluded.response,
     headers = excluded.headers,
     created_at = excluded.created_at
   where kept.created_at <= $9`,
);

/** Keeps responses under keys that `claimKeys` found free in the same transaction. */
export async function keepResponses(
  transaction: Connection,
  responses: readonly { key: ScopedKey; response: StoredResponse }[],
  time: { at: Date; expiredBefore: Date },
): Promise<void> {
  if (responses.length === 0) return;
  await transaction.rows(insertKeys, insertionParameters(responses, time));
}

function insertionParameters(
  responses: readonly { key: ScopedKey; response: StoredResponse }[],
  time: { at: Date; expiredBefore: Date },
): unknown[] {
  return [
    responses.map(({ key }) => key.organizationId),
    responses.map(({ key }) => key.endpoint),
    responses.map(({ key }) => key.key),
    responses.map(({ key }) => key.fingerprint.toString('hex')),
    responses.map(({ response }) => response.statusCode),
    responses.map(({ response }) => response.text),
    responses.map(({ response: { headers } }) =>
      Object.keys(headers).length === 0 ? null : JSON.stringify(headers),
    ),
    time.at,
    time.expiredBefore,
  ];
}

/**
 * The same as `claimKeys` for statements that are sent at once (`together`): unless all keys are free, they stop those
 * after them. The look-up is a statement of its own here as well, and for the same reason.
 */
export function claimKeysAtOnce(keys: readonly ScopedKey[], time: { expiredBefore: Date }): Bound<unknown>[] {
  if (keys.length === 0) return [];
  const values = [
    keys.map(({ organizationId }) => organizationId),
    keys.map(({ endpoint }) => endpoint),
    keys.map(({ key }) => key),
  ];
  return [
    { statement: tryLocks, values },
    { statement: findKept, values: [...values, time.expiredBefore] },
  ];
}

const areAllLocked = toPredicate(
  "bool_and(pg_try_advisory_xact_lock(hashtextextended(concat_ws(' ', organization_id, endpoint, key), 0)))",
);

const tryLocks = statement(
  'idempotency_try_locks',
  `select ${stopUnless(areAllLocked)}
   from unnest($1::uuid[], $2::text[], $3::text[]) as wanted (organization_id, endpoint, key)`,
);

const findKept = statement(
  'idempotency_find_kept',
  `select ${stopUnless(toPredicate('false'))}
   from unnest($1::uuid[], $2::text[], $3::text[]) as wanted (organization_id, endpoint, key)
   where (
     select true
     from idempotency_keys kept
     where ${hasKeyOf('kept', 'wanted', ['endpoint', 'key'])} and kept.created_at > $4
     limit 1
   )`,
);

/** `keepResponses` for statements that are sent at once, unless they are stopped. */
export function keepResponsesAtOnce(
  responses: readonly { key: ScopedKey; response: StoredResponse }[],
  time: { at: Date; expiredBefore: Date },
): Bound<unknown>[] {
  if (responses.length === 0) return [];
  return [{ statement: insertKeys, values: insertionParameters(responses, time) }];
}

/** Competes with requests that renew an expired key, and skips those. By idempotency_keys_created_at. */
const deleteExpired = unpreparedStatement(
  `with expired as (
     select organization_id, endpoint, key
     from idempotency_keys
     where created_at <= $1
     limit $2
     for update skip locked
   )
   delete from idempotency_keys k
   using expired
   where k.organization_id = expired.organization_id and k.endpoint = expired.endpoint and k.key = expired.key
   returning true as is_deleted`,
);

/** Keys that may be used again. */
export async function deleteExpiredKeys(
  connection: Connection,
  expiredBefore: Date,
  rowsMax?: number,
): Promise<void> {
  await deleteOldRows(connection, deleteExpired, expiredBefore, rowsMax);
}
