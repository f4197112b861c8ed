import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../platform/clock.ts';
import type { ChatAppAccount, PeoplePerDayMax, ToldOfChatApp } from '../../provider.ts';

/** Tells of each organization how many people it may write to, as WhatsApp does: with its first call, and hourly. */
export type Limit = { tell: (account: ChatAppAccount) => void };

const everyMs = 3_600_000;
/** Those that are forgotten are told again. */
const organizationsMax = 10_000;

export function createLimit({
  clock,
  take,
  peoplePerDayMax,
}: {
  clock: Clock;
  take: (told: ToldOfChatApp & { organizationId: string }) => Promise<void>;
  peoplePerDayMax: PeoplePerDayMax;
}): Limit {
  const toldAtMs = new LRUCache<string, number>({ max: organizationsMax });
  return {
    tell: ({ organizationId, businessAccountId }) => {
      const nowMs = clock.monotonicMs();
      if (nowMs - (toldAtMs.get(organizationId) ?? -Infinity) < everyMs) return;
      toldAtMs.set(organizationId, nowMs);
      const told = { kind: 'people_limit', organizationId, businessAccountId, peoplePerDayMax } as const;
      // What could not be stored is told with the next call.
      void take(told).catch(() => toldAtMs.delete(organizationId));
    },
  };
}

/** Throws, in words for the operator. */
export function parsePeoplePerDay(setting: string): PeoplePerDayMax {
  if (setting === 'unlimited') return setting;
  const people = /^[1-9]\d{0,8}$/.test(setting) ? Number(setting) : null;
  if (people === null)
    throw new Error('POSTILLION_SANDBOX_PEOPLE_PER_DAY must be a number of people, or "unlimited"');
  return people;
}
