import type { Channel } from '../channels/channel.ts';
import {
  type Connection,
  type Statement,
  statement,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import type { NewId } from '../platform/ids.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import { anyOf, type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import {
  addressColumns,
  type AddressedChannel,
  contactAddresses,
  contactFieldNames,
  contactFields,
  type ContactIdentifier,
  contactIdentifiers,
} from './contact-fields.ts';
import { type ContactValues, textColumns } from './contact-values.ts';

export type ContactRow = ContactValues & { id: string; created_at: Date; updated_at: Date };

/** What a `ContactRow` is read from, of contacts `c`. */
export const contactColumns = `c.id, ${contactFieldNames.map((field) => `c.${field}`).join(', ')}, c.email_key,
  c.properties, c.unsubscribed_channels, c.created_at, c.updated_at`;

export type ContactKey = { organizationId: string; id: string };

type WrittenContact = ContactKey & { values: ContactValues; at: Date };

/** The text columns, each with the parameter that `parametersOf` has it in. */
const writtenTexts = textColumns.map(({ column }, index) => ({ column, parameter: `$${index + 7}` }));

const insertOne = statement<ContactRow>(
  'audience_insert_contact',
  `insert into contacts as c
     (organization_id, id, created_at, updated_at, email_key, properties, unsubscribed_channels,
     ${writtenTexts.map(({ column }) => column).join(', ')})
   values ($1, $2, $3, $3, $4, $5, $6, ${writtenTexts.map(({ parameter }) => parameter).join(', ')})
   returning ${contactColumns}`,
);

/** Throws a unique violation of one of the indexes that `identifierOfIndex` knows. */
export async function insertContact(connection: Connection, contact: WrittenContact): Promise<ContactRow> {
  const [row] = await connection.rows(insertOne, parametersOf(contact));
  if (row === undefined) throw new Error('an insert returned no row');
  return row;
}

const updateOne = unpreparedStatement<ContactRow>(
  `update contacts c
   set updated_at = $3, email_key = $4, properties = $5, unsubscribed_channels = $6,
     ${writtenTexts.map(({ column, parameter }) => `${column} = ${parameter}`).join(', ')}
   where organization_id = $1 and id = $2
   returning ${contactColumns}`,
);

/** Throws a unique violation of one of the indexes that `identifierOfIndex` knows. */
export async function updateContact(
  connection: Connection,
  contact: WrittenContact,
): Promise<ContactRow | null> {
  const [row] = await connection.rows(updateOne, parametersOf(contact));
  return row ?? null;
}

function parametersOf({ organizationId, id, values, at }: WrittenContact): unknown[] {
  return [
    organizationId,
    id,
    at,
    values.email_key,
    JSON.stringify(values.properties),
    values.unsubscribed_channels,
    ...textColumns.map(({ textOf }) => textOf(values)),
  ];
}

/** The field that a unique index is for; undefined for other indexes. */
export function identifierOfIndex(index: string | undefined): ContactIdentifier | undefined {
  return contactIdentifiers.find((field) => index === `contacts_${field}`);
}

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

/** The contact that has an address of the channel now; an address belongs to one contact at most. */
export async function findAddressHolder(
  connection: Connection,
  channel: AddressedChannel,
  { organizationId, addressKey }: { organizationId: string; addressKey: string },
): Promise<ContactRow | null> {
  const [row] = await connection.rows(
    unpreparedStatement<ContactRow>(
      `select ${contactColumns}
       from contacts c
       where c.organization_id = $1 and c.${addressColumns[channel].key} = $2`,
    ),
    [organizationId, addressKey],
  );
  return row ?? null;
}

/** Where these contacts have their addresses on the channel, normalised, by id; without those that have none, or are not there. */
export async function findAddressesOf(
  connection: Connection,
  channel: AddressedChannel,
  organizationId: string,
  ids: readonly string[],
): Promise<Map<string, string>> {
  if (ids.length === 0) return new Map();
  const rows = await connection.rows(
    unpreparedStatement<{ id: string; address: string }>(
      `select c.id, c.${addressColumns[channel].key} as address
       from contacts c
       where c.organization_id = $1 and c.id = any ($2::uuid[]) and c.${addressColumns[channel].key} is not null`,
    ),
    [organizationId, ids],
  );
  return new Map(rows.map(({ id, address }) => [id, address]));
}

/** One `select` for each kind of address, which reads the index of its key. */
const heldAddresses = contactAddresses.map(
  (field) =>
    `select c.${contactFields[field].key} as address
     from contacts c
     where c.organization_id = $1 and c.${contactFields[field].key} = any ($2::text[])`,
);

