import { LRUCache } from 'lru-cache';
import { findOptOuts, findUnwillingContacts, type SuppressionTools } from '../audience/audience.ts';
import type {
  ChatAppAccount,
  ChatAppFailure,
  ChatAppOutcome,
  ChatAppProvider,
} from '../channels/chatapp/provider.ts';
import {
  codeParameter,
  listTemplateParameters,
  type TemplateContent,
  type TemplateParameters,
} from '../channels/chatapp/template.ts';
import {
  type Budget,
  type ChatTemplate,
  isStoppedForGood,
  isUsedUp,
  loadBudgets,
  type LoadedAccount,
  loadChatAppAccounts,
  loadChatTemplates,
  makeStandInAccount,
} from '../chat-templates/chat-templates.ts';
import {
  type Attempt,
  attachmentContext,
  type ChannelDelivery,
  type DeliverableMessage,
  type DropReason,
  type HandOffPermit,
  type Job,
  loadDeliverableMessages,
  loadFirstAttachments,
  type MessageFacts,
  sealedUnderUnknownKey,
  textOfKey,
  uniqueMessages,
} from '../messages/messages.ts';
import { type Batcher, createBatcher } from '../platform/batcher.ts';
import { type Clock, dateOf } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { chatAppChannel, codePolicy } from './channel.ts';
import type { HandOffFinding } from './findings.ts';
import {
  type CompiledParameters,
  compileParameters,
  fillParameters,
  findParameterIssues,
  redacted,
} from './parameters.ts';
import type { StoredChatAppContent, StoredChatAppDetails } from './stored.ts';
import { createTrials, trialPauseMs, type Trials } from './trials.ts';

export type ChatAppDeliveryTools = {
  database: Database;
  clock: Clock;
  secrets: Secrets;
  chatAppProvider: ChatAppProvider;
};

/**
 * How chat-app messages are delivered. The template, the account and the consent of the contact are looked up at most
 * two seconds before each hand-off: a template may be paused, and a person may have said stop, while a message waits.
 */
export function createChatAppDelivery(tools: ChatAppDeliveryTools): ChannelDelivery {
  const trials = createTrials(tools.clock);
  return {
    channel: chatAppChannel,
    provider: tools.chatAppProvider.name,
    concurrency: tools.chatAppProvider.concurrency,
    // An account that is blocked, or whose token was revoked, delays nobody else.
    accountOf: ({ organizationId }) => organizationId,
    isReportedById: tools.chatAppProvider.isReportedById,
    begin: () => {
      const session = openSession(tools, trials);
      return {
        prepare: (jobs) => prepare(session, jobs),
        handOff: (job, permit) => handOff(session, job, permit),
      };
    },
  };
}

type ChatAppMessage = {
  stored: StoredChatAppContent;
  /** That the request named. */
  contactId: string | null;
  /** Of a campaign, which says something else to each contact. */
  compiled: CompiledParameters | null;
  facts: MessageFacts;
};

/** What is true of a job at this moment. */
type Look = {
  template: ChatTemplate | null;
  /** Null where the organization has none. */
  account: LoadedAccount | null;
  /** Null where the provider limits no people. */
  budget: Budget | null;
  dropReason: DropReason | null;
};

type ChatAppSession = {
  tools: ChatAppDeliveryTools;
  /** Of all sessions. */
  trials: Trials;
  messages: LRUCache<string, ChatAppMessage>;
  /** The sealed codes of messages that have one. */
  codes: LRUCache<string, Buffer>;
  /** By recipient. */
  looks: LRUCache<string, Look>;
  /** Looks again at what has waited for too long since, for many at a time. */
  renewals: Batcher<Job, void>;
};

/** A few kilobytes each. */
const messagesMax = 5_000;
const looksMax = 10_000;
/** Longer, and messages leave that a person or a reviewer has stopped meanwhile; shorter takes more statements. */
const lookMaxAgeMs = 2_000;
/** A campaign is stopped as a whole by the campaign's own work. */
const stoppedPauseMs = 60_000;
/** The provider pauses templates for hours. */
const pausedRetryMs = 30 * 60_000;

