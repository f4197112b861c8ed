import { type Channel, channels } from '../channels/channel.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Connection, Transaction } from '../platform/postgres/database.ts';
import { lockName, shareNameLock } from '../platform/postgres/name-locks.ts';
import type { Secrets } from '../platform/secrets.ts';
import { addressColumns, type AddressedChannel } from './contact-fields.ts';
import * as store from './contact-store.ts';
import type { ContactValues } from './contact-values.ts';
import { type ConsentChange, logContacts } from './logged-events.ts';
import type { ConsentState, SuppressionScope, SuppressionSource } from './schema.ts';
import { deleteMembers } from './set-store.ts';
import {
  addSuppressions,
  type AddressOnChannel,
  findOptOuts,
  noteGrants,
  readGrant,
  readGrants,
  type SuppressedAddress,
  takeBackOptOut,
  writeSuppressions,
} from './suppressions.ts';

/**
 * What people have said of being written to.
 *
 * An opt-out is a fact about an address, and is kept as a suppression of it, under a keyed hash: it outlives the contact
 * that has the address, and holds for whichever contact has it next. Its scope is marketing, which keeps campaigns from
 * the address, or the whole channel. The consent that a contact shows follows from it:
 *
 * - A contact that gets an address whose owner has opted out is unsubscribed on that channel, whatever is said of it in
 *   that moment: `settleConsents` decides what holds of every contact that is written.
 * - The addresses of a contact that is unsubscribed are opted out, those that it gets later among them.
 * - Only an explicit act lifts an opt-out: of the person, of the operator, or of the organization that sets the consent of
 *   a contact which exists.
 *
 * Push has no address that a person could name, so that everything counts by which a contact is identified. What a person
 * says on a device is kept by the room of devices.
 *
 * A contact that is being written may not be seen by whoever opts its address out, nor the opt-out by whoever writes the
 * contact. So writers of identifiers share a lock of their organization, and whoever finds no contact with an address
 * takes that lock alone and looks once more.
 */

/** A person's own word on what is sent to them, wherever it was said. */
export type Consent = ConsentState;

export type ConsentTools = { transaction: Transaction; clock: Clock; newId: NewId };

/** What it takes to write down what somebody has said. */
export type OptOutTools = { clock: Clock; secrets: Secrets; newId: NewId };

/** What became of the contact that has the address; `not_found` if there is none. */
export type ConsentOutcome = 'changed' | 'unchanged' | 'not_found';

/** How far an opt-out reaches that is told as the consent of a contact. No push is sent without consent. */
const scopesOfConsent: Readonly<Record<Channel, SuppressionScope>> = {
  email: 'marketing',
  sms: 'marketing',
  push: 'all',
  chatapp: 'marketing',
};

const nameOfLock = (organizationId: string) => `identifiers of contacts of ${organizationId}`;

/** To be taken before identifiers of contacts are written, and before any contact is locked. */
export function shareIdentifiers(transaction: Connection, organizationId: string): Promise<void> {
  return shareNameLock(transaction, nameOfLock(organizationId));
}

/** Until the transaction ends, nobody else writes identifiers of contacts. */
export function lockIdentifiers(transaction: Connection, organizationId: string): Promise<void> {
  return lockName(transaction, nameOfLock(organizationId));
}

/** What a contact is identified by, as it is compared. */
type Identity = Pick<ContactValues, 'external_id' | 'email_key' | 'phone_number'>;

/** Under what opt-outs of the contact are kept on a channel. */
function addressesOn(channel: Channel, contact: Identity): string[] {
  const { external_id: externalId, email_key: email, phone_number: phoneNumber } = contact;
  const addresses =
    channel === 'push'
      ? [externalId === null ? null : addressOfExternalId(externalId), email, phoneNumber]
      : [contact[addressColumns[channel].key]];
  return addresses.filter((address) => address !== null);
}

/** As opt-outs from push keep it: unlike any address. */
export function addressOfExternalId(externalId: string): string {
  return `external_id:${externalId}`;
}

/** The addresses of a contact on these channels, as opt-outs are kept. */
export function listAddresses(
  organizationId: string,
  contact: Identity,
  wanted: readonly Channel[],
): AddressOnChannel[] {
  return wanted.flatMap((channel) =>
    addressesOn(channel, contact).map((address) => ({ organizationId, channel, address })),
  );
}

/**
 * What holds of contacts that are about to be written, under `shareIdentifiers`: the channels that each is unsubscribed
 * from, by its own consent or by the opt-outs of its addresses. Writes the opt-outs of those that are unsubscribed.
 */