/** Returns those of these normalised addresses that some contact has now. */
export async function findHeldAddresses(
  connection: Connection,
  organizationId: string,
  addresses: readonly string[],
): Promise<Set<string>> {
  if (addresses.length === 0) return new Set();
  const rows = await connection.rows(
    unpreparedStatement<{ address: string }>(heldAddresses.join(' union all ')),
    [organizationId, addresses],
  );
  return new Set(rows.map(({ address }) => address));
}

/** Locks the contact against changes and deletion until the transaction ends. */
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

/** The contacts that have one of the addresses on the channel, locked in the order of their ids. */
export async function lockAddressHolders(
  transaction: Connection,
  channel: AddressedChannel,
  { organizationId, addressKeys }: { organizationId: string; addressKeys: readonly string[] },
): Promise<{ id: string; address_key: string; unsubscribed_channels: Channel[] }[]> {
  const column = `c.${addressColumns[channel].key}`;
  return transaction.rows(
    unpreparedStatement<{ id: string; address_key: string; unsubscribed_channels: Channel[] }>(
      `select c.id, ${column} as address_key, c.unsubscribed_channels
       from unnest($2::text[]) as wanted (address_key)
       join contacts c on c.organization_id = $1 and ${column} = wanted.address_key
       order by c.id
       for no key update of c`,
    ),
    [organizationId, addressKeys],
  );
}

