import path from 'node:path';
import { pathToFileURL } from 'node:url';

/** Threads run what was built: the sources are TypeScript, which a bare thread cannot load. */
export function threadEntryOf(name: 'body-thread' | 'signing-thread'): URL {
  return pathToFileURL(path.resolve(import.meta.dirname, `../../dist/${name}.js`));
}
