import { openExport } from '../audience/audience.ts';
import type { Installation } from '../installation/installation.ts';
import { wordFor } from '../platform/wording.ts';
import type { CommandOutcome } from './command.ts';
import { openReplacement, type Replacement, writeTo } from './files.ts';
import { formatCount, interruptedExitCode, listenForInterruption, startProgress } from './progress.ts';

export type ExportOptions = {
  organizationId: string;
  /** Null: standard output, which then carries the file and nothing else. */
  file: string | null;
  lists: readonly string[];
  tags: readonly string[];
};

/**
 * `contacts export`. A file appears under its name only when it is whole: whatever ends the command before leaves what
 * was there. While it runs, standard error shows how far it is, where that is a terminal.
 */
export async function runExport(
  installation: Installation,
  { organizationId, file, lists, tags }: ExportOptions,
): Promise<CommandOutcome> {
  const opened = await openExport(installation.database, { organizationId, lists, tags });
  if (opened.kind === 'refused') return opened;
  // Before there is a file, which an interruption would leave on the disk.
  const interruption = listenForInterruption();
  const target = file === null ? openStandardOutput() : await openReplacement(file);
  if (typeof target === 'string') {
    interruption.ignore();
    return { kind: 'refused', problem: target };
  }
  const display = startProgress(installation.clock);
  let total: number | null = null;
  // At the same time as the first pages, which do not wait for it; until it is there, no bar is shown.
  const counting = opened.count().then(
    (count) => {
      total = count;
    },
    () => undefined,
  );
  let exported = 0;
  let isWhole = false;
  try {
    await target.write(opened.head);
    for await (const lines of opened.pages) {
      if (interruption.signal.aborted) return interrupted(exported, file);
      await target.write(lines.map((line) => `\n${line}`).join(''));
      exported += lines.length;
      display.update({ rows: exported, share: total === null ? null : exported / Math.max(total, 1) });
    }
    if (interruption.signal.aborted) return interrupted(exported, file);
    // What is printed as the result, on standard output nothing, ends the last line.
    if (file !== null) await target.write('\n');
    await target.commit();
    isWhole = true;
  } finally {
    display.end();
    if (!isWhole) await target.discard();
    await counting;
    interruption.ignore();
  }
  if (file === null) return { kind: 'done', json: {}, text: '' };
  return {
    kind: 'done',
    json: { exported, file },
    text: `${formatCount(exported)} ${wordFor(exported, 'contact')} written to ${file}.`,
  };
}

function openStandardOutput(): Replacement {
  const { write } = writeTo(process.stdout);
  return { write, commit: () => Promise.resolve(), discard: () => Promise.resolve() };
}

function interrupted(exported: number, file: string | null): CommandOutcome {
  process.exitCode = interruptedExitCode;
  const left = file === null ? '' : `, and ${file} was not changed`;
  return {
    kind: 'refused',
    problem: `The export was interrupted after ${formatCount(exported)} ${wordFor(exported, 'contact')}${left}.`,
  };
}
