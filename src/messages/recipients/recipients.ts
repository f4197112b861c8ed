import type { MessagedContact, SuppressionTools } from '../../audience/audience.ts';
import { groupBy } from '../../platform/grouping.ts';
import type { NewId } from '../../platform/ids.ts';
import type { Transaction } from '../../platform/postgres/database.ts';
import type { MessageChannel } from '../channel.ts';
import { noteRecipientChanges } from './counts.ts';
import { countFates, type ReputationTools } from './reputation.ts';
import { type ReportedFate, suppressByFate } from './suppressing.ts';
import { findListeners, tellOfContacts } from './told-contacts.ts';
import { type MessageKey, type RecipientKey, textOfKey, uniqueMessages } from '../keys.ts';
import { lockMessagesOf, refreshMessages } from '../status-store.ts';
import { type ChangedRecipient, lockRecipientsOf } from './store.ts';

/**
 * The one place where recipients change. Outcomes, reports, opens and clicks, opt-outs, erasures and recipients that
 * are dropped at once differ in the statement that writes them, which the caller hands in. What belongs to it, in the
 * same transaction, is the same for all and is done here:
 *
 * 1. Messages and then recipients are **held**, each in the order of their keys, where somebody else may change the
 *    same ones: two transactions that took them in different orders would deadlock.
 * 2. The statement **writes**, and says which recipients it changed.
 * 3. The status of transactional messages is **read off** their recipients anew, and a campaign's slices are noted, to
 *    be **counted again**. Contacts of whom segments may think otherwise now are noted. Addresses are **suppressed**,
 *    and what speaks against the organization is **counted**.
 */
export type RecipientTools = {
  newId: NewId;
  /** Is handed every change, within its transaction: what is told to others about recipients is written down here. */
  outbox?: (transaction: Transaction, changed: readonly ChangedRecipient[]) => Promise<void>;
};

export type RecipientChange = {
  at: Date;
  /** Under whose role it is done; left out where the transaction is under one, or serves all organizations at once. */
  organizationIds?: readonly string[];
  holds?: { messages: readonly MessageKey[]; recipients: readonly RecipientKey[] };
  write: () => Promise<readonly ChangedRecipient[]>;
  /** Left out where the change says nothing of how far a message has come. */
  channelOf?: (recipient: RecipientKey) => MessageChannel;
  told: ToldChange;
  judgement?: Judgement;
  /** Statements that are sent along, given the keys of those that were changed. */
  alongside?: (changed: ReadonlySet<string>) => Promise<unknown>[];
  /** It is the last of its transaction: the commit is sent along, too. */
  isLast?: boolean;
};

/** Of whom segments may think otherwise: those of these recipients that were changed, or these contacts. */
export type ToldChange = { recipients: readonly RecipientKey[] } | { contacts: readonly MessagedContact[] };

export type Judgement = {
  tools: SuppressionTools & ReputationTools;
  channelOf: (recipient: RecipientKey) => MessageChannel;
  /** Given the keys of those that were changed. */
  judge: (changed: ReadonlySet<string>) => Promise<JudgedFates>;
};

/** What outcomes or reports say of addresses, and of the organization that writes to them. */
export type JudgedFates = {
  suppressing: readonly ReportedFate[];
  counted: readonly (ReportedFate & { wasHandedOff: boolean })[];
};

/** Returns whether whoever keeps segments is to be woken after the commit. */
export async function changeRecipients(
  transaction: Transaction,
  tools: RecipientTools,
  change: RecipientChange,
): Promise<{ haveContactsChanged: boolean }> {
  const { organizationIds } = change;
  if (organizationIds === undefined) {
    return writeChange(transaction, tools, change, async (fates) => {
      await Promise.all([
        ...countFatesOf(transaction, change, fates),
        ...(change.isLast === true ? [transaction.commit()] : []),
      ]);
    });
  }
  let judged: JudgedFates | null = null;
  const written = await transaction.asOrganizations(organizationIds, () =>
    writeChange(transaction, tools, change, (fates) => {
      judged = fates;
      return Promise.resolve();
    }),
  );
  // Outside of the role, which may not suspend the organization.
  await Promise.all(countFatesOf(transaction, change, judged));
  return written;
}

async function writeChange(
  transaction: Transaction,
  tools: RecipientTools,
  change: RecipientChange,
  finish: (fates: JudgedFates | null) => Promise<void>,
): Promise<{ haveContactsChanged: boolean }> {
  const { at, told, holds, channelOf } = change;
  if (holds !== undefined) {
    await lockMessagesOf(transaction, holds.messages);
    await lockRecipientsOf(transaction, holds.recipients);
  }
  const [changed, listeners] = await Promise.all([
    change.write(),
    findListeners(transaction, 'recipients' in told ? told.recipients : told.contacts),
  ]);
  const keys = new Set(changed.map(textOfKey));
  const transactional = changed.filter(({ contactId }) => contactId === null);
  // All of it is sent at once, unless a bounce has to be looked into.
  const [haveContactsChanged] = await Promise.all([
    tellOfContacts(transaction, tools.newId, listeners, contactsOf(told, changed)),
    ...(channelOf === undefined ? [] : [...groupBy(transactional, channelOf)]).map(([channel, recipients]) =>
      refreshMessages(transaction, channel, uniqueMessages(recipients), at),
    ),
    noteRecipientChanges(
      transaction,
      tools.newId,
      changed.filter(({ contactId }) => contactId !== null),
    ),
    ...(change.alongside?.(keys) ?? []),
    followFates(transaction, tools, change, { changed, keys, finish }),
  ]);
  return { haveContactsChanged };
}

function contactsOf(told: ToldChange, changed: readonly ChangedRecipient[]): readonly MessagedContact[] {
  if ('contacts' in told) return changed.length > 0 ? told.contacts : [];
  const keys = new Set(told.recipients.map(textOfKey));
  return changed.filter((recipient) => keys.has(textOfKey(recipient)));
}

async function followFates(
  transaction: Transaction,
  { outbox }: RecipientTools,
  { judgement }: RecipientChange,
  written: {
    changed: readonly ChangedRecipient[];
    keys: ReadonlySet<string>;
    finish: (fates: JudgedFates | null) => Promise<void>;
  },
): Promise<void> {
  if (written.changed.length > 0) await outbox?.(transaction, written.changed);
  const fates = (await judgement?.judge(written.keys)) ?? null;
  if (judgement !== undefined && fates !== null) {
    for (const [channel, ofChannel] of groupBy(fates.suppressing, ({ job }) => judgement.channelOf(job)))
      await suppressByFate(transaction, judgement.tools, channel, ofChannel);
  }
  await written.finish(fates);
}

function countFatesOf(
  transaction: Transaction,
  { judgement }: RecipientChange,
  fates: JudgedFates | null,
): Promise<void>[] {
  if (judgement === undefined || fates === null) return [];
  return [...groupBy(fates.counted, ({ job }) => judgement.channelOf(job))].map(([channel, ofChannel]) =>
    countFates(transaction, judgement.tools, channel, ofChannel),
  );
}
