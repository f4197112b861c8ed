import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import type { Option } from 'commander';
import { type Command, InvalidArgumentError } from 'commander';
import { type RowIssue, writeRecord } from '../audience/audience.ts';
import { describeFailure, type Installation } from '../installation/installation.ts';
import { wordFor } from '../platform/wording.ts';
import { addCommand, type CommandOutcome, onInstallation } from './command.ts';
import { openFile, type TextFile } from './files.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { formatCount, interruptedExitCode, listenForInterruption, startProgress } from './progress.ts';
import { parseOrganization } from './values.ts';

/**
 * What imports of contacts and of events share. Files are read a part at a time, whatever their size. While an import
 * runs, standard error shows how far it is, where that is a terminal, and the first bad rows.
 */

export const longRunning = { schema: 'current', isLong: true } as const;

export type ImportArguments = {
  org: string;
  map?: Mapping[];
  ignore?: string[];
  report?: string;
  dryRun?: boolean;
  json?: boolean;
};

export type ImportCommand<Arguments extends ImportArguments, Ended extends EndedImport> = {
  description: string;
  /** What `--map` names. */
  mapped: string;
  /** Options that it has besides those of every import. */
  options: readonly Option[];
  importRows: (
    installation: Installation,
    request: ImportRequest,
    options: Arguments,
  ) => Promise<{ kind: 'refused'; problem: string } | Ended>;
  describe: (ended: Ended) => DescribedImport;
};

export type ImportRequest = {
  organizationId: string;
  source: AsyncIterable<Buffer>;
  mapped: readonly Mapping[];
  ignored: readonly string[];
  isDryRun: boolean;
  signal: AbortSignal;
  onProgress: (progress: { rows: number; bytes: number }) => void;
  onIssues: (issues: readonly RowIssue[]) => Promise<void>;
};

export type EndedImport = {
  kind: 'ended';
  counts: { rows: number; bad: number };
  /** Where the last row that was dealt with begins; 0 if there was none. */
  lastLine: number;
  /** Why it ended before the end of the file; null if it did not. */
  stop: { kind: 'interrupted' } | { kind: 'unreadable'; problem: string } | null;
};

export type DescribedImport = {
  json: Record<string, unknown>;
  /** What became of the rows: `3 created`. */
  counted: readonly string[];
  /** Those that are false are left out. */
  sentences: readonly (string | false)[];
  /** Whoever runs it again need not fear it: `nothing is created twice`. */
  repeated: string;
};

export function addImportCommand<Arguments extends ImportArguments, Ended extends EndedImport>(
  group: Command,
  imported: ImportCommand<Arguments, Ended>,
): void {
  const command = addCommand(group, 'import', imported.description)
    .argument('<file>', 'path of the file, or - for standard input')
    .option('--org <org>', organizationHelp, parseOrganization);
  for (const option of imported.options) command.addOption(option);
  command
    .option('--map <column=field>', `${imported.mapped}; repeatable`, collectMapping)
    .option('--ignore <column>', 'skip a column; repeatable', collectText)
    .option('--report <file>', 'write the errors of all bad rows to a CSV file')
    .option('--dry-run', 'read and check everything, and write nothing')
    .action(
      onInstallation(
        (installation, file: string, options: Unresolved<Arguments>) =>
          onOrganization(installation, options.org, (org) =>
            // Of the options only the organization was not resolved.
            runImport(installation, file, { ...options, org } as unknown as Arguments, imported),
          ),
        longRunning,
      ),
    );
}

