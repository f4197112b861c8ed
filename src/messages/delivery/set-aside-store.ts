import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { Job, MessageChannels } from '../channel.ts';
import { keyColumns, type RecipientKey, recipientKey, toKey } from '../keys.ts';
import { type JobRow, toJob } from './claim-store.ts';
import type { Settlement } from '../recipients/settlement-store.ts';

/** A job that no worker tries any more, as the operator is shown it. */
export type SetAsideJob = RecipientKey & {
  organizationName: string;
  channel: string;
  isCampaign: boolean;
  field: string;
  address: string;
  acceptedAt: Date;
  attempts: number;
  /** How often its hand-off was cut off before the answer. */
  ambiguities: number;
  crashes: number;
  /** When it last counted a crash, and what was known of it. */
  crashedAt: Date;
  crashWords: string;
  setAsideAt: Date;
};

/** Which jobs that were set aside are meant; what is left out restricts nothing. */
export type SetAsideFilter = {
  organizationId?: string | undefined;
  channel?: string | undefined;
  /** Only of this message, or of this recipient of it. */
  messageId?: string | undefined;
  ordinal?: number | undefined;
};

/** The last one of a page: the next page begins after it. */
export type SetAsidePosition = Pick<RecipientKey, 'messageId' | 'ordinal'>;

type SetAsideRow = {
  organization_id: string;
  organization_name: string;
  message_id: string;
  ordinal: number;
  channel: string;
  lane: number;
  field: string;
  address: string;
  accepted_at: Date;
  attempts: number;
  ambiguities: number;
  crashes: number;
  crashed_at: Date;
  crash_words: string;
  set_aside_at: Date;
};

const selectSetAside = unpreparedStatement<SetAsideRow>(
  `select q.organization_id, o.name as organization_name, q.message_id, q.ordinal, q.channel, q.lane, r.field, r.address,
     q.accepted_at, q.attempts, q.ambiguities, q.crashes, q.crashed_at, q.crash_words, q.set_aside_at
   from (
     select *
     from delivery_queue
     where set_aside_at is not null
       and ($1::uuid is null or organization_id = $1)
       and ($2::text is null or channel = $2)
       and ($3::uuid is null or message_id = $3)
       and ($4::integer is null or ordinal = $4)
       and ($5::uuid is null or (message_id, ordinal) < ($5, $6::integer))
     order by message_id desc, ordinal desc
     limit $7
   ) q
   join organizations o on o.id = q.organization_id
   join recipients r using (organization_id, message_id, ordinal)
   order by q.message_id desc, q.ordinal desc`,
);

/** Those of the newest messages first. By the index delivery_queue_set_aside. */
export async function listSetAside(
  connection: Connection,
  filter: SetAsideFilter,
  { after, limit }: { after: SetAsidePosition | null; limit: number },
): Promise<SetAsideJob[]> {
  const rows = await connection.rows(selectSetAside, [
    filter.organizationId,
    filter.channel,
    filter.messageId,
    filter.ordinal,
    after?.messageId,
    after?.ordinal,
    limit,
  ]);
  return rows.map((row) => ({
    ...toKey(row),
    organizationName: row.organization_name,
    channel: row.channel,
    isCampaign: row.lane > 0,
    field: row.field,
    address: row.address,
    acceptedAt: row.accepted_at,
    attempts: row.attempts,
    ambiguities: row.ambiguities,
    crashes: row.crashes,
    crashedAt: row.crashed_at,
    crashWords: row.crash_words,
    setAsideAt: row.set_aside_at,
  }));
}

/** How many jobs are set aside, by channel, and of all channels together up to `most`. By the index delivery_queue_set_aside. */
export async function countSetAside(connection: Connection, most: number): Promise<Map<string, number>> {
  const rows = await connection.rows(
    unpreparedStatement<{ channel: string; jobs: number }>(
      `select channel, count(*) as jobs
       from (select channel from delivery_queue where set_aside_at is not null limit $1) set_aside
       group by channel
       order by channel`,
    ),
    [most],
  );
  return new Map(rows.map(({ channel, jobs }) => [channel, jobs]));
}

/** Makes jobs due that are still set aside, and returns how many. They are poison jobs, which are tried alone. */
export async function unsetAside(
  connection: Connection,
  jobs: readonly RecipientKey[],
  at: Date,
): Promise<number> {
  const rows = await connection.rows(
    unpreparedStatement(
      `update delivery_queue q
       set set_aside_at = null, due_at = $4
       from unnest($1::uuid[], $2::uuid[], $3::integer[]) as chosen (organization_id, message_id, ordinal)
       where ${hasKeyOf('q', 'chosen', recipientKey)} and q.set_aside_at is not null
       returning q.ordinal`,
    ),
    [...keyColumns(jobs), at],
  );
  return rows.length;
}

/**
 * Claims jobs that are still set aside, under an epoch that no worker has: for the transaction that settles them, and that
 * nobody else sees claimed.
 */
export async function claimSetAside(
  connection: Connection,
  channels: MessageChannels,
  jobs: readonly RecipientKey[],
): Promise<{ epoch: number; jobs: Job[] }> {
  const [next] = await connection.rows(
    unpreparedStatement<{ epoch: number }>("select nextval('worker_epochs') as epoch"),
  );
  if (next === undefined) throw new Error('no worker epoch');
  const rows = await connection.rows(
    unpreparedStatement<JobRow>(
      `with claimed as (
         update delivery_queue q
         set claimed_by = $4, claim_number = 0
         from unnest($1::uuid[], $2::uuid[], $3::integer[]) as chosen (organization_id, message_id, ordinal)
         where ${hasKeyOf('q', 'chosen', recipientKey)} and q.set_aside_at is not null and q.channel = any ($5)
         returning q.*
       )
       select claimed.*, r.contact_id, r.address, r.address_key, r.variables
       from claimed
       join recipients r on ${hasKeyOf('r', 'claimed', recipientKey)}`,
    ),
    [...keyColumns(jobs), next.epoch, Object.keys(channels)],
  );
  return { epoch: next.epoch, jobs: rows.map((row) => toJob(row, channels[row.channel])) };
}

/** Writes what is known of the crashes that jobs count, after these were written. */
export async function noteCrashes(
  connection: Connection,
  settlements: readonly Settlement[],
  at: Date,
): Promise<void> {
  const crashed = settlements.filter(({ crashWords }) => crashWords !== undefined);
  if (crashed.length === 0) return;
  await connection.rows(
    unpreparedStatement(
      `update delivery_queue q
       set crashed_at = $4, crash_words = noted.words
       from unnest($1::uuid[], $2::uuid[], $3::integer[], $5::text[])
         as noted (organization_id, message_id, ordinal, words)
       where ${hasKeyOf('q', 'noted', recipientKey)}`,
    ),
    [...keyColumns(crashed.map(({ job }) => job)), at, crashed.map(({ crashWords }) => crashWords)],
  );
}
