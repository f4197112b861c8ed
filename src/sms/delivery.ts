import { LRUCache } from 'lru-cache';
import {
  compileSms,
  type CompiledSms,
  fillSms,
  type SmsProvider,
  type SmsSender,
} from '../channels/sms/sms.ts';
import type { Values } from '../channels/placeholders.ts';
import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import { findApprovedSenders, type SenderName } from '../senders/senders.ts';
import { smsChannel } from './channel.ts';
import {
  type Attempt,
  type ChannelDelivery,
  type DeliverableMessage,
  type HandOffPermit,
  type Job,
  loadDeliverableMessages,
  type MessageFacts,
  uniqueMessages,
} from '../messages/messages.ts';
import type { StoredSmsContent } from './stored.ts';

export type SmsDeliveryTools = { database: Database; clock: Clock; smsProvider: SmsProvider };

/** How texts are delivered: a text is compiled once for all of its recipients, and filled for each. */
export function createSmsDelivery(tools: SmsDeliveryTools): ChannelDelivery {
  return {
    channel: smsChannel,
    provider: tools.smsProvider.name,
    concurrency: tools.smsProvider.concurrency,
    accountOf: null,
    isReportedById: tools.smsProvider.isReportedById,
    begin: () => {
      const session = openSession(tools);
      return {
        prepare: (jobs) => loadTexts(session, jobs),
        handOff: (job, permit) => handOff(session, job, permit),
      };
    },
  };
}

type CompiledMessage = {
  sender: SenderName;
  text: CompiledSms;
  defaults: Values;
  facts: MessageFacts;
};

type SmsSession = {
  tools: SmsDeliveryTools;
  messages: LRUCache<string, CompiledMessage>;
  /** By organization and name. Senders that are no longer approved are not in it. */
  senders: LRUCache<string, SmsSender>;
};

/** A few kilobytes each. */
const messagesMax = 10_000;
const sendersMax = 5_000;
/** How long texts may still be sent from a rejected sender. */
const senderMaxAgeMs = 60_000;
const senderGonePauseMs = 60_000;

function openSession(tools: SmsDeliveryTools): SmsSession {
  return {
    tools,
    messages: new LRUCache({ max: messagesMax }),
    senders: new LRUCache({
      max: sendersMax,
      ttl: senderMaxAgeMs,
      perf: { now: () => tools.clock.monotonicMs() },
    }),
  };
}

/** Loads what a batch of jobs needs, in two statements. */
async function loadTexts(session: SmsSession, jobs: readonly Job[]): Promise<void> {
  const { database } = session.tools;
  const wanted = uniqueMessages(jobs.filter(({ messageId }) => !session.messages.has(messageId)));
  if (wanted.length > 0) {
    for (const message of await loadDeliverableMessages(database, wanted))
      session.messages.set(message.messageId, compileMessage(message));
  }
  await loadSenders(
    session,
    jobs.flatMap(({ messageId }) => session.messages.get(messageId)?.sender ?? []),
  );
}

function compileMessage(message: DeliverableMessage): CompiledMessage {
  const content = message.content as StoredSmsContent; // As send.ts stored it.
  return {
    sender: { organizationId: message.organizationId, name: message.sender },
    // A text that is already filled may contain a value that looks like a placeholder. It stays as it is.
    text: message.isPersonalised ? compileSms(content.text) : { literals: [content.text], placeholders: [] },
    defaults: content.defaults ?? {},
    facts: { isShared: message.isPersonalised, hasAttachments: false },
  };
}

async function loadSenders(session: SmsSession, senders: readonly SenderName[]): Promise<void> {
  const wanted = senders.filter((sender) => !session.senders.has(keyOfSender(sender)));
  if (wanted.length === 0) return;
  const approved = await findApprovedSenders(session.tools.database, wanted);
  for (const sender of wanted) {
    const found = approved.get(sender);
    if (found !== undefined) session.senders.set(keyOfSender(sender), found);
  }
}

function keyOfSender({ organizationId, name }: SenderName): string {
  return `${organizationId} ${name}`;
}

async function handOff(session: SmsSession, job: Job, permit: HandOffPermit): Promise<Attempt> {
  await loadTexts(session, [job]);
  const message = session.messages.get(job.messageId);
  if (message === undefined) {
    return {
      kind: 'failed',
      reason: 'other',
      diagnostic: 'The content of the text is no longer stored.',
      facts: null,
    };
  }
  const { facts } = message;
  const sender = session.senders.get(keyOfSender(message.sender));
  if (sender === undefined) {
    // A campaign is stopped as a whole by the campaign's own work.
    if (job.isCampaign) return { kind: 'released', pauseMs: senderGonePauseMs, facts };
    return {
      kind: 'failed',
      reason: 'sender_rejected',
      diagnostic: 'The sender was rejected after the text was accepted.',
      facts,
    };
  }
  const text = fillSms(message.text, { ...message.defaults, ...job.variables });
  if (text === null) {
    return {
      kind: 'failed',
      reason: 'invalid_message',
      diagnostic: 'The text is blank or has more than 1600 characters with its variables replaced.',
      facts,
    };
  }
  const { finding, ...outcome } = await session.tools.smsProvider.handOff({
    reference: job,
    sender,
    to: job.addressKey,
    text,
    ...permit,
  });
  // No other job will need it.
  if (!facts.isShared) session.messages.delete(job.messageId);
  return { kind: 'outcome', outcome, facts, ...(finding !== undefined && { finding }) };
}
