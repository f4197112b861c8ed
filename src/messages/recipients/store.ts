import type { SendingChannel } from '../../channels/channel.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { Columns } from '../../platform/postgres/parameters.ts';
import { toPredicate } from '../../platform/postgres/predicate.ts';
import type { Job } from '../channel.ts';
import { keyColumns, type RecipientKey, recipientKey, toKey } from '../keys.ts';
import type { DropReason, RecipientStatus } from '../schema.ts';

/** A recipient whose row was changed: with its contact if the message is a campaign's, and its normalised address. */
export type ChangedRecipient = RecipientKey & {
  contactId: string | null;
  addressKey: string;
  /** What programs may be told of it. */
  happened: readonly Happened[];
};

/** Something that has become of a recipient. */
export type Happened = {
  what: RecipientStatus | 'dropped';
  at: Date;
  dropReason?: DropReason;
  failure?: Failure | null;
  /** Who has opened it, or followed a link. */
  actor?: 'human' | 'machine';
};

/** For `toChanged`. */
export type ChangedRow = {
  organization_id: string;
  message_id: string;
  ordinal: number;
  contact_id: string | null;
  address_key: string;
};

export function toChanged(row: ChangedRow, happened: readonly Happened[] = []): ChangedRecipient {
  return { ...toKey(row), contactId: row.contact_id, addressKey: row.address_key, happened };
}

/** The remote side's reply, as stored with the recipient. */
export type Failure = {
  type: 'hard' | 'soft';
  /** One of the channel's own reasons. */
  class: string;
  smtpCode: number | null;
  enhancedCode: string | null;
  diagnostic: string;
  remote: string | null;
};

/** For statements that write it. */
export function columnsOfFailure<Item>(failureOf: (item: Item) => Failure | null): Columns<Item> {
  return {
    failure_type: ['text', (item) => failureOf(item)?.type],
    failure_class: ['text', (item) => failureOf(item)?.class],
    smtp_code: ['smallint', (item) => failureOf(item)?.smtpCode],
    enhanced_code: ['text', (item) => failureOf(item)?.enhancedCode],
    diagnostic: ['text', (item) => failureOf(item)?.diagnostic],
    remote: ['text', (item) => failureOf(item)?.remote],
  };
}

/** The normalised addresses of recipients, for suppressing them, and when they were handed off. */
export async function findAddressKeys(
  connection: Connection,
  jobs: readonly RecipientKey[],
): Promise<(RecipientKey & { addressKey: string; handedOffAt: Date | null })[]> {
  const rows = await connection.rows(
    unpreparedStatement<{
      organization_id: string;
      message_id: string;
      ordinal: number;
      address_key: string;
      handed_off_at: Date | null;
    }>(
      `select r.organization_id, r.message_id, r.ordinal, r.address_key, r.handed_off_at
       from unnest($1::uuid[], $2::uuid[], $3::integer[]) as job (organization_id, message_id, ordinal)
       join recipients r on ${hasKeyOf('r', 'job', recipientKey)}`,
    ),
    keyColumns(jobs),
  );
  return rows.map((row) => ({
    ...toKey(row),
    addressKey: row.address_key,
    handedOffAt: row.handed_off_at,
  }));
}

/**
 * Those of the jobs that their recipients have asked for. An answer to a text may go out although that text was an opt-out;
 * a message of the category, such as a code, although its recipient has opted out at some time.
 */
export async function findAskedFor(
  connection: Connection,
  jobs: readonly Job[],
  category: string | null,
): Promise<Map<Job, 'answer' | 'category'>> {
  if (jobs.length === 0) return new Map();
  const rows = await connection.rows(
    unpreparedStatement<{ position: number; is_answer: boolean }>(
      `select job.position::integer as position, r.field = 'answer' as is_answer
       from unnest($1::uuid[], $2::uuid[], $3::integer[]) with ordinality
         as job (organization_id, message_id, ordinal, position)
       join recipients r using (organization_id, message_id, ordinal)
       left join messages m on m.organization_id = job.organization_id and m.id = job.message_id
       where r.field = 'answer' or m.category = $4::text`,
    ),
    [...keyColumns(jobs), category],
  );
  return new Map(
    rows.flatMap(({ position, is_answer: isAnswer }) => {
      const job = jobs[position - 1];
      return job === undefined ? [] : [[job, isAnswer ? 'answer' : 'category'] as const];
    }),
  );
}

/**
 * Those of the addresses that were refused for this reason on the channel, so many times since `fromId`, and to which
 * nothing was ever delivered there, as far as it is still stored. By the index recipients_address.
 */
export async function findUnreachedAddresses(
  connection: Connection,
  wanted: {
    organizationId: string;
    channel: SendingChannel;
    addressKeys: readonly string[];
    failureClass: string;
    fromId: string;
    refusalsMin: number;
  },
): Promise<string[]> {
  // As an offset keeps it: a join would read all messages of the organization.
  const isOnChannel = toPredicate(
    `exists (
       select
       from messages m
       where m.organization_id = r.organization_id and m.id = r.message_id and m.channel = $3
       offset 0
     )`,
  );
  const rows = await connection.rows(
    unpreparedStatement<{ address_key: string }>(
      `select address_key
       from unnest($2::text[]) as wanted (address_key)
       cross join lateral (
         select count(*) as times
         from (
           select
           from recipients r
           where r.organization_id = $1 and r.address_key = wanted.address_key and r.message_id >= $5
             and r.status = 'failed' and r.failure_class = $4 and ${isOnChannel}
           limit $6
         ) latest
       ) refused
       where refused.times >= $6 and not exists (
         select
         from recipients r
         where r.organization_id = $1 and r.address_key = wanted.address_key and r.delivered_at is not null
           and ${isOnChannel}
         offset 0
       )`,
    ),
    [
      wanted.organizationId,
      wanted.addressKeys,
      wanted.channel,
      wanted.failureClass,
      wanted.fromId,
      wanted.refusalsMin,
    ],
  );
  return rows.map((row) => row.address_key);
}

/**
 * The addresses, as indexes, whose last `length` messages all ended in a soft bounce. Messages that have not ended, or
 * that failed for a reason of their own, do not count. Reads a few rows for each address by the index
 * recipients_address.
 */
export async function findSoftRuns(
  connection: Connection,
  addresses: readonly { organizationId: string; addressKey: string }[],
  { length, failureClasses }: { length: number; failureClasses: readonly string[] },
): Promise<Set<number>> {
  const rows = await connection.rows(
    unpreparedStatement<{ position: number }>(
      `select wanted.position
       from unnest($1::uuid[], $2::text[]) with ordinality as wanted (organization_id, address_key, position)
       cross join lateral (
         select count(*) filter (
           where latest.status in ('bounced', 'failed') and latest.failure_type = 'soft'
             and latest.failure_class = any ($4::text[])
         ) as soft
         from (
           select status, failure_type, failure_class
           from recipients
           where organization_id = wanted.organization_id
             and address_key = wanted.address_key
             and drop_reason is null
             and status not in ('sent', 'delayed')
             and not (status = 'failed' and failure_class <> all ($4::text[]))
           order by message_id desc
           limit $3
         ) latest
       ) run
       where run.soft = $3`,
    ),
    [
      addresses.map(({ organizationId }) => organizationId),
      addresses.map(({ addressKey }) => addressKey),
      length,
      failureClasses,
    ],
  );
  return new Set(rows.map(({ position }) => position - 1));
}