function openSession(tools: ChatAppDeliveryTools, trials: Trials): ChatAppSession {
  const session: ChatAppSession = {
    tools,
    trials,
    messages: new LRUCache({ max: messagesMax }),
    codes: new LRUCache({ max: messagesMax }),
    looks: new LRUCache({
      max: looksMax,
      ttl: lookMaxAgeMs,
      ttlResolution: 0,
      perf: { now: () => tools.clock.monotonicMs() },
    }),
    renewals: createBatcher({
      itemsMax: 500,
      concurrency: 2,
      run: async (jobs) => {
        await prepare(session, jobs);
        return jobs.map(() => undefined);
      },
    }),
  };
  return session;
}

/** Loads what a batch of jobs needs: messages with their codes, then templates, accounts and consents. */
async function prepare(session: ChatAppSession, jobs: readonly Job[]): Promise<void> {
  await loadMessages(session, jobs);
  await look(session, jobs);
}

function isPrepared({ messages, codes, looks }: ChatAppSession, job: Job): boolean {
  const message = messages.get(job.messageId);
  if (message === undefined || !looks.has(textOfKey(job))) return false;
  return !message.facts.hasAttachments || codes.has(job.messageId);
}

async function loadMessages(session: ChatAppSession, jobs: readonly Job[]): Promise<void> {
  const { messages, codes, tools } = session;
  const wanted = uniqueMessages(jobs.filter(({ messageId }) => !messages.has(messageId)));
  if (wanted.length > 0) {
    for (const message of await loadDeliverableMessages(tools.database, wanted))
      messages.set(message.messageId, readMessage(message));
  }
  const sealed = uniqueMessages(
    jobs.filter(({ messageId }) => messages.get(messageId)?.facts.hasAttachments && !codes.has(messageId)),
  );
  if (sealed.length === 0) return;
  const organizationIds = [...new Set(sealed.map(({ organizationId }) => organizationId))];
  const found = await tools.database.asOrganizationsByIndex(organizationIds, (transaction) =>
    loadFirstAttachments(transaction, sealed),
  );
  for (const [messageId, code] of found) codes.set(messageId, code);
}

function readMessage(message: DeliverableMessage): ChatAppMessage {
  const stored = message.content as StoredChatAppContent; // As send.ts or campaigns.ts stored it.
  const details = message.details as StoredChatAppDetails;
  const isCode = stored.category === 'authentication';
  return {
    stored,
    contactId: details.contact_id ?? null,
    // What is already filled may contain a value that looks like a placeholder. It stays as it is.
    compiled: message.isPersonalised ? compileParameters(stored.parameters) : null,
    facts: {
      isShared: message.isPersonalised,
      hasAttachments: isCode,
      ...(isCode && { policy: codePolicy }),
    },
  };
}

async function look(session: ChatAppSession, jobs: readonly Job[]): Promise<void> {
  const { looks, messages, tools } = session;
  const wanted = jobs.flatMap((job) => {
    const message = messages.get(job.messageId);
    return message === undefined || looks.has(textOfKey(job)) ? [] : [{ job, message }];
  });
  if (wanted.length === 0) return;
  const organizationIds = [...new Set(wanted.map(({ job }) => job.organizationId))];
  const { templates, accounts, budgets, bars } = await tools.database.asOrganizationsByIndex(
    organizationIds,
    async (transaction) => {
      const found = await findTemplates(transaction, wanted);
      return {
        templates: found,
        accounts: await findAccounts(tools, transaction, organizationIds),
        budgets: await loadBudgets(tools, transaction, organizationIds),
        bars: new Map([
          ...(await findBars(transaction, wanted)),
          ...(await findMarketingBars(tools, transaction, wanted, found)),
        ]),
      };
    },
  );
  for (const { job, message } of wanted) {
    looks.set(textOfKey(job), {
      template: templates.get(keyOf(job.organizationId, message.stored.template_id)) ?? null,
      account: accounts.get(job.organizationId) ?? null,
      budget: budgets.get(job.organizationId) ?? null,
      dropReason: bars.get(job) ?? null,
    });
  }
}

type Wanted = { job: Job; message: ChatAppMessage };

async function findTemplates(
  transaction: Transaction,
  wanted: readonly Wanted[],
): Promise<Map<string, ChatTemplate>> {
  const keys = new Map(
    wanted.map(({ job: { organizationId }, message: { stored } }) => [
      keyOf(organizationId, stored.template_id),
      { organizationId, id: stored.template_id },
    ]),
  );
  const found = await loadChatTemplates(transaction, [...keys.values()]);
  return new Map(found.map((template) => [keyOf(template.organizationId, template.id), template]));
}

