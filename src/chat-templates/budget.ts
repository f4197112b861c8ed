import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { Connection, Transaction } from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import type { Secrets } from '../platform/secrets.ts';
import * as store from './budget-store.ts';

/**
 * How many more people an organization may write to. WhatsApp limits the different people whom all numbers of a business
 * portfolio write to within any 24 hours (https://developers.facebook.com/docs/whatsapp/messaging-limits), and not the
 * messages. It tells the limit, and never what is left of it. So people are counted here:
 *
 * - **Whom**: everybody of whom the provider has taken a message, or may have: of a hand-off that was cut off nobody knows.
 *   They are counted in the transaction that writes the outcome, in one statement for all of a batch: no crash comes
 *   between the two. A later report of a failure takes nobody off.
 * - **Once**: a person has one row, and is counted in the ten minutes of the last message. With the next message the
 *   count moves. So the people of 24 hours are the sum of 145 rows, whoever asks for it.
 * - **As little as possible**: the row has a keyed hash of the number, and is deleted after a day, or when the contact is
 *   erased. Its count stays, as it does at the provider.
 * - **Only where it matters**: without a limit, or before one was told, nothing is counted or held back. Whoever was
 *   written to before that is missing for a day.
 *
 * Campaigns leave a tenth of the limit to single messages, which are never held back here: the provider decides on them.
 * A campaign puts nobody into the queue whom what is left has no place for, counting those who are in the queue already
 * (campaigns/running.ts), so that no number of nodes or campaigns goes beyond it. Once the whole limit is used up, since
 * it was lowered or single messages have taken the rest, what is in the queue stays there as well: then each node still
 * hands off what it had looked up, for two seconds at most.
 *
 * Not counted: what others of the same portfolio send, an agency's other organizations for instance; and that people who
 * have written themselves within a day are free of charge. In both cases the provider has the last word.
 */
export type Budget = {
  /** As the provider limits it. */
  peopleMax: number;
  /** How many of them were written to. */
  reached: number;
  /** How many of them campaigns may write to. */
  campaignPeopleMax: number;
  /**
   * How many people must have a place again before a campaign goes on that found none: one by one, it would be paused
   * again after each.
   */
  step: number;
};

/** Smaller: a busy day leaves no place for a code. Larger: campaigns take longer. */
const reservedShare = 1 / 10;
/** Smaller: campaigns are paused and go on more often. Larger: they wait for longer. */
const stepShare = 1 / 20;

const dayMs = 24 * 60 * 60_000;
/** Shorter takes more rows to add up, and longer keeps people counted for up to so long after their day is over. */
const periodMs = 10 * 60_000;

/** Whoever was counted in a period up to this one was written to more than a day before. */
function countedAfter(at: Date): Date {
  return dateOf(at.getTime() - dayMs - periodMs);
}

/** Until a day is over by the clock of every node. */
const keptMs = dayMs + 60 * 60_000;

function toBudget({ people_per_day_max: peopleMax, reached }: store.BudgetRow): Budget {
  const campaignPeopleMax = peopleMax - Math.ceil(peopleMax * reservedShare);
  return {
    peopleMax,
    reached,
    campaignPeopleMax,
    step: Math.max(1, Math.floor(campaignPeopleMax * stepShare)),
  };
}

/** By organization: of those that have a limit. */
export async function loadBudgets(
  { clock }: { clock: Clock },
  connection: Connection,
  organizationIds: readonly string[],
): Promise<Map<string, Budget>> {
  const rows = await store.findBudgets(connection, organizationIds, countedAfter(now(clock)));
  return new Map(rows.map((row) => [row.organization_id, toBudget(row)]));
}

/** Null for an organization without a limit, or of which nothing was told. */
export async function findBudget(
  transaction: Transaction,
  organizationId: string,
  at: Date,
): Promise<Budget | null> {
  const [row] = await store.findBudgets(transaction, [organizationId], countedAfter(at));
  return row === undefined ? null : toBudget(row);
}

