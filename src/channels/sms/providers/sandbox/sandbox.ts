import type { Clock } from '../../../../platform/clock.ts';
import type { RecipientKey, RemoteReply, SendOutcome } from '../../../outcome.ts';
import { createUnderWay } from '../../../under-way.ts';
import type { SmsFailure, SmsHandOff, SmsIntake, SmsProvider, SmsReceipt } from '../../provider.ts';

/** What the sandbox keeps of a text that was handed to it. */
export type SandboxText = {
  reference: RecipientKey;
  recipient: string;
  sender: string;
  outcome: SimulatedTextOutcome;
  /** The text in UTF-8. */
  source: Buffer;
};

export type SimulatedTextOutcome =
  | 'delivered'
  | 'unknown_subscriber'
  | 'blocked'
  | 'undelivered'
  | 'expired'
  | 'slow'
  | 'unknown'
  | 'deferred';

export type SandboxSmsTools = {
  clock: Clock;
  /** Keeps a text in the inbox; resolves once it is safe there. */
  keep: (text: SandboxText) => Promise<void>;
  report: SmsIntake['takeReceipt'];
};

/**
 * The numbers that choose their outcome, and that `docs/sms-simulator.md` lists. They belong to no subscriber: in the
 * area code 500, no carrier is given 555. Where Twilio's test credentials give a number of this range a meaning, it
 * means the same here.
 */
export const simulatorNumbers: ReadonlyMap<string, SimulatedTextOutcome> = new Map([
  ['+15005550001', 'unknown_subscriber'],
  ['+15005550004', 'blocked'],
  ['+15005550006', 'delivered'],
  ['+15005550010', 'undelivered'],
  ['+15005550011', 'expired'],
  ['+15005550012', 'slow'],
  ['+15005550013', 'unknown'],
  ['+15005550014', 'deferred'],
]);

/** Long enough to see that a text is on its way, short enough to wait for. */
const receiptDelayMs = 5_000;

/** Receipts that wait at once. Beyond it they come at once: more would only fill the memory. */
const receiptsWaitingMax = 10_000;

/** How often a receipt that could not be stored is given again. Fewer would lose it to a restart of the database. */
const receiptAttemptsMax = 100;

/** More would only fill the database's connections. */
const handOffsMax = 64;

/**
 * Delivers into a built-in inbox, and nowhere else. The simulator's numbers choose the outcome; every other number is
 * delivered to. Receipts are given before the hand-off returns, so that no crash can lose them, except for the two
 * numbers whose point is that they come later: these are lost with the process, as a real provider's would not be.
 */
export function createSandboxSmsProvider(tools: SandboxSmsTools): SmsProvider {
  const receipts = createReceipts(tools);
  const underWay = createUnderWay(handOffsMax);
  let isClosed = false;
  const keepOrDefer = async (handOff: SmsHandOff): Promise<SendOutcome<SmsFailure>> => {
    handOff.signal.throwIfAborted();
    const outcome = simulatorNumbers.get(handOff.to) ?? 'delivered';
    if (outcome === 'deferred') return simulate(outcome, handOff);
    await handOff.confirm();
    await tools.keep({
      reference: handOff.reference,
      recipient: handOff.to,
      sender: handOff.sender.name,
      outcome,
      source: Buffer.from(handOff.text, 'utf8'),
    });
    const receipt = receiptOf(outcome, handOff);
    if (receipt !== null) await receipts.give(receipt, outcome === 'slow' || outcome === 'unknown');
    return simulate(outcome, handOff);
  };
  return {
    name: 'sandbox',
    answersKeywords: false,
    isReportedById: true,
    concurrency: handOffsMax,
    handOff: async (handOff) => {
      handOff.signal.throwIfAborted();
      if (isClosed) {
        return { kind: 'deferred', reason: 'provider_unavailable', reply: reply('The sandbox is closed') };
      }
      return underWay.run(() => keepOrDefer(handOff));
    },
    probe: () => Promise.resolve(null),
    close: () => {
      isClosed = true;
      receipts.drop();
      return underWay.end();
    },
  };
}

/** Gives receipts, and gives those again that could not be stored. */
function createReceipts({ clock, report }: SandboxSmsTools) {
  const waiting = new Set<() => void>();
  let isDropped = false;

  const giveLater = (receipt: SmsReceipt, attempts: number) => {
    if (isDropped || waiting.size >= receiptsWaitingMax) return;
    const cancel = clock.after(receiptDelayMs, () => {
      waiting.delete(cancel);
      void giveNow(receipt, attempts);
    });
    waiting.add(cancel);
  };
  // Never rejects. Ends, because every failure leaves one attempt less.
  const giveNow = async (receipt: SmsReceipt, attempts: number): Promise<void> => {
    try {
      await report(receipt);
    } catch {
      if (attempts > 1) giveLater(receipt, attempts - 1);
    }
  };

  return {
    give: async (receipt: SmsReceipt, isLate: boolean): Promise<void> => {
      if (isLate && waiting.size < receiptsWaitingMax) giveLater(receipt, receiptAttemptsMax);
      else await giveNow(receipt, receiptAttemptsMax);
    },
    drop: () => {
      isDropped = true;
      for (const cancel of waiting) cancel();
      waiting.clear();
    },
  };
}

function simulate(outcome: SimulatedTextOutcome, { reference }: SmsHandOff): SendOutcome<SmsFailure> {
  switch (outcome) {
    case 'delivered':
    case 'undelivered':
    case 'expired':
    case 'slow':
      return {
        kind: 'accepted',
        providerMessageId: messageIdOf(reference),
        reply: reply('Kept in the sandbox'),
      };
    case 'unknown_subscriber':
    case 'blocked':
      return { kind: 'rejected', reason: outcome, reply: reply(diagnostics[outcome]) };
    case 'deferred':
      return {
        kind: 'deferred',
        reason: 'rate_limited',
        reply: reply('The simulator asks to try again later'),
      };
    case 'unknown':
      return { kind: 'unknown', reply: reply('The simulator took the text, and its response was lost') };
  }
}

const diagnostics = {
  unknown_subscriber: 'The simulated number does not exist',
  blocked: 'The owner of this simulated number blocks texts from this sender',
  undelivered: 'The simulated phone is switched off',
  expired: 'The simulated phone was switched off until the text expired',
} as const;

function receiptOf(outcome: SimulatedTextOutcome, { reference, to, sender }: SmsHandOff): SmsReceipt | null {
  const fate = fateOf(outcome);
  if (fate === null) return null;
  return { providerMessageId: messageIdOf(reference), reference, to, senderName: sender.name, ...fate };
}

function fateOf(outcome: SimulatedTextOutcome): Pick<SmsReceipt, 'status' | 'failure' | 'diagnostic'> | null {
  switch (outcome) {
    case 'delivered':
    case 'slow':
    case 'unknown':
      return { status: 'delivered', failure: null, diagnostic: null };
    case 'undelivered':
      return { status: 'undelivered', failure: 'unreachable', diagnostic: diagnostics.undelivered };
    case 'expired':
      return { status: 'expired', failure: 'expired', diagnostic: diagnostics.expired };
    case 'unknown_subscriber':
    case 'blocked':
    case 'deferred':
      return null;
  }
}

function messageIdOf(reference: RecipientKey): string {
  return `${reference.messageId}.${reference.ordinal}`;
}

function reply(diagnostic: string): RemoteReply {
  return { code: null, enhancedCode: null, diagnostic, remote: null };
}