export async function settleConsents(
  transaction: Transaction,
  tools: OptOutTools,
  organizationId: string,
  contacts: readonly (Identity & { unsubscribed_channels: readonly Channel[] })[],
): Promise<Channel[][]> {
  const addresses = contacts.flatMap((contact, index) =>
    listAddresses(organizationId, contact, channels).map((address) => ({ ...address, index })),
  );
  const optedOut = await findOptOuts(transaction, tools, addresses);
  const unsubscribed = contacts.map((contact) => new Set(contact.unsubscribed_channels));
  for (const position of optedOut) {
    const address = addresses[position];
    if (address !== undefined) unsubscribed[address.index]?.add(address.channel);
  }
  const missing = addresses.filter(
    ({ channel, index }, position) => !optedOut.has(position) && unsubscribed[index]?.has(channel) === true,
  );
  await writeOptOuts(transaction, tools, missing);
  return unsubscribed.map((of) => [...of].sort());
}

const addressedChannels = channels.filter((channel) => channel !== 'push');

/**
 * Contacts as they are to be shown. An opt-out that was said after its address was erased is known by a hash alone, which
 * leads to no contact; whoever has the address by now is unsubscribed all the same, and stored as such when it is written
 * next. Push has no address that is erased from a message.
 */
export async function showConsents<Row extends Identity & { unsubscribed_channels: Channel[] }>(
  connection: Connection,
  tools: Pick<OptOutTools, 'clock' | 'secrets'>,
  organizationId: string,
  rows: readonly Row[],
): Promise<Row[]> {
  const addresses = rows.flatMap((row, index) => {
    const subscribed = addressedChannels.filter((channel) => !row.unsubscribed_channels.includes(channel));
    return listAddresses(organizationId, row, subscribed).map((address) => ({ ...address, index }));
  });
  const optedOut = await findOptOuts(connection, tools, addresses);
  const shown = [...rows];
  for (const position of optedOut) {
    const address = addresses[position];
    const row = address && shown[address.index];
    if (address === undefined || row === undefined) continue;
    const unsubscribedChannels = [...row.unsubscribed_channels, address.channel].sort();
    shown[address.index] = { ...row, unsubscribed_channels: unsubscribedChannels };
  }
  return shown;
}

/** As a contact that is unsubscribed has them. */
async function writeOptOuts(
  transaction: Transaction,
  tools: OptOutTools,
  addresses: readonly AddressOnChannel[],
): Promise<void> {
  for (const channel of channels) {
    const own = addresses.filter((address) => address.channel === channel);
    const scope = scopesOfConsent[channel];
    await addSuppressions(
      transaction,
      tools,
      channel,
      own.map(({ address }) => ({
        organizationId: own[0]?.organizationId ?? '',
        address,
        reason: 'unsubscribe',
        scope,
      })),
    );
  }
}

/**
 * The owner of an address wants no more of what is in the scope: whoever has the address now or later is unsubscribed. The
 * address may be what an erasure has left of it, under which no contact is found. `at` is when that was said, `source`
 * where.
 */
export async function optOut(
  transaction: Transaction,
  tools: OptOutTools,
  channel: AddressedChannel,
  address: SuppressedAddress,
  { scope, source, at = now(tools.clock) }: { scope: SuppressionScope; source: SuppressionSource; at?: Date },
): Promise<ConsentOutcome> {
  const optedOut = { ...address, reason: 'unsubscribe' as const, scope, source };
  await addSuppressions(transaction, tools, channel, [optedOut], at);
  const holder = await lockHolder(transaction, channel, address);
  return holder === null
    ? 'not_found'
    : changeConsent(transaction, tools, address.organizationId, holder, {
        channel,
        consent: 'unsubscribed',
      });
}

/** `saidAt` is null where it is not known. The note is kept with the opt-out. */
export type ToldOptOut = { address: string; note: string | null; saidAt: Date | null };

/**
 * Many have opted out elsewhere. Those who have subscribed here since then stay so. Locks suppressions in the order of their
 * keys and contacts in that of their ids.
 */