async function runImport<Arguments extends ImportArguments, Ended extends EndedImport>(
  installation: Installation,
  file: string,
  options: Arguments,
  { importRows, describe }: ImportCommand<Arguments, Ended>,
): Promise<CommandOutcome> {
  const { org: organizationId, dryRun: isDryRun = false, map = [], ignore = [] } = options;
  const opened = await openSource(file);
  if (typeof opened === 'string') return { kind: 'refused', problem: opened };
  const report = options.report === undefined ? null : await openReport(options.report);
  if (typeof report === 'string') return { kind: 'refused', problem: report };

  const interruption = listenForInterruption();
  const display = startProgress(installation.clock);
  const { source, sizeBytes } = opened;
  const shown: RowIssue[] = [];
  try {
    const outcome = await importRows(
      installation,
      {
        organizationId,
        source,
        mapped: map,
        ignored: ignore,
        isDryRun,
        signal: interruption.signal,
        onProgress: ({ rows, bytes }) => {
          display.update({ rows, share: sizeBytes === null || sizeBytes === 0 ? null : bytes / sizeBytes });
        },
        onIssues: async (issues) => {
          const news = issues.slice(0, shownIssuesMax - shown.length);
          shown.push(...news);
          if (options.json !== true) for (const issue of news) display.print(describeIssue(issue));
          await report?.write(issues.map((issue) => `${toReportLine(issue)}\n`).join(''));
        },
      },
      options,
    );
    display.end();
    return outcome.kind === 'refused'
      ? outcome
      : describeImport(outcome, describe(outcome), { isDryRun, shown });
  } finally {
    display.end();
    interruption.ignore();
    await report?.end();
  }
}

function describeImport(
  { counts: { rows, bad }, lastLine, stop }: EndedImport,
  described: DescribedImport,
  { isDryRun, shown }: { isDryRun: boolean; shown: readonly RowIssue[] },
): CommandOutcome {
  const problem = stop?.kind === 'unreadable' ? stop.problem : null;
  if (stop?.kind === 'interrupted') process.exitCode = interruptedExitCode;
  else if (bad > 0) process.exitCode = badRowsExitCode;
  const json = {
    ...(problem !== null && { error: problem }),
    rows,
    ...described.json,
    bad,
    dry_run: isDryRun,
    interrupted: stop?.kind === 'interrupted',
    last_row: lastLine,
    bad_rows: shown.map(({ line, column, reason }) => ({ row: line, column, reason })),
  };
  const counted = [...described.counted, `${formatCount(bad)} bad`].join(', ');
  const sentences = [
    isDryRun && 'A dry run: nothing was written.',
    `${formatCount(rows)} ${wordFor(rows, 'row')}: ${counted}.`,
    ...described.sentences,
    stop !== null && [problem, `It stopped after row ${lastLine}.`].filter(Boolean).join(' '),
    stop !== null && `What was written is kept. Run it again with the whole file: ${described.repeated}.`,
  ];
  const text = sentences.filter((sentence) => sentence !== false).join('\n');
  return { kind: problem === null ? 'done' : 'failed', json, text };
}

export function collectText(text: string, collected: string[] = []): string[] {
  if (text.trim() === '') throw new InvalidArgumentError('It must not be empty.');
  return [...collected, text];
}

type Mapping = { column: string; field: string };

/** The last equals sign counts: names of columns may have one, those of fields have none. */
function collectMapping(text: string, collected: Mapping[] = []): Mapping[] {
  const at = text.lastIndexOf('=');
  const [column, field] = [text.slice(0, Math.max(at, 0)).trim(), text.slice(at + 1).trim()];
  if (column === '' || field === '') {
    throw new InvalidArgumentError('It must be COLUMN=FIELD, such as "Mail address=email".');
  }
  return [...collected, { column, field }];
}

/** So that a script tells "some rows were bad" from "it could not be done". */
const badRowsExitCode = 2;
/** More would scroll away what happened; all of them go into the file of `--report`. */
const shownIssuesMax = 100;

type Source = { source: AsyncIterable<Buffer>; sizeBytes: number | null };

const readBytes = 262_144;

/** The file, or a sentence on why it cannot be read. */
async function openSource(file: string): Promise<Source | string> {
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

async function openReport(file: string): Promise<TextFile | string> {
  const report = await openFile(file);
  if (typeof report !== 'string') await report.write('row,column,reason\n');
  return report;
}

function toReportLine({ line, column, reason }: RowIssue): string {
  return writeRecord([line, column, reason]);
}

function describeIssue({ line, column, reason }: RowIssue): string {
  return column === null ? `Row ${line}: ${reason}` : `Row ${line}, column "${column}": ${reason}`;
}
