import type { Clock } from '../../../../platform/clock.ts';
import { sleep } from '../../../../platform/clock.ts';
import type { Log } from '../../../../platform/log.ts';
import type { RemoteReply } from '../../../outcome.ts';
import type { SmsHandOff, SmsIntake, SmsOutcome } from '../../provider.ts';
import { drainTimeoutMs } from './bound-connection.ts';
import type { BoundConnection } from './bound-connection.ts';
import type { ShortMessage, SmppAnswer } from './pdu.ts';
import type { Rate } from './rate.ts';
import { canonicalIdentifier } from './sent-texts.ts';
import type { SentTexts } from './sent-texts.ts';
import { readStatus, statuses } from './statuses.ts';
import { words } from './strangers.ts';
import { isFault } from './wire.ts';
import type { WireFault } from './wire.ts';

/**
 * One text from its confirmation to its outcome. Its parts are submitted one after the other, each once the one
 * before it is accepted, so that a text whose first part is refused costs nothing.
 *
 * If the first part is refused, nothing was sent, and the text can be tried again as a whole. After that it cannot:
 * the parts that the provider has taken are paid for. So a part that is put off is tried again here, a few times, and
 * the text is rejected if that does not help.
 *
 * What the connection has not taken from us when it is lost was not sent, and the text is tried again as a whole. Where
 * the answer to the last part is lost the outcome is unknown, and nothing is repeated; the receipt settles it, or
 * a late answer, which is reported like a receipt. Where an earlier answer is lost, or the connection before
 * the last part was submitted, the text cannot arrive whole, since nothing is submitted after that, and no receipt was
 * asked for that could settle it: it is rejected. Where the process dies between two parts, the text stays uncertain.
 * Receipts for all parts would not help: each is about its part alone, and the worker that gets it would have to know
 * of the others.
 */
export type SubmitTools = {
  clock: Clock;
  random: () => number;
  log: Log;
  sent: SentTexts;
  intake: SmsIntake;
  rate: Rate | null;
};

/** Shorter makes texts of slow message centres uncertain; longer keeps a place in the window for nothing. */
const answerTimeoutMs = 30_000;

/** A second, two, four, eight, sixteen: providers count by the second, and queues empty in some. */
const laterPartTriesMax = 5;
const laterPartPauseMs = 1_000;

/** Random, so that texts that were refused together are not tried again together. */
const retryAfterMs = 1_000;

/**
 * Resolves with the outcome. The text has had its turn (`rate`); parts after the first, and whatever is tried again,
 * take turns here. Never rejects for anything that the far side does.
 */
export async function submitText(
  tools: SubmitTools,
  line: BoundConnection,
  handOff: Pick<SmsHandOff, 'reference' | 'to' | 'sender'>,
  messages: readonly ShortMessage[],
): Promise<SmsOutcome> {
  const answered = tools.sent.begin(handOff.to);
  try {
    return await submitParts(tools, line, handOff, messages);
  } finally {
    answered();
  }
}

async function submitParts(
  tools: SubmitTools,
  line: BoundConnection,
  handOff: Pick<SmsHandOff, 'reference' | 'to' | 'sender'>,
  messages: readonly ShortMessage[],
): Promise<SmsOutcome> {
  const { wire } = line;
  for (const [at, message] of messages.entries()) {
    const isLast = at === messages.length - 1;
    const answer = await submitPart(tools, line, { message, isFirst: at === 0 }, (late) => {
      if (isLast) tellLate(tools, handOff, late);
    });
    if ('unsubmitted' in answer && at === 0) return notSubmitted(answer.unsubmitted, wire.remoteHost);
    if ('unsubmitted' in answer) return cutOff(answer.unsubmitted, at, messages.length, wire.remoteHost);
    if (isFault(answer) && !isLast) return cutOff(answer, at + 1, messages.length, wire.remoteHost);
    if (isFault(answer)) return { kind: 'unknown', reply: words(null, answer.detail, wire.remoteHost) };
    if (answer.status !== statuses.ok) return refusal(tools, answer.status, at > 0, wire.remoteHost);
    if (isLast) return accept(tools, handOff, answer, wire.remoteHost);
  }
  throw new Error('A text has at least one part.');
}

/** The connection was lost, or stood still, before the part left, or left again after it had been put off. */
type Unsubmitted = { unsubmitted: WireFault };

/**
 * Submits until it is taken, refused for good, lost, or has been tried again often enough. The first part is not tried
 * again, and has had its turn.
 */
