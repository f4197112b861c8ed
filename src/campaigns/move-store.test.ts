/** Moves of campaigns, and what programs are told of them. */
import { expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { markStarted } from './move-store.ts';

const newId = createIds(systemClock);
let database: Database;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  database = opened.database;
});

const run = <Row>(text: string, values: readonly unknown[]) =>
  database.rows(unpreparedStatement<Row>(text), values);

test('a campaign begins once, whoever finds that it has begun, and is told of where somebody wants to hear of it', async () => {
  const at = new Date();
  for (const isWanted of [true, false]) {
    const campaign = { organizationId: newId(), id: newId() };
    if (isWanted)
      await run(
        `insert into webhook_interests (organization_id, of_campaigns, type_pattern) values ($1, false, 'campaign.*')`,
        [campaign.organizationId],
      );
    await run(
      `insert into campaigns (organization_id, id, channel, name, name_key, status, content, message_id, created_at,
         updated_at)
       values ($1, $2, 'email', 'News', 'news', 'queued', '{}', $3, $4, $4)`,
      [campaign.organizationId, campaign.id, newId(), at],
    );
    for (const _time of [1, 2]) await markStarted(database, campaign, at);
    const told = await run<{ type: string; subject_ids: string[] }>(
      'select type, subject_ids from webhook_outbox where organization_id = $1',
      [campaign.organizationId],
    );
    expect(told).toEqual(isWanted ? [{ type: 'campaign.sending', subject_ids: [campaign.id] }] : []);
  }
});
