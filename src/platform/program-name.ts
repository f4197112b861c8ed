import { realpathSync } from 'node:fs';
import path from 'node:path';

/** How a process was started, as far as it can tell. */
export type Invocation = {
  /** The file that Node.js was given, `process.argv[1]`. */
  script: string | undefined;
  directory: string;
  environment: Readonly<Record<string, string | undefined>>;
};

const name = 'postillion';

/** As it is called in a checkout, and wherever nothing is known. */
const usual = `bin/${name}`;

/** What to type before the words of a command, so that it can be pasted where this process was started. */
export function programName(): string {
  return nameOf({ script: process.argv[1], directory: process.cwd(), environment: process.env });
}

export function nameOf({ script, directory, environment }: Invocation): string {
  if (script === undefined || path.basename(script) !== name) return usual;
  const file = realOf(script);
  if (isOnPath(file, environment.PATH ?? '')) return name;
  const isInstalledHere = isSame(file, path.join(directory, 'node_modules', '.bin', name));
  if (isInstalledHere || environment.npm_command === 'exec') return `npx ${name}`;
  const relative = path.relative(realOf(directory), file);
  const shown = relative.startsWith('..') ? file : relative;
  // Shells say by this variable what they have started; it is the program itself where its first line names Node.js.
  return path.basename(environment._ ?? '') === 'node' ? `node ${shown}` : shown;
}

function isOnPath(file: string, searched: string): boolean {
  return searched
    .split(path.delimiter)
    .some((folder) => path.isAbsolute(folder) && isSame(file, path.join(folder, name)));
}

function isSame(file: string, link: string): boolean {
  return realOf(link) === file;
}

/** The path itself where nothing is there. */
function realOf(file: string): string {
  try {
    return realpathSync(file);
  } catch {
    return path.resolve(file);
  }
}