export async function optOutAll(
  transaction: Transaction,
  tools: OptOutTools,
  channel: AddressedChannel,
  {
    organizationId,
    optOuts,
    scope,
    source,
  }: {
    organizationId: string;
    optOuts: readonly ToldOptOut[];
    scope: SuppressionScope;
    source: SuppressionSource;
  },
): Promise<{ created: number; subscribedSince: number; haveContactsChanged: boolean }> {
  const addresses = optOuts.map(({ address }) => ({ organizationId, channel, address }));
  const grants = await readGrants(transaction, tools, addresses);
  const heard = optOuts.filter(({ saidAt }, index) => {
    const grantedAt = grants.get(index)?.grantedAt;
    return saidAt === null || grantedAt === undefined || grantedAt < saidAt;
  });
  const written = await writeSuppressions(
    transaction,
    tools,
    heard.map(({ address, note, saidAt }) => ({
      organizationId,
      channel,
      address,
      note,
      scope,
      source,
      reason: 'unsubscribe',
      saidAt: saidAt ?? now(tools.clock),
    })),
  );
  return {
    created: written.filter(({ isNew }) => isNew).length,
    subscribedSince: optOuts.length - heard.length,
    haveContactsChanged: await unsubscribeHolders(
      transaction,
      tools,
      channel,
      organizationId,
      heard.map(({ address }) => address),
    ),
  };
}

/** Whoever has one of the addresses now, or is being written with it. Returns whether any was subscribed. */
async function unsubscribeHolders(
  transaction: Transaction,
  tools: Pick<OptOutTools, 'clock' | 'newId'>,
  channel: AddressedChannel,
  organizationId: string,
  addresses: readonly string[],
): Promise<boolean> {
  if (addresses.length === 0) return false;
  const lock = (addressKeys: readonly string[]) =>
    store.lockAddressHolders(transaction, channel, { organizationId, addressKeys });
  const held = await lock(addresses);
  const known = new Set(held.map(({ address_key: key }) => key));
  const unknown = addresses.filter((address) => !known.has(address));
  if (unknown.length > 0) {
    await lockIdentifiers(transaction, organizationId);
    held.push(...(await lock(unknown)));
  }
  const contactIds = held.flatMap(({ id, unsubscribed_channels: unsubscribed }) =>
    unsubscribed.includes(channel) ? [] : [id],
  );
  if (contactIds.length === 0) return false;
  const at = now(tools.clock);
  await store.unsubscribeContacts(transaction, channel, { organizationId, contactIds, at });
  await store.insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds });
  const consent: ConsentChange = { [channel]: 'unsubscribed' };
  await logContacts(transaction, {
    organizationId,
    at,
    consents: contactIds.map((id) => ({ id, consent })),
  });
  return true;
}

/** What holds where a provider refuses what it was given at `sentAt`, or just now, since the owner had opted out by then. */
export type HeardOptOut = { scope: SuppressionScope; sentAt: Date | null; messageId: string };

/**
 * A provider says that the owner of an address had opted out before a message was handed off. What the owner, or the
 * organization for them, has said since then takes it back before it is heard: reports come late.
 */
export async function hearOptOut(
  transaction: Transaction,
  tools: OptOutTools,
  channel: AddressedChannel,
  address: SuppressedAddress,
  { scope, sentAt, messageId }: HeardOptOut,
): Promise<ConsentOutcome> {
  if (sentAt !== null && (await hasOptedInSince(transaction, tools, channel, address, sentAt)))
    return 'unchanged';
  const source = { type: 'message' as const, id: messageId };
  return optOut(transaction, tools, channel, address, {
    scope,
    source,
    ...(sentAt !== null && { at: sentAt }),
  });
}

/** Whether the last that was said for an address is that its owner wants messages again, and not before then. */
export async function hasOptedInSince(
  transaction: Transaction,
  tools: Pick<OptOutTools, 'clock' | 'secrets'>,
  channel: AddressedChannel,
  address: SuppressedAddress,
  since: Date,
): Promise<boolean> {
  const grant = await readGrant(transaction, tools, channel, address);
  return grant !== null && grant.grantedAt >= since;
}

/**
 * The owner of an address wants everything again. The contact that has it is subscribed, unless an opt-out is left that was
 * said after `saidUntil`.
 */
export async function optIn(
  transaction: Transaction,
  tools: OptOutTools,
  channel: AddressedChannel,
  address: SuppressedAddress,
  { saidUntil = null }: { saidUntil?: Date | null } = {},
): Promise<{ contact: ConsentOutcome; hadOptedOut: boolean }> {
  const hadOptedOut = await takeBackOptOut(transaction, tools, channel, address, { saidUntil });
  await noteGrants(transaction, tools, [{ ...address, channel }], {
    apiKeyId: null,
    grantedAt: saidUntil ?? now(tools.clock),
  });
  const isLeft = (await findOptOuts(transaction, tools, [{ ...address, channel }])).size > 0;
  const holder = isLeft ? null : await lockHolder(transaction, channel, address);
  const contact =
    holder === null
      ? 'not_found'
      : await changeConsent(transaction, tools, address.organizationId, holder, {
          channel,
          consent: 'subscribed',
          hadOptedOut,
        });
  return { contact, hadOptedOut };
}

