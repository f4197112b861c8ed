/**
 * The condition of the whole installation, as its database tells it: what an operator has to be woken for, and what is
 * measured. Every statement finds what it reads by an index and stops at a limit, so that neither a long queue nor a
 * large installation makes it slow.
 */
import { countCampaignsUnderWay } from '../../campaigns/campaigns.ts';
import { countSetAside, countWaiting, listOldestDue, listOpenBreakers } from '../../messages/messages.ts';
import { type Clock, dateOf } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import { readDurability } from '../../platform/postgres/durability.ts';
import { countLivingWorkers } from '../../platform/queue/lease.ts';
import { findLaggingSince } from '../../segments/segments.ts';

export type ConditionTools = { database: Database; clock: Clock };

/** What readiness is judged by. */
export type Condition = {
  livingWorkers: number;
  oldestDue: Awaited<ReturnType<typeof listOldestDue>>;
  openBreakers: Awaited<ReturnType<typeof listOpenBreakers>>;
};

/** What is measured besides. */
export type Measures = Condition & {
  waiting: Awaited<ReturnType<typeof countWaiting>>;
  setAside: Awaited<ReturnType<typeof countSetAside>>;
  campaigns: Awaited<ReturnType<typeof countCampaignsUnderWay>>;
  laggingSince: Date | null;
  durability: Awaited<ReturnType<typeof readDurability>>;
  /** When it was read. */
  at: Date;
};

/** Rows of each kind that are counted; the help texts and docs/monitoring.md say so. More would take longer to count. */
export const countedMax = 10_000;

/** Of one statement. Without a limit, a database that is slow would be asked again and again for what comes too late. */
const statementMaxMs = 2_000;

export async function readCondition({ database, clock }: ConditionTools): Promise<Condition> {
  return inTime(database, (transaction) => readConditionWithin(transaction, dateOf(clock.nowMs())));
}

export async function readMeasures({ database, clock }: ConditionTools): Promise<Measures> {
  const at = dateOf(clock.nowMs());
  return inTime(database, async (transaction) => {
    const [condition, waiting, setAside, campaigns, laggingSince, durability] = await Promise.all([
      readConditionWithin(transaction, at),
      countWaiting(transaction, at, countedMax),
      countSetAside(transaction, countedMax),
      countCampaignsUnderWay(transaction, countedMax),
      findLaggingSince(transaction, at),
      readDurability(transaction),
    ]);
    return { ...condition, waiting, setAside, campaigns, laggingSince, durability, at };
  });
}

async function readConditionWithin(transaction: Transaction, at: Date): Promise<Condition> {
  const [livingWorkers, oldestDue, openBreakers] = await Promise.all([
    countLivingWorkers(transaction),
    listOldestDue(transaction, at),
    listOpenBreakers(transaction),
  ]);
  return { livingWorkers, oldestDue, openBreakers };
}

function inTime<Result>(
  database: Database,
  work: (transaction: Transaction) => Promise<Result>,
): Promise<Result> {
  return database.transaction(async (transaction) => {
    await transaction.allowTime(statementMaxMs);
    return work(transaction);
  });
}
