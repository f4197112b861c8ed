import {
  addSuppressions,
  type Consent,
  findConsentHolder,
  leaveList,
  listMemberLists,
  readSuppression,
  setConsent,
  type SuppressionTools,
  takeBackOptOut,
} from '../../audience/audience.ts';
import { now } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/postgres/database.ts';
import { continueByIndex } from '../../platform/postgres/lookup.ts';
import { emailChannel } from '../channel.ts';
import * as store from './engagement-store.ts';
import {
  changeRecipients,
  raiseStatuses,
  type RecipientKey,
  type RecipientTools,
} from '../../messages/messages.ts';
import type { StoredEmailDetails } from '../stored.ts';

/**
 * What a recipient of a campaign says about further mail, by a link in it or a button of the mail client. It is said
 * once the transaction has been committed and not before; said twice, it changes nothing more.
 *
 * Whoever says it reads the mail of the address that it went to, and speaks for whoever has that address now: the
 * contact it was sent for may have another one since, and be written to there with good reason. An address that is
 * nobody's any more is suppressed.
 */
export type UnsubscribingTools = SuppressionTools & RecipientTools & { database: Database };

export type Choice =
  | { kind: 'unsubscribe' }
  /** Takes that back, if it was said by a link in this very mail. */
  | { kind: 'resubscribe' }
  /** No more mail to one of the lists that this mail went to. */
  | { kind: 'leave_list'; listId: string };

/** How things stand, for somebody who looks at them. */
export type SubscriptionState = {
  isUnsubscribed: boolean;
  mayResubscribe: boolean;
  /** Of the lists that the mail went to, those that could be left. */
  lists: { id: string; name: string }[];
  senderName: string;
  /** Null once it was erased. */
  address: string | null;
};

/** Null if there is no such recipient of a campaign. */
export async function readSubscription(
  tools: UnsubscribingTools,
  key: RecipientKey,
): Promise<SubscriptionState | null> {
  return tools.database.asOrganizations([key.organizationId], async (transaction) => {
    const recipient = await store.findCampaignRecipient(transaction, key);
    return recipient && findSubscription(tools, transaction, key, recipient);
  });
}

/** Carries a choice out, and returns how things stand then; `done` is null if it was not to be had. */
export async function choose(
  tools: UnsubscribingTools,
  key: RecipientKey,
  choice: Choice,
): Promise<{ subscription: SubscriptionState; done: Choice['kind'] | null } | null> {
  return tools.database.asOrganizations([key.organizationId], async (transaction) => {
    const recipient = await store.findCampaignRecipient(transaction, key);
    if (recipient === null) return null;
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
        if (holder) await leaveList({ transaction, newId: tools.newId }, holder.contact, choice.listId);
        break;
      }
    }
    // Once more: the status has changed.
    const changed = (await store.findCampaignRecipient(transaction, key)) ?? recipient;
    return { subscription: await findSubscription(tools, transaction, key, changed), done: choice.kind };
  });
}

const channel = 'email';

async function unsubscribe(
  tools: UnsubscribingTools,
  transaction: Transaction,
  key: RecipientKey,
  recipient: store.CampaignRecipient,
): Promise<void> {
  const at = now(tools.clock);
  const isSaid = await setHolderConsent(tools, transaction, addressOf(key, recipient), {
    consent: 'unsubscribed',
    at,
  });
  // There is nobody whose consent it could be; the address, or what was left of it, is still known.
  if (!isSaid) {
    await addSuppressions(transaction, tools, channel, [
      { organizationId: key.organizationId, address: recipient.addressKey, reason: 'unsubscribe' },
    ]);
  }
  await continueByIndex(transaction);
  await changeRecipients(transaction, tools, {
    at,
    write: () => raiseStatuses(transaction, [{ job: key, status: 'unsubscribed', failure: null }], at),
    channelOf: () => emailChannel,
    // Whoever unsubscribes has the mail, be it that nothing was known of its delivery.
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
  await setHolderConsent(tools, transaction, addressOf(key, recipient), {
    consent: 'subscribed',
    at: now(tools.clock),
  });
  // Also where there is a contact: the address may have been nobody's when the mail was unsubscribed from.
  const address = { organizationId: key.organizationId, address: recipient.addressKey };
  await takeBackOptOut(transaction, tools, channel, address);
}

/** False if the address is nobody's. */
async function setHolderConsent(
  { newId }: UnsubscribingTools,
  transaction: Transaction,
  address: { organizationId: string; addressKey: string },
  change: { consent: Consent; at: Date },
): Promise<boolean> {
  const holder = await findConsentHolder(transaction, channel, address);
  if (holder === null) return false;
  const outcome = await setConsent({ transaction, newId }, holder.contact, { channel, ...change });
  return outcome !== 'not_found';
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
  const suppression = await readSuppression(transaction, tools, channel, {
    organizationId,
    address: addressKey,
  });
  const isUnsubscribed =
    holder === null
      ? suppression !== null
      : holder.consent === 'unsubscribed' || (suppression?.optedOutAt ?? null) !== null;
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
