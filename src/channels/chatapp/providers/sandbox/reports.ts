import type { Clock } from '../../../../platform/clock.ts';
import type { ToldOfChatApp } from '../../provider.ts';

/** What the sandbox tells of what it simulates. */
export type SandboxReport = ToldOfChatApp & { organizationId: string };

export type Reports = {
  /** Resolves when a report is stored, or will be tried again; at once if it is to come late. */
  give: (report: SandboxReport, isLate: boolean) => Promise<void>;
  /** Gives none of those that wait. */
  drop: () => void;
};

/** Long enough to see that a message is on its way, short enough to wait for. */
const delayMs = 5_000;

/** Reports that wait at once. Beyond it they come at once: more would only fill the memory. */
const waitingMax = 10_000;

/** How often a report that could not be stored is given again. Fewer would lose it to a restart of the database. */
const attemptsMax = 100;

/** Gives reports, and gives those again that could not be stored. */
export function createReports({
  clock,
  take,
}: {
  clock: Clock;
  take: (report: SandboxReport) => Promise<void>;
}): Reports {
  const waiting = new Set<() => void>();
  let isDropped = false;

  const giveLater = (report: SandboxReport, attempts: number) => {
    if (isDropped || waiting.size >= waitingMax) return;
    const cancel = clock.after(delayMs, () => {
      waiting.delete(cancel);
      void giveNow(report, attempts);
    });
    waiting.add(cancel);
  };
  // Never rejects. Ends, because every failure leaves one attempt less.
  const giveNow = async (report: SandboxReport, attempts: number): Promise<void> => {
    try {
      await take(report);
    } catch {
      if (attempts > 1) giveLater(report, attempts - 1);
    }
  };

  return {
    give: async (report, isLate) => {
      if (isLate && waiting.size < waitingMax) giveLater(report, attemptsMax);
      else await giveNow(report, attemptsMax);
    },
    drop: () => {
      isDropped = true;
      for (const cancel of waiting) cancel();
      waiting.clear();
    },
  };
}
