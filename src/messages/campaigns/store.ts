import {
  type Connection,
  type Database,
  type Statement,
  statement,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { SendingChannel } from '../../channels/channel.ts';
import type { Values } from '../../channels/placeholders.ts';
import { inOneRoundTrip } from '../../platform/postgres/round-trip.ts';
import type { MessageKey } from '../keys.ts';
import type { Reach } from '../recipients/reach.ts';

const selectStopped = statement<{ id: string }>(
  'messages_select_stopped',
  `select m.id
   from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
   join messages m on ${hasKeyOf('m', 'wanted', ['id'])}
   where m.is_stopped`,
);

/** Those of the messages that were stopped: no further recipient may get them. */
export async function findStoppedMessages(
  database: Database,
  messages: readonly MessageKey[],
): Promise<Set<string>> {
  const rows = await inOneRoundTrip(database, selectStopped, [
    messages.map(({ organizationId }) => organizationId),
    messages.map(({ messageId }) => messageId),
  ]);
  return new Set(rows.map(({ id }) => id));
}

/** The message of a campaign that was sent, or is being sent. */
export type CampaignMessage = { messageId: string; channel: SendingChannel };

/**
 * By campaign id. A campaign that was never queued has no message and is missing; one that was deleted after it was sent is
 * included, and so is one whose message is too old to be kept: then no contact has got it.
 */
export async function findCampaignMessages(
  connection: Connection,
  organizationId: string,
  campaignIds: readonly string[],
): Promise<Map<string, CampaignMessage>> {
  if (campaignIds.length === 0) return new Map();
  const rows = await connection.rows(
    unpreparedStatement<{ campaign_id: string; id: string; channel: SendingChannel }>(
      `select id as campaign_id, message_id as id, channel
       from campaigns
       where organization_id = $1 and id = any ($2::uuid[]) and message_id is not null`,
    ),
    [organizationId, campaignIds],
  );
  return new Map(
    rows.map(({ campaign_id: campaignId, id: messageId, channel }) => [campaignId, { messageId, channel }]),
  );
}

const countQueued = statement<{ ready: number; waiting: number }>(
  'messages_count_queued',
  `select ready + sliced as ready, waiting
   from (
     select count(*) filter (where due_at <= $3) as ready, count(*) filter (where due_at > $3) as waiting
     from (
       select due_at
       from delivery_queue
       where organization_id = $1 and message_id = $2
       limit $4
     ) seen
   ) queued, (
     select coalesce(sum(recipients), 0)::bigint as sliced
     from delivery_slices
     where organization_id = $1 and message_id = $2
   ) slices`,
);

/**
 * How many of its recipients are in the queue, up to `most`: those due by the given time, and those deferred beyond it.
 * Slices that are being handed off count as a whole.
 */
export async function countInQueue(
  connection: Connection,
  message: MessageKey,
  { at, most }: { at: Date; most: number },
): Promise<{ ready: number; waiting: number }> {
  const [row] = await connection.rows(countQueued, [message.organizationId, message.messageId, at, most]);
  return row ?? { ready: 0, waiting: 0 };
}

const countOfSome = statement<{ jobs: number }>(
  'messages_count_queued_of_some',
  `select count(*) + (
     select coalesce(sum(slice.recipients), 0)::bigint
     from unnest($2::uuid[]) as wanted (message_id)
     cross join lateral (
       select recipients
       from delivery_slices s
       where s.organization_id = $1 and s.message_id = wanted.message_id and s.lane = 1
     ) slice
   ) as jobs
   from (
     select
     from unnest($2::uuid[]) as wanted (message_id)
     cross join lateral (
       select
       from delivery_queue q
       where q.organization_id = $1 and q.message_id = wanted.message_id and q.lane = 1
       limit $3
     ) queued
     limit $3
   ) seen`,
);

/** How many recipients of all these messages are in the queue, up to `most`; without those that are held. */
export async function countInQueueOf(
  connection: Connection,
  organizationId: string,
  { messageIds, most }: { messageIds: readonly string[]; most: number },
): Promise<number> {
  const [row] = await connection.rows(countOfSome, [organizationId, messageIds, most]);
  return row?.jobs ?? 0;
}

const admitNext = statement<{ last_ordinal: number; recipients: number }>(
  'messages_admit_slices',
  `insert into delivery_slices
     (organization_id, message_id, first_ordinal, last_ordinal, channel, lane, recipients, accepted_at, content_bytes)
   select $1, $2, min(ordinal), max(ordinal), $5, 1, count(*), $6, $7
   from (
     select ordinal, (row_number() over (order by ordinal) - 1) / $9::integer as slice
     from (
       select r.ordinal
       from recipients r
       where r.organization_id = $1 and r.message_id = $2 and r.ordinal >= $3 and r.ordinal < $4
         and r.drop_reason is null and r.address <> ''
       order by r.ordinal
       limit $8
     ) admitted
   ) numbered
   group by slice
   returning last_ordinal, recipients`,
);

type AdmissibleRow = { ordinal: number; address_key: string; variables: Values | null; is_first: boolean };

function selectAdmissible(kind: Reach['kind'], isFirst: string): Statement<AdmissibleRow> {
  return statement(
    `messages_select_admissible_by_${kind}`,
    `select r.ordinal, r.address_key, r.variables, ${isFirst} as is_first
     from recipients r
     where r.organization_id = $1 and r.message_id = $2 and r.ordinal >= $3 and r.ordinal < $4
       and r.drop_reason is null and r.address <> ''
     order by r.ordinal
     limit $5`,
  );
}

/** Reads recipients_contact for the other devices of a contact. */
const selectAdmissibleBy: Readonly<Record<Reach['kind'], Statement<AdmissibleRow>>> = {
  address: selectAdmissible('address', 'true'),
  devices: selectAdmissible(
    'devices',
    `not exists (
       select
       from recipients earlier
       where earlier.organization_id = r.organization_id and earlier.message_id = r.message_id
         and earlier.contact_id = r.contact_id and earlier.ordinal < r.ordinal
         -- One that was admitted before has counted, even if it was dropped at its hand-off.
         and (earlier.ordinal < $3 or earlier.drop_reason is null) and earlier.address <> ''
     )`,
  ),
};

export type Admissible = {
  ordinal: number;
  addressKey: string;
  values: Values;
  /** Of the recipients that its contact is. */
  isFirst: boolean;
};

/** The recipients that `admitRecipients` would put into the queue, each with its own values. */
export async function listAdmissible(
  connection: Connection,
  message: MessageKey,
  { from, to, countMax, reach }: { from: number; to: number; countMax: number; reach: Reach },
): Promise<Admissible[]> {
  const { organizationId, messageId } = message;
  const rows = await connection.rows(selectAdmissibleBy[reach.kind], [
    organizationId,
    messageId,
    from,
    to,
    countMax,
  ]);
  return rows.map(({ ordinal, address_key: addressKey, variables, is_first: isFirst }) => ({
    ordinal,
    addressKey,
    values: variables ?? {},
    isFirst,
  }));
}

const selectContent = statement<{ content: unknown }>(
  'messages_select_content',
  'select content from message_contents where organization_id = $1 and message_id = $2',
);

/** The content of a message as its channel stored it; null once it is erased. */
export async function findMessageContent(connection: Connection, message: MessageKey): Promise<unknown> {
  const [row] = await connection.rows(selectContent, [message.organizationId, message.messageId]);
  return row?.content ?? null;
}

export type Admission = {
  channel: SendingChannel;
  /** Ordinals; `to` is not included. */
  from: number;
  to: number;
  /** Null for no limit. */
  countMax: number | null;
  contentBytes: number;
  /** Recipients that are handed off by one worker, one after the other. */
  sliceSize: number;
  at: Date;
};

/**
 * Puts recipients into the queue by slices, the lowest of the given ordinals first. Dropped and erased recipients are
 * skipped. Returns how many they are, and the last one; null if there are none.
 */
export async function admitRecipients(
  connection: Connection,
  message: MessageKey,
  admission: Admission,
): Promise<{ count: number; lastOrdinal: number | null }> {
  const rows = await connection.rows(admitNext, [
    message.organizationId,
    message.messageId,
    admission.from,
    admission.to,
    admission.channel,
    admission.at,
    admission.contentBytes,
    admission.countMax,
    admission.sliceSize,
  ]);
  return {
    count: rows.reduce((sum, { recipients }) => sum + recipients, 0),
    lastOrdinal: rows.length === 0 ? null : Math.max(...rows.map(({ last_ordinal }) => last_ordinal)),
  };
}

/** Hides the waiting jobs from the workers. */
export async function holdInQueue(connection: Connection, message: MessageKey): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with slices as (
         update delivery_slices set lane = 2 where organization_id = $1 and message_id = $2 and lane = 1
       )
       update delivery_queue set lane = 2 where organization_id = $1 and message_id = $2 and lane = 1`,
    ),
    [message.organizationId, message.messageId],
  );
}

/**
 * Shows the hidden jobs to the workers again. The time for which they are tried begins anew at `acceptedAt`: otherwise
 * those that were hidden for longer than that would be given up at the first word to wait. Null: it has gone on meanwhile.
 */
export async function showInQueue(
  connection: Connection,
  message: MessageKey,
  acceptedAt: Date | null,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with slices as (
         update delivery_slices
         set lane = 1, accepted_at = coalesce($3, accepted_at)
         where organization_id = $1 and message_id = $2 and lane = 2
       )
       update delivery_queue
       set lane = 1, accepted_at = coalesce($3, accepted_at)
       where organization_id = $1 and message_id = $2 and lane = 2`,
    ),
    [message.organizationId, message.messageId, acceptedAt],
  );
}