async function findAccounts(
  { chatAppProvider, secrets, clock }: ChatAppDeliveryTools,
  transaction: Transaction,
  organizationIds: readonly string[],
): Promise<Map<string, LoadedAccount>> {
  if (!chatAppProvider.needsAccount) {
    const standIn = (organizationId: string) => ({
      organizationId,
      account: makeStandInAccount(organizationId),
      isKeyUnknown: false,
      campaignsHeld: null,
    });
    return new Map(organizationIds.map((organizationId) => [organizationId, standIn(organizationId)]));
  }
  const found = await loadChatAppAccounts({ secrets, clock }, transaction, organizationIds);
  return new Map(found.map((account) => [account.organizationId, account]));
}

/** Of messages to a contact that the request named. Those of campaigns are asked about wherever messages are (unwanted.ts). */
async function findBars(transaction: Transaction, wanted: readonly Wanted[]): Promise<Map<Job, DropReason>> {
  const named = wanted.flatMap(({ job, message: { contactId } }) =>
    contactId === null ? [] : [{ job, contact: { organizationId: job.organizationId, id: contactId } }],
  );
  if (named.length === 0) return new Map();
  const bars = await findUnwillingContacts(
    transaction,
    'chatapp',
    named.map(({ contact }) => contact),
  );
  return new Map(
    named.flatMap(({ job }, index) =>
      // To have unsubscribed keeps campaigns out, and what is marketing to the provider.
      bars.get(index) === 'contact_deleted' ? [[job, 'contact_deleted'] as const] : [],
    ),
  );
}

/** Of messages that are marketing since the provider has moved their template, and were not accepted as that. */
async function findMarketingBars(
  tools: SuppressionTools,
  transaction: Transaction,
  wanted: readonly Wanted[],
  templates: ReadonlyMap<string, ChatTemplate>,
): Promise<Map<Job, DropReason>> {
  const moved = wanted.filter(({ job: { organizationId, isCampaign }, message: { stored } }) => {
    const template = templates.get(keyOf(organizationId, stored.template_id));
    const isOwnMarketing = isCampaign || stored.category === 'marketing';
    return !isOwnMarketing && (template?.marketingFrom ?? null) !== null;
  });
  const unwilling = await findOptOuts(
    transaction,
    tools,
    moved.map(({ job: { organizationId, addressKey: address } }) => ({
      organizationId,
      channel: 'chatapp' as const,
      address,
    })),
  );
  return new Map(
    moved.flatMap(({ job }, index) => (unwilling.has(index) ? [[job, 'unsubscribed'] as const] : [])),
  );
}

function keyOf(organizationId: string, id: string): string {
  return `${organizationId} ${id}`;
}

async function handOff(session: ChatAppSession, job: Job, permit: HandOffPermit): Promise<Attempt> {
  if (!isPrepared(session, job)) await session.renewals.add(job);
  const message = session.messages.get(job.messageId);
  if (message === undefined) return failed('other', 'What the message says is no longer stored.', null);
  const looked = session.looks.get(textOfKey(job));
  const facts = { ...message.facts, ...expiryOf(job, message, looked?.template ?? null) };
  if (session.tools.clock.nowMs() >= (facts.expiresAt?.getTime() ?? Infinity))
    return failed('expired', 'Its time was over before it could be handed over.', facts);
  if (looked === undefined) return { kind: 'outcome', outcome: unknownState, facts };
  if (looked.dropReason !== null) return { kind: 'objected', objection: looked.dropReason, facts };
  const { template, account: loaded } = looked;
  const stopped = judgeTemplate(job, template, facts);
  if (template === null || stopped !== null)
    return stopped ?? failed('template_unavailable', 'The template was deleted.', facts);
  if (isHeld(job, looked)) return { kind: 'released', pauseMs: stoppedPauseMs, facts };
  if (loaded?.isKeyUnknown === true) return { kind: 'outcome', outcome: sealedUnderUnknownKey, facts };
  if (loaded === null || loaded.account === 'unreadable')
    return { kind: 'outcome', outcome: loaded === null ? noAccount : unreadableAccount, facts };
  const code = await openCode(session, job);
  if (facts.hasAttachments && code === null)
    return failed('other', 'The code of the message is no longer stored.', facts);
  const { parameters, issues } = fitParameters(template.content, fill(message, job, code));
  if (issues.length > 0) return failed('invalid_message', `${issues.join(', ')}.`, facts);
  if (!session.trials.mayTry(template)) return { kind: 'released', pauseMs: trialPauseMs, facts };
  const outcome = await giveToProvider(session, {
    job,
    permit,
    account: loaded.account,
    template,
    parameters,
  });
  if ('dropReason' in outcome) {
    const { dropReason } = outcome;
    return dropReason === null
      ? { kind: 'outcome', outcome: unknownState, facts }
      : { kind: 'objected', objection: dropReason, facts };
  }
  // No other job will need it.
  if (!facts.isShared && outcome.kind === 'accepted') session.messages.delete(job.messageId);
  const { finding = null, knownAs = null } = outcome;
  if (finding?.kind === 'invalid_message') session.trials.noteRefusal(template);
  const isAccepted = outcome.kind === 'accepted';
  const isCounted = looked.budget !== null && isAccepted;
  const endsRefusals = isAccepted && session.trials.endsRefusals(template);
  const found: HandOffFinding | null =
    finding === null && knownAs === null && !isCounted && !endsRefusals
      ? null
      : { kind: 'handed off', finding, knownAs, isCounted, endsRefusals };
  return {
    kind: 'outcome',
    outcome: readable(endAttempts(job, outcome), code),
    facts,
    ...(found !== null && { finding: found }),
  };
}

