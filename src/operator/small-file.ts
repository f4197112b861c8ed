import { open } from 'node:fs/promises';
import { describeFailure } from '../installation/installation.ts';

/** Credentials of Google have 2 kB. */
const fileBytesMax = 65_536;

/**
 * The text of a file that holds credentials. What is read counts, and not what its folder says of it: a pipe or a device
 * has a size of 0 there, and no end.
 */
export async function readSmallFile(
  file: string,
): Promise<{ kind: 'read'; text: string } | { kind: 'unreadable'; problem: string }> {
  try {
    const handle = await open(file, 'r');
    try {
      const buffer = Buffer.alloc(fileBytesMax + 1);
      let length = 0;
      while (length <= fileBytesMax) {
        const { bytesRead } = await handle.read(buffer, length, buffer.length - length, null);
        if (bytesRead === 0) return { kind: 'read', text: buffer.toString('utf8', 0, length) };
        length += bytesRead;
      }
      return { kind: 'unreadable', problem: `it has more than ${fileBytesMax} bytes` };
    } finally {
      await handle.close();
    }
  } catch (cause) {
    return { kind: 'unreadable', problem: describeFailure(cause) };
  }
}
