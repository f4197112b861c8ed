/** An organization that signs reports for itself may name whatever id it likes: it takes none from another. */
import { expect, test } from 'vitest';
import {
  deleteOldProviderIds,
  findByProviderIds,
  keepProviderIds,
} from '../../src/messages/recipients/provider-ids-store.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import type { Database } from '../../src/platform/postgres/database.ts';
import { useTestDatabase } from '../support/test-database.ts';

let database: Database;
useTestDatabase({}, (opened) => {
  database = opened.database;
});

const newId = createIds(systemClock);
const aJob = (organizationId: string) => ({ organizationId, messageId: newId(), ordinal: 0 });
const providerMessageId = 'wamid.1';
const keep = (job: ReturnType<typeof aJob>, at: string) =>
  keepProviderIds(database, [{ job, channel: 'chatapp', providerMessageId }], new Date(at));
const find = (organizationIds: (string | null)[]) =>
  findByProviderIds(
    database,
    'chatapp',
    organizationIds.map((organizationId) => ({ organizationId, providerMessageId })),
  );

test('of two messages of an organization that were given an id at once, the later one has it', async () => {
  const [own, other] = [newId(), newId()];
  const [older, newer, others] = [aJob(own), aJob(own), aJob(other)];
  for (const jobs of [
    [newer, older, others],
    [others, older, newer],
  ]) {
    await keepProviderIds(
      database,
      jobs.map((job) => ({ job, channel: 'chatapp', providerMessageId: 'at once' })),
      new Date('2026-11-21T10:00:00Z'),
    );
    const asked = [own, other].map((organizationId) => ({ organizationId, providerMessageId: 'at once' }));
    expect(await findByProviderIds(database, 'chatapp', asked)).toEqual(
      new Map([
        [0, newer],
        [1, others],
      ]),
    );
  }
});

test('an id stays that of the message of its organization, and of each the last one counts', async () => {
  const [own, other, third] = [newId(), newId(), newId()];
  const [before, mine, theirs] = [aJob(own), aJob(own), aJob(other)];
  await keep(before, '2026-11-21T10:00:00Z');
  await keep(mine, '2026-11-21T11:00:00Z');
  await keep(theirs, '2026-11-21T12:00:00Z');
  // Whoever has an account together with all others is told of the last message with the id.
  expect(await find([own, other, null, third])).toEqual(
    new Map([
      [0, mine],
      [1, theirs],
      [2, theirs],
      [3, theirs],
    ]),
  );
  await deleteOldProviderIds(database, new Date('2026-11-21T11:30:00Z'));
  expect(await find([own])).toEqual(new Map([[0, theirs]]));
});
