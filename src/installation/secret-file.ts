import { randomBytes } from 'node:crypto';
import { link, mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import path from 'node:path';

/**
 * The secret that an installation with the embedded PostgreSQL makes for itself and keeps in its data directory. The
 * file is there whole or not at all, whatever dies while it is written.
 */
export type SecretFile = { path: string };

export function secretFileOf(dataDirectory: string): SecretFile {
  return { path: path.join(dataDirectory, 'secret') };
}

/** 256 bits, in hexadecimal. */
export function generateSecret(): string {
  return randomBytes(32).toString('hex');
}

/** Null if there is no file. */
export async function readSecretFile(file: SecretFile): Promise<string | null> {
  try {
    return (await readFile(file.path, 'utf8')).trim();
  } catch (cause) {
    if (hasCode(cause, 'ENOENT')) return null;
    throw cause;
  }
}

/**
 * Makes it, with a new secret or with this one, unless there is one, and returns what it holds: of two processes that
 * make it both use the same.
 */
export async function makeSecretFile(file: SecretFile, secret = generateSecret()): Promise<string> {
  await mkdir(path.dirname(file.path), { recursive: true });
  const written = await writeBeside(file, secret);
  try {
    // Fails where there is a file, which a renaming would replace.
    await link(written, file.path);
  } catch (cause) {
    if (!hasCode(cause, 'EEXIST')) throw cause;
  } finally {
    await rm(written);
  }
  await flushDirectory(file);
  return (await readFile(file.path, 'utf8')).trim();
}

/** Has `write` work while the new secret is on the disk beside the file, and then puts it in its place. */
export async function replaceSecretFile<Result>(
  file: SecretFile,
  secret: string,
  work: () => Promise<{ replace: boolean; result: Result }>,
): Promise<Result> {
  const written = await writeBeside(file, secret);
  const { replace, result } = await work();
  if (replace) await rename(written, file.path);
  else await rm(written);
  await flushDirectory(file);
  return result;
}

/** Returns the path of a file next to it that holds the secret and has reached the disk. */
async function writeBeside(file: SecretFile, secret: string): Promise<string> {
  const beside = `${file.path}.${randomBytes(6).toString('hex')}`;
  const handle = await open(beside, 'wx', 0o600);
  try {
    await handle.writeFile(secret);
    await handle.sync();
  } finally {
    await handle.close();
  }
  return beside;
}

/** A new name in a directory may be lost with the machine before this. */
async function flushDirectory(file: SecretFile): Promise<void> {
  const directory = await open(path.dirname(file.path), 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}

function hasCode(cause: unknown, code: string): boolean {
  return cause instanceof Error && 'code' in cause && cause.code === code;
}
