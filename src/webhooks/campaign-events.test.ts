/** What a webhook asks for of the recipients of campaigns is what it reads of them. */
import { expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { readLog } from './log.ts';
import { startNumbering } from './numbering.ts';

const newId = createIds(systemClock);
let database: Database;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});

test('each choice reads its own of campaigns, and all else', async () => {
  const organizationId = newId();
  const happened = [
    ['email.delivered', false],
    ['email.delivered', true],
    ['campaign.progress', true],
    ['campaign.sent', false],
  ] as const;
  for (const [type, ofCampaign] of happened) {
    await database.rows(
      unpreparedStatement(
        `insert into webhook_outbox (organization_id, type, happened_at, of_campaign, subject_ids)
         values ($1, $2, now(), $3, $4)`,
      ),
      [organizationId, type, ofCampaign, [newId()]],
    );
  }
  await new Promise<void>((resolve) => {
    const numbering = startNumbering({
      database,
      clock: systemClock,
      log: silentLog,
      onNumbered: () => void numbering.stop().then(resolve),
      onAlerts: () => undefined,
    });
  });
  const read = async (campaignEvents: 'none' | 'summary' | 'all' | null, patterns: string[]) => {
    const wanted = { organizationId, from: 1, patterns, campaignEvents, limit: 100 };
    return (await readLog(database, wanted)).events.map(({ position }) => position);
  };
  expect(await read(null, ['*'])).toEqual([1, 2, 3, 4]);
  expect(await read('none', ['*'])).toEqual([1, 4]);
  expect(await read('summary', ['*'])).toEqual([1, 3, 4]);
  expect(await read('all', ['*'])).toEqual([1, 2, 4]);
  expect(await read('summary', ['email.*'])).toEqual([1, 3]);
  expect(await read('all', ['email.*'])).toEqual([1, 2]);
  expect(await read('none', ['campaign.*'])).toEqual([4]);
});
