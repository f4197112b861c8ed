import { concatInSteps, runInSteps } from '../../../../platform/steps.ts';
import type { RecipientKey, RemoteReply, SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff, EmailProvider } from '../../provider.ts';
import { readSimulatorName, simulatorDomain } from '../../simulator.ts';
import { createUnderWay } from '../../../under-way.ts';

/** What the sandbox keeps of a message that was handed to it. */
export type SandboxDelivery = {
  reference: RecipientKey;
  recipient: string;
  sender: string;
  outcome: SimulatedOutcome;
  source: Buffer;
};

export type SimulatedOutcome = 'delivered' | 'bounced' | 'softbounce' | 'complained' | 'deferred';

export type SandboxTools = {
  /** Keeps a delivery in the inbox; resolves once it is safe there. */
  keep: (delivery: SandboxDelivery) => Promise<void>;
  /** Called when a simulated person marks the message as spam. */
  reportComplaint: (reference: RecipientKey) => Promise<void>;
};

/** More would only fill the database's connections. */
const handOffsMax = 64;

/**
 * Delivers into a built-in inbox, and nowhere else. Addresses of the simulator choose the outcome; every other address
 * is delivered to. `suppressed@` never gets here: it is dropped before, as an address that is suppressed would be.
 */
export function createSandboxProvider(tools: SandboxTools): EmailProvider {
  const underWay = createUnderWay(handOffsMax);
  let isClosed = false;
  const keepOrDefer = async (handOff: EmailHandOff): Promise<SendOutcome> => {
    handOff.signal.throwIfAborted();
    const outcome = chooseOutcome(handOff.recipient);
    if (outcome === 'deferred') return simulate(outcome, handOff);
    await handOff.confirm();
    await tools.keep({
      reference: handOff.reference,
      recipient: handOff.recipient,
      sender: handOff.envelopeFrom,
      outcome,
      source: await runInSteps(concatInSteps(handOff.content)),
    });
    if (outcome === 'complained') await tools.reportComplaint(handOff.reference);
    return simulate(outcome, handOff);
  };
  return {
    name: 'sandbox',
    isReportedById: false,
    concurrency: handOffsMax,
    handOff: async (handOff) => {
      handOff.signal.throwIfAborted();
      if (isClosed) {
        return {
          kind: 'deferred',
          reason: 'provider_unavailable',
          reply: reply(421, '4.3.2', 'The sandbox is closed'),
        };
      }
      return underWay.run(() => keepOrDefer(handOff));
    },
    probe: () => Promise.resolve(null),
    close: () => {
      isClosed = true;
      return underWay.end();
    },
  };
}

function chooseOutcome(recipient: string): SimulatedOutcome {
  const name = readSimulatorName(recipient);
  return simulatedOutcomes.find((outcome) => outcome === name) ?? 'delivered';
}

/** What the README lists, but for `suppressed`. */
export const simulatedOutcomes: readonly SimulatedOutcome[] = [
  'delivered',
  'bounced',
  'softbounce',
  'complained',
  'deferred',
];

function simulate(outcome: SimulatedOutcome, { reference }: EmailHandOff): SendOutcome {
  switch (outcome) {
    case 'delivered':
    case 'complained':
      return {
        kind: 'accepted',
        providerMessageId: `${reference.messageId}.${reference.ordinal}`,
        reply: reply(250, '2.0.0', 'Kept in the sandbox'),
      };
    case 'bounced':
      return {
        kind: 'rejected',
        reason: 'mailbox_not_found',
        reply: reply(550, '5.1.1', 'The simulator has no such mailbox'),
      };
    case 'softbounce':
      return {
        kind: 'rejected',
        reason: 'mailbox_full',
        reply: reply(552, '5.2.2', 'The simulated mailbox is full'),
      };
    case 'deferred':
      return {
        kind: 'deferred',
        reason: 'rate_limited',
        reply: reply(451, '4.7.1', 'The simulator asks to try again later'),
      };
  }
}

function reply(code: number, enhancedCode: string, diagnostic: string): RemoteReply {
  return { code, enhancedCode, diagnostic, remote: simulatorDomain };
}
