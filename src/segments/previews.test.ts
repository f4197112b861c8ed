import { expect, test } from 'vitest';
import { createShuffledIds } from '../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import { tryLockPreview } from './store.ts';

const newId = createShuffledIds(systemClock);
let database: Database;

useTestDatabase({ connectionsMax: 5 }, (opened) => {
  database = opened.database;
});

/** Asks for these, one after the other, each while those before it run; what each was answered. */
async function previewTogether([first, ...others]: readonly string[]): Promise<boolean[]> {
  if (first === undefined) return [];
  return database.transaction(async (transaction) => {
    const isAllowed = await tryLockPreview(transaction, first);
    return [isAllowed, ...(await previewTogether(others))];
  });
}

test('three organizations have a preview at once, each one alone, and a fourth is refused', async () => {
  const [ann, bob, cay, dan] = [newId(), newId(), newId(), newId()];
  expect(await previewTogether([ann, ann, bob, cay, dan])).toEqual([true, false, true, true, false]);
  // Each has given its place back.
  expect(await previewTogether([dan, cay, bob])).toEqual([true, true, true]);
});
