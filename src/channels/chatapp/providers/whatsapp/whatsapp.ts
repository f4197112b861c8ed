import { hash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { type Clock, sleep } from '../../../../platform/clock.ts';
import type { RecipientKey } from '../../../outcome.ts';
import { createUnderWay } from '../../../under-way.ts';
import type {
  AccountExamination,
  ChatAppAccount,
  ChatAppHandOff,
  ChatAppOutcome,
  ChatAppProvider,
  ToldOfChatApp,
} from '../../provider.ts';
import { examineAccount } from './account.ts';
import { outcomeOf, ownWords } from './answers.ts';
import { pardonFresh } from './fresh-templates.ts';
import { createGraph, type Graph, hasUsableIds, unusableToken } from './graph.ts';
import { createManagement } from './management.ts';
import { composeMessage } from './message.ts';
import { createPace, type Pace, type PaceLimits } from './pace.ts';

/**
 * Messages by the WhatsApp Business Cloud API (https://developers.facebook.com/docs/whatsapp/cloud-api). It has no
 * idempotency key: a request without an answer stays `unknown` until a status, which returns our own token, says what
 * became of it.
 */

export type WhatsAppOptions = {
  clock: Clock;
  /** From 0 up to 1. */
  random: () => number;
  /** `https://graph.facebook.com` */
  origin: string;
  /** As in `v25.0`. */
  version: string;
  /** Takes what an examination says of the account. */
  take: (told: ToldOfChatApp & { organizationId: string }) => Promise<void>;
  /** What every status of the message returns. */
  writeToken: (reference: RecipientKey) => string;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string;
  /** Meta's, unless a test has others. */
  limits?: PaceLimits;
};

/** At a quarter of a second for an answer, the thousand a second that a fast number may send. */
const handOffsMax = 256;

/**
 * How often an account is asked how fast it may send, and to how many people. A number gets another pace some times in its
 * life.
 */
const examinedEveryMs = 3_600_000;
/** Fewer would ask again for those that are forgotten, at each of their messages. */
const examinedMax = 10_000;

export function createWhatsAppProvider(options: WhatsAppOptions): ChatAppProvider {
  const { clock, random } = options;
  // Some are left for what is no hand-off.
  const graph = createGraph({ ...options, connectionsMax: handOffsMax + 16 });
  const pace = createPace(clock, random, options.limits);
  const sender: Sender = { ...options, graph, pace };
  const management = createManagement({ clock, graph });
  const underWay = createUnderWay(handOffsMax);
  const questions = createUnderWay(16);
  const examinedAtMs = new LRUCache<string, number>({ max: examinedMax });
  let isClosed = false;

  const examine = async (account: ChatAppAccount): Promise<AccountExamination> => {
    const examination = await questions.run(() => examineAccount(graph, account));
    if (examination.kind === 'examined')
      for (const { phoneNumberId, messagesPerSecondMax } of examination.numbers)
        pace.learn(phoneNumberId, messagesPerSecondMax);
    return examination;
  };
  /** Not waited for: until it is known, the account sends at the pace that every number has, and to anybody. */
  const examineNowAndThen = (account: ChatAppAccount) => {
    const nowMs = clock.monotonicMs();
    if (nowMs - (examinedAtMs.get(account.id) ?? -Infinity) < examinedEveryMs) return;
    examinedAtMs.set(account.id, nowMs);
    void tellLimit(account).catch(() => examinedAtMs.delete(account.id));
  };
  const tellLimit = async (account: ChatAppAccount) => {
    const examination = await examine(account);
    if (examination.kind !== 'examined' || examination.peoplePerDayMax === null) return;
    const { organizationId, businessAccountId } = account;
    const { peoplePerDayMax } = examination;
    await options.take({ kind: 'people_limit', organizationId, businessAccountId, peoplePerDayMax });
  };
  const unavailable = (detail: string): ChatAppOutcome => ({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: ownWords(detail, graph.remote),
  });

  return {
    name: 'whatsapp',
    concurrency: handOffsMax,
    isReportedById: true,
    needsAccount: true,
    handOff: async (handOff) => {
      handOff.signal.throwIfAborted();
      if (isClosed) return unavailable('closing down');
      if (!hasUsableIds(handOff.account)) return unavailable(unusableIds);
      examineNowAndThen(handOff.account);
      return underWay.run(() => sendInTurn(sender, handOff));
    },
    submitTemplate: (account, template) => {
      // The limit is known before the first campaign, and its preview can say how long it will take.
      examineNowAndThen(account);
      return questions.run(() => management.submit(account, template));
    },
    reviewTemplates: (account, wanted) => {
      examineNowAndThen(account);
      return questions.run(() => management.review(account, wanted));
    },
    editTemplate: (account, edit) => questions.run(() => management.edit(account, edit)),
    deleteTemplate: (account, wanted) => questions.run(() => management.delete(account, wanted)),
    examineAccount: examine,
    probe: async () => {
      const opening = await graph.client.open({ method: 'GET', path: '/', headers: {} });
      if (opening.kind !== 'open') return `${graph.remote}: ${opening.detail}`;
      opening.exchange.abandon();
      return null;
    },
    close: async () => {
      isClosed = true;
      await Promise.all([underWay.end(), questions.end()]);
      graph.destroy();
    },
  };
}

export const unusableIds = 'An id of the account or of its number is none: ids are digits.';

type Sender = WhatsAppOptions & { graph: Graph; pace: Pace };

/**
 * The number that writes to this person: always the same one of an account, so that what they answer, and the pace
 * towards them, stay together. Another number that is added takes over its share of people, and no others move.
 */
export function chooseNumber(phoneNumberIds: readonly string[], to: string): string {
  const [only, ...others] = phoneNumberIds;
  if (only !== undefined && others.length === 0) return only;
  const weighed = phoneNumberIds.map((id) => ({
    id,
    // In one call: an object for each hash took a tenth of a worker's time with twenty numbers.
    weight: hash('sha256', `${id} ${to}`, 'hex'),
  }));
  return weighed.reduce((best, next) => (next.weight > best.weight ? next : best)).id;
}

async function sendInTurn(sender: Sender, handOff: ChatAppHandOff): Promise<ChatAppOutcome> {
  const { clock, pace, graph } = sender;
  const { account, to, isCampaign, signal } = handOff;
  signal.throwIfAborted();
  const phoneNumberId = chooseNumber(account.phoneNumberIds, to);
  const { hasTurn, waitMs } = pace.take(phoneNumberId, to, isCampaign);
  if (!hasTurn)
    return {
      kind: 'postponed',
      retryAfterMs: waitMs,
      reply: ownWords('waits for its turn: the number sends as fast as it may', graph.remote),
    };
  if (waitMs > 0) await sleep(clock, waitMs, signal);
  return send(sender, handOff, phoneNumberId);
}

async function send(sender: Sender, handOff: ChatAppHandOff, phoneNumberId: string): Promise<ChatAppOutcome> {
  const { graph, writeToken } = sender;
  const { account, reference, confirm, signal } = handOff;
  const unavailable = (detail: string): ChatAppOutcome => ({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: ownWords(detail, graph.remote),
  });
  const { accessToken } = account;
  const call = graph.callOf({ method: 'POST', path: `${phoneNumberId}/messages`, accessToken });
  if (call === null) return unavailable(unusableToken);
  const body = composeMessage(handOff, writeToken(reference));

  const opening = await graph.client.open(call, signal);
  if (opening.kind !== 'open') return unavailable(opening.detail);
  try {
    await confirm();
  } catch (error) {
    opening.exchange.abandon();
    throw error;
  }
  if (opening.exchange.isOpen())
    return conclude(sender, handOff, phoneNumberId, await opening.exchange.complete(body));

  // Closed by the far side while the confirmation was written, as it may close a connection that was kept. Nothing
  // was sent, so that another connection will do.
  const second = await graph.client.open(call);
  if (second.kind !== 'open') return unavailable(second.detail);
  return conclude(sender, handOff, phoneNumberId, await second.exchange.complete(body));
}

function conclude(
  { clock, graph, pace }: Sender,
  { to, reviewedAt }: ChatAppHandOff,
  phoneNumberId: string,
  answer: Parameters<typeof outcomeOf>[0],
): ChatAppOutcome {
  const { outcome, slows, code } = outcomeOf(answer, { to, remote: graph.remote });
  if (outcome.kind === 'accepted') pace.noteAccepted(phoneNumberId, to);
  if (outcome.kind === 'postponed' && slows !== undefined)
    return {
      ...outcome,
      retryAfterMs: Math.max(outcome.retryAfterMs, pace.noteTooFast(phoneNumberId, to, slows)),
    };
  return code === unknownTemplateCode ? pardonFresh(outcome, reviewedAt, clock.nowMs()) : outcome;
}

const unknownTemplateCode = 132_001;
