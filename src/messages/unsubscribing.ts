import {
  addSuppressions,
  findConsent,
  leaveList,
  listMemberLists,
  readSuppression,
  removeSuppression,
  setConsent,
  type SuppressionTools,
} from '../audience/audience.ts';
import { now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import * as store from './engagement-store.ts';
import { type JobKey, raiseStatuses } from './queue-store.ts';
import { noteRecipientChanges } from './recipient-counts.ts';
import type { StoredEmailDetails } from './submission.ts';

/**
 * What a recipient of a campaign says about further mail, by a link in it or a button of the mail client. It is said
 * once the transaction has been committed and not before; said twice, it changes nothing more.
 */
export type UnsubscribingTools = SuppressionTools & { database: Database; newId: NewId };

export type Choice =
  | { kind: 'unsubscribe' }
  /** Takes that back, if it was said by a link in this very mail. */
  | { kind: 'resubscribe' }
  /** No more mail to one of the lists that this mail went to. */
  | { kind: 'leave_list'; listId: string };

/** How things stand, for somebody who looks at them. */
export type Standing = {
  isUnsubscribed: boolean;
  mayResubscribe: boolean;
  /** Of the lists that the mail went to, those that could be left. */
  lists: { id: string; name: string }[];
  senderName: string;
  /** Null once it was erased. */
  address: string | null;
};

/** Null if there is no such recipient of a campaign. */
export async function readStanding(tools: UnsubscribingTools, key: JobKey): Promise<Standing | null> {
  return tools.database.asOrganizations([key.organizationId], async (transaction) => {
    const recipient = await store.findCampaignRecipient(transaction, key);
    return recipient && findStanding(tools, transaction, key, recipient);
  });
}

/** Carries a choice out, and returns how things stand then; `done` is null if it was not to be had. */
export async function choose(
  tools: UnsubscribingTools,
  key: JobKey,
  choice: Choice,
): Promise<{ standing: Standing; done: Choice['kind'] | null } | null> {
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
          return { standing: await findStanding(tools, transaction, key, recipient), done: null };
        }
        const contact = { organizationId: key.organizationId, id: recipient.contactId };
        await leaveList({ transaction, newId: tools.newId }, contact, choice.listId);
        break;
      }
    }
    // Once more: the status has changed.
    const changed = (await store.findCampaignRecipient(transaction, key)) ?? recipient;
    return { standing: await findStanding(tools, transaction, key, changed), done: choice.kind };
  });
}

const channel = 'email';

async function unsubscribe(
  tools: UnsubscribingTools,
  transaction: Transaction,
  key: JobKey,
  { contactId, addressKey }: store.CampaignRecipient,
): Promise<void> {
  const { organizationId } = key;
  const at = now(tools.clock);
  const outcome = await setConsent(
    { transaction, newId: tools.newId },
    { organizationId, id: contactId },
    { channel, consent: 'unsubscribed', at },
  );
  // There is nobody left whose consent it could be; the address, or what was left of it, is still known.
  if (outcome === 'not_found') {
    await addSuppressions(transaction, tools, channel, [
      { organizationId, address: addressKey, reason: 'unsubscribe' },
    ]);
  }
  const changed = await raiseStatuses(transaction, [{ job: key, status: 'unsubscribed', failure: null }], at);
  await noteRecipientChanges(transaction, tools.newId, changed);
}

async function resubscribe(
  tools: UnsubscribingTools,
  transaction: Transaction,
  { organizationId }: JobKey,
  { contactId, addressKey, status }: store.CampaignRecipient,
): Promise<void> {
  if (status !== 'unsubscribed') return;
  const outcome = await setConsent(
    { transaction, newId: tools.newId },
    { organizationId, id: contactId },
    { channel, consent: 'subscribed', at: now(tools.clock) },
  );
  if (outcome !== 'not_found') return;
  const address = { organizationId, address: addressKey };
  const suppression = await readSuppression(transaction, tools, channel, address);
  if (suppression?.reason === 'unsubscribe') await removeSuppression(transaction, tools, channel, address);
}

async function findStanding(
  tools: UnsubscribingTools,
  transaction: Transaction,
  { organizationId }: JobKey,
  recipient: store.CampaignRecipient,
): Promise<Standing> {
  const { contactId, address, addressKey, status, sender } = recipient;
  const consent = await findConsent(transaction, { organizationId, id: contactId }, channel);
  const isUnsubscribed =
    consent === 'not_found'
      ? (await readSuppression(transaction, tools, channel, { organizationId, address: addressKey })) !== null
      : consent === 'unsubscribed';
  const lists = isUnsubscribed
    ? []
    : await listMemberLists(transaction, { organizationId, contactId, listIds: listIdsOf(recipient) });
  return {
    isUnsubscribed,
    mayResubscribe: isUnsubscribed && status === 'unsubscribed',
    lists,
    senderName: detailsOf(recipient).fromName ?? sender,
    address: address === '' ? null : address,
  };
}

function listIdsOf(recipient: store.CampaignRecipient): readonly string[] {
  return detailsOf(recipient).listIds ?? [];
}

function detailsOf({ details }: store.CampaignRecipient): StoredEmailDetails {
  return details as StoredEmailDetails; // As it was frozen when the campaign was queued.
}
