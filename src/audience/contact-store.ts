import type { Channel } from '../channels/channel.ts';
import {
  type Connection,
  type Statement,
  statement,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import type { NewId } from '../platform/ids.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { type ContactValues, searchKeysOf } from './contact-values.ts';
import type { PropertyValue } from './schema.ts';

export type ContactRow = {
  id: string;
  external_id: string | null;
  email: string | null;
  email_key: string | null;
  phone_number: string | null;
  first_name: string | null;
  last_name: string | null;
  locale: string | null;
  timezone: string | null;
  /** By the number of the property, those of deleted ones among them. */
  properties: Record<string, PropertyValue>;
  unsubscribed_channels: Channel[];
  created_at: Date;
  updated_at: Date;
};

const contactColumns = `c.id, c.external_id, c.email, c.email_key, c.phone_number, c.first_name, c.last_name, c.locale,
  c.timezone, c.properties, c.unsubscribed_channels, c.created_at, c.updated_at`;

export function valuesOf(row: ContactRow): ContactValues {
  return {
    externalId: row.external_id,
    email: row.email,
    emailKey: row.email_key,
    phoneNumber: row.phone_number,
    firstName: row.first_name,
    lastName: row.last_name,
    locale: row.locale,
    timezone: row.timezone,
    properties: row.properties,
    unsubscribedChannels: row.unsubscribed_channels,
  };
}

export type ContactKey = { organizationId: string; id: string };

const insertOne = statement<ContactRow>(
  'audience_insert_contact',
  `insert into contacts as c
     (organization_id, id, external_id, email, email_key, phone_number, first_name, last_name, name_key,
     last_name_key, locale, timezone, properties, unsubscribed_channels, created_at, updated_at)
   values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15)
   returning ${contactColumns}`,
);

/** Throws a unique violation of one of the indexes in `identifierOfIndex`. */
export async function insertContact(
  connection: Connection,
  contact: ContactKey & { values: ContactValues; at: Date },
): Promise<ContactRow> {
  const [row] = await connection.rows(insertOne, parametersOf(contact));
  if (row === undefined) throw new Error('an insert returned no row');
  return row;
}

/** Throws a unique violation of one of the indexes in `identifierOfIndex`. */
export async function updateContact(
  connection: Connection,
  contact: ContactKey & { values: ContactValues; at: Date },
): Promise<ContactRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<ContactRow>(
      `update contacts c
       set external_id = $3, email = $4, email_key = $5, phone_number = $6, first_name = $7, last_name = $8,
         name_key = $9, last_name_key = $10, locale = $11, timezone = $12, properties = $13,
         unsubscribed_channels = $14, updated_at = $15
       where organization_id = $1 and id = $2
       returning ${contactColumns}`,
    ),
    parametersOf(contact),
  );
  return row ?? null;
}

function parametersOf({
  organizationId,
  id,
  values,
  at,
}: ContactKey & { values: ContactValues; at: Date }): unknown[] {
  const { nameKey, lastNameKey } = searchKeysOf(values);
  return [
    organizationId,
    id,
    values.externalId,
    values.email,
    values.emailKey,
    values.phoneNumber,
    values.firstName,
    values.lastName,
    nameKey,
    lastNameKey,
    values.locale,
    values.timezone,
    JSON.stringify(values.properties),
    values.unsubscribedChannels,
    at,
  ];
}

/** Which field it is that an index holds unique. */
export const identifierOfIndex: Readonly<Record<string, 'external_id' | 'email' | 'phone_number'>> = {
  contacts_external_id: 'external_id',
  contacts_email: 'email',
  contacts_phone_number: 'phone_number',
};

const selectOne = statement<ContactRow>(
  'audience_select_contact',
  `select ${contactColumns}
   from contacts c
   where c.organization_id = $1 and c.id = $2`,
);

export async function findContact(connection: Connection, contact: ContactKey): Promise<ContactRow | null> {
  const [row] = await connection.rows(selectOne, [contact.organizationId, contact.id]);
  return row ?? null;
}

/** Where a contact is reached by an address: the column that holds it as it is compared. */
const addressKeyColumns = {
  email: 'email_key',
  sms: 'phone_number',
  chatapp: 'phone_number',
} as const satisfies Partial<Record<Channel, string>>;

export type AddressedChannel = keyof typeof addressKeyColumns;

