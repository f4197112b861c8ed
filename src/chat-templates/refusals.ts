import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { endOver } from './ending.ts';
import { logPauseEnds } from './logged-events.ts';
import { saveReview } from './reviewing.ts';
import * as store from './store.ts';

/**
 * Templates whose messages the provider refuses one after the other, because of what they say: it may have the template
 * with other placeholders than are known here, or a value may be none that it takes. Each of these messages has failed
 * for good, so that a template is paused after five in a row, until an hour later.
 *
 * Providers refuse in two ways, which are counted apart, since what they take at first they may refuse later:
 *
 * - **Answers** to hand-offs. One that is accepted begins the count anew.
 * - **Reports** on messages that were accepted. One that is delivered begins the count anew; that it was sent may be
 *   reported of one that is refused, too. Reports are repeated, so that the messages themselves are kept.
 *
 * After the pause the template is on trial: each worker tries one message now and then (chatapp/trials.ts), and the next
 * refusal pauses it again. What is taken, or delivered, ends all of it, even if it was on its way when the pause began;
 * so does an edit that the provider has taken. A look at the provider ends nothing: it says `approved` all the time.
 */

/** More would fail more messages for nothing; fewer would stop a campaign for some contacts with odd values. */
export const refusalsMax = 5;

/**
 * Longer delays messages after whatever was wrong has been put right at the provider; shorter fails more of them as
 * long as it has not.
 */
const pauseMs = 60 * 60_000;

/** What became of a message of a template. */
export type TemplateVerdict = {
  source: 'answer' | 'report';
  /** What it was refused for, in our own words; null: it was accepted, or delivered. */
  refusal: string | null;
  /** Which message it was, and to whom. */
  recipient: string;
};

/** No message of it was refused. */
export const noRefusals = {
  refused_hand_offs: 0,
  refused_reports: [] as string[],
  refusal_words: null,
  paused_until: null,
} as const;

type Refusals = Pick<
  store.TemplateChange,
  'refused_hand_offs' | 'refused_reports' | 'refusal_words' | 'paused_until'
>;

/** In the order in which they came. What it is at the end decides: an acceptance after five refusals is later news. */
export function applyVerdicts<Row extends Refusals>(
  before: Row,
  verdicts: readonly TemplateVerdict[],
  at: Date,
): Row {
  const after = verdicts.reduce(applyVerdict, before);
  if (after === before) return before;
  if (!areTooMany(after)) return { ...after, paused_until: null };
  const isRefusedAnew = verdicts.some(({ refusal }) => refusal !== null);
  return before.paused_until !== null || !isRefusedAnew
    ? after
    : { ...after, paused_until: dateOf(at.getTime() + pauseMs) };
}

function applyVerdict<Row extends Refusals>(
  before: Row,
  { source, refusal, recipient }: TemplateVerdict,
): Row {
  const { refused_hand_offs: answers, refused_reports: reports } = before;
  if (refusal === null) {
    if (source === 'answer' ? answers === 0 : reports.length === 0) return before;
    return { ...before, ...(source === 'answer' ? { refused_hand_offs: 0 } : { refused_reports: [] }) };
  }
  if (source === 'answer')
    return { ...before, refused_hand_offs: Math.min(answers + 1, refusalsMax), refusal_words: refusal };
  if (reports.includes(recipient)) return before;
  return {
    ...before,
    refused_reports: [...reports, recipient].slice(-refusalsMax),
    refusal_words: refusal,
  };
}

function areTooMany({ refused_hand_offs: answers, refused_reports: reports }: Refusals): boolean {
  return answers >= refusalsMax || reports.length >= refusalsMax;
}

/** Its pause is over, and nobody knows yet whether its messages are taken again. */
export function isOnTrial(row: Refusals): boolean {
  return areTooMany(row) && row.paused_until === null;
}

/** Why it is paused, or is on trial, and how it goes on: for the author. Null for neither. */
export function describeRefusals(row: Refusals): string | null {
  if (!areTooMany(row)) return null;
  const why = `The provider refused ${refusalsMax} of its messages in a row${row.refusal_words === null ? '' : ` (${row.refusal_words})`}`;
  const until = row.paused_until?.toISOString();
  return until === undefined
    ? `${why}. Messages are tried one by one now, and go on as soon as one is taken.`
    : `${why}, so that it is paused until ${until}. One message is tried then. Compare its placeholders, and the values that are sent, with the template at the provider; an edit ends the pause.`;
}

/** Stores what became of messages of a template. Unknown templates, and deleted ones, are passed over. */
export async function noteVerdicts(
  { clock }: { clock: Clock },
  transaction: Transaction,
  { organizationId, id, verdicts }: store.TemplateKey & { verdicts: readonly TemplateVerdict[] },
): Promise<void> {
  const at = now(clock);
  await transaction.asOrganizations([organizationId], async () => {
    const row = await store.lockTemplate(transaction, { organizationId, id }, 'for no key update');
    if (row?.deleted_at !== null) return;
    const change = applyVerdicts(row, verdicts, at);
    if (change === row) return;
    await saveReview(transaction, row, change, at);
    // It ends pauses, and has to know when that is.
    if (row.paused_until === null && change.paused_until !== null)
      await wakeOnce(transaction, 'chat_templates');
  });
}

/** Ends pauses at their time (ending.ts). */
export function endPauses(tools: { database: Database; clock: Clock }): Promise<Date | null> {
  return endOver(tools, {
    end: async (connection, at, limit) => {
      const ended = await store.clearEndedPauses(connection, at, limit);
      await logPauseEnds(connection, ended, at);
      return ended.length;
    },
    findNext: store.findNextPauseEnd,
  });
}
