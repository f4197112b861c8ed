import { readFile, stat } from 'node:fs/promises';
import { describeFailure } from '../installation/installation.ts';

/** Credentials of Google have 2 kB. */
const fileBytesMax = 65_536;

/** The text of a file that holds credentials. */
export async function readSmallFile(
  file: string,
): Promise<{ kind: 'read'; text: string } | { kind: 'unreadable'; problem: string }> {
  try {
    const { size } = await stat(file);
    if (size > fileBytesMax) return { kind: 'unreadable', problem: `it has more than ${fileBytesMax} bytes` };
    return { kind: 'read', text: await readFile(file, 'utf8') };
  } catch (cause) {
    return { kind: 'unreadable', problem: describeFailure(cause) };
  }
}