/** Whom an address of the channel belongs to now; each belongs to one contact at most. */
export async function findAddressHolder(
  connection: Connection,
  channel: AddressedChannel,
  { organizationId, addressKey }: { organizationId: string; addressKey: string },
): Promise<ContactRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<ContactRow>(
      `select ${contactColumns}
       from contacts c
       where c.organization_id = $1 and c.${addressKeyColumns[channel]} = $2`,
    ),
    [organizationId, addressKey],
  );
  return row ?? null;
}

/** Keeps others from changing or deleting it until the transaction ends. */
export async function lockContact(connection: Connection, contact: ContactKey): Promise<ContactRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<ContactRow>(
      `select ${contactColumns}
       from contacts c
       where c.organization_id = $1 and c.id = $2
       for update`,
    ),
    [contact.organizationId, contact.id],
  );
  return row ?? null;
}

/** For a contact that is locked. */
export async function updateConsents(
  transaction: Connection,
  contact: ContactKey & { unsubscribedChannels: readonly Channel[]; at: Date },
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update contacts
       set unsubscribed_channels = $3, updated_at = $4
       where organization_id = $1 and id = $2`,
    ),
    [contact.organizationId, contact.id, contact.unsubscribedChannels, contact.at],
  );
}

/** Each by its identifier, in the order in which they are asked: external_id, email, phone_number. */
const selectByIdentifiers = statement<{ id: string }>(
  'audience_select_by_identifiers',
  `select id
   from (
     select id, 1 as rank from contacts where organization_id = $1 and external_id = $2
     union all
     select id, 2 from contacts where organization_id = $1 and email_key = $3
     union all
     select id, 3 from contacts where organization_id = $1 and phone_number = $4
   ) found
   order by rank
   limit 1`,
);

export async function findByIdentifiers(
  connection: Connection,
  wanted: {
    organizationId: string;
    externalId: string | null;
    emailKey: string | null;
    phoneNumber: string | null;
  },
): Promise<string | null> {
  const { organizationId, externalId, emailKey, phoneNumber } = wanted;
  const [row] = await connection.rows(selectByIdentifiers, [
    organizationId,
    externalId,
    emailKey,
    phoneNumber,
  ]);
  return row?.id ?? null;
}

/** What a deleted contact could be written to at. */
export type DeletedContact = { id: string; email_key: string | null; phone_number: string | null };

/** Takes the memberships along. Sorted, so that two transactions cannot deadlock. */
export async function deleteContacts(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<DeletedContact[]> {
  const deleted = await connection.rows(
    unpreparedStatement<DeletedContact>(
      `with condemned as (
         select id
         from contacts
         where organization_id = $1 and id = any ($2::uuid[])
         order by id
         for update
       )
       delete from contacts
       where organization_id = $1 and id in (select id from condemned)
       returning id, email_key, phone_number`,
    ),
    [organizationId, ids],
  );
  await connection.rows(
    unpreparedStatement(
      'delete from memberships where organization_id = $1 and contact_id = any ($2::uuid[])',
    ),
    [organizationId, deleted.map(({ id }) => id)],
  );
  return deleted;
}

const insertChange = statement(
  'audience_insert_change',
  'insert into contact_changes (organization_id, id, contact_ids) values ($1, $2, $3)',
);

/** Tells whoever keeps segments that these contacts, or what they belong to, have changed. */
export async function insertContactChange(
  connection: Connection,
  change: ContactKey & { contactIds: readonly string[] },
): Promise<void> {
  await connection.rows(insertChange, [change.organizationId, change.id, change.contactIds]);
}

/** Whom a message went to: the contact if it was a campaign's, and the normalised address that it had then. */
export type MessagedContact = { organizationId: string; contactId: string | null; addressKey: string };

/** Finds contacts by their primary key and by the indexes of their addresses. */
const insertRecipientChanges = statement(
  'audience_insert_recipient_changes',
  `with messaged as (
     select *
     from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[])
       as messaged (organization_id, change_id, contact_id, address_key)
   ), changed as (
     select m.organization_id, m.change_id, c.id
     from messaged m
     join contacts c on ${hasKeyOf('c', 'm', [['id', 'contact_id']])}
     union
     select m.organization_id, m.change_id, c.id
     from messaged m
     join contacts c on ${hasKeyOf('c', 'm', [['email_key', 'address_key']])}
     union
     select m.organization_id, m.change_id, c.id
     from messaged m
     join contacts c on ${hasKeyOf('c', 'm', [['phone_number', 'address_key']])}
   )
   insert into contact_changes (organization_id, id, contact_ids)
   select organization_id, change_id, array_agg(id)
   from changed
   group by organization_id, change_id
   returning organization_id`,
);

/**
 * Tells whoever keeps segments that something became of messages to these contacts, in one row an organization: to
 * those that they were sent for, and to those that have the addresses now. Returns whether there are any such contacts.
 * In a transaction by index.
 */
export async function insertChangesOfRecipients(
  transaction: Connection,
  newId: NewId,
  messaged: readonly MessagedContact[],
): Promise<boolean> {
  const changeIds = new Map<string, string>();
  for (const { organizationId } of messaged) {
    if (!changeIds.has(organizationId)) changeIds.set(organizationId, newId());
  }
  const rows = await transaction.rows(insertRecipientChanges, [
    messaged.map(({ organizationId }) => organizationId),
    messaged.map(({ organizationId }) => changeIds.get(organizationId)),
    messaged.map(({ contactId }) => contactId),
    messaged.map(({ addressKey }) => addressKey),
  ]);
  return rows.length > 0;
}

export async function insertErasures(
  connection: Connection,
  organizationId: string,
  addresses: readonly string[],
  at: Date,
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `insert into erasures (organization_id, address, requested_at, due_at)
       select $1, address, $3, $3
       from unnest($2::text[]) as erased (address)
       order by address
       on conflict (organization_id, address) do update set requested_at = $3, due_at = $3`,
    ),
    [organizationId, addresses, at],
  );
}

/**
 * Takes the oldest changes of an organization off and returns the contacts that they speak of, each once: as many
 * changes as speak of `contactsMax` contacts, or one. Whoever takes
 * them has the lock under which segments are kept.
 */
export async function takeContactChanges(
  transaction: Connection,
  organizationId: string,
  contactsMax: number,
): Promise<string[]> {
  const rows = await transaction.rows(
    unpreparedStatement<{ contact_ids: string[] }>(
      `with oldest as (
         select id, cardinality(contact_ids) as size
         from contact_changes
         where organization_id = $1
         order by id
         limit $2
       ), taken as (
         select id
         from (select id, sum(size) over (order by id) - size as before from oldest) added_up
         where before < $2
       )
       delete from contact_changes c
       using taken
       where c.organization_id = $1 and c.id = taken.id
       returning c.contact_ids`,
    ),
    [organizationId, contactsMax],
  );
  return [...new Set(rows.flatMap(({ contact_ids }) => contact_ids))];
}

/** Those that are there. */
export async function findContacts(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
  first: 'newest' | 'oldest',
): Promise<ContactRow[]> {
  return connection.rows(
    unpreparedStatement<ContactRow>(
      `select ${contactColumns}
       from contacts c
       where c.organization_id = $1 and c.id = any ($2::uuid[])
       order by c.id ${first === 'newest' ? 'desc' : 'asc'}`,
    ),
    [organizationId, ids],
  );
}

/** Why a campaign must not be handed to a contact any more. */
export type ContactBar = 'contact_deleted' | 'no_address' | 'unsubscribed';

/**
 * By the primary key of contacts, and by the index of their addresses for those who have moved: for all others the
 * address looked for is null, and costs nothing.
 */
function selectBarred(channel: AddressedChannel): Statement<{ position: number; bar: ContactBar }> {
  const key = addressKeyColumns[channel];
  return statement(
    `audience_select_barred_${channel}`,
    `select wanted.position,
       case
         when c.id is null then 'contact_deleted'
         when c.${key} is null then 'no_address'
         else 'unsubscribed'
       end as bar
     from unnest($2::uuid[], $3::uuid[], $4::text[]) with ordinality
       as wanted (organization_id, contact_id, address_key, position)
     left join contacts c on c.organization_id = wanted.organization_id and c.id = wanted.contact_id
     left join contacts holder
       on holder.organization_id = wanted.organization_id and holder.${key} = nullif(wanted.address_key, c.${key})
     where c.id is null
       or c.${key} is null
       or $1 = any (c.unsubscribed_channels)
       or $1 = any (holder.unsubscribed_channels)`,
  );
}

/**
 * Those of the contacts, by index, that are gone, have no address on the channel any more or have unsubscribed from it.
 * Whoever has another address by now is still written to at the old one, unless that belongs to somebody else who has
 * unsubscribed.
 */
export async function findBarredContacts(
  connection: Connection,
  channel: AddressedChannel,
  contacts: readonly (ContactKey & { addressKey: string })[],
): Promise<Map<number, ContactBar>> {
  const rows = await connection.rows(selectBarred(channel), [
    channel,
    contacts.map(({ organizationId }) => organizationId),
    contacts.map(({ id }) => id),
    contacts.map(({ addressKey }) => addressKey),
  ]);
  return new Map(rows.map(({ position, bar }) => [position - 1, bar]));
}
