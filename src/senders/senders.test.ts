import { beforeAll, describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import type { SenderType } from '../channels/sms/sms.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import {
  addSender,
  approveSender,
  findApprovedSenders,
  findNumberHolders,
  rejectSender,
  type SenderRow,
  type SenderTools,
} from './senders.ts';

let database: Database;
let tools: SenderTools;
const newId = createIds(systemClock);
const [own, other] = [newId(), newId()];

useTestDatabase({ connectionsMax: 10 }, (opened) => {
  database = opened.database;
});
beforeAll(async () => {
  tools = { database, clock: systemClock, newId };
});

async function add(name: string, organizationId = own, type: SenderType | null = null): Promise<SenderRow> {
  const outcome = await addSender(tools, { organizationId, name, type });
  if (outcome.kind !== 'added') throw new Error(`${name} is ${outcome.kind}`);
  return outcome.sender;
}

async function addApproved(name: string, organizationId = own): Promise<SenderRow> {
  const { id } = await add(name, organizationId);
  const outcome = await approveSender(tools, id);
  if (outcome.kind !== 'approved') throw new Error(`${name} is ${outcome.kind}`);
  return outcome.sender;
}

async function find(name: string, organizationId = own) {
  const wanted = { organizationId, name };
  return (await findApprovedSenders(database, [wanted])).get(wanted);
}

describe('a sender', () => {
  test('is found from its approval on until it is rejected, and again after another approval', async () => {
    const { id, status, approved_at: approvedAt } = await add('Stages');
    expect([status, approvedAt]).toEqual(['pending', null]);
    expect(await find('Stages')).toBeUndefined();
    const approved = await approveSender(tools, id);
    expect(approved).toMatchObject({
      kind: 'approved',
      sender: { id, status: 'approved', approved_at: expect.any(Date) as Date },
    });
    expect(await find('Stages')).toEqual({ name: 'Stages', type: 'alphanumeric' });
    expect(await rejectSender(tools, id)).toMatchObject({ id, status: 'rejected', approved_at: null });
    expect(await find('Stages')).toBeUndefined();
    await approveSender(tools, id);
    expect(await find('Stages')).toBeDefined();
  });

  test('that is approved twice stays approved since the first time', async () => {
    const first = await addApproved('Twice');
    const again = await approveSender(tools, first.id);
    expect(again).toMatchObject({ kind: 'approved', sender: { approved_at: first.approved_at } });
  });

  test('is found by its exact name, in its organization alone', async () => {
    await addApproved('Exact Name');
    expect(await find('Exact Name')).toBeDefined();
    for (const name of ['exact name', 'EXACT NAME', 'Exact', 'Exact Name ', '']) {
      expect(await find(name), name).toBeUndefined();
    }
    expect(await find('Exact Name', other)).toBeUndefined();
  });

  test('of many is found for each who asks, with its type', async () => {
    await addApproved('Shared');
    await addApproved('Shared', other);
    await approveSender(tools, (await add('54321', own, 'short_code')).id);
    const wanted = [
      { organizationId: own, name: 'Shared' },
      { organizationId: own, name: 'Shared' },
      { organizationId: other, name: 'Shared' },
      { organizationId: own, name: '54321' },
      { organizationId: other, name: '54321' },
    ];
    const found = await findApprovedSenders(database, wanted);
    expect(wanted.map((sender) => found.get(sender)?.type)).toEqual([
      'alphanumeric',
      'alphanumeric',
      'alphanumeric',
      'short_code',
      undefined,
    ]);
  });

  test('is found behind the second wall by its own organization only', async () => {
    await addApproved('Walled');
    const wanted = { organizationId: own, name: 'Walled' };
    const findAs = (organizationId: string) =>
      database.asOrganizations([organizationId], async (transaction) =>
        (await findApprovedSenders(transaction, [wanted])).get(wanted),
      );
    expect(await findAs(own)).toBeDefined();
    expect(await findAs(other)).toBeUndefined();
  });

  test('is not added again in other letters, whatever became of it, but to another organization it is', async () => {
    const { id } = await add('Cased');
    await rejectSender(tools, id);
    for (const name of ['Cased', 'CASED', ' cased ']) {
      expect(await addSender(tools, { organizationId: own, name, type: null })).toMatchObject({
        kind: 'held',
        sender: { id, name: 'Cased', status: 'rejected' },
      });
    }
    await add('CASED', other);
  });

  test('that is added ten times at once is there once', async () => {
    const outcomes = await Promise.all(
      Array.from({ length: 10 }, () => addSender(tools, { organizationId: own, name: 'Crowd', type: null })),
    );
    expect(outcomes.map(({ kind }) => kind).sort()).toEqual(['added', ...Array<string>(9).fill('held')]);
  });

  test('that nobody has is neither approved nor rejected', async () => {
    expect(await approveSender(tools, newId())).toEqual({ kind: 'not_found' });
    expect(await rejectSender(tools, newId())).toBeNull();
  });
});

describe('a number', () => {
  test("is that of whoever may use it, else of whoever might, and a name or one that waits is nobody's", async () => {
    const holders = () => findNumberHolders(database, '14155550100');
    const { id } = await add('+14155550100');
    expect(await holders()).toEqual([]);
    await approveSender(tools, id);
    const mine = { organizationId: own, name: '14155550100', isApproved: true };
    expect(await holders()).toEqual([mine]);
    expect(await findNumberHolders(database, '+14155550100')).toEqual([]);
    await rejectSender(tools, id);
    expect(await holders()).toEqual([{ ...mine, isApproved: false }]);
    const theirs = await add('14155550100', other);
    expect(await holders()).toEqual([{ ...mine, isApproved: false }]);
    await approveSender(tools, theirs.id);
    expect(await holders()).toEqual([{ ...mine, organizationId: other }]);
    await rejectSender(tools, theirs.id);
    expect((await holders()).map(({ organizationId }) => organizationId)).toEqual([own, other].sort());
    await addApproved('NoNumber');
    expect(await findNumberHolders(database, 'NoNumber')).toEqual([]);
  });

  test('is approved for one organization at a time, whatever each calls its type', async () => {
    const mine = await addApproved('14155550101');
    const theirs = await add('14155550101', other, 'toll_free');
    expect(await approveSender(tools, theirs.id)).toEqual({ kind: 'taken' });
    expect(await find('14155550101', other)).toBeUndefined();
    await rejectSender(tools, mine.id);
    expect(await approveSender(tools, theirs.id)).toMatchObject({ kind: 'approved' });
    expect(await approveSender(tools, mine.id)).toEqual({ kind: 'taken' });
  });

  test('that ten organizations want at once goes to one of them', async () => {
    const added = await Promise.all(Array.from({ length: 10 }, () => add('14155550102', newId())));
    const outcomes = await Promise.all(added.map(({ id }) => approveSender(tools, id)));
    expect(outcomes.map(({ kind }) => kind).sort()).toEqual(['approved', ...Array<string>(9).fill('taken')]);
  });
});