type Given = {
  job: Job;
  permit: HandOffPermit;
  account: ChatAppAccount;
  template: ChatTemplate;
  parameters: TemplateParameters;
};

async function giveToProvider(
  session: ChatAppSession,
  { job, permit, account, template, parameters }: Given,
): Promise<ChatAppOutcome | { dropReason: DropReason | null }> {
  const { name, language, category, content } = template;
  try {
    return await session.tools.chatAppProvider.handOff({
      reference: { organizationId: job.organizationId, messageId: job.messageId, ordinal: job.ordinal },
      account,
      to: job.addressKey,
      template: { name, language, category, content },
      reviewedAt: template.reviewedAt,
      parameters,
      isCampaign: job.isCampaign,
      confirm: () => confirmWanted(session, job, permit),
      signal: permit.signal,
    });
  } catch (cause) {
    if (!(cause instanceof UnwantedError)) throw cause;
    return { dropReason: cause.dropReason };
  }
}

/** Nothing may be sent any more; null if it could not be looked up in time, or must not leave for now. */
class UnwantedError extends Error {
  override readonly name = 'UnwantedError';
  readonly dropReason: DropReason | null;
  constructor(dropReason: DropReason | null) {
    super('the message must not be sent now');
    this.dropReason = dropReason;
  }
}

/** A connection, or the pace of the number, may have been waited for: meanwhile the person may have said stop. */
async function confirmWanted(session: ChatAppSession, job: Job, permit: HandOffPermit): Promise<void> {
  if (!session.looks.has(textOfKey(job))) {
    await session.renewals.add(job);
    const looked = session.looks.get(textOfKey(job));
    if (looked === undefined) throw new UnwantedError(null);
    if (looked.dropReason !== null) throw new UnwantedError(looked.dropReason);
    if (looked.template?.sendable !== true || isHeld(job, looked)) throw new UnwantedError(null);
  }
  await permit.confirm();
}

const minuteMs = 60_000;
/** A code whose template says nothing of its end is of no use after this time: its button does nothing any more. */
const silentExpiryMinutes = 10;

/** A code that arrives after its end is worse than none. */
function expiryOf(job: Job, { facts }: ChatAppMessage, template: ChatTemplate | null): { expiresAt?: Date } {
  if (!facts.hasAttachments || template?.content.kind !== 'code') return {};
  const lifeMs = (template.content.codeExpirationMinutes ?? silentExpiryMinutes) * minuteMs;
  return { expiresAt: dateOf(job.acceptedAt.getTime() + Math.min(lifeMs, codePolicy.retryWindowMs)) };
}

