/** Rows of the log have as many events as happened together: wherever a page begins and ends, each event is on one. */
import { beforeAll, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import type { EventType } from './event-types.ts';
import { type LoggedEvent, readLog } from './log.ts';
import { readRows } from './log-store.ts';
import { startNumbering } from './numbering.ts';

const newId = createIds(systemClock);
const [organizationId, otherId] = [newId(), newId()];
let database: Database;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});

type Happening = {
  of: string;
  type: EventType;
  events: number;
  isShared: boolean;
  ofCampaign: boolean;
  facts?: 'of each' | 'of all';
};

/** What happened together, in its order; of one message with many recipients, or of many messages. */
const happenings: readonly Happening[] = [
  { of: organizationId, type: 'email.delivered', events: 1, isShared: false, ofCampaign: false },
  { of: organizationId, type: 'email.delivered', events: 1_203, isShared: true, ofCampaign: true },
  { of: otherId, type: 'email.delivered', events: 700, isShared: false, ofCampaign: false, facts: 'of all' },
  { of: organizationId, type: 'email.bounced', events: 3, isShared: false, ofCampaign: false },
  {
    of: organizationId,
    type: 'sms.failed',
    events: 499,
    isShared: false,
    ofCampaign: false,
    facts: 'of each',
  },
  {
    of: organizationId,
    type: 'sms.delivered',
    events: 601,
    isShared: false,
    ofCampaign: false,
    facts: 'of all',
  },
  { of: organizationId, type: 'email.bounced', events: 500, isShared: true, ofCampaign: true },
  { of: organizationId, type: 'email.delivered', events: 2, isShared: false, ofCampaign: false },
];

type Expected = Pick<LoggedEvent, 'position' | 'type' | 'subjectId' | 'ordinal' | 'facts'> & {
  ofCampaign: boolean;
};

async function fillLog(): Promise<Expected[]> {
  const expected: Expected[] = [];
  for (const { of, type, events, isShared, ofCampaign, facts } of happenings) {
    const subjects = Array.from({ length: isShared ? 1 : events }, newId);
    const ordinals = Array.from({ length: events }, (_, ordinal) => (isShared ? ordinal : 0));
    const told = facts && Array.from({ length: facts === 'of all' ? 1 : events }, (_, place) => ({ place }));
    await database.rows(
      unpreparedStatement(
        `insert into webhook_outbox (organization_id, type, happened_at, of_campaign, subject_ids, ordinals, facts)
         values ($1, $2, now(), $3, $4, $5, $6)`,
      ),
      [of, type, ofCampaign, subjects, ordinals, told && JSON.stringify(told)],
    );
    if (of !== organizationId) continue;
    for (const [place, ordinal] of ordinals.entries()) {
      const subjectId = subjects[isShared ? 0 : place]!;
      expected.push({
        position: expected.length + 1,
        type,
        subjectId,
        ordinal,
        facts: told?.[facts === 'of all' ? 0 : place] ?? null,
        ofCampaign,
      });
    }
  }
  await new Promise<void>((resolve, reject) => {
    const numbering = startNumbering({
      database,
      clock: systemClock,
      log: silentLog,
      // Fewer than the longest of the rows has, and than some of them have together.
      eventsMax: 800,
      onAlerts: () => undefined,
      onNumbered: () => {
        stopWhenDone().catch(reject);
      },
    });
    const stopWhenDone = async () => {
      const left = await database.rows(unpreparedStatement('select from webhook_outbox limit 1'));
      if (left.length > 0) return;
      await numbering.stop();
      resolve();
    };
  });
  return expected;
}

const shown = ({ position, type, subjectId, ordinal, facts }: Omit<Expected, 'ofCampaign'>) =>
  [position, type, subjectId, ordinal, facts] as const;

let expected: Expected[];
beforeAll(async () => {
  expected = await fillLog();
});

test('what is told of all alike that happened together is told of each, however many they are', async () => {
  const all = { organizationId, from: 1, patterns: ['*'], campaignEvents: null, limit: expected.length };
  expect((await readLog(database, all)).events.map(shown)).toEqual(expected.map(shown));
});

test('pages of any size, of some types or without campaigns have every event once, and no row more than they need', async () => {
  const all = expected.length;
  for (const limit of [1, 7, 200, 500, 3_000]) {
    for (const patterns of [['*'], ['email.bounced', 'sms.*'], ['email.delivered']]) {
      for (const campaignEvents of [null, 'none'] as const) {
        const read: LoggedEvent[] = [];
        let from = limit === 1 ? all - 20 : 1;
        const first = from;
        while (from <= all) {
          const part = await readLog(database, { organizationId, from, patterns, campaignEvents, limit });
          expect(part.events.length).toBeLessThanOrEqual(limit);
          expect(part.next).toBeGreaterThan(from);
          read.push(...part.events);
          from = part.next;
        }
        const wanted = expected.filter(
          ({ position, type, ofCampaign }) =>
            position >= first &&
            (campaignEvents === null || !ofCampaign) &&
            patterns.some((pattern) => pattern === '*' || type.startsWith(pattern.replace('*', ''))),
        );
        expect(read.map(shown)).toEqual(wanted.map(shown));
        expect(new Set(read.map(({ id }) => id)).size).toBe(read.length);
      }
    }
  }
  const rows = await readRows(database, {
    organizationId,
    from: 400,
    to: all,
    types: null,
    campaignEvents: null,
    eventsMax: 200,
  });
  expect(rows.map(({ events }) => events)).toEqual([500, 500]);
});