/** A contact wants no more campaigns on the channel, at whatever address it has there. */
export async function optOutContact(
  transaction: Transaction,
  tools: OptOutTools,
  channel: AddressedChannel,
  contact: store.ContactKey,
): Promise<ConsentOutcome> {
  const row = await store.lockContact(transaction, contact);
  if (row === null) return 'not_found';
  const { organizationId } = contact;
  await writeOptOuts(transaction, tools, listAddresses(organizationId, row, [channel]));
  return changeConsent(transaction, tools, organizationId, row, { channel, consent: 'unsubscribed' });
}

/** The contact that has the address now, locked; null if there is none, and none is being written. */
async function lockHolder(
  transaction: Transaction,
  channel: AddressedChannel,
  { organizationId, address }: SuppressedAddress,
): Promise<store.ContactRow | null> {
  const lookUp = async () => {
    const found = await store.findAddressHolder(transaction, channel, {
      organizationId,
      addressKey: address,
    });
    if (found === null) return null;
    const locked = await store.lockContact(transaction, { organizationId, id: found.id });
    return locked?.[addressColumns[channel].key] === address ? locked : null;
  };
  const holder = await lookUp();
  if (holder !== null) return holder;
  await lockIdentifiers(transaction, organizationId);
  return lookUp();
}

async function changeConsent(
  transaction: Transaction,
  tools: Pick<OptOutTools, 'clock' | 'newId'>,
  organizationId: string,
  row: store.ContactRow,
  {
    channel,
    consent,
    hadOptedOut = false,
  }: {
    channel: Channel;
    consent: Consent;
    /** Whether an opt-out of the address was lifted, by which the contact was shown as unsubscribed, whatever it has. */
    hadOptedOut?: boolean;
  },
): Promise<'changed' | 'unchanged'> {
  const others = row.unsubscribed_channels.filter((other) => other !== channel);
  const unsubscribedChannels = consent === 'unsubscribed' ? [...others, channel] : others;
  const isSame = unsubscribedChannels.length === row.unsubscribed_channels.length;
  if (isSame && !hadOptedOut) return 'unchanged';
  const contact = { organizationId, id: row.id };
  const at = now(tools.clock);
  const logging = logContacts(transaction, {
    organizationId,
    at,
    consents: [{ id: row.id, consent: { [channel]: consent } }],
  });
  if (isSame) {
    await logging;
    return 'unchanged';
  }
  await Promise.all([
    store.updateConsents(transaction, { ...contact, unsubscribedChannels, at }),
    noteChange({ transaction, newId: tools.newId }, contact),
    logging,
  ]);
  return 'changed';
}

/** The contact that has the address now, which may not be the one that had it when a message was sent. */
export async function findConsentHolder(
  transaction: Transaction,
  channel: AddressedChannel,
  address: { organizationId: string; addressKey: string },
): Promise<{ contact: store.ContactKey; consent: Consent } | null> {
  const row = await store.findAddressHolder(transaction, channel, address);
  return (
    row && {
      contact: { organizationId: address.organizationId, id: row.id },
      consent: row.unsubscribed_channels.includes(channel) ? 'unsubscribed' : 'subscribed',
    }
  );
}

/** What a contact has said of a channel; null if there is no such contact. */
export async function findConsent(
  transaction: Transaction,
  channel: Channel,
  contact: store.ContactKey,
): Promise<Consent | null> {
  const row = await store.findContact(transaction, contact);
  return row && (row.unsubscribed_channels.includes(channel) ? 'unsubscribed' : 'subscribed');
}

/** Takes the contact out of one list. False if it was not in it. */
export async function leaveList(
  tools: ConsentTools,
  contact: store.ContactKey,
  listId: string,
): Promise<boolean> {
  const { changed } = await deleteMembers(tools.transaction, {
    organizationId: contact.organizationId,
    setId: listId,
    contactIds: [contact.id],
  });
  if (changed.length === 0) return false;
  const { transaction, clock } = tools;
  const { organizationId, id } = contact;
  await Promise.all([
    noteChange(tools, contact),
    logContacts(transaction, { organizationId, at: now(clock), updated: [id] }),
  ]);
  return true;
}

async function noteChange(
  { transaction, newId }: Omit<ConsentTools, 'clock'>,
  contact: store.ContactKey,
): Promise<void> {
  const { organizationId, id } = contact;
  await store.insertContactChange(transaction, { organizationId, id: newId(), contactIds: [id] });
}