async function submitPart(
  tools: SubmitTools,
  line: BoundConnection,
  { message, isFirst }: { message: ShortMessage; isFirst: boolean },
  onLateAnswer: (answer: SmppAnswer) => void,
): Promise<SmppAnswer | WireFault | Unsubmitted> {
  const { wire, pace } = line;
  const triesMax = isFirst ? 0 : laterPartTriesMax;
  // Ends after `triesMax` at the latest.
  for (let tries = 0; ; tries += 1) {
    if (!isFirst) await tools.rate?.takeTurn()();
    const broken = wire.brokenBy();
    if (broken !== null) return { unsubmitted: broken };
    const answer = await wire.ask({ command: 'submit_sm', message }, answerTimeoutMs, onLateAnswer);
    if (isFault(answer)) return answer.isUnsent === true ? { unsubmitted: answer } : answer;
    if (answer.status === statuses.ok) pace.noteAccepted();
    else if (isThrottling(answer.status)) pace.noteThrottled();
    else if (answer.status === statuses.notBound) void rebind(line);
    const isPutOff = answer.status !== statuses.ok && readStatus(answer.status).kind === 'deferred';
    if (!isPutOff || tries >= triesMax) return answer;
    await sleep(tools.clock, laterPartPauseMs * 2 ** tries * (0.5 + tools.random() / 2));
  }
}

/** A far side that has forgotten us would refuse everything on this connection, however alive it is. */
async function rebind(line: BoundConnection): Promise<void> {
  await line.drain(drainTimeoutMs);
  line.wire.break('given_up', 'the server says that we are not bound');
}

function isThrottling(status: number): boolean {
  return status === statuses.throttled || status === statuses.queueFull;
}

function refusal(tools: SubmitTools, status: number, isPartTaken: boolean, remote: string): SmsOutcome {
  const meaning = readStatus(status);
  const reply = words(status, meaning.name, remote);
  if (meaning.kind === 'rejected') return { kind: 'rejected', reason: meaning.reason, reply };
  if (isPartTaken) {
    const reason = meaning.reason === 'provider_unavailable' ? 'other' : meaning.reason;
    return { kind: 'rejected', reason, reply };
  }
  const { reason } = meaning;
  if (reason !== 'rate_limited') return { kind: 'deferred', reason, reply };
  return { kind: 'deferred', reason, retryAfterMs: retryAfterMs * (1 + tools.random()), reply };
}

/** Not one octet has left. A message centre that does not read is told from one that is gone by the next text. */
function notSubmitted({ detail }: WireFault, remote: string): SmsOutcome {
  return unavailable(words(null, detail, remote));
}

/** `submitted` counts the parts that were taken, and the one whose answer was lost. */
function cutOff({ detail }: WireFault, submitted: number, parts: number, remote: string): SmsOutcome {
  const reply = words(null, `cut off after ${submitted} of ${parts} parts: ${detail}`, remote);
  return { kind: 'rejected', reason: 'other', reply };
}

type Known = Pick<SmsHandOff, 'reference' | 'to' | 'sender'>;

function accept(tools: SubmitTools, handOff: Known, answer: SmppAnswer, remote: string): SmsOutcome {
  const providerMessageId = remember(tools, handOff, answer);
  return { kind: 'accepted', providerMessageId, reply: words(statuses.ok, 'ESME_ROK', remote) };
}

function remember({ sent }: SubmitTools, { reference, to, sender }: Known, answer: SmppAnswer): string {
  const identifier = words(null, answer.identifier, '').diagnostic;
  // A message centre that gives no identifier sends no receipts either; still, the text needs an identifier.
  const providerMessageId =
    identifier === '' ? `${reference.messageId}/${reference.ordinal}` : canonicalIdentifier(identifier);
  sent.add({ providerMessageId, reference, to, senderName: sender.name });
  return providerMessageId;
}

/** The outcome was unknown, and it is not any more. */
function tellLate(tools: SubmitTools, handOff: Known, answer: SmppAnswer): void {
  const isTaken = answer.status === statuses.ok;
  const meaning = isTaken ? null : readStatus(answer.status);
  const failure =
    meaning === null ? null : meaning.reason === 'provider_unavailable' ? 'other' : meaning.reason;
  void tools.intake
    .takeReceipt({
      providerMessageId: isTaken ? remember(tools, handOff, answer) : null,
      reference: handOff.reference,
      to: handOff.to,
      senderName: handOff.sender.name,
      status: isTaken ? 'sent' : 'failed',
      failure,
      diagnostic: meaning?.name ?? 'ESME_ROK',
    })
    .catch((error: unknown) => {
      tools.log.warn({ err: error }, 'smpp: a late answer could not be stored');
    });
}

export function unavailable(reply: RemoteReply): SmsOutcome {
  return { kind: 'deferred', reason: 'provider_unavailable', reply };
}
