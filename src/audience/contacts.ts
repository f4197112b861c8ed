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
import {
  addressOfExternalId,
  listAddresses,
  settleConsents,
  shareIdentifiers,
  showConsents,
} from './consents.ts';
import { areSameFields, type ContactValues, emptyContact, mergeContact } from './contact-values.ts';
import { listConsentChange, logContacts } from './logged-events.ts';
import { loadProperties } from './property-store.ts';
import { resolveContact } from './reference.ts';
import type { ContactBody, ContactInput, ContactRecord } from './schema.ts';
import * as sets from './set-store.ts';
import type { ConsentGrant } from './suppression-store.ts';
import {
  type AddressOnChannel,
  eraseSuppressedAddresses,
  liftUnreachable,
  noteGrants,
  type SuppressionTools,
  takeBackOptOut,
} from './suppressions.ts';

export type ContactTools = { database: Database; clock: Clock; newId: NewId; secrets: Secrets };

/** What it takes to show contacts with what they have said. */
export type ShowTools = Pick<ContactTools, 'clock' | 'secrets'>;

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
  /** Another contact of the organization has the identifier; null if it was deleted a moment ago. */
  | { kind: 'taken'; field: ContactIdentifier; contactId: string | null };

export async function createContact(
  tools: ContactTools,
  organizationId: string,
  body: ContactBody,
): Promise<{ kind: 'created'; contact: ContactRecord } | Refusal> {
  const { list_ids: listIds = [], tag_ids: tagIds = [], ...input } = body;
  return orTaken(
    tools.database,
    { organizationId, input },
    tools.database.asOrganizations([organizationId], async (transaction) => {
      const setIds = [...listIds, ...tagIds];
      const [, properties, found] = await Promise.all([
        shareIdentifiers(transaction, organizationId),
        loadProperties(transaction, organizationId),
        sets.findSets(transaction, organizationId, setIds, { areKept: true }),
      ]);
      const merged = mergeContact(emptyContact, input, properties);
      const issues = [
        ...(merged.kind === 'invalid' ? merged.issues : []),
        ...listUnknownSets('list', listIds, found),
        ...listUnknownSets('tag', tagIds, found),
      ];
      if (merged.kind === 'invalid' || issues.length > 0) return { kind: 'invalid' as const, issues };
      const id = tools.newId();
      const at = now(tools.clock);
      const values = await settle(transaction, tools, organizationId, merged.values);
      const [row] = await Promise.all([
        store.insertContact(transaction, { organizationId, id, values, at }),
        sets.insertMemberships(transaction, { organizationId, contactId: id, setIds }),
        store.insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds: [id] }),
        logContacts(transaction, { organizationId, at, created: [id] }),
      ]);
      const contact = showContact(row, { listIds: sorted(listIds), tagIds: sorted(tagIds) }, properties);
      return { kind: 'created' as const, contact };
    }),
  );
}

/** What is wrong with ids of sets that are given for a contact: those that the organization does not have. */
export function listUnknownSets(
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

/** What is written of a contact, with what holds of its consents. */
async function settle(
  transaction: Transaction,
  tools: ContactTools,
  organizationId: string,
  values: ContactValues,
): Promise<ContactValues> {
  const [unsubscribedChannels = []] = await settleConsents(transaction, tools, organizationId, [values]);
  return { ...values, unsubscribed_channels: unsubscribedChannels };
}

/** `apiKeyId` is the key of the request: what it says of consents is noted with it. */
export async function updateContact(
  tools: ContactTools & { onSubscribed: OnSubscribed },
  contact: store.ContactKey & { apiKeyId: string | null },
  input: ContactInput,
): Promise<{ kind: 'updated'; contact: ContactRecord } | { kind: 'not_found' } | Refusal> {
  const { organizationId, id, apiKeyId } = contact;
  return orTaken(
    tools.database,
    { organizationId, input },
    tools.database.asOrganizations([organizationId], async (transaction) => {
      const [, present, properties] = await Promise.all([
        shareIdentifiers(transaction, organizationId),
        store.lockContact(transaction, contact),
        loadProperties(transaction, organizationId),
      ]);
      if (present === null) return { kind: 'not_found' as const };
      const merged = mergeContact(present, input, properties);
      if (merged.kind === 'invalid') return merged;
      const at = now(tools.clock);
      const subscribed = listSubscribed(input.consent ?? {});
      const { unsubscribedBefore } = await grantConsents(
        transaction,
        tools,
        { organizationId, present, values: merged.values },
        subscribed,
        {
          apiKeyId,
          grantedAt: at,
        },
      );
      const values = await settle(transaction, tools, organizationId, merged.values);
      const [row, setsOf] = await Promise.all([
        store.updateContact(transaction, { organizationId, id, values, at }),
        loadSetsOf(transaction, organizationId, [id]),
        store.insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds: [id] }),
        logContacts(transaction, {
          organizationId,
          at,
          updated: areSameFields(present, values) ? [] : [id],
          consents: listConsentChange(id, unsubscribedBefore, values.unsubscribed_channels),
        }),
      ]);
      if (row === null) return { kind: 'not_found' as const };
      if (subscribed.length > 0) await tools.onSubscribed(transaction, contact, subscribed);
      await tryAgain(transaction, tools, { organizationId, row, channels: subscribed });
      return { kind: 'updated' as const, contact: showContact(row, setsOf(id), properties) };
    }),
  );
}

