import type { Command } from 'commander';
import type { RowIssue } from '../audience/audience.ts';
import { type EventImportOutcome, importEvents } from '../events/events.ts';
import type { Installation } from '../installation/installation.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { wordFor } from '../platform/wording.ts';
import { addCommand, type CommandOutcome, onInstallation } from './command.ts';
import {
  badRowsExitCode,
  collectMapping,
  collectText,
  describeIssue,
  longRunning,
  type Mapping,
  openReport,
  openSource,
  shownIssuesMax,
  toReportLine,
} from './imports.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { formatCount, interruptedExitCode, listenForInterruption, startProgress } from './progress.ts';
import { parseOrganization } from './values.ts';

/** `events import`: as `contacts import`, of what contacts did. */
export function addEventCommands(group: Command): void {
  addCommand(group, 'import', 'Store the events of a CSV file, or of a file with a JSON object a line.')
    .argument('<file>', 'path of the file, or - for standard input')
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--map <column=field>', 'what a column holds; repeatable', collectMapping)
    .option('--ignore <column>', 'skip a column; repeatable', collectText)
    .option('--report <file>', 'write the errors of all bad rows to a CSV file')
    .option('--dry-run', 'read and check everything, and write nothing')
    .action(
      onInstallation(
        (installation, file: string, options: Unresolved<ImportArguments>) =>
          onOrganization(installation, options.org, (org) =>
            runImport(installation, file, { ...options, org }),
          ),
        longRunning,
      ),
    );
}

type ImportArguments = {
  org: string;
  map?: Mapping[];
  ignore?: string[];
  report?: string;
  dryRun?: boolean;
  json?: boolean;
};

async function runImport(
  installation: Installation,
  file: string,
  options: ImportArguments,
): Promise<CommandOutcome> {
  const { org: organizationId, dryRun: isDryRun = false } = options;
  const opened = await openSource(file);
  if (typeof opened === 'string') return { kind: 'refused', problem: opened };
  const report = options.report === undefined ? null : await openReport(options.report);
  if (typeof report === 'string') return { kind: 'refused', problem: report };

  const interruption = listenForInterruption();
  const display = startProgress(installation.clock);
  const { sizeBytes } = opened;
  const shown: RowIssue[] = [];
  // By a waker of its own, which does not wait; parts are far enough apart.
  const onContactsChanged = () => {
    createWaker(installation, 'segments')();
  };
  try {
    const outcome = await importEvents(
      { ...installation, onContactsChanged },
      {
        organizationId,
        source: opened.source,
        mapped: options.map ?? [],
        ignored: options.ignore ?? [],
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
    );
    display.end();
    return describeImport(outcome, { isDryRun, shown });
  } finally {
    display.end();
    interruption.ignore();
    await report?.end();
  }
}

function describeImport(
  outcome: EventImportOutcome,
  { isDryRun, shown }: { isDryRun: boolean; shown: readonly RowIssue[] },
): CommandOutcome {
  if (outcome.kind === 'refused') return outcome;
  const { counts, lastLine, stop } = outcome;
  const problem = stop?.kind === 'unreadable' ? stop.problem : null;
  if (stop?.kind === 'interrupted') process.exitCode = interruptedExitCode;
  else if (counts.bad > 0) process.exitCode = badRowsExitCode;
  const { rows, stored, storedBefore, bad } = counts;
  const json = {
    ...(problem !== null && { error: problem }),
    rows,
    stored,
    stored_before: storedBefore,
    bad,
    dry_run: isDryRun,
    interrupted: stop?.kind === 'interrupted',
    last_row: lastLine,
    bad_rows: shown.map(({ line, column, reason }) => ({ row: line, column, reason })),
  };
  const sentences = [
    isDryRun && 'A dry run: nothing was written.',
    `${formatCount(rows)} ${wordFor(rows, 'row')}: ${formatCount(stored)} stored, ${formatCount(storedBefore)} stored before, ${formatCount(bad)} bad.`,
    stop !== null && [problem, `It stopped after row ${lastLine}.`].filter(Boolean).join(' '),
    stop !== null && 'What was written is kept. Run it again with the whole file: nothing is stored twice.',
  ];
  const text = sentences.filter((sentence) => sentence !== false).join('\n');
  return { kind: problem === null ? 'done' : 'failed', json, text };
}
