import { beforeEach, describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../../platform/clock.ts';
import {
  type Database,
  DatabaseUnavailableError,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { createMarkers, openMarkerBook } from './markers.ts';
import type { Job } from '../channel.ts';
import { emailChannel } from '../../email/channel.ts';

const epoch = 7;

let database: Database;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  await database.rows(unpreparedStatement('truncate hand_offs, workers'));
  await database.rows(
    unpreparedStatement("insert into workers (epoch, host, pid, started_at) values ($1, 'here', 1, now())"),
    [epoch],
  );
});

function aJob(ordinal: number): Job {
  return {
    organizationId: '01930000-0000-7000-8000-000000000001',
    messageId: '01930000-0000-7000-8000-000000000002',
    ordinal,
    channel: emailChannel,
    policy: emailChannel.policyOf({ isCampaign: false }),
    isCampaign: false,
    contactId: null,
    address: 'ann@example.com',
    addressKey: 'ann@example.com',
    variables: null,
    acceptedAt: new Date(0),
    contentBytes: 100,
    attempts: 0,
    ambiguities: 0,
    crashes: 0,
    claimNumber: 100 + ordinal,
  };
}

/** The ordinals and claim numbers that stand in each marker. */
async function listMarkers() {
  const rows = await database.rows(
    unpreparedStatement<{ ordinals: number[]; claim_numbers: unknown[] }>(
      'select ordinals, claim_numbers from hand_offs where epoch = $1 order by batch',
    ),
    [epoch],
  );
  return rows.map(({ ordinals, claim_numbers }) => ({ ordinals, claims: claim_numbers.map(Number) }));
}

test('hand-offs that are announced at once share a marker, which names the claim of each', async () => {
  const markers = createMarkers({ database, clock: systemClock }, openMarkerBook(epoch));
  expect(await Promise.all([aJob(1), aJob(2)].map((job) => markers.set(job)))).toEqual([true, true]);
  expect(await listMarkers()).toEqual([{ ordinals: [1, 2], claims: [101, 102] }]);
});

test('a marker stands until the outcomes of all its jobs are written, and goes with the next one', async () => {
  const markers = createMarkers({ database, clock: systemClock }, openMarkerBook(epoch));
  const [first, second, third, fourth] = [aJob(1), aJob(2), aJob(3), aJob(4)];
  await Promise.all([markers.set(first), markers.set(second)]);
  markers.clear(first);
  await markers.set(third);
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[1, 2], [3]]);
  markers.clear(second);
  markers.clear(second);
  await markers.set(fourth);
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[3], [4]]);
});

test('five hand-offs of two organizations are announced two at a time, each once, and all markers go', async () => {
  const markers = createMarkers({ database, clock: systemClock, batchItemsMax: 2 }, openMarkerBook(epoch));
  const jobs = [1, 2, 3, 4, 5].map(aJob);
  jobs[4]!.organizationId = '01930000-0000-7000-8000-000000000003';
  expect(await Promise.all(jobs.map((job) => markers.set(job)))).toEqual([true, true, true, true, true]);
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[1, 2], [3, 4], [5]]);
  for (const job of jobs) markers.clear(job);
  await markers.set(aJob(6));
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[6]]);
});

test('a worker that was buried announces nothing', async () => {
  await database.rows(unpreparedStatement('delete from workers where epoch = $1'), [epoch]);
  expect(await createMarkers({ database, clock: systemClock }, openMarkerBook(epoch)).set(aJob(1))).toBe(
    false,
  );
  expect(await listMarkers()).toEqual([]);
});

describe('when a marker could not be committed', () => {
  test('its hand-offs are not announced, and what was over is removed with a later one', async () => {
    let isDown = false;
    const markers = createMarkers(
      {
        database: {
          ...database,
          together: (organizationIds, statements) =>
            isDown
              ? Promise.reject(new DatabaseUnavailableError('away'))
              : database.together(organizationIds, statements),
        },
        clock: systemClock,
      },
      openMarkerBook(epoch),
    );
    const [over, failed, later] = [aJob(1), aJob(2), aJob(3)];
    await markers.set(over);
    markers.clear(over);
    isDown = true;
    await expect(markers.set(failed)).rejects.toThrow(DatabaseUnavailableError);
    isDown = false;
    markers.clear(failed);
    await markers.set(later);
    expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[3]]);
  });
});
