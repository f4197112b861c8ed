import { build } from 'esbuild';
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

export type ThreadEntry = { url: URL; remove: () => Promise<void> };

/** The entry of a thread, built of TypeScript that imports as a file in `directory` would. */
export async function buildThreadEntry(contents: string, directory: string): Promise<ThreadEntry> {
  const output = await mkdtemp(path.join(os.tmpdir(), 'postillion-thread-'));
  const outfile = path.join(output, 'entry.cjs');
  await build({
    stdin: { contents, resolveDir: directory },
    outfile,
    bundle: true,
    platform: 'node',
    format: 'cjs',
    logLevel: 'error',
  });
  return { url: pathToFileURL(outfile), remove: () => rm(output, { recursive: true, force: true }) };
}
