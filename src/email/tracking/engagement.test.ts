import { expect, test } from 'vitest';
import { eventually } from '../../../test/support/email-journey.ts';
import { createShuffledIds } from '../../../test/support/shuffled-ids.ts';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { systemClock } from '../../platform/clock.ts';
import { silentLog } from '../../platform/log.ts';
import {
  type Database,
  DatabaseUnavailableError,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { createManualClock } from '../../../test/support/manual-clock.ts';
import { createEngagementRecorder, type Engagement, recordEngagements } from './engagement.ts';
import { emailChannel } from '../channel.ts';
import type { RecipientKey } from '../../messages/keys.ts';

let database: Database;
const newId = createShuffledIds(systemClock);
const organizationId = newId();
const handedOffAt = new Date('2026-11-21T12:00:00.000Z');
const after = (seconds: number) => new Date(handedOffAt.getTime() + seconds * 1_000);

useTestDatabase({ connectionsMax: 4 }, (opened) => {
  database = opened.database;
});

async function insertRecipients(
  messageClass: 'transactional' | 'campaign',
  count: number,
  more: { status?: string; dropReason?: string; handedOffAt?: Date | null; owner?: string } = {},
): Promise<RecipientKey[]> {
  const { owner = organizationId } = more;
  const messageId = newId();
  await database.rows(
    unpreparedStatement(
      `with message as (
         insert into messages
           (organization_id, id, channel, class, sender, details, recipient_count, created_at, updated_at)
         values ($1, $2, 'email', $3, 'a@postillion.test', '{}', $4, $5, $5)
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, status, status_at, drop_reason,
         handed_off_at, uncertain, contact_id)
       select $1, $2, n, 'to', 'a@example.com', 'a@example.com', $6, $5, $7, $8, true,
         case when $3 = 'campaign' then gen_random_uuid() end
       from generate_series(0, $4::integer - 1) as n`,
    ),
    [
      owner,
      messageId,
      messageClass,
      count,
      handedOffAt,
      more.status ?? 'delivered',
      more.dropReason ?? null,
      more.handedOffAt === undefined ? handedOffAt : more.handedOffAt,
    ],
  );
  return Array.from({ length: count }, (_none, ordinal) => ({ organizationId: owner, messageId, ordinal }));
}

type Row = {
  status: string;
  opened_at: Date | null;
  clicked_at: Date | null;
  machine_engaged_at: Date | null;
  uncertain: boolean;
  message_status: string;
};

async function rowsOf(messageId: string): Promise<Row[]> {
  return database.rows(
    unpreparedStatement<Row>(
      `select r.status, r.opened_at, r.clicked_at, r.machine_engaged_at, r.uncertain, m.status as message_status
       from recipients r
       join messages m on m.organization_id = r.organization_id and m.id = r.message_id
       where r.message_id = $1
       order by r.ordinal`,
    ),
    [messageId],
  );
}

const open = (recipient: RecipientKey, seconds: number, isMachine = false): Engagement => ({
  recipient,
  action: 'opened',
  isMachine,
  at: after(seconds),
});
const click = (recipient: RecipientKey, seconds: number, isMachine = false): Engagement => ({
  ...open(recipient, seconds, isMachine),
  action: 'clicked',
});

const record = (engagements: Engagement[]) =>
  recordEngagements({ channel: emailChannel, database, clock: systemClock, newId }, engagements);

test('the first open and the first click count, whatever order and however many batches they come in', async () => {
  const [recipient] = await insertRecipients('transactional', 1);
  await record([click(recipient!, 50), open(recipient!, 20), click(recipient!, 40), open(recipient!, 30)]);
  const expected = {
    status: 'clicked',
    opened_at: after(20),
    clicked_at: after(40),
    machine_engaged_at: null,
    uncertain: false,
    message_status: 'delivered',
  };
  expect(await rowsOf(recipient!.messageId)).toEqual([expected]);
  await record([open(recipient!, 5), click(recipient!, 6)]);
  expect(await rowsOf(recipient!.messageId)).toEqual([expected]);
  await record([open(recipient!, 7), click(recipient!, 8), open(recipient!, 9, true)]);
  expect(await rowsOf(recipient!.messageId)).toEqual([{ ...expected, machine_engaged_at: after(9) }]);
});

test('a click is an open, and a later open does not take it back', async () => {
  const [recipient] = await insertRecipients('transactional', 1);
  await record([click(recipient!, 10)]);
  await record([open(recipient!, 20)]);
  expect(await rowsOf(recipient!.messageId)).toMatchObject([
    { status: 'clicked', opened_at: after(10), clicked_at: after(10) },
  ]);
});

test.each(['unsubscribed', 'complained'])(
  'an open after %s is noted, and leaves that as it is',
  async (status) => {
    const [recipient] = await insertRecipients('campaign', 1, { status });
    await record([open(recipient!, 10)]);
    expect(await rowsOf(recipient!.messageId)).toMatchObject([{ status, opened_at: after(10) }]);
  },
);

test('machines, and whatever is too quick for people, count as nobody’s open or click', async () => {
  const [first, second, third] = await insertRecipients('campaign', 3);
  const [unsettled] = await insertRecipients('campaign', 1, { handedOffAt: null });
  await record([
    click(first!, 10, true),
    click(second!, 0.5),
    click(third!, 0.5),
    click(third!, 2),
    open(unsettled!, 5),
  ]);
  const machine = { status: 'delivered', opened_at: null, clicked_at: null };
  expect(await rowsOf(first!.messageId)).toMatchObject([
    { ...machine, machine_engaged_at: after(10) },
    { ...machine, machine_engaged_at: after(0.5) },
    { status: 'clicked', clicked_at: after(2), machine_engaged_at: after(0.5) },
  ]);
  expect(await rowsOf(unsettled!.messageId)).toMatchObject([{ ...machine, machine_engaged_at: after(5) }]);
});

test('an open by a machine does not settle what is uncertain, one by a person does', async () => {
  const [recipient] = await insertRecipients('campaign', 1, { status: 'sent', handedOffAt: null });
  await record([open(recipient!, 10, true)]);
  expect(await rowsOf(recipient!.messageId)).toMatchObject([
    { status: 'sent', uncertain: true, machine_engaged_at: after(10) },
  ]);
  await database.rows(unpreparedStatement('update recipients set handed_off_at = $2 where message_id = $1'), [
    recipient!.messageId,
    handedOffAt,
  ]);
  await record([open(recipient!, 20)]);
  expect(await rowsOf(recipient!.messageId)).toMatchObject([{ status: 'opened', uncertain: false }]);
});

test('a dropped recipient, and one that is unknown, gets nothing', async () => {
  const [dropped] = await insertRecipients('campaign', 1, {
    status: 'sent',
    dropReason: 'suppressed',
    handedOffAt: null,
  });
  await record([
    open(dropped!, 10),
    open({ ...dropped!, ordinal: 7 }, 10),
    open({ ...dropped!, messageId: newId() }, 1),
  ]);
  expect(await rowsOf(dropped!.messageId)).toMatchObject([{ status: 'sent', machine_engaged_at: null }]);
});

test('a campaign is told in which slices something has changed, and of nothing else', async () => {
  const recipients = await insertRecipients('campaign', 2_500);
  const [transactional] = await insertRecipients('transactional', 1);
  const batch = [recipients[1]!, recipients[2]!, recipients[2_400]!, transactional!].map((job) =>
    open(job, 10),
  );
  await record(batch);
  await record(batch);
  const changes = await database.rows(
    unpreparedStatement<{ message_id: string; slices: number[] }>(
      'select message_id, slices from recipient_changes where message_id = any ($1::uuid[])',
    ),
    [[recipients[0]!.messageId, transactional!.messageId]],
  );
  expect(changes).toEqual([{ message_id: recipients[0]!.messageId, slices: [0, 2] }]);
});

test('batches over the same recipients, in whatever order, do not stand in each other’s way', async () => {
  const recipients = await insertRecipients('campaign', 200);
  const forwards = recipients.map((job) => open(job, 10));
  await Promise.all([1, 2, 3, 4].map((turn) => record(turn % 2 === 0 ? forwards : forwards.toReversed())));
  expect((await rowsOf(recipients[0]!.messageId)).every(({ status }) => status === 'opened')).toBe(true);
});

test('what is noted while the database is away is written once it is back', async () => {
  const clock = createManualClock();
  const [recipient] = await insertRecipients('transactional', 1);
  let isAway = true;
  const recorder = createEngagementRecorder({
    channel: emailChannel,
    database: {
      ...database,
      asOrganizationsByIndex: (ids, work) =>
        isAway
          ? Promise.reject(new DatabaseUnavailableError('away'))
          : database.asOrganizationsByIndex(ids, work),
    },
    clock,
    newId,
    log: silentLog,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
  });
  recorder.note(open(recipient!, 10));
  await clock.whenWaiting(1);
  clock.advance(250);
  // The pause before the next try.
  await clock.whenWaiting(1);
  isAway = false;
  clock.advance(1_000);
  await recorder.stop();
  expect(await rowsOf(recipient!.messageId)).toMatchObject([{ opened_at: after(10) }]);
});

test('a recorder that stops gives up on a database that is away, and keeps nobody waiting', async () => {
  const clock = createManualClock();
  const recorder = createEngagementRecorder({
    channel: emailChannel,
    database: {
      ...database,
      asOrganizationsByIndex: () => Promise.reject(new DatabaseUnavailableError('away')),
    },
    clock,
    newId,
    log: silentLog,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
  });
  recorder.note(open({ organizationId, messageId: newId(), ordinal: 0 }, 10));
  clock.advance(250);
  await recorder.stop();
});

/** A recorder of two a batch, and how many recipients each of its transactions wrote. */
function recordByTwo(more: { waitingMax?: number; isAway?: () => boolean } = {}) {
  const clock = createManualClock();
  const batches: number[] = [];
  const recorder = createEngagementRecorder({
    channel: emailChannel,
    database: {
      ...database,
      asOrganizationsByIndex: (ids, work) =>
        more.isAway?.() === true
          ? Promise.reject(new DatabaseUnavailableError('away'))
          : database.asOrganizationsByIndex(ids, (transaction) =>
              work({
                ...transaction,
                rows: async (statement, values) => {
                  const rows = await transaction.rows(statement, values);
                  if (statement.name === 'recipients_note_engagements') batches.push(rows.length);
                  return rows;
                },
              }),
            ),
    },
    clock,
    newId,
    log: silentLog,
    onCampaignProgress: () => undefined,
    onContactsChanged: () => undefined,
    batchItemsMax: 2,
    ...(more.waitingMax !== undefined && { waitingMax: more.waitingMax }),
  });
  return { recorder, clock, batches };
}

test('five opens of two organizations are all written, two at a time and each once', async () => {
  const own = await insertRecipients('campaign', 4);
  const [beside] = await insertRecipients('transactional', 1, { owner: newId() });
  const { recorder, clock, batches } = recordByTwo();
  for (const recipient of [...own, beside!]) recorder.note(open(recipient, 10));
  // The last one is alone, and waits for others.
  await clock.whenWaiting(1);
  clock.advance(250);
  await recorder.stop();
  expect(batches).toEqual([2, 2, 1]);
  for (const { messageId } of [own[0]!, beside!])
    expect((await rowsOf(messageId)).map(({ status }) => status)).not.toContain('delivered');
});

test('opens that there was no room for leave room for those that come afterwards', async () => {
  const recipients = await insertRecipients('campaign', 6);
  let isAway = true;
  const { recorder, clock } = recordByTwo({ waitingMax: 2, isAway: () => isAway });
  for (const recipient of recipients.slice(0, 5)) recorder.note(open(recipient, 10));
  // The pause before the next try.
  await clock.whenWaiting(1);
  isAway = false;
  clock.advance(1_000);
  const written = async () =>
    (await rowsOf(recipients[0]!.messageId)).map(({ opened_at }) => opened_at !== null);
  await eventually(written, ([first, second]) => first === true && second === true);
  await eventually(
    () => {
      recorder.note(open(recipients[5]!, 10));
      clock.advance(250);
      return written();
    },
    (opened) => opened[5] === true,
  );
  await recorder.stop();
  expect(await written()).toEqual([true, true, false, false, false, true]);
});
