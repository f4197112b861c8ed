import { randomBytes } from 'node:crypto';
import { dateOf } from './clock.ts';
import { type Connection, type Transaction, unpreparedStatement } from './postgres/database.ts';
import { createSecretSeal, type DataKey, dataKeyBytes, dataKeyIdMax, type SecretSeal } from './secrets.ts';
import { wakeOnce } from './queue/wake.ts';

/**
 * The data keys of an installation, sealed in its database (envelope encryption).
 *
 * What is stored and sent is sealed, signed and hashed under data keys, which are random and numbered. The database
 * holds each of them sealed under `POSTILLION_SECRET`. A wrong secret is recognised because it cannot open the seal.
 * A secret has an id, too: the same keys may be sealed under two secrets for a while.
 *
 * - **Taking up**: the first process on a database seals key 1 under its secret. Of two with different secrets one
 *   does; the other finds rows that its secret does not open.
 * - **Rotating** seals all keys under a new secret as well, and adds a key, under both. Nodes that have the old secret
 *   and nodes that have the new one find the same keys. The new key is used for nothing new for `keyRestMs`; until
 *   then every node has learned to read it.
 * - **Retiring** deletes what is sealed under one of two secrets: the old one once every node has the new one, or the
 *   new one to take it all back. The keys stay.
 *
 * Each of the three is one transaction under one lock, so that a process that dies in the middle leaves the state
 * before or the state after. Rotating does not protect what was read before: the old secret and a copy of the
 * database are enough to get the keys. And the first key is never replaced for what is found by its hash
 * (`Secrets.keyedHash`).
 */

/**
 * Between the making of a key and its first use. Every node looks at a notification, and once a minute without one; a
 * node that has not heard of a key for longer than this would find things that it cannot read. Longer keeps a key in
 * use that is being replaced for a reason.
 */
export const keyRestMs = 120_000;

/** A database with the keys sealed under one secret. */
export type SealedKeys = {
  secretId: number;
  createdAt: Date;
  keys: { id: number; sealed: Buffer; usableFrom: Date }[];
};

export type OpenedKeys = { secretId: number; secret: string; keys: DataKey[] };

/** By secret, the oldest first; empty if the database has none, or no table for them yet. */
export async function readSealedKeys(connection: Connection): Promise<SealedKeys[]> {
  const [table] = await connection.rows(
    unpreparedStatement<{ exists: boolean }>("select to_regclass('secret_keys') is not null as exists"),
  );
  if (table?.exists !== true) return [];
  const rows = await connection.rows(
    unpreparedStatement<{
      secret_id: number;
      key_id: number;
      sealed: Buffer;
      usable_from: Date;
      created_at: Date;
    }>(
      `select secret_id, key_id, sealed, usable_from, created_at
       from secret_keys
       order by secret_id, key_id`,
    ),
  );
  const bySecret = new Map<number, SealedKeys>();
  for (const row of rows) {
    const known = bySecret.get(row.secret_id);
    const secret = known ?? { secretId: row.secret_id, createdAt: row.created_at, keys: [] };
    secret.keys.push({ id: row.key_id, sealed: row.sealed, usableFrom: row.usable_from });
    if (known === undefined) bySecret.set(row.secret_id, secret);
  }
  return [...bySecret.values()];
}

/** The keys that one of these secrets opens, the first of them that does; null if none is of this database. */
export function openSealedKeys(sealed: readonly SealedKeys[], secrets: readonly string[]): OpenedKeys | null {
  for (const secret of secrets) {
    const seal = createSecretSeal(secret);
    for (const each of sealed) {
      const keys = openAll(seal, each);
      if (keys !== null) return { secretId: each.secretId, secret, keys };
    }
  }
  return null;
}

/** Null unless every one of them opens. */
function openAll(seal: SecretSeal, { keys }: SealedKeys): DataKey[] | null {
  try {
    return keys.map(({ id, sealed, usableFrom }) => ({
      id,
      bytes: seal.open(id, sealed),
      usableFromMs: usableFrom.getTime(),
    }));
  } catch {
    return null;
  }
}

/**
 * Makes `bytes` the first key, sealed under the secret, unless the database has keys already, and returns what it has
 * afterwards. The caller's transaction has nothing before it.
 */
