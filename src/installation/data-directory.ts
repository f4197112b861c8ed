import { findFilesElsewhere } from '../platform/postgres/embedded-place.ts';

export { findFilesElsewhere };

/** Why the files of the embedded PostgreSQL are not in the data directory, for whoever wants to keep or remove them. */
export function whyElsewhere(directory: string): string {
  return `PostgreSQL does not run as root, and its own user cannot enter ${directory}`;
}

/**
 * What the system says of a data directory in which nothing can be written, as a sentence with what to do; null for what
 * is not about it.
 */
export function explainDataDirectory(cause: unknown, directory: string): string | null {
  const { code, syscall } = systemErrorOf(cause);
  const set = 'set POSTILLION_DATA_DIR to a directory that the user who runs Postillion may write';
  switch (code) {
    case 'EROFS':
      return `The data directory ${directory} is read-only (${code}): mount it for writing, or ${set}.`;
    case 'EACCES':
    case 'EPERM':
      return `The data directory ${directory} cannot be written by this user (${code}): allow it, or ${set}.`;
    case 'ENOSPC':
    case 'EDQUOT':
      return `The disk of the data directory ${directory} is full (${code}): free space there, or move the directory to a larger one and set POSTILLION_DATA_DIR.`;
    case 'ENOTDIR':
    case 'EEXIST':
      return `The data directory ${directory} cannot be made, since a file is in its place (${code}): remove that, or ${set}.`;
    case 'ENOENT':
      // What Node.js makes of a folder that a read-only file system refuses.
      if (syscall !== 'mkdir') return null;
      return `The data directory ${directory} cannot be made (${code}): make the folder that it lies in, or ${set}.`;
    default:
      return null;
  }
}

function systemErrorOf(cause: unknown): { code?: unknown; syscall?: unknown } {
  return cause instanceof Error && 'code' in cause && 'syscall' in cause ? cause : {};
}
