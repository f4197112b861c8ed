import { type Channel, channels } from '../channels/channel.ts';
import { type Clock, now } from '../platform/clock.ts';
import { groupBy } from '../platform/grouping.ts';
import type { Page } from '../platform/http/pagination.ts';
import type { NewId } from '../platform/ids.ts';
import {
  type Connection,
  type Database,
  type Transaction,
  violatedIndex,
} from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import * as listing from './contact-listing-store.ts';
import { addressColumns, type ContactIdentifier } from './contact-fields.ts';
import { showContact } from './contact-record.ts';
import * as store from './contact-store.ts';
import { emptyContact, mergeContact } from './contact-values.ts';
import { loadProperties } from './property-store.ts';
import type { ContactBody, ContactInput, ContactRecord } from './schema.ts';
import * as sets from './set-store.ts';
import { eraseSuppressedAddresses, liftUnreachable, type SuppressionTools } from './suppressions.ts';

export type ContactTools = { database: Database; clock: Clock; newId: NewId; secrets: Secrets };

/**
 * Told, in the transaction that says so, that a contact may be written to on these channels, be it for the first time or
 * again.
 */
export type OnSubscribed = (
  transaction: Transaction,
  contact: store.ContactKey,
  channels: readonly Channel[],
) => Promise<void>;

type Refusal =
  | { kind: 'invalid'; issues: readonly string[] }
  /** Another contact of the organization has the identifier. */
  | { kind: 'taken'; field: ContactIdentifier };

export async function createContact(
  tools: ContactTools,
  organizationId: string,
  body: ContactBody,
): Promise<{ kind: 'created'; contact: ContactRecord } | Refusal> {
  const { list_ids: listIds = [], tag_ids: tagIds = [], ...input } = body;
  return orTaken(
    tools.database.asOrganizations([organizationId], async (transaction) => {
      const setIds = [...listIds, ...tagIds];
      const [properties, found] = await Promise.all([
        loadProperties(transaction, organizationId),
        sets.findSets(transaction, organizationId, setIds, { areKept: true }),
      ]);
      const merged = mergeContact(emptyContact, input, properties);
      const issues = [
        ...(merged.kind === 'invalid' ? merged.issues : []),
        ...listUnknown('list', listIds, found),
        ...listUnknown('tag', tagIds, found),
      ];
      if (merged.kind === 'invalid' || issues.length > 0) return { kind: 'invalid' as const, issues };
      const id = tools.newId();
      const at = now(tools.clock);
      const [row] = await Promise.all([
        store.insertContact(transaction, { organizationId, id, values: merged.values, at }),
        sets.insertMemberships(transaction, { organizationId, contactId: id, setIds }),
        store.insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds: [id] }),
      ]);
      const contact = showContact(row, { listIds: sorted(listIds), tagIds: sorted(tagIds) }, properties);
      return { kind: 'created' as const, contact };
    }),
  );
}

function listUnknown(
  kind: 'list' | 'tag',
  ids: readonly string[],
  found: ReadonlyMap<string, { kind: string }>,
): string[] {
  return ids.flatMap((id, index) =>
    found.get(id.toLowerCase())?.kind === kind
      ? []
      : [`${kind}_ids[${index}] ${id} is not a ${kind} of the organization`],
  );
}

/** The ids as they are stored: each once, in the order of creation. */
function sorted(ids: readonly string[]): string[] {
  return [...new Set(ids.map((id) => id.toLowerCase()))].sort();
}

export async function updateContact(
  tools: ContactTools & { onSubscribed: OnSubscribed },
  contact: store.ContactKey,
  input: ContactInput,
): Promise<{ kind: 'updated'; contact: ContactRecord } | { kind: 'not_found' } | Refusal> {
  const { organizationId, id } = contact;
  return orTaken(
    tools.database.asOrganizations([organizationId], async (transaction) => {
      const [present, properties] = await Promise.all([
        store.lockContact(transaction, contact),
        loadProperties(transaction, organizationId),
      ]);
      if (present === null) return { kind: 'not_found' as const };
      const merged = mergeContact(present, input, properties);
      if (merged.kind === 'invalid') return merged;
      const at = now(tools.clock);
      const [row, setsOf] = await Promise.all([
        store.updateContact(transaction, { ...contact, values: merged.values, at }),
        loadSetsOf(transaction, organizationId, [id]),
        store.insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds: [id] }),
      ]);
      if (row === null) return { kind: 'not_found' as const };
      const subscribed = listSubscribed(input.consent ?? {});
      if (subscribed.length > 0) await tools.onSubscribed(transaction, contact, subscribed);
      await tryAgain(transaction, tools, { organizationId, row, channels: subscribed });
      return { kind: 'updated' as const, contact: showContact(row, setsOf(id), properties) };
    }),
  );
}

