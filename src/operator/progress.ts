import type { Clock } from '../platform/clock.ts';
import { wordFor } from '../platform/wording.ts';

/** How far a long command is: `share` of the whole from 0 to 1, or null while the total is unknown. */
export type Progress = { rows: number; share: number | null };

export type ProgressDisplay = {
  update: (progress: Progress) => void;
  /** A line above the bar. */
  print: (line: string) => void;
  end: () => void;
};

const redrawMs = 200;

/** On standard error: a bar where that is a terminal, nothing but the lines elsewhere. */
export function startProgress(clock: Clock): ProgressDisplay {
  const { stderr } = process;
  const startedAtMs = clock.monotonicMs();
  let progress: Progress = { rows: 0, share: null };
  const clear = () => {
    if (stderr.isTTY) stderr.write('\r\u001b[K');
  };
  const draw = () => {
    clear();
    if (stderr.isTTY) stderr.write(formatProgress(progress, clock.monotonicMs() - startedAtMs));
  };
  // Also keeps the process alive while it waits for a database that is away.
  const redrawing = setInterval(draw, redrawMs);
  return {
    update: (latest) => {
      progress = latest;
    },
    print: (line) => {
      clear();
      stderr.write(`${line}\n`);
    },
    end: () => {
      clearInterval(redrawing);
      clear();
    },
  };
}

const barWidth = 30;

/** For example `[###...........................] 10 %  1,000 rows, 500 a second, 18 s left`. */
export function formatProgress({ rows, share }: Progress, elapsedMs: number): string {
  const perSecond = elapsedMs > 0 ? Math.round((rows * 1_000) / elapsedMs) : 0;
  const soFar = `${formatCount(rows)} ${wordFor(rows, 'row')}, ${formatCount(perSecond)} a second`;
  if (share === null) return soFar;
  const shown = Math.min(Math.max(share, 0), 1);
  const bar = '#'.repeat(Math.round(shown * barWidth)).padEnd(barWidth, '.');
  const leftSeconds = shown > 0 ? Math.ceil((elapsedMs * (1 / shown - 1)) / 1_000) : null;
  const left = leftSeconds === null ? '' : `, ${leftSeconds} s left`;
  return `[${bar}] ${Math.floor(shown * 100)} %  ${soFar}${left}`;
}

export function formatCount(count: number): string {
  return count.toLocaleString('en-US');
}

/** What shells have for a program that ended because of SIGINT. */
export const interruptedExitCode = 130;

/** A terminal sends the first two, a supervisor the third. */
const endingSignals = ['SIGINT', 'SIGHUP', 'SIGTERM'] as const;

/**
 * Aborts `signal` when the user or the system asks the command to end; `ignore` takes that back. A second signal ends
 * the process at once.
 */
export function listenForInterruption(): { signal: AbortSignal; ignore: () => void } {
  const interruption = new AbortController();
  const interrupt = () => {
    ignore();
    interruption.abort();
  };
  const ignore = () => {
    for (const name of endingSignals) process.off(name, interrupt);
  };
  for (const name of endingSignals) process.on(name, interrupt);
  return { signal: interruption.signal, ignore };
}