/**
 * Returns the limit, null where there is none to be held to. Nobody else who locks it reads what is left of it until the
 * transaction ends.
 */
export async function lockBudget(transaction: Transaction, organizationId: string): Promise<number | null> {
  return store.lockLimit(transaction, organizationId);
}

/** Whether nobody new may be written to: not even by single messages, if the provider counts as we do. */
export function isUsedUp({ peopleMax, reached }: Budget): boolean {
  return reached >= peopleMax;
}

/** What is known of the limit of an organization. */
export type PeopleLimit = {
  /** Null: as many as one likes. */
  peoplePerDayMax: number | null;
  toldAt: Date;
};

/** Null: the provider has told none. */
export async function findPeopleLimit(
  transaction: Transaction,
  organizationId: string,
): Promise<PeopleLimit | null> {
  const row = await store.findLimit(transaction, organizationId);
  return row && { peoplePerDayMax: row.people_per_day_max, toldAt: row.told_at };
}

/** What the provider has told. Campaigns that wait go on soon after, if it lets them. */
export async function notePeopleLimit(
  { clock }: { clock: Clock },
  transaction: Transaction,
  { organizationId, peoplePerDayMax }: { organizationId: string; peoplePerDayMax: number | 'unlimited' },
): Promise<void> {
  const limit = {
    peoplePerDayMax: peoplePerDayMax === 'unlimited' ? null : peoplePerDayMax,
    at: now(clock),
  };
  if (await store.saveLimit(transaction, organizationId, limit)) await wakeOnce(transaction, 'campaigns');
}

type Hashing = { secrets: Secrets };

/** Numbers are counted; what was left of an erased one is not. */
function hashPeople(
  { secrets }: Hashing,
  organizationId: string,
  addresses: readonly string[],
): { address: string; person: Buffer }[] {
  return addresses
    .filter((address) => address.startsWith('+'))
    .map((address) => ({
      address,
      person: secrets.keyedHash(`${organizationId} ${address}`, 'chat-app person'),
    }));
}

/** The provider has taken a message to each of these numbers, or may have. */
export async function countReached(
  tools: Hashing & { clock: Clock },
  transaction: Transaction,
  { organizationId, addresses }: { organizationId: string; addresses: readonly string[] },
): Promise<void> {
  const people = hashPeople(tools, organizationId, addresses).map(({ person }) => person);
  if (people.length === 0) return;
  const at = now(tools.clock);
  await store.insertReached(transaction, {
    organizationId,
    people,
    period: dateOf(Math.floor(at.getTime() / periodMs) * periodMs),
    countedAfter: countedAfter(at),
  });
}

/** Those of the numbers whose people are counted already: another message to them takes nothing of the budget. */
export async function findReachedAddresses(
  tools: Hashing,
  transaction: Transaction,
  { organizationId, addresses, at }: { organizationId: string; addresses: readonly string[]; at: Date },
): Promise<Set<string>> {
  const hashed = hashPeople(tools, organizationId, addresses);
  const found = await store.findReached(transaction, organizationId, {
    people: hashed.map(({ person }) => person),
    countedAfter: countedAfter(at),
  });
  const reached = new Set(found.map((person) => person.toString('hex')));
  return new Set(
    hashed.flatMap(({ address, person }) => (reached.has(person.toString('hex')) ? [address] : [])),
  );
}

/** For the erasure of contacts. Should the number be written to again, it is counted once more. */
export async function forgetReached(
  tools: Hashing,
  transaction: Transaction,
  { organizationId, addresses }: { organizationId: string; addresses: readonly string[] },
): Promise<void> {
  const people = hashPeople(tools, organizationId, addresses).map(({ person }) => person);
  if (people.length > 0) await store.deleteReached(transaction, organizationId, people);
}

/** Housekeeping: deletes whoever is not counted any more, of all organizations. */
export async function deleteOldReached(
  { clock }: { clock: Clock },
  connection: Connection,
  rowsMax?: number,
): Promise<void> {
  await store.deleteOldReached(connection, dateOf(clock.nowMs() - keptMs), rowsMax);
}
