import type { Command } from 'commander';
import { importContacts, type ImportOutcome, type RowIssue } from '../audience/audience.ts';
import type { Installation } from '../installation/installation.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { wordFor } from '../platform/wording.ts';
import { addCommand, type CommandOutcome, onInstallation } from './command.ts';
import { runExport } from './export.ts';
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

/**
 * `contacts import` and `contacts export`. Files are read and written a part at a time, whatever their size. While
 * an import runs, standard error shows how far it is, where that is a terminal, and the first bad rows.
 */
export function addContactCommands(group: Command): void {
  addCommand(group, 'import', 'Create and update contacts from a CSV file.')
    .argument('<file>', 'path of the file, or - for standard input')
    .option('--org <org>', organizationHelp, parseOrganization)
    .option(
      '--list <name-or-id>',
      'add all contacts to a list, created if it does not exist; repeatable',
      collectText,
    )
    .option(
      '--tag <name-or-id>',
      'give all contacts a tag, created if it does not exist; repeatable',
      collectText,
    )
    .option('--map <column=field>', 'the field that a column holds; repeatable', collectMapping)
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
  addCommand(group, 'export', 'Write contacts to a CSV file.')
    .argument('[file]', 'path of the file; without it, or with -, standard output')
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--list <name-or-id>', 'only members of a list; repeatable', collectText)
    .option('--tag <name-or-id>', 'only contacts with a tag; repeatable', collectText)
    .action(
      onInstallation(
        async (installation, given: string | undefined, options: Unresolved<ExportArguments>) => {
          const file = given === undefined || given === '-' ? null : given;
          if (file === null && options.json === true)
            return refuse('With --json, name a file: standard output is needed for the result.');
          const { list: lists = [], tag: tags = [] } = options;
          return onOrganization(installation, options.org, (organizationId) =>
            runExport(installation, { organizationId, file, lists, tags }),
          );
        },
        longRunning,
      ),
    );
}

type ExportArguments = { org: string; list?: string[]; tag?: string[]; json?: boolean };

type ImportArguments = {
  org: string;
  list?: string[];
  tag?: string[];
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
  if (typeof opened === 'string') return refuse(opened);
  const report = options.report === undefined ? null : await openReport(options.report);
  if (typeof report === 'string') return refuse(report);

  const interruption = listenForInterruption();
  const display = startProgress(installation.clock);
  const { sizeBytes } = opened;
  const shown: RowIssue[] = [];
  try {
    const outcome = await importContacts(installation, {
      organizationId,
      source: opened.source,
      lists: options.list ?? [],
      tags: options.tag ?? [],
      mapped: options.map ?? [],
      ignored: options.ignore ?? [],
      isDryRun,
      signal: interruption.signal,
      onProgress: ({ rows, bytes }) => {
        display.update({ rows, share: sizeBytes === null || sizeBytes === 0 ? null : bytes / sizeBytes });
      },
      // Each by a waker of its own, which does not wait; batches are far enough apart.
      onChanged: () => {
        createWaker(installation, 'segments')();
      },
      onIssues: async (issues) => {
        const news = issues.slice(0, shownIssuesMax - shown.length);
        shown.push(...news);
        if (options.json !== true) for (const issue of news) display.print(describeIssue(issue));
        await report?.write(issues.map((issue) => `${toReportLine(issue)}\n`).join(''));
      },
    });
    display.end();
    return describeImport(outcome, { isDryRun, shown });
  } finally {
    display.end();
    interruption.ignore();
    await report?.end();
  }
}

function describeImport(
  outcome: ImportOutcome,
  { isDryRun, shown }: { isDryRun: boolean; shown: readonly RowIssue[] },
): CommandOutcome {
  if (outcome.kind === 'refused') return outcome;
  const { counts, sharedLists, sharedTags, createdLists, createdTags, lastLine, stop } = outcome;
  const problem = stop?.kind === 'unreadable' ? stop.problem : null;
  if (stop?.kind === 'interrupted') process.exitCode = interruptedExitCode;
  else if (counts.bad > 0) process.exitCode = badRowsExitCode;
  const json = {
    ...(problem !== null && { error: problem }),
    rows: counts.rows,
    created: counts.created,
    updated: counts.updated,
    unchanged: counts.unchanged,
    bad: counts.bad,
    kept_unsubscribed: counts.keptUnsubscribed,
    lists: sharedLists,
    tags: sharedTags,
    created_lists: createdLists,
    created_tags: createdTags,
    dry_run: isDryRun,
    interrupted: stop?.kind === 'interrupted',
    last_row: lastLine,
    bad_rows: shown.map(({ line, column, reason }) => ({ row: line, column, reason })),
  };
  const { rows, created, updated, unchanged, bad, keptUnsubscribed } = counts;
  const sentences = [
    isDryRun && 'A dry run: nothing was written.',
    `${formatCount(rows)} ${wordFor(rows, 'row')}: ${formatCount(created)} created, ${formatCount(updated)} updated, ${formatCount(unchanged)} unchanged, ${formatCount(bad)} bad.`,
    keptUnsubscribed > 0 &&
      `${formatCount(keptUnsubscribed)} say "subscribed" for contacts that have unsubscribed, which stay unsubscribed.`,
    ...sharedLists.map(({ id, name }) => `List ${name}: ${id}`),
    ...sharedTags.map(({ id, name }) => `Tag ${name}: ${id}`),
    createdLists.length > 0 && `Lists created: ${showNames(createdLists)}.`,
    createdTags.length > 0 && `Tags created: ${showNames(createdTags)}.`,
    stop !== null && [problem, `It stopped after row ${lastLine}.`].filter(Boolean).join(' '),
    stop !== null && 'What was written is kept. Run it again with the whole file: nothing is created twice.',
  ];
  const text = sentences.filter((sentence) => sentence !== false).join('\n');
  return { kind: problem === null ? 'done' : 'failed', json, text };
}

const shownNamesMax = 20;

function showNames(names: readonly string[]): string {
  const shown = names.slice(0, shownNamesMax).join(', ');
  return names.length > shownNamesMax ? `${shown} and ${names.length - shownNamesMax} more` : shown;
}

function refuse(problem: string): CommandOutcome {
  return { kind: 'refused', problem };
}
