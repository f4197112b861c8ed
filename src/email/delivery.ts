import { LRUCache } from 'lru-cache';
import { type EmailProvider, parseAddress, type UnfitCopy } from '../channels/email/email.ts';
import type { SendOutcome } from '../channels/outcome.ts';
import { type DomainName, loadSendingDomains, type SendingDomain } from '../domains/domains.ts';
import type { Clock } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';
import type { Deliverability } from './deliverability.ts';
import {
  buildEmail,
  type BuildTools,
  type BuiltEmail,
  envelopeSenderOf,
  makeCopy,
  readRecipient,
} from './build.ts';
import { emailChannel } from './channel.ts';
import {
  type Attempt,
  type ChannelDelivery,
  contentBytesMax,
  type DeliverableMessage,
  type HandOffPermit,
  type Job,
  loadDeliverableMessages,
  sealedUnderUnknownKey,
  smallContentBytesMax,
  uniqueMessages,
} from '../messages/messages.ts';

export type EmailDeliveryTools = BuildTools & {
  clock: Clock;
  log: Log;
  emailProvider: EmailProvider;
  deliverability: Deliverability;
};

/** How email is delivered: a message is built once for all of its recipients, and a copy made and signed for each. */
export function createEmailDelivery(tools: EmailDeliveryTools): ChannelDelivery {
  return {
    channel: emailChannel,
    provider: tools.emailProvider.name,
    concurrency: tools.emailProvider.concurrency,
    isAnnouncedAhead: tools.emailProvider.isAnnouncedAhead === true,
    accountOf: null,
    isReportedById: tools.emailProvider.isReportedById,
    begin: () => {
      const session = openSession(tools);
      return {
        prepare: (jobs) => prepareJobs(session, jobs),
        handOff: async (job, permit) => {
          const attempt = await handOff(session, job, permit);
          // No other job will need it.
          if (attempt.facts?.isShared === false) session.built.delete(job.messageId);
          return attempt;
        },
      };
    },
  };
}

type EmailSession = {
  tools: EmailDeliveryTools;
  built: LRUCache<string, BuiltEmail>;
  /** By organization and name. Domains that are deleted or not verified are not in it. */
  sendingDomains: LRUCache<string, SendingDomain>;
};

/** Parsed keys, a few kilobytes each. */
const sendingDomainsMax = 5_000;
/** How long mail of a deleted domain may still be signed. */
const sendingDomainMaxAgeMs = 60_000;
/**
 * Recipients' domains of one claim that are looked up ahead of their turn. With more, one organization's domains could
 * fill the resolver.
 */
const preparedDomainsMax = 64;
const domainGonePauseMs = 60_000;

function openSession(tools: EmailDeliveryTools): EmailSession {
  return {
    tools,
    built: new LRUCache<string, BuiltEmail>({
      maxSize: contentBytesMax,
      sizeCalculation: ({ sizeBytes }) => sizeBytes,
    }),
    sendingDomains: new LRUCache<string, SendingDomain>({
      max: sendingDomainsMax,
      ttl: sendingDomainMaxAgeMs,
      perf: { now: () => tools.clock.monotonicMs() },
    }),
  };
}

async function prepareJobs(session: EmailSession, jobs: readonly Job[]): Promise<void> {
  const domains = [...new Set(jobs.map(domainOf))];
  for (const domain of domains.slice(0, preparedDomainsMax)) session.tools.deliverability.prepare(domain);
  await loadSmallMessages(session, jobs);
}

/** Loads and builds what a batch of jobs needs, in one statement. */
async function loadSmallMessages(session: EmailSession, jobs: readonly Job[]): Promise<void> {
  const wanted = uniqueMessages(
    jobs.filter((job) => job.contentBytes <= smallContentBytesMax && recallBuilt(session, job) === undefined),
  );
  if (wanted.length === 0) return;
  const messages = await loadDeliverableMessages(session.tools.database, wanted);
  await keepSendingDomains(session, messages);
  for (const message of messages) {
    // A message that cannot be built is tried again on its own, and then only its own job fails.
    await keepBuilt(session, message).catch((cause: unknown) => {
      session.tools.log.error({ err: cause, message_id: message.messageId }, 'a message cannot be built');
    });
  }
}

