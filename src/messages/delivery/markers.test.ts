import { beforeEach, expect, test } from 'vitest';
import { anEmailJob } from '../../../test/support/jobs.ts';
import { announceHandOffs, countBatches } from '../../../test/support/delivery-slices.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import {
  type Database,
  DatabaseUnavailableError,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { type MarkerBook, openMarkerBook } from './markers.ts';
import type { Job } from '../channel.ts';

const epoch = 7;

let database: Database;

useTestDatabase({ connectionsMax: 3 }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  await database.rows(unpreparedStatement('truncate hand_offs, workers cascade'));
  await database.rows(
    unpreparedStatement("insert into workers (epoch, host, pid, started_at) values ($1, 'here', 1, now())"),
    [epoch],
  );
});

const aJob = (ordinal: number) => anEmailJob({ ordinal, claimNumber: 100 + ordinal });

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

/** Of jobs that are announced together. */
async function announce(book: MarkerBook, ...jobs: Job[]): Promise<boolean> {
  return book.write(jobs, (marker) => announceHandOffs(database, jobs, marker));
}

test('hand-offs that are announced at once share a marker, which names the claim of each', async () => {
  expect(await announce(openMarkerBook(epoch, countBatches()), aJob(1), aJob(2))).toBe(true);
  expect(await listMarkers()).toEqual([{ ordinals: [1, 2], claims: [101, 102] }]);
});

test('a marker stands until the outcomes of all its jobs are written, and goes with the next one', async () => {
  const book = openMarkerBook(epoch, countBatches());
  const [first, second, third, fourth] = [aJob(1), aJob(2), aJob(3), aJob(4)];
  await announce(book, first, second);
  book.clear(first);
  await announce(book, third);
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[1, 2], [3]]);
  book.clear(second);
  book.clear(second);
  await announce(book, fourth);
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[3], [4]]);
});

test('the markers of several batches of two organizations that are over all go with the next one', async () => {
  const book = openMarkerBook(epoch, countBatches());
  const jobs = [1, 2, 3, 4, 5].map(aJob);
  jobs[4]!.organizationId = '01930000-0000-7000-8000-000000000003';
  for (const batch of [jobs.slice(0, 2), jobs.slice(2, 4), jobs.slice(4)]) await announce(book, ...batch);
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[1, 2], [3, 4], [5]]);
  for (const job of jobs) book.clear(job);
  await announce(book, aJob(6));
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[6]]);
});

test('a worker that was buried announces nothing', async () => {
  await database.rows(unpreparedStatement('delete from workers where epoch = $1'), [epoch]);
  expect(await announce(openMarkerBook(epoch, countBatches()), aJob(1))).toBe(false);
  expect(await listMarkers()).toEqual([]);
});

test('when a marker could not be committed, what was over is removed with a later one', async () => {
  const book = openMarkerBook(epoch, countBatches());
  const [over, failed, later] = [aJob(1), aJob(2), aJob(3)];
  await announce(book, over);
  book.clear(over);
  const away = () => Promise.reject(new DatabaseUnavailableError('away'));
  await expect(book.write([failed], away)).rejects.toThrow(DatabaseUnavailableError);
  book.clear(failed);
  await announce(book, later);
  expect((await listMarkers()).map(({ ordinals }) => ordinals)).toEqual([[3]]);
});