/** The contacts must be locked, and subscribed. */
export async function unsubscribeContacts(
  transaction: Connection,
  channel: Channel,
  { organizationId, contactIds, at }: { organizationId: string; contactIds: readonly string[]; at: Date },
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update contacts
       set unsubscribed_channels = unsubscribed_channels || $3::text, updated_at = $4
       where organization_id = $1 and id = any ($2::uuid[])`,
    ),
    [organizationId, contactIds, channel, at],
  );
}

/** The contact must be locked. */
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

/** One `select` for each identifier, which reads the index of its key. */
const byIdentifier = contactIdentifiers.map(
  (field, rank) =>
    `select id, ${rank} as rank
     from contacts
     where organization_id = $1 and ${contactFields[field].key} = wanted.${field}`,
);

const selectByIdentifiers = statement<{ position: number; id: string; rank: number }>(
  'audience_select_by_identifiers',
  `select wanted.position::integer as position, first.id, first.rank
   from unnest(${contactIdentifiers.map((_field, index) => `$${index + 2}::text[]`).join(', ')}) with ordinality
     as wanted (${contactIdentifiers.join(', ')}, position)
   cross join lateral (
     select id, rank
     from (${byIdentifier.join(' union all ')}) found
     order by rank
     limit 1
   ) first`,
);

/** What contacts are looked for by: each identifier is normalised, or null if it is not given. */
export type IdentifierKeys = Readonly<Record<ContactIdentifier, string | null>>;

/**
 * Finds each contact by the first of its identifiers that matches, in their order: ids by the position in `wanted`, with
 * the identifier that matched. Where there are many, the transaction should plan by indexes.
 */
export async function findByIdentifiers(
  connection: Connection,
  organizationId: string,
  wanted: readonly IdentifierKeys[],
): Promise<Map<number, { id: string; by: ContactIdentifier }>> {
  if (wanted.length === 0) return new Map();
  const rows = await connection.rows(selectByIdentifiers, [
    organizationId,
    ...contactIdentifiers.map((field) => wanted.map((keys) => keys[field])),
  ]);
  return new Map(
    rows.flatMap(({ position, id, rank }) => {
      const by = contactIdentifiers[rank];
      return by === undefined ? [] : [[position - 1, { id, by }] as const];
    }),
  );
}

/** SQL: the contact `c` has no identifier of this kind, and nobody has the one that is `wanted`. */
function lacks(field: ContactIdentifier): Predicate {
  const { key } = contactFields[field];
  return toPredicate(`wanted.${field} is not null and c.${key} is null and not exists (
     select
     from contacts o
     where o.organization_id = $1 and o.${key} = wanted.${field}
   )`);
}

const selectGap = statement(
  'audience_select_gap',
  `select
   from unnest($2::uuid[], ${contactIdentifiers.map((_field, index) => `$${index + 3}::text[]`).join(', ')})
     as wanted (id, ${contactIdentifiers.join(', ')})
   cross join lateral (
     select *
     from contacts c
     where c.organization_id = $1 and c.id = wanted.id
     offset 0
   ) c
   where ${anyOf(contactIdentifiers.map(lacks))}
   limit 1`,
);

/**
 * Whether one of these contacts lacks an identifier that is given for it and that nobody has. Uses the primary key of
 * contacts, and the indexes of identifiers where something is lacking.
 */
export async function hasGap(
  connection: Connection,
  organizationId: string,
  wanted: readonly { id: string; keys: IdentifierKeys }[],
): Promise<boolean> {
  if (wanted.length === 0) return false;
  const rows = await connection.rows(selectGap, [
    organizationId,
    wanted.map(({ id }) => id),
    ...contactIdentifiers.map((field) => wanted.map(({ keys }) => keys[field])),
  ]);
  return rows.length > 0;
}

/** One `select` for each identifier, which reads the index of its key. */
const owners = contactIdentifiers.map(
  (field, index) =>
    `select c.id
     from contacts c
     where c.organization_id = $1 and c.${contactFields[field].key} = any ($${index + 2}::text[])`,
);

/** The contacts that have any of these identifiers, oldest first. */
export async function findOwners(
  connection: Connection,
  organizationId: string,
  wanted: readonly IdentifierKeys[],
): Promise<ContactRow[]> {
  return connection.rows(
    unpreparedStatement<ContactRow>(
      `with owners as materialized (${owners.join(' union ')})
       select owner.*
       from owners
       cross join lateral (
         select ${contactColumns}
         from contacts c
         where c.organization_id = $1 and c.id = owners.id
         offset 0
       ) owner
       order by owner.id`,
    ),
    [organizationId, ...contactIdentifiers.map((field) => wanted.flatMap((keys) => keys[field] ?? []))],
  );
}

/** A contact of which nothing is known but how it is identified; `email` is as it was given. */
export type IdentifiedContact = {
  id: string;
  email: string | null;
  keys: IdentifierKeys;
  unsubscribedChannels: readonly Channel[];
};

const insertIdentified = statement<{ id: string }>(
  'audience_insert_identified',
  `insert into contacts
     (organization_id, id, external_id, email, email_key, phone_number, unsubscribed_channels, created_at, updated_at)
   select $1, id, external_id, email, email_key, phone_number, string_to_array(unsubscribed_channels, ','), $8, $8
   from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
     as identified (id, external_id, email, email_key, phone_number, unsubscribed_channels)
   order by external_id, email_key, phone_number
   on conflict do nothing
   returning id`,
);

/**
 * Makes contacts of which nothing is known but how they are identified, and returns the ids of those that were made:
 * one of whose identifiers another contact has by now is left out. Waits for transactions that are making such a one.
 * Sorted, so that two transactions rarely deadlock.
 */
export async function insertIdentifiedContacts(
  transaction: Connection,
  {
    organizationId,
    contacts,
    at,
  }: { organizationId: string; contacts: readonly IdentifiedContact[]; at: Date },
): Promise<Set<string>> {
  const rows = await transaction.rows(insertIdentified, [organizationId, ...identifiedColumns(contacts), at]);
  return new Set(rows.map(({ id }) => id));
}

function identifiedColumns(contacts: readonly IdentifiedContact[]): unknown[] {
  return [
    contacts.map(({ id }) => id),
    contacts.map(({ keys }) => keys.external_id),
    contacts.map(({ email }) => email),
    contacts.map(({ keys }) => keys.email),
    contacts.map(({ keys }) => keys.phone_number),
    contacts.map(({ unsubscribedChannels }) => unsubscribedChannels.join(',')),
  ];
}

const fillIdentifiers = statement<{ id: string }>(
  'audience_fill_identifiers',
  `update contacts c
   set external_id = coalesce(c.external_id, filling.external_id),
     email = coalesce(c.email, filling.email),
     email_key = coalesce(c.email_key, filling.email_key),
     phone_number = coalesce(c.phone_number, filling.phone_number),
     unsubscribed_channels = string_to_array(filling.unsubscribed_channels, ','),
     updated_at = $8
   from unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
     as filling (id, external_id, email, email_key, phone_number, unsubscribed_channels)
   where c.organization_id = $1 and c.id = filling.id
   returning c.id`,
);

/**
 * Writes identifiers into fields that are empty, and what the contacts are unsubscribed from as a whole. The contacts must
 * be locked, and nobody else may write identifiers: none of these may belong to another contact.
 */
export async function fillContacts(
  transaction: Connection,
  {
    organizationId,
    contacts,
    at,
  }: { organizationId: string; contacts: readonly IdentifiedContact[]; at: Date },
): Promise<void> {
  await transaction.rows(fillIdentifiers, [organizationId, ...identifiedColumns(contacts), at]);
}

/**
 * Locks contacts against changes and deletion until the transaction ends, and returns those that are there. Sorted, so
 * that two transactions cannot deadlock.
 */
export async function lockContacts(
  transaction: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<Set<string>> {
  const rows = await lockConsents(transaction, organizationId, ids);
  return new Set(rows.map(({ id }) => id));
}

const lockConsentsOf = statement<{ id: string; unsubscribed_channels: Channel[] }>(
  'audience_lock_consents',
  `select id, unsubscribed_channels
   from contacts
   where organization_id = $1 and id = any ($2::uuid[])
   order by id
   for no key update`,
);

/** As `lockContacts`, with what each of them is unsubscribed from. */
export async function lockConsents(
  transaction: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<{ id: string; unsubscribed_channels: Channel[] }[]> {
  if (ids.length === 0) return [];
  return transaction.rows(lockConsentsOf, [organizationId, ids]);
}

/** A contact with its addresses, normalised. */
export type DeletedContact = { id: string; external_id: string | null; addresses: string[] };

const addressesOfDeleted = contactAddresses.map((field) => contactFields[field].key).join(', ');

/** Deletes their memberships too. Sorted, so that two transactions cannot deadlock. */
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
       returning id, external_id, array_remove(array[${addressesOfDeleted}], null) as addresses`,
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

/** Records for segments that these contacts or their memberships have changed. */
export async function insertContactChange(
  connection: Connection,
  change: ContactKey & { contactIds: readonly string[] },
): Promise<void> {
  await connection.rows(insertChange, [change.organizationId, change.id, change.contactIds]);
}

/**
 * The recipient of a message: the contact if the message was a campaign's, and the normalised address that it was sent
 * to.
 */
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
 * Records for segments that messages to these contacts have new outcomes, in one row for each organization: for the
 * contacts that the messages were sent for, and for those that have the addresses now. Returns whether there are any
 * such contacts. The transaction must plan by indexes (`continueByIndex`).
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
 * Deletes the oldest changes of an organization and returns the contacts that they name, each once: as many changes as
 * name `contactsMax` contacts, or one. The caller must hold the lock for the members of segments.
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

/** Those of the ids that are contacts. */
export async function findContactIds(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<Set<string>> {
  if (ids.length === 0) return new Set();
  const rows = await connection.rows(selectIds, [organizationId, ids]);
  return new Set(rows.map(({ id }) => id));
}

const selectIds = statement<{ id: string }>(
  'audience_select_contact_ids',
  `select id
   from contacts
   where organization_id = $1 and id = any ($2::uuid[])`,
);

/** Why a campaign must not be handed to a contact any more. */
export type ContactBar = 'contact_deleted' | 'no_address' | 'unsubscribed';

/**
 * Uses the primary key of contacts, and the index of their addresses for contacts whose address changed: for all others
 * the address searched for is null, which costs nothing.
 */
function selectBarred(channel: AddressedChannel): Statement<{ position: number; bar: ContactBar }> {
  const { key } = addressColumns[channel];
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
 * Those of the contacts, as indexes, that were deleted, have no address on the channel any more, or have unsubscribed
 * from it. A contact whose address changed is still written to at the old one, unless that now belongs to another
 * contact who has unsubscribed.
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

const selectUnwilling = statement<{ position: number; bar: UnwillingReason }>(
  'audience_select_unwilling',
  `select wanted.position, case when c.id is null then 'contact_deleted' else 'unsubscribed' end as bar
   from unnest($2::uuid[], $3::uuid[]) with ordinality as wanted (organization_id, contact_id, position)
   left join contacts c on c.organization_id = wanted.organization_id and c.id = wanted.contact_id
   where c.id is null or $1 = any (c.unsubscribed_channels)`,
);

export type UnwillingReason = Exclude<ContactBar, 'no_address'>;

/** Those of the contacts, as indexes, that were deleted or have unsubscribed from the channel. */
export async function findUnwillingContacts(
  connection: Connection,
  channel: Channel,
  contacts: readonly ContactKey[],
): Promise<Map<number, UnwillingReason>> {
  const rows = await connection.rows(selectUnwilling, [
    channel,
    contacts.map(({ organizationId }) => organizationId),
    contacts.map(({ id }) => id),
  ]);
  return new Map(rows.map(({ position, bar }) => [position - 1, bar]));
}