/** Whoever is said to want messages is not left out any more because an earlier one did not reach them. */
async function tryAgain(
  transaction: Transaction,
  tools: SuppressionTools,
  {
    organizationId,
    row,
    channels: again,
  }: {
    organizationId: string;
    row: store.ContactRow;
    channels: readonly Channel[];
  },
): Promise<void> {
  for (const channel of again) {
    const address = channel === 'push' ? null : row[addressColumns[channel].key];
    if (address !== null) await liftUnreachable(transaction, tools, channel, [{ organizationId, address }]);
  }
}

function listSubscribed(consent: NonNullable<ContactInput['consent']>): Channel[] {
  return channels.filter((channel) => consent[channel] === 'subscribed');
}

async function orTaken<Result>(work: Promise<Result>): Promise<Result | Refusal> {
  try {
    return await work;
  } catch (cause) {
    const field = store.identifierOfIndex(violatedIndex(cause));
    if (field === undefined) throw cause;
    return { kind: 'taken', field };
  }
}

export async function readContact(
  database: Database,
  contact: store.ContactKey,
): Promise<ContactRecord | null> {
  return database.asOrganizations([contact.organizationId], async (transaction) => {
    const [row, setsOf, properties] = await Promise.all([
      store.findContact(transaction, contact),
      loadSetsOf(transaction, contact.organizationId, [contact.id]),
      loadProperties(transaction, contact.organizationId),
    ]);
    return row && showContact(row, setsOf(contact.id), properties);
  });
}

export type ContactPage = {
  rows: store.ContactRow[];
  show: (row: store.ContactRow) => ContactRecord;
};

/** Filters for lists of contacts, in addition to those of `ContactFilter`. */
export type SetFilter = { listId?: string; tagId?: string; segmentId?: string };

/** An unknown set has no contacts. The contacts of a segment that is being computed are not known yet. */
export async function listContacts(
  database: Database,
  wanted: {
    organizationId: string;
    filter: Omit<listing.ContactFilter, 'setIds'>;
    sets: SetFilter;
    page: Page;
  },
): Promise<ContactPage | 'segment_not_ready'> {
  const { organizationId, filter, page } = wanted;
  return database.asOrganizations([organizationId], async (transaction) => {
    const asked = (
      [
        ['list', wanted.sets.listId],
        ['tag', wanted.sets.tagId],
        ['segment', wanted.sets.segmentId],
      ] as const
    ).flatMap(([kind, id]) => (id === undefined ? [] : [{ kind, id: id.toLowerCase() }]));
    const setIds = asked.map(({ id }) => id);
    const found = await sets.findSets(transaction, organizationId, setIds);
    if (asked.some(({ kind, id }) => found.get(id)?.kind !== kind)) {
      return { rows: [], show: () => shouldNotBeShown() };
    }
    if ([...found.values()].some(({ isReady }) => !isReady)) return 'segment_not_ready';
    const rows = await listing.listContacts(transaction, {
      organizationId,
      filter: { ...filter, setIds },
      page,
    });
    const ids = rows.map(({ id }) => id);
    const [setsOf, properties] = await Promise.all([
      loadSetsOf(transaction, organizationId, ids),
      loadProperties(transaction, organizationId),
    ]);
    return { rows, show: (row) => showContact(row, setsOf(row.id), properties) };
  });
}

function shouldNotBeShown(): never {
  throw new Error('an empty page has nothing to show');
}

/** Newest first; ids that do not exist are left out. */
export async function listContactsByIds(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<ContactRecord[]> {
  const [rows, setsOf, properties] = await Promise.all([
    store.findContacts(connection, organizationId, ids, 'newest'),
    loadSetsOf(connection, organizationId, ids),
    loadProperties(connection, organizationId),
  ]);
  return rows.map((row) => showContact(row, setsOf(row.id), properties));
}

async function loadSetsOf(connection: Connection, organizationId: string, contactIds: readonly string[]) {
  const rows = await sets.listSetsOfContacts(connection, organizationId, contactIds);
  const byContact = groupBy(rows, ({ contact_id }) => contact_id);
  return (contactId: string) => {
    const own = byContact.get(contactId.toLowerCase()) ?? [];
    const ofKind = (kind: string) => own.filter((row) => row.kind === kind).map(({ set_id }) => set_id);
    return { listIds: ofKind('list'), tagIds: ofKind('tag') };
  };
}

/**
 * Deletes contacts and erases what is known of them: their memberships and values at once, the readable form of
 * their suppressions too, and what was sent to them by a chore. Returns those that were there.
 */
export async function deleteContacts(
  tools: ContactTools,
  organizationId: string,
  ids: readonly string[],
): Promise<Set<string>> {
  const at = now(tools.clock);
  return tools.database.asOrganizations([organizationId], async (transaction) => {
    const deleted = await store.deleteContacts(transaction, organizationId, ids);
    if (deleted.length === 0) return new Set<string>();
    const addresses = deleted.flatMap((contact) => contact.addresses);
    const contactIds = deleted.map(({ id }) => id);
    await Promise.all([
      eraseSuppressedAddresses(
        transaction,
        tools,
        addresses.map((address) => ({ organizationId, address })),
      ),
      store.insertErasures(transaction, organizationId, addresses, at),
      store.insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds }),
    ]);
    return new Set(contactIds);
  });
}
