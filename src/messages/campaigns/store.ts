import {
  type Connection,
  type Database,
  type Statement,
  statement,
  unpreparedStatement,
} from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import type { ContactField } from '../../audience/audience.ts';
import type { SendingChannel } from '../../channels/channel.ts';
import type { Values } from '../../channels/placeholders.ts';
import { reachableDevices } from '../../devices/devices.ts';
import { inOneRoundTrip } from '../../platform/postgres/round-trip.ts';
import type { MessageKey } from '../keys.ts';
import { type ChangedRecipient, type ChangedRow, toChanged } from '../recipients/store.ts';
import { keyOfContact, type Reach } from './reach.ts';

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

/** Where a contact's values for placeholders are read from. */
export type ContactVariables = {
  /** Columns of contacts, named like their placeholders. */
  fields: readonly ContactField[];
  properties: readonly { key: string; number: number }[];
};

/** PostgreSQL allows a hundred arguments for a function: fifty pairs. */
const pairsMax = 50;

/**
 * SQL for the values that go into a contact's copy, null if there are none. Names of properties are bound as
 * parameters; names of columns are constants of ours.
 */
function valuesOf(variables: ContactVariables, bind: (value: unknown) => string): string {
  const pairs = [
    ...variables.fields.map((field) => `${bind(field)}::text, c.${field}`),
    ...variables.properties.map(
      ({ key, number }) => `${bind(key)}::text, c.properties -> ${bind(`${number}`)}::text`,
    ),
  ];
  if (pairs.length === 0) return 'null';
  const objects: string[] = [];
  for (let start = 0; start < pairs.length; start += pairsMax) {
    objects.push(`jsonb_build_object(${pairs.slice(start, start + pairsMax).join(', ')})`);
  }
  return `nullif(jsonb_strip_nulls(${objects.join(' || ')}), '{}')::json`;
}

/** The values for one contact's copy; empty if the contact does not exist. */
export async function loadContactValues(
  connection: Connection,
  contact: { organizationId: string; id: string },
  variables: ContactVariables,
): Promise<Values> {
  const values: unknown[] = [contact.organizationId, contact.id];
  const [row] = await connection.rows(
    unpreparedStatement<{ values: Values | null }>(
      `select ${valuesOf(variables, (value) => `$${values.push(value)}`)} as values
       from contacts c
       where c.organization_id = $1 and c.id = $2`,
    ),
    values,
  );
  return row?.values ?? {};
}

/** Members of a frozen audience: contacts, each with the device of it at the same place, or no devices at all. */
export type NewMembers = { contactIds: readonly string[]; deviceIds: readonly string[] };

export type NewRecipients = {
  message: MessageKey;
  channel: SendingChannel;
  members: NewMembers;
  /** The ordinal of the first member; the others follow. */
  firstOrdinal: number;
  reach: Reach;
  variables: ContactVariables;
  /** When the audience was frozen. */
  chosenAt: Date;
  at: Date;
};

/**
 * Inserts members as recipients and returns those that are dropped at once. Addresses and values are those of this
 * moment.
 */
export async function insertCampaignRecipients(
  connection: Connection,
  recipients: NewRecipients,
): Promise<ChangedRecipient[]> {
  const { message, members, reach, variables } = recipients;
  const values: unknown[] = [
    message.organizationId,
    message.messageId,
    members.contactIds,
    recipients.firstOrdinal,
    recipients.at,
    recipients.channel,
  ];
  const bind = (value: unknown) => `$${values.push(value)}`;
  const place =
    reach.kind === 'devices' ? findDevices(reach, recipients, bind) : findAddress(reach, recipients, bind);
  const rows = await connection.rows(
    unpreparedStatement<ChangedRow>(
      `with inserted as (
         insert into recipients
           (organization_id, message_id, ordinal, field, address, address_key, contact_id, device_id, variables, status_at,
           drop_reason)
         select $1, $2, $4::integer + wanted.position::integer - 1, 'to', coalesce(${place.address}, ''),
           coalesce(${keyOfContact(reach)}, ''), wanted.contact_id, ${place.deviceId}, ${valuesOf(variables, bind)}, $5,
           case
             when c.id is null then 'contact_deleted'
             when ${place.address} is null then 'no_address'
             when $6 = any (c.unsubscribed_channels) then 'unsubscribed'
             ${place.furtherDrops}
           end
         from ${place.members}
         left join contacts c on c.organization_id = $1 and c.id = wanted.contact_id${place.join}
         returning organization_id, message_id, ordinal, contact_id, address_key, drop_reason
       )
       select organization_id, message_id, ordinal, contact_id, address_key
       from inserted
       where drop_reason is not null`,
    ),
    values,
  );
  return rows.map(toChanged);
}

/** SQL for the place at which each of the `wanted` members is reached now; its address is null if there is none. */
type Place = {
  members: string;
  join: string;
  address: string;
  deviceId: string;
  /** Of a `case`: reasons for a drop besides those of all channels. */
  furtherDrops: string;
};

/**
 * An address that has moved to another contact since the contacts were chosen may have a row already. Only contacts that
 * were changed since then can have got such an address, so only these are checked. Clocks of nodes may differ by up to an
 * hour.
 */
function findAddress(
  { columns: { address, key } }: Extract<Reach, { kind: 'address' }>,
  { chosenAt }: NewRecipients,
  bind: (value: unknown) => string,
): Place {
  return {
    members: 'unnest($3::uuid[]) with ordinality as wanted (contact_id, position)',
    join: '',
    address: `c.${address}`,
    deviceId: 'null::uuid',
    furtherDrops: `when c.updated_at > ${bind(chosenAt)}::timestamptz - interval '1 hour' and exists (
               select
               from recipients r
               where r.organization_id = $1
                 and r.message_id = $2
                 and r.address_key = c.${key} collate "default"
             ) then 'duplicate'`,
  };
}

/** A device that was retired since it was chosen, or is another contact's, is not written to. */
function findDevices(
  { addressOf }: Extract<Reach, { kind: 'devices' }>,
  { members: { deviceIds } }: NewRecipients,
  bind: (value: unknown) => string,
): Place {
  const own = reachableDevices({ organizationId: '$1', id: 'wanted.contact_id' });
  return {
    members: `unnest($3::uuid[], ${bind(deviceIds)}::uuid[]) with ordinality as wanted (contact_id, device_id, position)`,
    join: `
         left join lateral (select * from (${own}) own where own.id = wanted.device_id) device on true`,
    address: addressOf('device.account', 'device.id'),
    deviceId: 'wanted.device_id',
    furtherDrops: '',
  };
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
