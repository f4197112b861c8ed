import type { SendingChannel } from '../../channels/channel.ts';
import { type Connection, statement, unpreparedStatement } from '../../platform/postgres/database.ts';
import { deleteOldRows } from '../../platform/postgres/old-rows.ts';
import type { Secrets } from '../../platform/secrets.ts';
import type { RecipientKey } from '../keys.ts';

/**
 * The provider id that is stored for a hand-off that was cut off before the provider's own id was known: a keyed hash
 * of the phone number. It records that there was such a hand-off to the number, and saves a search for them where there
 * was none.
 */
export function uncertainId(secrets: Secrets, address: string): string {
  return `?${secrets.keyedHash(address, 'uncertain hand-off').toString('base64url')}`;
}

/** Longer than any network keeps a text that it cannot deliver: no receipt comes later than this. */
export const providerIdMaxAgeMs = 8 * 24 * 60 * 60_000;

/**
 * The id by which a provider knows a message. Providers restart their numbering now and then, so an id belongs to the
 * last message that was given it: to the last one of each organization, since one that signs reports for itself may name
 * whatever id it likes, and would take it from the message of another.
 */
export type ProviderId = { job: RecipientKey; channel: SendingChannel; providerMessageId: string };

const insertAll = statement(
  'provider_ids_insert',
  `insert into provider_ids (channel, provider_message_id, organization_id, message_id, ordinal, created_at)
   select distinct on (channel, provider_message_id, organization_id) *
   from (
     select *, $6::timestamptz
     from unnest($1::text[], $2::text[], $3::uuid[], $4::uuid[], $5::integer[])
       as known (channel, provider_message_id, organization_id, message_id, ordinal)
   ) known
   order by channel, provider_message_id, organization_id, message_id desc
   on conflict (channel, provider_message_id, organization_id) do update
   set message_id = excluded.message_id, ordinal = excluded.ordinal, created_at = excluded.created_at`,
);

export async function keepProviderIds(
  connection: Connection,
  ids: readonly ProviderId[],
  at: Date,
): Promise<void> {
  if (ids.length === 0) return;
  await connection.rows(insertAll, [
    ids.map(({ channel }) => channel),
    ids.map(({ providerMessageId }) => providerMessageId),
    ids.map(({ job }) => job.organizationId),
    ids.map(({ job }) => job.messageId),
    ids.map(({ job }) => job.ordinal),
    at,
  ]);
}

const selectAll = statement<{
  position: number;
  organization_id: string;
  message_id: string;
  ordinal: number;
}>(
  'provider_ids_select',
  `select (wanted.position - 1)::integer as position, known.organization_id, known.message_id, known.ordinal
   from unnest($2::text[], $3::uuid[]) with ordinality as wanted (provider_message_id, organization_id, position)
   cross join lateral (
     select organization_id, message_id, ordinal
     from provider_ids p
     where p.channel = $1 and p.provider_message_id = wanted.provider_message_id
     order by p.organization_id is not distinct from wanted.organization_id desc, p.created_at desc,
       p.message_id desc
     limit 1
   ) known`,
);

/**
 * The jobs that these ids belong to, by the position of the id; unknown ids are left out. `organizationId` is that of whoever
 * asks: its own job is found, or else the last one of another organization. It is null where an account at the provider is
 * that of all organizations.
 */
export async function findByProviderIds(
  connection: Connection,
  channel: SendingChannel,
  wanted: readonly { providerMessageId: string; organizationId: string | null }[],
): Promise<Map<number, RecipientKey>> {
  const rows = await connection.rows(selectAll, [
    channel,
    wanted.map(({ providerMessageId }) => providerMessageId),
    wanted.map(({ organizationId }) => organizationId),
  ]);
  return new Map(
    rows.map((row) => [
      row.position,
      { organizationId: row.organization_id, messageId: row.message_id, ordinal: row.ordinal },
    ]),
  );
}

/**
 * A hand-off that is given an old id again may hold the row; such rows are skipped. Uses the index
 * provider_ids_created.
 */
const deleteOld = unpreparedStatement(
  `with old as (
     select channel, provider_message_id, organization_id
     from provider_ids
     where created_at < $1
     limit $2
     for update skip locked
   )
   delete from provider_ids p
   using old
   where p.channel = old.channel and p.provider_message_id = old.provider_message_id
     and p.organization_id = old.organization_id
   returning true as is_deleted`,
);

/** Housekeeping: deletes the ids for which no report can arrive any more. */
export async function deleteOldProviderIds(
  connection: Connection,
  before: Date,
  rowsMax?: number,
): Promise<void> {
  await deleteOldRows(connection, deleteOld, before, rowsMax);
}