async function keepBuilt(
  session: EmailSession,
  message: DeliverableMessage,
): Promise<BuiltEmail | 'no_domain'> {
  const domain = session.sendingDomains.get(keyOfDomain(senderDomainOf(message)));
  if (domain === undefined) return 'no_domain';
  const built = await buildEmail(session.tools, message, domain);
  session.built.set(message.messageId, built);
  return built;
}

async function keepSendingDomains(
  session: EmailSession,
  messages: readonly DeliverableMessage[],
): Promise<void> {
  const wanted = new Map(messages.map(senderDomainOf).map((domain) => [keyOfDomain(domain), domain]));
  for (const key of wanted.keys()) {
    if (session.sendingDomains.has(key)) wanted.delete(key);
  }
  if (wanted.size === 0) return;
  const { database } = session.tools;
  for (const domain of await loadSendingDomains(session.tools, database, [...wanted.values()])) {
    session.sendingDomains.set(keyOfDomain(domain), domain);
  }
}

function senderDomainOf({ organizationId, sender }: DeliverableMessage): DomainName {
  return { organizationId, name: parseAddress(sender)?.domain ?? '' };
}

function keyOfDomain({ organizationId, name }: DomainName): string {
  return `${organizationId} ${name}`;
}

/**
 * The message if it is built already, unless its domain must be looked up again: it may have been deleted meanwhile.
 */
function recallBuilt(session: EmailSession, job: Job): BuiltEmail | undefined {
  const built = session.built.get(job.messageId);
  if (built === undefined) return undefined;
  const { domain } = built.sender;
  if (session.sendingDomains.get(keyOfDomain(domain)) === domain) return built;
  session.built.delete(job.messageId);
  return undefined;
}

async function findBuilt(session: EmailSession, job: Job): Promise<BuiltEmail | 'no_content' | 'no_domain'> {
  const built = recallBuilt(session, job);
  if (built !== undefined) return built;
  const [message] = await loadDeliverableMessages(session.tools.database, [job]);
  if (message === undefined) return 'no_content';
  await keepSendingDomains(session, [message]);
  return keepBuilt(session, message);
}

async function handOff(session: EmailSession, job: Job, permit: HandOffPermit): Promise<Attempt> {
  const { tools } = session;
  const fault = job.attempts > 0 ? null : await tools.deliverability.findFault(domainOf(job));
  if (fault !== null) return { kind: 'objected', objection: fault, facts: null };
  const built = await findBuilt(session, job);
  if (built === 'no_content') {
    return {
      kind: 'failed',
      reason: 'other',
      diagnostic: 'The content of the message is no longer stored.',
      facts: null,
    };
  }
  if (built === 'no_domain') {
    // A campaign is stopped as a whole by the campaign's own work.
    if (job.isCampaign) return { kind: 'released', pauseMs: domainGonePauseMs, facts: null };
    return {
      kind: 'failed',
      reason: 'policy',
      diagnostic: 'The sending domain was deleted after the message was accepted.',
      facts: null,
    };
  }
  const { facts } = built;
  if (built.sender.domain.isKeyUnknown) return { kind: 'outcome', outcome: sealedUnderUnknownKey, facts };
  if (built.sender.domain.signer === 'unreadable') return { kind: 'outcome', outcome: unreadableKey, facts };
  const recipient = readRecipient(job);
  const content = await makeCopy(tools, built, job, recipient);
  if (typeof content === 'string')
    return { kind: 'failed', reason: 'message_too_large', diagnostic: unfitDiagnostics[content], facts };
  const outcome = await tools.emailProvider.handOff({
    reference: job,
    envelopeFrom: envelopeSenderOf(tools, built, job),
    recipient: recipient.envelope,
    content,
    ...permit,
  });
  return { kind: 'outcome', outcome, facts };
}

const unfitDiagnostics: Readonly<Record<UnfitCopy, string>> = {
  too_large: 'The message is too large with its variables replaced.',
  subject_too_long: 'The subject has more than 998 characters with its variables replaced.',
};

/** Another node may have the right secret, and the operator may correct this node's. */
const unreadableKey: SendOutcome = {
  kind: 'deferred',
  reason: 'auth_failure',
  reply: {
    code: null,
    enhancedCode: null,
    diagnostic:
      'The DKIM key of the sending domain cannot be read: POSTILLION_SECRET is not the one it was encrypted under.',
    remote: null,
  },
};

function domainOf({ addressKey }: Job): string {
  return addressKey.slice(addressKey.indexOf('@') + 1);
}