/**
 * Lifts what the contact is opted out of on these channels, and notes who has said so. Returns what it was unsubscribed
 * from, as it was shown: by an opt-out too that only its address knew of.
 */
async function grantConsents(
  transaction: Transaction,
  tools: SuppressionTools,
  contact: { organizationId: string; present: store.ContactRow; values: ContactValues },
  subscribed: readonly Channel[],
  grant: ConsentGrant,
): Promise<{ unsubscribedBefore: readonly Channel[] }> {
  const { organizationId, present, values } = contact;
  const granted: AddressOnChannel[] = [];
  const unsubscribedBefore = new Set(present.unsubscribed_channels);
  const ownAddresses = listAddresses(organizationId, present, subscribed);
  for (const given of listAddresses(organizationId, values, subscribed)) {
    const { channel, address } = given;
    const hadOptedOut = await takeBackOptOut(transaction, tools, channel, given);
    if (hadOptedOut || present.unsubscribed_channels.includes(channel)) granted.push(given);
    const isOwn = ownAddresses.some((own) => own.channel === channel && own.address === address);
    if (hadOptedOut && isOwn) unsubscribedBefore.add(channel);
  }
  await noteGrants(transaction, tools, granted, grant);
  return { unsubscribedBefore: [...unsubscribedBefore] };
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

async function orTaken<Result>(
  database: Database,
  { organizationId, input }: { organizationId: string; input: ContactInput },
  work: Promise<Result>,
): Promise<Result | Refusal> {
  try {
    return await work;
  } catch (cause) {
    const field = store.identifierOfIndex(violatedIndex(cause));
    if (field === undefined) throw cause;
    // Its transaction has failed, so that the owner is looked up by another one.
    const reference = { [field]: input[field] ?? undefined };
    const owner = await database.asOrganizations([organizationId], (transaction) =>
      resolveContact(transaction, organizationId, reference),
    );
    return { kind: 'taken', field, contactId: owner.kind === 'found' ? owner.id : null };
  }
}

export async function readContact(
  tools: ShowTools & Pick<ContactTools, 'database'>,
  contact: store.ContactKey,
): Promise<ContactRecord | null> {
  return tools.database.asOrganizations([contact.organizationId], async (transaction) => {
    const [record = null] = await listContactsByIds(transaction, tools, contact.organizationId, [contact.id]);
    return record;
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
  tools: ShowTools & Pick<ContactTools, 'database'>,
  wanted: {
    organizationId: string;
    filter: Omit<listing.ContactFilter, 'setIds'>;
    sets: SetFilter;
    page: Page;
  },
): Promise<ContactPage | 'segment_not_ready'> {
  const { organizationId, filter, page } = wanted;
  return tools.database.asOrganizations([organizationId], async (transaction) => {
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
    const listed = await listing.listContacts(transaction, {
      organizationId,
      filter: { ...filter, setIds },
      page,
    });
    const ids = listed.map(({ id }) => id);
    const [rows, setsOf, properties] = await Promise.all([
      showConsents(transaction, tools, organizationId, listed),
      loadSetsOf(transaction, organizationId, ids),
      loadProperties(transaction, organizationId),
    ]);
    return { rows, show: (row) => showContact(row, setsOf(row.id), properties) };
  });
}

function shouldNotBeShown(): never {
  throw new Error('an empty page has nothing to show');
}

/** Newest first, with what holds of their consents; ids that do not exist are left out. */
export async function listContactsByIds(
  connection: Connection,
  tools: ShowTools,
  organizationId: string,
  ids: readonly string[],
): Promise<ContactRecord[]> {
  const [rows, setsOf, properties] = await Promise.all([
    store.findContacts(connection, organizationId, ids, 'newest'),
    loadSetsOf(connection, organizationId, ids),
    loadProperties(connection, organizationId),
  ]);
  const shown = await showConsents(connection, tools, organizationId, rows);
  return shown.map((row) => showContact(row, setsOf(row.id), properties));
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
    const externalIds = deleted.flatMap(({ external_id: externalId }) => externalId ?? []);
    const contactIds = deleted.map(({ id }) => id);
    await Promise.all([
      eraseSuppressedAddresses(
        transaction,
        tools,
        [...addresses, ...externalIds.map(addressOfExternalId)].map((address) => ({
          organizationId,
          address,
        })),
      ),
      store.insertErasures(transaction, organizationId, addresses, at),
      store.insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds }),
      logContacts(transaction, { organizationId, at, deleted: contactIds }),
    ]);
    return new Set(contactIds);
  });
}
