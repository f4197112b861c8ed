import { holdQuota } from '../accounts/accounts.ts';
import {
  addSuppressions,
  findConsentHolder,
  readSuppression,
  setConsent,
  type SuppressionTools,
  takeBackOptOut,
} from '../audience/audience.ts';
import { defaultReplies, type InboundSms, type Keyword, readKeyword } from '../channels/sms/sms.ts';
import { now } from '../platform/clock.ts';
import { lowestIdAt, type NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { lockName } from '../platform/postgres/name-locks.ts';
import { findNumberHolders, type NumberHolder } from '../senders/senders.ts';
import { submitSms } from './sms-send.ts';
import { countRecentAnswers, hasRecentAnswer } from './sms-store.ts';
import { insertMessages } from './store.ts';

/**
 * Texts that come in. STOP and its synonyms opt a number out of everything that the organization of the sender would
 * text it, START opts it in again, HELP is answered; the contact with that number, if there is one, consents or does
 * not along with it. Nothing else is kept of them.
 */
export type InboundTools = SuppressionTools & {
  newId: NewId;
  log: Log;
  /** False where the provider answers keywords by itself. */
  answersKeywords: boolean;
};

export type Answered = { haveContactsChanged: boolean; hasQueued: boolean };

const nothing: Answered = { haveContactsChanged: false, hasQueued: false };

export async function answerInbound(
  transaction: Transaction,
  tools: InboundTools,
  inbound: InboundSms,
): Promise<Answered> {
  const keyword = readKeyword(inbound.text);
  if (keyword === null) return nothing;
  const holders = await findNumberHolders(transaction, inbound.senderName);
  if (holders.length === 0)
    tools.log.warn({ sender: inbound.senderName }, 'a text came in for a sender that nobody has');
  const answered = { ...nothing };
  for (const holder of holders) {
    const { haveContactsChanged, hasQueued } = await answerFor(
      transaction,
      tools,
      holder,
      inbound.from,
      keyword,
    );
    answered.haveContactsChanged ||= haveContactsChanged;
    answered.hasQueued ||= hasQueued;
  }
  return answered;
}

async function answerFor(
  transaction: Transaction,
  tools: InboundTools,
  holder: NumberHolder,
  address: string,
  keyword: Keyword,
): Promise<Answered> {
  const { organizationId, name: sender } = holder;
  const number = { organizationId, address };
  tools.log.info({ organization_id: organizationId, keyword }, 'a keyword came in');
  const { isNews, haveContactsChanged } = await obey(transaction, tools, number, keyword);
  const isAnswered =
    isNews &&
    tools.answersKeywords &&
    holder.isApproved &&
    (await mayBeAnswered(transaction, tools, { ...number, sender }, keyword));
  if (isAnswered) await reply(transaction, tools, { ...number, sender }, keyword);
  return { haveContactsChanged, hasQueued: isAnswered };
}

/** To one number: enough for somebody who changes their mind, and too few to run up a bill. */
const answersPerDayMax = 5;
const dayMs = 24 * 60 * 60_000;
/**
 * For so long HELP is answered already. Providers tell a text again whose acknowledgement was lost, most of them
 * without a name by which it could be known; whoever asks again after that has perhaps not had the answer.
 */
const helpAnsweredMs = 10 * 60_000;

/** Whoever says it twice was answered, and whoever asks again and again is a machine. */
async function mayBeAnswered(
  transaction: Transaction,
  { clock }: InboundTools,
  to: TextedNumber & { sender: string },
  keyword: Keyword,
): Promise<boolean> {
  // Another worker may have the same text, told twice, at this moment.
  await lockName(transaction, `answers of ${to.organizationId} to ${to.address}`);
  const since = (ageMs: number) => ({ ...to, sinceMessageId: lowestIdAt(clock.nowMs() - ageMs) });
  const isRepeated =
    keyword === 'help' &&
    (await hasRecentAnswer(transaction, { ...since(helpAnsweredMs), text: defaultReplies.help }));
  if (isRepeated) return false;
  const answers = await countRecentAnswers(transaction, { ...since(dayMs), most: answersPerDayMax });
  return answers < answersPerDayMax;
}

type TextedNumber = { organizationId: string; address: string };

async function obey(
  transaction: Transaction,
  tools: InboundTools,
  number: TextedNumber,
  keyword: Keyword,
): Promise<{ isNews: boolean; haveContactsChanged: boolean }> {
  if (keyword === 'help') return { isNews: true, haveContactsChanged: false };
  const suppression = await readSuppression(transaction, tools, 'sms', number);
  const hasOptedOut = (suppression?.optedOutAt ?? null) !== null;
  const consent = keyword === 'stop' ? 'unsubscribed' : 'subscribed';
  if (keyword === 'stop')
    await addSuppressions(transaction, tools, 'sms', [{ ...number, reason: 'unsubscribe' }]);
  else await takeBackOptOut(transaction, tools, 'sms', number);
  const { organizationId, address: addressKey } = number;
  const holder = await findConsentHolder(transaction, 'sms', { organizationId, addressKey });
  const changed =
    holder === null
      ? 'not_found'
      : await setConsent({ transaction, newId: tools.newId }, holder.contact, {
          channel: 'sms',
          consent,
          at: now(tools.clock),
        });
  const haveContactsChanged = changed === 'changed';
  const isNews = haveContactsChanged || hasOptedOut !== (keyword === 'stop');
  // What the operator has suppressed stays so, and nobody is promised anything else.
  const isLifted = suppression === null || suppression.reason === 'unsubscribe';
  return { isNews: isNews && (keyword === 'stop' || isLifted), haveContactsChanged };
}

async function reply(
  transaction: Transaction,
  tools: InboundTools,
  to: TextedNumber & { sender: string },
  keyword: Keyword,
): Promise<void> {
  const { organizationId, address, sender } = to;
  const at = now(tools.clock);
  const submission = submitSms({
    organizationId,
    sender,
    to: address,
    text: defaultReplies[keyword],
    category: 'keyword_reply',
    idempotencyKey: null,
  });
  const quota = await holdQuota(transaction, {
    channel: 'sms',
    at,
    // It is owed, and counts all the same.
    demands: [{ organizationId, amount: submission.quotaUnits, limit: null }],
  });
  await quota.count();
  const recipients = submission.recipients.map((recipient) => ({ ...recipient, field: 'answer' as const }));
  await insertMessages(
    transaction,
    [{ id: tools.newId(), submission: { ...submission, recipients }, sealedAttachments: [] }],
    at,
  );
}
