import { expect, test } from 'vitest';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { emptyContact, mergeContact } from '../contact-values.ts';
import type { ContactInput } from '../schema.ts';
import { planBatch } from './import-plan.ts';
import type { ImportRow } from './import-row.ts';
import type { PresentRow } from './import-store.ts';

const at = new Date('2026-11-21T12:00:00.000Z');
const nobodysProperties = new Map<string, never>();

function valuesOf(input: ContactInput) {
  const merged = mergeContact(emptyContact, input, nobodysProperties);
  if (merged.kind === 'invalid') throw new Error(merged.issues.join(', '));
  return merged.values;
}

const rowOf = (input: ContactInput, line: number): ImportRow => ({
  line,
  input,
  values: valuesOf(input),
  listNames: [],
  tagNames: [],
});

const presentOf = (id: string, input: ContactInput): PresentRow => ({
  ...valuesOf(input),
  id,
  version: '1',
  set_ids: [],
  created_at: at,
  updated_at: at,
});

test('contacts are locked, changed and put into sets in the order of their ids, whatever that of the file is', () => {
  const newId = createShuffledIds(createManualClock());
  const numbers = Array.from({ length: 20 }, (_, number) => number);
  const emailOf = (number: number) => `person-${number}@example.com`;
  const ids = numbers.map(newId);
  const setIds = [newId(), newId(), newId()];
  expect([ids.toSorted(), setIds.toSorted()]).not.toEqual([ids, setIds]);
  const { touched, updates, memberships, changedIds } = planBatch({
    rows: numbers.map((number) =>
      // Every other one is changed, and all of them join.
      rowOf({ email: emailOf(number), ...(number % 2 === 0 && { first_name: 'New' }) }, number + 2),
    ),
    present: numbers.map((number) => presentOf(ids[number]!, { email: emailOf(number) })),
    setIdsOf: () => setIds,
    properties: nobodysProperties,
    newId,
    isDryRun: false,
  });
  expect(touched.map(({ id }) => id)).toEqual(ids.toSorted());
  expect(changedIds).toEqual(ids.toSorted());
  expect(updates.map(({ id }) => id)).toEqual(ids.filter((_, number) => number % 2 === 0).sort());
  expect(memberships.map(({ setId, contactId }) => [setId, contactId])).toEqual(
    setIds.toSorted().flatMap((setId) => ids.toSorted().map((contactId) => [setId, contactId])),
  );
});

test('a plan ends before the row that needs what a contact which is there gives up, and not where that is new', () => {
  const given = (external_id: string, email: string) => ({ external_id, email });
  const rows = [
    given('first', 'one@example.com'),
    given('first', 'two@example.com'),
    given('second', 'one@example.com'),
    given('third', 'three@example.com'),
  ].map((input, index) => rowOf(input, index + 2));
  const plan = (present: readonly PresentRow[], isDryRun = false) => {
    const common = {
      setIdsOf: () => [],
      properties: nobodysProperties,
      newId: createShuffledIds(createManualClock()),
    };
    return planBatch({ ...common, rows, present, isDryRun }).outcomes.map(({ kind }) => kind);
  };
  expect(plan([])).toEqual(['created', 'updated', 'created', 'created']);
  const there = presentOf('of the first', given('first', 'one@example.com'));
  expect(plan([there])).toEqual(['unchanged', 'updated']);
  // Which writes nothing, so that nothing is in the way.
  expect(plan([there], true)).toEqual(['unchanged', 'updated', 'created', 'created']);
});