/** What becomes of a job whose template cannot be sent; null if it can. */
function judgeTemplate(job: Job, template: ChatTemplate | null, facts: MessageFacts): Attempt | null {
  if (template?.sendable === true) return null;
  if (job.isCampaign) return { kind: 'released', pauseMs: stoppedPauseMs, facts };
  const reason = template?.sendableReason ?? 'deleted';
  const diagnostic = `The template cannot be sent: it is ${reason}.`;
  if (isStoppedForGood(reason)) return failed('template_unavailable', diagnostic, facts);
  const outcome: ChatAppOutcome = {
    kind: 'deferred',
    reason: 'template_unavailable',
    retryAfterMs: pausedRetryMs,
    reply: replyOf(diagnostic),
  };
  return { kind: 'outcome', outcome, facts };
}

/** Single messages are still taken from an account that may send no campaigns; if they are not, the answer says so. */
function isHeld({ isCampaign }: Job, { account, budget }: Look): boolean {
  if (!isCampaign) return false;
  return (account !== null && account.campaignsHeld !== null) || (budget !== null && isUsedUp(budget));
}

/** Null where the message has none, or it is gone. */
async function openCode({ codes, tools }: ChatAppSession, { messageId }: Job): Promise<string | null> {
  const sealed = codes.get(messageId);
  if (sealed === undefined) return null;
  const opened = await tools.secrets.decryptInSteps(sealed, attachmentContext(messageId, 0));
  return opened.toString('utf8');
}

/** A copy of a campaign is filled with the values that its contact had when it became a recipient. */
function fill(
  { stored, compiled }: ChatAppMessage,
  { variables }: Job,
  code: string | null,
): TemplateParameters {
  if (compiled === null) return { ...stored.parameters, ...(code !== null && { [codeParameter]: code }) };
  return fillParameters(compiled, { ...stored.defaults, ...variables });
}

/** An error that says nothing of its reason is not tried for as long as one that does. */
function endAttempts({ attempts }: Job, outcome: ChatAppOutcome): ChatAppOutcome {
  const { attemptsMax = Infinity } = outcome;
  if (outcome.kind !== 'deferred' || outcome.reason === 'provider_unavailable' || attempts + 1 < attemptsMax)
    return outcome;
  return { kind: 'rejected', reason: outcome.reason, reply: outcome.reply };
}

/** The template may have been edited since the message was accepted: what it has no placeholder for is left out. */
function fitParameters(
  content: TemplateContent,
  parameters: TemplateParameters,
): { parameters: TemplateParameters; issues: string[] } {
  const issues = findParameterIssues(content, parameters);
  if (issues.length === 0) return { parameters, issues };
  const wanted = listTemplateParameters(content);
  const kept = Object.fromEntries(Object.entries(parameters).filter(([name]) => wanted.includes(name)));
  return { parameters: kept, issues: findParameterIssues(content, kept) };
}

const diagnosticUnitsMax = 500;

/**
 * As it is stored: with the provider's code in its words, since codes of email alone have a column, which is too narrow
 * for those of chat apps; and without the one-time code, which the remote side may repeat.
 */
function readable(outcome: ChatAppOutcome, secret: string | null): ChatAppOutcome {
  if (outcome.reply === null) return outcome;
  const { code, diagnostic } = outcome.reply;
  const words = code === null || diagnostic.startsWith(`${code}`) ? diagnostic : `${code} ${diagnostic}`;
  const shown = secret === null ? words : words.replaceAll(secret, redacted);
  const reply = {
    ...outcome.reply,
    code: null,
    diagnostic: shown.slice(0, diagnosticUnitsMax).toWellFormed(),
  };
  return { ...outcome, reply };
}

function replyOf(diagnostic: string) {
  return { code: null, enhancedCode: null, diagnostic, remote: null };
}

/** The database took so long that what it said has grown too old, or the template was stopped at the last moment. */
const unknownState: ChatAppOutcome = {
  kind: 'postponed',
  retryAfterMs: 1_000,
  reply: replyOf('The template and the contact could not be looked up in time.'),
};

/** As if the provider were away: other messages go on, and these are tried again once there is an account. */
const noAccount: ChatAppOutcome = {
  kind: 'deferred',
  reason: 'provider_unavailable',
  reply: replyOf('The organization has no account at the provider.'),
};

const unreadableAccount: ChatAppOutcome = {
  kind: 'deferred',
  reason: 'provider_unavailable',
  reply: replyOf('The credentials of the organization cannot be read: set them again.'),
};

function failed(reason: ChatAppFailure, diagnostic: string, facts: MessageFacts | null): Attempt {
  return { kind: 'failed', reason, diagnostic, facts };
}