export async function takeUpSecret(
  transaction: Transaction,
  taking: { secret: string; bytes: Buffer; at: Date },
): Promise<SealedKeys[]> {
  await lock(transaction);
  const present = await readSealedKeys(transaction);
  if (present.length > 0) return present;
  const key = { id: 1, bytes: taking.bytes, usableFromMs: taking.at.getTime() };
  await insertKeys(transaction, { secretId: 1, secret: taking.secret, keys: [key] }, taking.at);
  return readSealedKeys(transaction);
}

export type RotationOutcome =
  | { kind: 'rotated'; secretId: number; retiringId: number; keyId: number; usableFrom: Date }
  /** The database has two secrets already: one of them has to be retired first. */
  | { kind: 'under_way'; secretIds: number[] }
  | { kind: 'wrong_secret' }
  | { kind: 'same_secret' }
  | { kind: 'no_more_keys' };

/** Seals all keys under `next` as well, and adds a key under both. */
export async function rotateSecret(
  transaction: Transaction,
  rotation: { secrets: readonly string[]; next: string; at: Date },
): Promise<RotationOutcome> {
  await lock(transaction);
  const sealed = await readSealedKeys(transaction);
  if (sealed.length > 1) return { kind: 'under_way', secretIds: sealed.map(({ secretId }) => secretId) };
  const opened = openSealedKeys(sealed, rotation.secrets);
  if (opened === null) return { kind: 'wrong_secret' };
  if (rotation.next === opened.secret) return { kind: 'same_secret' };
  const keyId = Math.max(...opened.keys.map(({ id }) => id)) + 1;
  if (keyId > dataKeyIdMax) return { kind: 'no_more_keys' };

  const secretId = opened.secretId + 1;
  const usableFrom = dateOf(rotation.at.getTime() + keyRestMs);
  const fresh = { id: keyId, bytes: newDataKeyBytes(), usableFromMs: usableFrom.getTime() };
  const { secret: old, secretId: retiringId } = opened;
  await insertKeys(transaction, { secretId: retiringId, secret: old, keys: [fresh] }, rotation.at);
  const all = { secretId, secret: rotation.next, keys: [...opened.keys, fresh] };
  await insertKeys(transaction, all, rotation.at);
  await notifyNodes(transaction);
  return { kind: 'rotated', secretId, retiringId, keyId, usableFrom };
}

export type RetirementOutcome =
  | { kind: 'retired' }
  | { kind: 'not_found'; secretIds: number[] }
  /** None of the secrets at hand opens what would be left. */
  | { kind: 'last' };

/** Deletes what is sealed under a secret, if one of `secrets` opens what is left. */
export async function retireSecret(
  transaction: Transaction,
  retirement: { secretId: number; secrets: readonly string[] },
): Promise<RetirementOutcome> {
  await lock(transaction);
  const sealed = await readSealedKeys(transaction);
  const { secretId } = retirement;
  const secretIds = sealed.map((each) => each.secretId);
  if (!secretIds.includes(secretId)) return { kind: 'not_found', secretIds };
  const left = sealed.filter((each) => each.secretId !== secretId);
  if (openSealedKeys(left, retirement.secrets) === null) return { kind: 'last' };
  await transaction.rows(unpreparedStatement('delete from secret_keys where secret_id = $1'), [secretId]);
  await notifyNodes(transaction);
  return { kind: 'retired' };
}

export function newDataKeyBytes(): Buffer {
  return randomBytes(dataKeyBytes);
}

/** Until the transaction ends no other process takes up, rotates or retires. */
async function lock(transaction: Transaction): Promise<void> {
  await transaction.rows(
    unpreparedStatement("select pg_advisory_xact_lock(hashtextextended('postillion secret keys', 0))"),
  );
}

async function notifyNodes(transaction: Transaction): Promise<void> {
  await wakeOnce(transaction, 'secret_keys');
}

async function insertKeys(
  transaction: Transaction,
  { secretId, secret, keys }: OpenedKeys,
  createdAt: Date,
): Promise<void> {
  const seal = createSecretSeal(secret);
  await transaction.rows(
    unpreparedStatement(
      `insert into secret_keys (secret_id, key_id, sealed, usable_from, created_at)
       select $1, key_id, decode(sealed, 'hex'), usable_from, $5
       from unnest($2::integer[], $3::text[], $4::timestamptz[]) as key (key_id, sealed, usable_from)`,
    ),
    [
      secretId,
      keys.map(({ id }) => id),
      keys.map((key) => seal.seal(key).toString('hex')),
      keys.map(({ usableFromMs }) => dateOf(usableFromMs)),
      createdAt,
    ],
  );
}
