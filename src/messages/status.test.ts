import fc from 'fast-check';
import { expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import {
  type DropReason,
  dropReasons,
  type MessageStatus,
  recipientStatuses,
  type RecipientStatus,
} from './schema.ts';
import { emailStatusOfRecipients } from '../email/channel.ts';
import { rankOf, statusRanks } from './status.ts';

let database: Database;

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
});

type Recipient = { status: RecipientStatus; dropReason: DropReason | null; isHandedOff: boolean };

async function statusInDatabase(recipients: readonly Recipient[]): Promise<MessageStatus> {
  const [row] = await database.rows(
    unpreparedStatement<{ status: MessageStatus }>(
      `select ${emailStatusOfRecipients} as status
       from (
         select status, drop_reason, case when is_handed_off then now() end as handed_off_at
         from unnest($1::text[], $2::text[], $3::boolean[]) as r (status, drop_reason, is_handed_off)
       ) r`,
    ),
    [
      recipients.map(({ status }) => status),
      recipients.map(({ dropReason }) => dropReason),
      recipients.map(({ isHandedOff }) => isHandedOff),
    ],
  );
  return row!.status;
}

function statusByHand(recipients: readonly Recipient[]): MessageStatus {
  const distinct = recipients.filter(({ dropReason }) => dropReason !== 'duplicate');
  if (distinct.every(({ status }) => status === 'cancelled')) return 'cancelled';
  const counted = distinct.filter(({ status }) => status !== 'cancelled');
  const lost = counted.filter(
    ({ status, dropReason }) => dropReason !== null || status === 'bounced' || status === 'failed',
  );
  const reached = counted.filter(
    (recipient) => !lost.includes(recipient) && recipient.status !== 'sent' && recipient.status !== 'delayed',
  );
  if (lost.length === counted.length) return 'failed';
  if (reached.length === counted.length) return 'delivered';
  if (reached.length > 0 && lost.length > 0) return 'partially_delivered';
  return counted.some(({ isHandedOff }) => isHandedOff) ? 'sent' : 'queued';
}

const delivered: Recipient = { status: 'delivered', dropReason: null, isHandedOff: true };
const bounced: Recipient = { status: 'bounced', dropReason: null, isHandedOff: true };
const waiting: Recipient = { status: 'sent', dropReason: null, isHandedOff: false };
const delayed: Recipient = { status: 'delayed', dropReason: null, isHandedOff: false };
const uncertain: Recipient = { status: 'sent', dropReason: null, isHandedOff: true };
const suppressed: Recipient = { status: 'sent', dropReason: 'suppressed', isHandedOff: false };
const cancelled: Recipient = { status: 'cancelled', dropReason: null, isHandedOff: false };
const duplicate: Recipient = { status: 'sent', dropReason: 'duplicate', isHandedOff: false };

const dropped = fc.record({
  status: fc.constant<RecipientStatus>('sent'),
  dropReason: fc.constantFrom(...dropReasons),
  isHandedOff: fc.constant(false),
});
const kept = fc
  .record({
    status: fc.constantFrom(...recipientStatuses),
    dropReason: fc.constant(null),
    isHandedOff: fc.boolean(),
  })
  // What was cancelled had not left.
  .filter(({ status, isHandedOff }) => status !== 'cancelled' || !isHandedOff);
/** The first mention of an address is never its duplicate. */
const first = fc.oneof(
  kept,
  dropped.filter(({ dropReason }) => dropReason !== 'duplicate'),
);

test.each([
  ['queued', [waiting]],
  ['queued', [waiting, delayed]],
  ['sent', [waiting, uncertain]],
  ['sent', [delivered, waiting]],
  ['delivered', [delivered, duplicate]],
  ['partially_delivered', [delivered, bounced]],
  ['partially_delivered', [delivered, suppressed, waiting]],
  ['failed', [bounced, suppressed]],
  ['failed', [suppressed, duplicate]],
  ['cancelled', [cancelled, cancelled, duplicate]],
  ['delivered', [cancelled, delivered]],
  ['partially_delivered', [cancelled, delivered, bounced]],
  ['failed', [cancelled, suppressed]],
  ['queued', [cancelled, waiting]],
] as const)('a message is %s with recipients like these: %j', async (status, recipients) => {
  expect(await statusInDatabase(recipients)).toBe(status);
});

test("a message's status is the same function of its recipients in SQL as by hand", async () => {
  await fc.assert(
    fc.asyncProperty(first, fc.array(fc.oneof(kept, dropped), { maxLength: 5 }), async (head, tail) => {
      const recipients = [head, ...tail];
      expect(await statusInDatabase(recipients)).toBe(statusByHand(recipients));
    }),
    { numRuns: 500 },
  );
});

test('SQL ranks every status as the table does', async () => {
  const rows = await database.rows(
    unpreparedStatement<{ status: RecipientStatus; rank: number }>(
      `select status, ${rankOf('status')} as rank from unnest($1::text[]) as s (status)`,
    ),
    [recipientStatuses],
  );
  expect(Object.fromEntries(rows.map(({ status, rank }) => [status, rank]))).toEqual(statusRanks);
});
