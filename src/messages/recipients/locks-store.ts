import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import {
  keyColumns,
  messageColumns,
  type RecipientKey,
  recipientKey,
  toKey,
  uniqueMessages,
} from '../keys.ts';

const lockRecipients = statement(
  'recipients_lock',
  `select
   from recipients r
   join unnest($1::uuid[], $2::uuid[], $3::integer[]) as wanted (organization_id, message_id, ordinal)
     on ${hasKeyOf('r', 'wanted', recipientKey)}
   order by wanted.organization_id, wanted.message_id, wanted.ordinal
   for no key update of r`,
);

/**
 * Locks recipients until the transaction ends, in the order of their keys. An update alone would lock them in whatever
 * order its plan finds them, and two transactions could deadlock. Locks on messages do not prevent it: settling a
 * campaign's jobs takes none, while applying reports does. To be called after messages are locked.
 */
export async function lockRecipientsOf(connection: Connection, jobs: readonly RecipientKey[]): Promise<void> {
  if (jobs.length < 2) return;
  await connection.rows(lockRecipients, keyColumns(jobs));
}

const lockTransactional = statement(
  'engagement_lock_transactional',
  `select
   from messages m
   join unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
     on ${hasKeyOf('m', 'wanted', ['id'])}
   -- With "= 'transactional'" the planner could choose the index on the status of transactional messages.
   where m.class <> 'campaign'
   order by wanted.organization_id, wanted.id
   for no key update of m`,
);

const lockPresent = statement<{
  organization_id: string;
  message_id: string;
  ordinal: number;
  handed_off_at: Date | null;
  has_only_failed: boolean;
}>(
  'engagement_lock_recipients',
  `select r.organization_id, r.message_id, r.ordinal, r.handed_off_at,
     r.status = 'failed' and r.ambiguities = 0 as has_only_failed
   from recipients r
   join unnest($1::uuid[], $2::uuid[], $3::integer[]) as wanted (organization_id, message_id, ordinal)
     on ${hasKeyOf('r', 'wanted', recipientKey)}
   where r.drop_reason is null
   order by wanted.organization_id, wanted.message_id, wanted.ordinal
   for no key update of r`,
);

/** A recipient that was not dropped. */
export type PresentRecipient = RecipientKey & {
  handedOffAt: Date | null;
  /** It has failed, and no hand-off was cut off that could have taken place all the same. */
  hasOnlyFailed: boolean;
};

/**
 * Locks recipients that something is heard from, in the order of their keys, so that two transactions cannot deadlock,
 * and before them those of their messages whose status depends on their recipients, as settling outcomes does. A
 * campaign's message is not locked: its status does not depend on them, and thousands of recipients would wait for each
 * other. Returns those that were not dropped. The transaction must plan by indexes.
 */
export async function lockEngagedRecipients(
  transaction: Connection,
  recipients: readonly RecipientKey[],
): Promise<PresentRecipient[]> {
  await transaction.rows(lockTransactional, messageColumns(uniqueMessages(recipients)));
  const rows = await transaction.rows(lockPresent, keyColumns(recipients));
  return rows.map((row) => ({
    ...toKey(row),
    handedOffAt: row.handed_off_at,
    hasOnlyFailed: row.has_only_failed,
  }));
}
