import { holdQuota } from '../accounts/accounts.ts';
import { optIn, optOut, readSuppressions, type SuppressionTools } from '../audience/audience.ts';
import { type Keyword, readKeyword } from '../channels/keywords.ts';
import { defaultReplies, type InboundSms } from '../channels/sms/sms.ts';
import { now } from '../platform/clock.ts';
import { lowestIdAt, type NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { findNumberHolders, type NumberHolder } from '../senders/senders.ts';
import { submitSms } from './send.ts';
import { countRecentAnswers, hasRecentAnswer } from './store.ts';
import { insertMessages, type Submission } from '../messages/messages.ts';

/**
 * Incoming texts. STOP and its synonyms, or what the provider itself takes for it, opt the number out of all texts of the
 * organization that owns the sender, START opts it in again, and HELP gets an answer. If a contact has the number, its
 * consent changes too. Nothing else is stored of incoming texts.
 */
export type InboundTools = SuppressionTools & {
  newId: NewId;
  log: Log;
  /** False where the provider answers keywords by itself. */
  answersKeywords: boolean;
};

export type Answered = { haveContactsChanged: boolean; hasQueued: boolean };

/** The texts must be in the order in which they came, and nothing else may apply incoming texts at the same time. */
export async function answerInbound(
  transaction: Transaction,
  tools: InboundTools,
  texts: readonly InboundSms[],
): Promise<Answered> {
  let haveContactsChanged = false;
  const replies: Submission[] = [];
  for (const inbound of texts) {
    const keyword = keywordOf(inbound);
    if (keyword === null) continue;
    const holders = await findHolders(transaction, inbound);
    if (holders.length === 0)
      tools.log.warn({ sender: inbound.senderName }, 'a text came in for a sender that nobody has');
    for (const holder of holders) {
      const answered = await transaction.asOrganizations([holder.organizationId], () =>
        answerFor(transaction, tools, holder, { address: inbound.from, keyword }),
      );
      haveContactsChanged ||= answered.haveContactsChanged;
      if (answered.reply !== null) replies.push(answered.reply);
    }
  }
  await countReplies(transaction, tools, replies);
  return { haveContactsChanged, hasQueued: replies.length > 0 };
}

/**
 * STOP counts whoever reads it in a text. In all else the provider decides: a person to whom it writes again, since they
 * have said so in words of its own, expects that.
 */
function keywordOf({ text, takenFor }: InboundSms): Keyword | null {
  const ours = readKeyword(text);
  return ours === 'stop' ? ours : (takenFor ?? ours);
}

async function findHolders(
  transaction: Transaction,
  { senderName, senderNameAsWritten }: InboundSms,
): Promise<NumberHolder[]> {
  const holders = await findNumberHolders(transaction, senderName);
  if (holders.length > 0 || senderNameAsWritten === undefined) return holders;
  return findNumberHolders(transaction, senderNameAsWritten);
}

async function answerFor(
  transaction: Transaction,
  tools: InboundTools,
  holder: NumberHolder,
  { address, keyword }: { address: string; keyword: Keyword },
): Promise<{ haveContactsChanged: boolean; reply: Submission | null }> {
  const { organizationId, name: sender } = holder;
  const number = { organizationId, address };
  tools.log.info({ organization_id: organizationId, keyword }, 'a keyword came in');
  const { isNews, haveContactsChanged } = await obey(transaction, tools, number, keyword);
  const isAnswered =
    isNews &&
    tools.answersKeywords &&
    holder.isApproved &&
    (await mayBeAnswered(transaction, tools, { ...number, sender }, keyword));
  const reply = isAnswered ? await queueReply(transaction, tools, { ...number, sender }, keyword) : null;
  return { haveContactsChanged, reply };
}

/** Answers to one number: enough for a person who changes their mind, and too few to run up a bill. */
const answersPerDayMax = 5;
const dayMs = 24 * 60 * 60_000;
/**
 * A second HELP within this time is not answered. Providers repeat a text whose acknowledgement was lost, mostly
 * without an id by which it could be recognised. A person who asks again later may not have received the answer.
 */
const helpAnsweredMs = 10 * 60_000;

/** A repeated keyword was answered already, and a number that keeps asking is a machine. */
async function mayBeAnswered(
  transaction: Transaction,
  { clock }: InboundTools,
  to: TextedNumber & { sender: string },
  keyword: Keyword,
): Promise<boolean> {
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
  const suppressions = await readSuppressions(transaction, tools, 'sms', number);
  const optOuts = suppressions.filter(({ reason }) => reason === 'unsubscribe');
  const hasOptedOut = optOuts.some(({ scope }) => scope === 'all');
  const contact =
    keyword === 'stop'
      ? await optOut(transaction, tools, 'sms', number, { scope: 'all', source: { type: 'reply', id: null } })
      : (await optIn(transaction, tools, 'sms', number)).contact;
  const haveContactsChanged = contact === 'changed';
  const isNews = haveContactsChanged || hasOptedOut !== (keyword === 'stop');
  // What else suppresses a number stays, the operator for instance, and the answer must not say otherwise.
  const isLifted = suppressions.length === optOuts.length;
  return { isNews: isNews && (keyword === 'stop' || isLifted), haveContactsChanged };
}

async function queueReply(
  transaction: Transaction,
  tools: InboundTools,
  to: TextedNumber & { sender: string },
  keyword: Keyword,
): Promise<Submission> {
  const { organizationId, address, sender } = to;
  const submission = submitSms({
    organizationId,
    sender,
    to: address,
    text: defaultReplies[keyword],
    category: 'keyword_reply',
    missingVariables: [],
    warnings: [],
    idempotencyKey: null,
  });
  const recipients = submission.recipients.map((recipient) => ({ ...recipient, field: 'answer' as const }));
  await insertMessages(
    transaction,
    [{ id: tools.newId(), submission: { ...submission, recipients }, sealedAttachments: [], traceId: null }],
    now(tools.clock),
  );
  return submission;
}

/** At the end and all at once, since requests of the same organization wait for the rows that this locks. */
async function countReplies(
  transaction: Transaction,
  tools: InboundTools,
  replies: readonly Submission[],
): Promise<void> {
  if (replies.length === 0) return;
  const demands = replies.map(({ organizationId, quotaUnits }) => ({
    organizationId,
    amount: quotaUnits,
    // The answer is obligatory, so it is sent beyond the quota, but it counts.
    limit: null,
  }));
  const organizationIds = [...new Set(demands.map(({ organizationId }) => organizationId))];
  await transaction.asOrganizations(organizationIds, async () => {
    const quota = await holdQuota(transaction, { channel: 'sms', at: now(tools.clock), demands });
    await quota.count();
  });
}
