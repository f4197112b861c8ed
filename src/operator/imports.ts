import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { InvalidArgumentError } from 'commander';
import { type RowIssue, writeRecord } from '../audience/audience.ts';
import { describeFailure } from '../installation/installation.ts';
import { openFile, type TextFile } from './files.ts';

/** What imports of contacts and of events share: their options, the file that is read, and the report on bad rows. */

export const longRunning = { schema: 'current', isLong: true } as const;

export function collectText(text: string, collected: string[] = []): string[] {
  if (text.trim() === '') throw new InvalidArgumentError('It must not be empty.');
  return [...collected, text];
}

export type Mapping = { column: string; field: string };

/** The last equals sign counts: names of columns may have one, those of fields have none. */
export function collectMapping(text: string, collected: Mapping[] = []): Mapping[] {
  const at = text.lastIndexOf('=');
  const [column, field] = [text.slice(0, Math.max(at, 0)).trim(), text.slice(at + 1).trim()];
  if (column === '' || field === '') {
    throw new InvalidArgumentError('It must be COLUMN=FIELD, such as "Mail address=email".');
  }
  return [...collected, { column, field }];
}

/** So that a script tells "some rows were bad" from "it could not be done". */
export const badRowsExitCode = 2;
/** More would scroll away what happened; all of them go into the file of `--report`. */
export const shownIssuesMax = 100;

type Source = { source: AsyncIterable<Buffer>; sizeBytes: number | null };

const readBytes = 262_144;

/** The file, or a sentence on why it cannot be read. */
export async function openSource(file: string): Promise<Source | string> {
  if (file === '-') return { source: process.stdin, sizeBytes: null };
  const stream = createReadStream(file, { highWaterMark: readBytes });
  try {
    await once(stream, 'ready');
    const found = await stat(file);
    if (found.isDirectory()) throw new Error('it is a folder');
    return { source: stream, sizeBytes: found.isFile() ? found.size : null };
  } catch (cause) {
    stream.destroy();
    return `${file} cannot be read: ${describeFailure(cause)}.`;
  }
}

export async function openReport(file: string): Promise<TextFile | string> {
  const report = await openFile(file);
  if (typeof report !== 'string') await report.write('row,column,reason\n');
  return report;
}

export function toReportLine({ line, column, reason }: RowIssue): string {
  return writeRecord([line, column, reason]);
}

export function describeIssue({ line, column, reason }: RowIssue): string {
  return column === null ? `Row ${line}: ${reason}` : `Row ${line}, column "${column}": ${reason}`;
}
