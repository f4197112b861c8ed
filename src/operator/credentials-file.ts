import { programName } from '../platform/program-name.ts';
import { readSmallFile } from './small-file.ts';

type Parsed<Content> = { kind: 'parsed'; content: Content } | { kind: 'refused'; problem: string };

/** What a file of credentials holds, or a sentence on why it holds none. `group` has the help that says what it must. */
export async function readCredentialsFile<Content>(
  file: string,
  parse: (text: string) => Parsed<Content>,
  { name, group }: { name: string; group: string },
): Promise<Parsed<Content>> {
  const read = await readSmallFile(file);
  if (read.kind === 'unreadable') return refuse(`${file} cannot be read: ${read.problem}.`);
  const parsed = parse(read.text);
  if (parsed.kind === 'parsed') return parsed;
  return refuse(
    `${file} holds no ${name}: ${parsed.problem}. "${programName()} ${group} credentials --help" says what it must hold.`,
  );
}

function refuse(problem: string): { kind: 'refused'; problem: string } {
  return { kind: 'refused', problem };
}
