import {
  findConsent,
  findConsentHolder,
  leaveList,
  listMemberLists,
  optIn,
  optOut,
  optOutContact,
  readSuppressions,
  type SuppressionTools,
} from '../../audience/audience.ts';
import { findOrganizations } from '../../accounts/accounts.ts';
import { now } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import { continueByIndex } from '../../platform/postgres/lookup.ts';
import { emailChannel } from '../channel.ts';
import * as store from './store.ts';
import { changeRecipients, type RecipientKey, type RecipientTools } from '../../messages/messages.ts';
import type { StoredEmailDetails } from '../stored.ts';

/**
 * What a recipient of a campaign chooses about further mail, by a link in the mail or a button of the mail client. A
 * choice is confirmed only after its transaction is committed. Repeating a choice changes nothing.
 *
 * The choice is made by a reader of the mail's address, so it is kept with the address, and applies to the contact that has
 * it now or later. The contact that the mail was sent for may have another address by now, and may rightly be written to
 * there.
 *
 * A recipient that is too old to be kept has no address any more. The link still says which contact the mail was sent for,
 * and then the choice is that contact's: better one that has moved is not written to than one that has asked is.
 */
export type UnsubscribingTools = SuppressionTools & RecipientTools & { database: Database };

export type Choice =
  | { kind: 'unsubscribe' }
  /** Takes the unsubscription back, if it was made by a link in this same mail. */
  | { kind: 'resubscribe' }
  /** No more mail to one of the lists that this mail went to. */
  | { kind: 'leave_list'; listId: string };

/** Who has opened a link: the recipient of a copy, and the contact that it was sent for, as far as the link says. */
export type Reader = { recipient: RecipientKey; contactId: string | null };

/** The current state, for display. */
export type SubscriptionState = {
  isUnsubscribed: boolean;
  mayResubscribe: boolean;
  /** Those lists among the mail's that the recipient can still leave. */
  lists: { id: string; name: string }[];
  senderName: string;
  /** Null once it was erased. */
  address: string | null;
};

/** Null if there is no such recipient of a campaign, and the link names no contact. */
export async function readSubscription(
  tools: UnsubscribingTools,
  reader: Reader,
): Promise<SubscriptionState | null> {
  const { recipient: key } = reader;
  return tools.database.asOrganizations([key.organizationId], async (transaction) => {
    const recipient = await store.findCampaignRecipient(transaction, key);
    return recipient === null
      ? findContactSubscription(transaction, reader)
      : findSubscription(tools, transaction, key, recipient);
  });
}

/** Carries out a choice and returns the resulting state. `done` is null if the choice was not possible. */
export async function choose(
  tools: UnsubscribingTools,
  reader: Reader,
  choice: Choice,
): Promise<{ subscription: SubscriptionState; done: Choice['kind'] | null } | null> {
  const { recipient: key } = reader;
  return tools.database.asOrganizations([key.organizationId], async (transaction) => {
    const recipient = await store.findCampaignRecipient(transaction, key);
    if (recipient === null) return chooseForContact(tools, transaction, reader, choice);
    switch (choice.kind) {
      case 'unsubscribe':
        await unsubscribe(tools, transaction, key, recipient);
        break;
      case 'resubscribe':
        await resubscribe(tools, transaction, key, recipient);
        break;
      case 'leave_list': {
        if (!listIdsOf(recipient).includes(choice.listId)) {
          return { subscription: await findSubscription(tools, transaction, key, recipient), done: null };
        }
        const holder = await findConsentHolder(transaction, channel, addressOf(key, recipient));
        if (holder)
          await leaveList(
            { transaction, clock: tools.clock, newId: tools.newId },
            holder.contact,
            choice.listId,
          );
        break;
      }
    }
    // Read again, since the status has changed.
    const changed = (await store.findCampaignRecipient(transaction, key)) ?? recipient;
    return { subscription: await findSubscription(tools, transaction, key, changed), done: choice.kind };
  });
}

const channel = 'email';

