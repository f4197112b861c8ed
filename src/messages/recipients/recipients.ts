import type { MessagedContact, SuppressingTools } from '../../audience/audience.ts';
import { groupBy } from '../../platform/grouping.ts';
import type { NewId } from '../../platform/ids.ts';
import type { Transaction } from '../../platform/postgres/database.ts';
import { logEvents } from '../../webhooks/webhooks.ts';
import type { MessageChannel } from '../channel.ts';
import { noteRecipientChanges } from './counts.ts';
import { countFates, type ReputationTools } from './reputation.ts';
import { type ReportedFate, suppressByFate } from './suppressing.ts';
import { findListeners, tellOfContacts } from './told-contacts.ts';
import { eventsOf } from './told-programs.ts';
import { type MessageKey, type RecipientKey, textOfKey, uniqueMessages } from '../keys.ts';
import { lockMessagesOf, refreshMessages } from '../status-store.ts';
import { lockRecipientsOf } from './locks-store.ts';
import type { ChangedRecipient } from './store.ts';
import { type RecipientWrite, writeRecipients } from './writes.ts';

/**
 * The only place where recipients change: no other room has a statement that writes them. Outcomes, reports, opens and
 * clicks, opt-outs, erasures and recipients that are dropped at once differ in what is written (`RecipientWrite`). What
 * must follow in the same transaction is the same for all, and is done here:
 *
 * 1. Messages and then recipients are **locked**, each in the order of their keys, where another transaction may change
 *    the same ones: two transactions that locked them in different orders would deadlock.
 * 2. A statement **writes**, and returns the recipients that it changed.
 * 3. The status of transactional messages is **computed** again from their recipients. Slices of campaigns are
 *    **noted**, to be counted again, and so are contacts, whose segments may have to change. What programs of the
 *    organization want to hear of is **logged**. Addresses are **suppressed**. Bounces and complaints are **counted** for
 *    the organization's reputation.
 *
 * Hand-offs of the usual kind, which are most of all changes, have statements that do all of it at once (taken.ts).
 * Recipients of messages that are accepted are inserted with these (`insertionOf`), before anything has become of them.
 */
export type RecipientTools = {
  newId: NewId;
};

/** Called after the commit of such a change. */
export type RecipientListeners = {
  /** Recipients of a campaign may have changed. */
  onCampaignProgress: () => void;
  /** Something that conditions of segments ask about contacts has changed. */
  onContactsChanged: () => void;
};

export type RecipientChange = {
  at: Date;
  /**
   * The organizations under whose role it runs. Left out where the transaction already has a role, or works for all
   * organizations at once.
   */
  organizationIds?: readonly string[];
  holds?: { messages: readonly MessageKey[]; recipients: readonly RecipientKey[] };
  write: RecipientWrite;
  /** Left out where nothing becomes of recipients: neither the status of messages changes, nor is anything told. */
  channelOf?: (recipient: RecipientKey) => MessageChannel;
  told: ToldChange;
  judgement?: Judgement;
  /** Further statements to send in the same round trip, given the keys of the changed recipients. */
  alongside?: (changed: ReadonlySet<string>) => Promise<unknown>[];
  /** The change is the last of its transaction, so the commit is sent in the same round trip. */
  isLast?: boolean;
};

/**
 * The contacts whose segments may change: those of these recipients, as far as they were changed, or these contacts.
 */
export type ToldChange = { recipients: readonly RecipientKey[] } | { contacts: readonly MessagedContact[] };

export type Judgement = {
  tools: SuppressingTools & ReputationTools;
  channelOf: (recipient: RecipientKey) => MessageChannel;
  /** Called with the keys of the changed recipients. */
  judge: (changed: ReadonlySet<string>) => Promise<JudgedFates>;
};

/** What outcomes or reports mean for the suppression of addresses, and for the organization's reputation. */
export type JudgedFates = {
  suppressing: readonly ReportedFate[];
  counted: readonly (ReportedFate & { wasHandedOff: boolean })[];
};

export type WrittenChange = {
  changed: readonly ChangedRecipient[];
  /** The work of segments must be woken after the commit. */
  haveContactsChanged: boolean;
};

export async function changeRecipients(
  transaction: Transaction,
  tools: RecipientTools,
  change: RecipientChange,
): Promise<WrittenChange> {
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
  // Not under the organization's role, which must not suspend the organization.
  await Promise.all(countFatesOf(transaction, change, judged));
  return written;
}

async function writeChange(
  transaction: Transaction,
  tools: RecipientTools,
  change: RecipientChange,
  finish: (fates: JudgedFates | null) => Promise<void>,
): Promise<WrittenChange> {
  const { at, told, holds, channelOf } = change;
  if (holds !== undefined) {
    await lockMessagesOf(transaction, holds.messages);
    await lockRecipientsOf(transaction, holds.recipients);
  }
  const [changed, listeners] = await Promise.all([
    writeRecipients(transaction, change.write, at),
    findListeners(transaction, 'recipients' in told ? told.recipients : told.contacts),
  ]);
  const keys = new Set(changed.map(textOfKey));
  const transactional = changed.filter(({ contactId }) => contactId === null);
  // All statements are sent at once, unless a bounce needs a query first.
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
    ...(channelOf === undefined ? [] : [logEvents(transaction, eventsOf(changed, channelOf))]),
    ...(change.alongside?.(keys) ?? []),
    followFates(transaction, change, { keys, finish }),
  ]);
  return { changed, haveContactsChanged };
}

function contactsOf(told: ToldChange, changed: readonly ChangedRecipient[]): readonly MessagedContact[] {
  if ('contacts' in told) return changed.length > 0 ? told.contacts : [];
  const keys = new Set(told.recipients.map(textOfKey));
  return changed.filter((recipient) => keys.has(textOfKey(recipient)));
}

async function followFates(
  transaction: Transaction,
  { judgement }: RecipientChange,
  written: {
    keys: ReadonlySet<string>;
    finish: (fates: JudgedFates | null) => Promise<void>;
  },
): Promise<void> {
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
