import { createReadStream } from 'node:fs';
import type { Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { requireInner } from '../platform/postgres/embedded-restore.ts';
import { readTar, type TarEntry, tarFile } from '../platform/tar.ts';
import { isEncrypted, openEncrypted } from './backup-encryption.ts';

/**
 * The file of a backup, of one of two kinds, which its first bytes tell apart, and encrypted if one wishes
 * (backup-encryption.ts):
 *
 * - `dump`: what `pg_dump -Fc` writes, of a database of one's own. Any `pg_restore` that is new enough reads it.
 * - `cluster`: the files of the embedded PostgreSQL as a compressed archive (tar.gz), before them a description, and the
 *   secret unless it is left out. gzip ends with a checksum of the whole, so that one that is cut off or damaged is known.
 */
export type BackupKind = 'dump' | 'cluster';

/** What a `cluster` says of itself. */
export type BackupDescription = {
  format: 1;
  /** Of Postillion. */
  release: string;
  postgres: number;
  created_at: string;
};

/** The same before it is written. */
export type BackupOrigin = { release: string; postgres: number; at: Date };

const descriptionName = 'postillion-backup.json';
const secretName = 'postillion-secret';

/**
 * A file with a backup in it, each time from its beginning: as it stands, or opened with the passphrase that it was
 * encrypted under.
 */
export type BackupFile = () => Promise<Readable>;

/** `wrong_passphrase` also where the beginning of the file is damaged. */
export async function openBackup(
  file: string,
  passphrase: string | null,
): Promise<BackupFile | 'needs_passphrase' | 'needs_none' | 'wrong_passphrase'> {
  if (!(await isEncrypted(file)))
    return passphrase === null ? () => Promise.resolve(createReadStream(file)) : 'needs_none';
  return passphrase === null
    ? 'needs_passphrase'
    : ((await openEncrypted(file, passphrase)) ?? 'wrong_passphrase');
}

/** Null if it is neither. Rejects if it cannot be read. */
export async function findBackupKind(read: BackupFile): Promise<BackupKind | null> {
  const source = await read();
  try {
    for await (const first of source as AsyncIterable<Buffer>) {
      const head = Buffer.from(first).toString('latin1', 0, 5);
      if (head === 'PGDMP') return 'dump';
      return head.startsWith('\x1f\x8b') ? 'cluster' : null;
    }
    return null;
  } finally {
    source.destroy();
  }
}

/** What is compressed: the description, the secret, and the files as PostgreSQL sends them. */
export async function* writeCluster(
  { release, postgres, at }: BackupOrigin,
  secret: string | null,
  files: Readable,
): AsyncGenerator<Buffer> {
  const description: BackupDescription = { format: 1, release, postgres, created_at: at.toISOString() };
  yield tarFile(descriptionName, Buffer.from(`${JSON.stringify(description, null, 2)}\n`), at);
  if (secret !== null) yield tarFile(secretName, Buffer.from(secret), at);
  yield* files as AsyncIterable<Buffer>;
}

export type ClusterBackup = { description: BackupDescription; secret: string | null };

/** Reads all of it, and keeps nothing but what it says of itself. Throws if it is cut off, damaged or something else. */
export async function examineCluster(read: BackupFile): Promise<ClusterBackup> {
  let description: BackupDescription | null = null;
  let secret: string | null = null;
  const names = new Set<string>();
  try {
    for await (const { name, kind, sizeBytes, content } of readTar(unzip(read))) {
      if (kind === 'other') throw new Error(`it has a link, or a device, under the name ${name}`);
      names.add(requireInner(name));
      if ((name === descriptionName || name === secretName) && sizeBytes <= ownEntryBytesMax) {
        const text = await readText(content);
        if (name === secretName) secret = text;
        else description = parseDescription(text);
      }
    }
  } catch (cause) {
    throw findDamage(cause, description) ?? cause;
  }
  if (description === null || !requiredNames.every((name) => names.has(name)))
    throw new Error('it is no backup of Postillion');
  return { description, secret };
}

/** What is wrong with the file, by the codes of zlib, whose words are of use to nobody; null if it is something else. */
function findDamage(cause: unknown, description: BackupDescription | null): Error | null {
  const code = cause instanceof Error && 'code' in cause ? cause.code : null;
  const damages: Record<string, string> = { Z_BUF_ERROR: 'is cut off', Z_DATA_ERROR: 'is damaged' };
  const damage = typeof code === 'string' ? damages[code] : undefined;
  if (damage === undefined) return null;
  const what = description === null ? 'it' : `the backup of ${description.created_at}`;
  return new Error(`${what} ${damage}, and has to be copied again from where it was made`);
}

/** Larger is none of ours, and would be held in memory. */
const ownEntryBytesMax = 65_536;

/** Without these no PostgreSQL starts, and without the first it would start on files that belong to different moments. */
const requiredNames = ['backup_label', 'global/pg_control', 'PG_VERSION'];

/** The files of the cluster alone. */
export async function* clusterFilesOf(read: BackupFile): AsyncGenerator<TarEntry> {
  for await (const entry of readTar(unzip(read))) {
    if (entry.name !== descriptionName && entry.name !== secretName) yield entry;
  }
}

async function* unzip(read: BackupFile): AsyncGenerator<Buffer> {
  const compressed = await read();
  const gunzip = createGunzip();
  compressed.on('error', (cause) => gunzip.destroy(cause));
  compressed.pipe(gunzip);
  try {
    yield* gunzip as AsyncIterable<Buffer>;
  } finally {
    compressed.destroy();
    gunzip.destroy();
  }
}

async function readText(content: AsyncIterable<Buffer>): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of content) pieces.push(piece);
  return Buffer.concat(pieces).toString('utf8');
}

function parseDescription(text: string): BackupDescription {
  const parsed = JSON.parse(text) as Partial<BackupDescription>; // Written by us; what is used of it is looked at.
  if (parsed.format !== 1)
    throw new Error('it was made by a newer release of Postillion, which has to restore it');
  if (typeof parsed.release !== 'string' || typeof parsed.created_at !== 'string')
    throw new Error('it is no backup of Postillion');
  return {
    format: 1,
    release: parsed.release,
    postgres: Number(parsed.postgres),
    created_at: parsed.created_at,
  };
}
