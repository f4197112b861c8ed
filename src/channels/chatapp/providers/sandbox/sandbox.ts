import { LRUCache } from 'lru-cache';
import { createUnderWay } from '../../../under-way.ts';
import { fillTemplate } from '../../template.ts';
import type { ChatAppHandOff, ChatAppOutcome, ChatAppProvider, PeoplePerDayMax } from '../../provider.ts';
import type { ChatAppProviderTools } from '../../provider-definition.ts';
import { createLimit } from './limit.ts';
import { createReports, type SandboxReport } from './reports.ts';
import { createReviews } from './reviews.ts';
import { answerFor, fatesOf, messageIdOf, refuseMessage, reply, simulatorNumbers } from './simulator.ts';

export type SandboxChatAppTools = Pick<ChatAppProviderTools, 'clock' | 'keep' | 'take'> & {
  /** How long a review takes. */
  reviewMs: number;
  peoplePerDayMax: PeoplePerDayMax;
};

/** More would only fill the database's connections. */
const handOffsMax = 64;

/**
 * Delivers into a built-in inbox, and nowhere else. The simulator's numbers choose the outcome; every other number is
 * delivered to. Reports come before the hand-off returns, so that no crash can lose them, except for those whose point
 * is that they come later: these are lost with the process, as a real provider's would not be.
 */
export function createSandboxChatAppProvider(tools: SandboxChatAppTools): ChatAppProvider {
  const reports = createReports(tools);
  const reviews = createReviews(tools.clock, tools.reviewMs);
  const limit = createLimit(tools);
  const pauses = createPauses();
  const postponements = createPostponements();
  const underWay = createUnderWay(handOffsMax);
  let isClosed = false;

  const keepOrRefuse = async (handOff: ChatAppHandOff): Promise<ChatAppOutcome> => {
    const { reference, to, template } = handOff;
    handOff.signal.throwIfAborted();
    if (pauses.isPausedBy(handOff)) return outcomeOfPause;
    const chosen = simulatorNumbers.get(to) ?? 'delivered';
    const outcome = chosen === 'postponed' && postponements.isOver(handOff) ? 'delivered' : chosen;
    if (outcome === 'deferred' || outcome === 'postponed') return answerFor(outcome, reference);
    await handOff.confirm();
    if (template.name.includes('mismatch')) return refuseMessage(mismatchWords, 132_000);
    await tools.keep({
      reference,
      recipient: to,
      sender: `${template.name} ${template.language}`,
      outcome,
      source: Buffer.from(describeBubble(handOff), 'utf8'),
    });
    for (const { isLate, ...fate } of fatesOf(outcome)) await reports.give(reportOf(handOff, fate), isLate);
    return answerFor(outcome, reference);
  };

  return {
    name: 'sandbox',
    concurrency: handOffsMax,
    isReportedById: true,
    needsAccount: false,
    handOff: async (handOff) => {
      handOff.signal.throwIfAborted();
      if (isClosed)
        return { kind: 'deferred', reason: 'provider_unavailable', reply: reply('The sandbox is closed') };
      limit.tell(handOff.account);
      return underWay.run(() => keepOrRefuse(handOff));
    },
    submitTemplate: (account, template) => {
      limit.tell(account);
      return Promise.resolve(reviews.submit(template));
    },
    reviewTemplates: (account, wanted) => {
      limit.tell(account);
      return Promise.resolve({ kind: 'reviewed', templates: reviews.list(wanted) });
    },
    editTemplate: (_account, { template }) => Promise.resolve(reviews.edit(template)),
    deleteTemplate: () => Promise.resolve({ kind: 'gone' }),
    examineAccount: () =>
      Promise.resolve({ kind: 'examined', numbers: [], peoplePerDayMax: tools.peoplePerDayMax }),
    probe: () => Promise.resolve(null),
    close: () => {
      isClosed = true;
      reports.drop();
      return underWay.end();
    },
  };
}

function reportOf(
  { reference, account, to }: ChatAppHandOff,
  { finding, ...fate }: Omit<ReturnType<typeof fatesOf>[number], 'isLate'>,
): SandboxReport {
  return {
    kind: 'status',
    organizationId: reference.organizationId,
    businessAccountId: account.businessAccountId,
    report: { providerMessageId: messageIdOf(reference), reference, to: null, senderName: null, ...fate },
    person: { waId: to.replace('+', ''), userId: null },
    finding,
  };
}

/** Templates, and messages, that are remembered at once. The oldest are forgotten, which a simulation may do. */
const rememberedMax = 10_000;

const mismatchWords = 'The sandbox refuses the messages of a template that has mismatch in its name';

const pausedEvery = 100;

const pauseWords = 'The sandbox pauses a template that has pause in its name at every hundredth message';

const outcomeOfPause: ChatAppOutcome = {
  kind: 'deferred',
  reason: 'template_unavailable',
  retryAfterMs: 1_800_000,
  finding: { kind: 'template', state: 'paused', words: pauseWords },
  reply: reply(pauseWords, 132_015),
};

/** Counted by each process for itself. */
function createPauses() {
  const counts = new LRUCache<string, number>({ max: rememberedMax });
  return {
    isPausedBy: ({ reference, template: { name, language } }: ChatAppHandOff): boolean => {
      if (!name.includes('pause')) return false;
      const key = JSON.stringify([reference.organizationId, name, language]);
      const count = (counts.get(key) ?? 0) + 1;
      counts.set(key, count);
      return count % pausedEvery === 0;
    },
  };
}

/** A message is postponed once, and taken when it comes back. */
function createPostponements() {
  const postponed = new LRUCache<string, true>({ max: rememberedMax });
  return {
    isOver: ({ reference }: ChatAppHandOff): boolean => {
      const key = messageIdOf(reference);
      if (postponed.has(key)) return true;
      postponed.set(key, true);
      return false;
    },
  };
}

/** What the person sees, as JSON: a member for each part that the message has. */
function describeBubble({ template, parameters }: ChatAppHandOff): string {
  const parts = Object.entries(fillTemplate(template.content, parameters) ?? {});
  return JSON.stringify(
    Object.fromEntries(parts.filter(([, part]) => part !== null && part.length > 0)),
    null,
    2,
  );
}
