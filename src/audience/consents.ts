import type { Channel } from '../channels/channel.ts';
import type { NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { AddressedChannel } from './contact-fields.ts';
import * as store from './contact-store.ts';
import { deleteMembers } from './set-store.ts';

/** A person's own word on what is sent to them, wherever it was said. */
export type Consent = 'subscribed' | 'unsubscribed';

/** A contact, within the transaction in which something else is written of it. */
export type ConsentTools = { transaction: Transaction; newId: NewId };

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

/** Locks the contact. Its segments are looked at again if it has changed. */
export async function setConsent(
  { transaction, newId }: ConsentTools,
  contact: store.ContactKey,
  change: { channel: Channel; consent: Consent; at: Date },
): Promise<'changed' | 'unchanged' | 'not_found'> {
  const row = await store.lockContact(transaction, contact);
  if (row === null) return 'not_found';
  const others = row.unsubscribed_channels.filter((channel) => channel !== change.channel);
  const unsubscribedChannels = change.consent === 'unsubscribed' ? [...others, change.channel] : others;
  if (unsubscribedChannels.length === row.unsubscribed_channels.length) return 'unchanged';
  await Promise.all([
    store.updateConsents(transaction, { ...contact, unsubscribedChannels, at: change.at }),
    noteChange({ transaction, newId }, contact),
  ]);
  return 'changed';
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
  await noteChange(tools, contact);
  return true;
}

async function noteChange({ transaction, newId }: ConsentTools, contact: store.ContactKey): Promise<void> {
  const { organizationId, id } = contact;
  await store.insertContactChange(transaction, { organizationId, id: newId(), contactIds: [id] });
}