/** Stores how many recipients a campaign's message has, and returns its approximate size in bytes. */
export async function completeCampaignMessage(
  connection: Connection,
  message: MessageKey,
  recipientCount: number,
): Promise<number> {
  const [row] = await connection.rows(
    unpreparedStatement<{ content_bytes: number }>(
      `update messages m
       set recipient_count = $3
       from message_contents c
       where m.organization_id = $1 and m.id = $2 and c.organization_id = m.organization_id and c.message_id = m.id
       returning length(c.content::text) as content_bytes`,
    ),
    [message.organizationId, message.messageId, recipientCount],
  );
  if (row === undefined) throw new Error('the message of a campaign is not there');
  return row.content_bytes;
}

/**
 * Stops a message: no further recipient gets it. Jobs that a worker has claimed stay with it. The worker checks for the
 * stop before each hand-off, and so does any worker that claims the job next. For this, claimed jobs that were hidden
 * are shown to the workers again.
 */
export async function stopMessage(
  connection: Connection,
  message: { organizationId: string; messageId: string },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with stopped as (
         update messages
         set is_stopped = true
         where organization_id = $1 and id = $2
       ), seen as (
         update delivery_queue
         set lane = 1
         where organization_id = $1 and message_id = $2 and lane = 2 and claimed_by is not null
       ), seen_slices as (
         update delivery_slices
         set lane = 1
         where organization_id = $1 and message_id = $2 and lane = 2 and claimed_by is not null
       ), slices as (
         delete from delivery_slices
         where organization_id = $1 and message_id = $2 and claimed_by is null
       )
       delete from delivery_queue
       where organization_id = $1 and message_id = $2 and claimed_by is null`,
    ),
    [message.organizationId, message.messageId],
  );
}

const selectSender = statement<{ sender: string }>(
  'messages_select_sender',
  'select sender from messages where organization_id = $1 and id = $2',
);

export async function findMessageSender(connection: Connection, message: MessageKey): Promise<string | null> {
  const [row] = await connection.rows(selectSender, [message.organizationId, message.messageId]);
  return row?.sender ?? null;
}