/** Of a contact whose recipient is not kept: it can unsubscribe, and nothing else. */
async function chooseForContact(
  tools: UnsubscribingTools,
  transaction: Transaction,
  reader: Reader,
  choice: Choice,
): Promise<{ subscription: SubscriptionState; done: Choice['kind'] | null } | null> {
  const { recipient, contactId } = reader;
  if (contactId === null) return null;
  const isPossible = choice.kind === 'unsubscribe';
  if (isPossible) {
    const contact = { organizationId: recipient.organizationId, id: contactId };
    await optOutContact(transaction, tools, channel, contact);
  }
  const subscription = await findContactSubscription(transaction, reader);
  return subscription && { subscription, done: isPossible ? choice.kind : null };
}

/** Null if the contact was deleted: its address may be another contact's by now, which this says nothing of. */
async function findContactSubscription(
  transaction: Transaction,
  { recipient: { organizationId }, contactId }: Reader,
): Promise<SubscriptionState | null> {
  if (contactId === null) return null;
  const [consent, [organization]] = await Promise.all([
    findConsent(transaction, channel, { organizationId, id: contactId }),
    findOrganizations(transaction, organizationId),
  ]);
  if (organization === undefined || consent === null) return null;
  return {
    isUnsubscribed: consent !== 'subscribed',
    mayResubscribe: false,
    lists: [],
    senderName: organization.name,
    address: null,
  };
}

async function unsubscribe(
  tools: UnsubscribingTools,
  transaction: Transaction,
  key: RecipientKey,
  recipient: store.CampaignRecipient,
): Promise<void> {
  const at = now(tools.clock);
  // After an erasure its hash is known, and says the same.
  const address = { organizationId: key.organizationId, address: recipient.addressKey };
  const source = { type: 'message' as const, id: key.messageId };
  await optOut(transaction, tools, channel, address, { scope: 'marketing', source, at });
  await continueByIndex(transaction);
  await changeRecipients(transaction, tools, {
    at,
    write: { kind: 'reports', reports: [{ job: key, status: 'unsubscribed', failure: null }] },
    channelOf: () => emailChannel,
    // To unsubscribe is to have received the mail, even if nothing was known of its delivery.
    told: { recipients: [key] },
  });
}

async function resubscribe(
  tools: UnsubscribingTools,
  transaction: Transaction,
  key: RecipientKey,
  recipient: store.CampaignRecipient,
): Promise<void> {
  if (recipient.status !== 'unsubscribed') return;
  await optIn(transaction, tools, channel, {
    organizationId: key.organizationId,
    address: recipient.addressKey,
  });
}

async function findSubscription(
  tools: UnsubscribingTools,
  transaction: Transaction,
  key: RecipientKey,
  recipient: store.CampaignRecipient,
): Promise<SubscriptionState> {
  const { organizationId } = key;
  const { address, addressKey, status, sender } = recipient;
  const holder = await findConsentHolder(transaction, channel, addressOf(key, recipient));
  const suppressions = await readSuppressions(transaction, tools, channel, {
    organizationId,
    address: addressKey,
  });
  const isUnsubscribed =
    holder === null
      ? suppressions.length > 0
      : holder.consent === 'unsubscribed' || suppressions.some(({ reason }) => reason === 'unsubscribe');
  const lists =
    isUnsubscribed || holder === null
      ? []
      : await listMemberLists(transaction, {
          organizationId,
          contactId: holder.contact.id,
          listIds: listIdsOf(recipient),
        });
  return {
    isUnsubscribed,
    mayResubscribe: isUnsubscribed && status === 'unsubscribed',
    lists,
    senderName: detailsOf(recipient).fromName ?? sender,
    address: address === '' ? null : address,
  };
}

function addressOf({ organizationId }: RecipientKey, { addressKey }: store.CampaignRecipient) {
  return { organizationId, addressKey };
}

function listIdsOf(recipient: store.CampaignRecipient): readonly string[] {
  return detailsOf(recipient).listIds ?? [];
}

function detailsOf({ details }: store.CampaignRecipient): StoredEmailDetails {
  return details as StoredEmailDetails; // As it was frozen when the campaign was queued.
}
