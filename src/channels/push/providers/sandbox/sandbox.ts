import { type Clock, sleep } from '../../../../platform/clock.ts';
import type { RecipientKey, RemoteReply } from '../../../outcome.ts';
import { createUnderWay } from '../../../under-way.ts';
import type { PushContent } from '../../notification.ts';
import {
  addressOfTarget,
  type PushHandOff,
  type PushOutcome,
  type PushProvider,
  type PushTarget,
} from '../../provider.ts';
import { parseUrl } from '../../../../platform/url.ts';

/** What the sandbox keeps of a push that was handed to it. */
export type SandboxPush = {
  reference: RecipientKey;
  /** The token or endpoint. */
  recipient: string;
  /** The platform. */
  sender: string;
  outcome: SimulatedPushOutcome;
  /** What it says, as JSON in UTF-8 and for people: a line for each part that it has. */
  source: Buffer;
};

const simulatedPushOutcomes = ['unregistered', 'invalid', 'throttled', 'slow', 'lost'] as const;

export type SimulatedPushOutcome = (typeof simulatedPushOutcomes)[number] | 'delivered';

export type SandboxPushTools = {
  clock: Clock;
  /** Keeps a push in the inbox; resolves once it is safe there. */
  keep: (push: SandboxPush) => Promise<void>;
};

/** The host of web endpoints that choose their outcome by their path. */
const simulatorHost = 'simulator.postillion.test';

/** Tokens of iOS are hexadecimal, so that words have to be written in what letters there are. */
const iosBeginnings: readonly (readonly [string, SimulatedPushOutcome])[] = [
  ['dead', 'unregistered'],
  ['bad0', 'invalid'],
  ['429a', 'throttled'],
  ['105e', 'lost'],
];

/** The outcome that a target chooses; every other one is delivered to. `docs/push.md` lists them. */
export function chooseOutcome(target: PushTarget): SimulatedPushOutcome {
  switch (target.platform) {
    case 'android':
      return (
        simulatedPushOutcomes.find((name) => target.token.startsWith(`simulator-${name}-`)) ?? 'delivered'
      );
    case 'ios': {
      const token = target.token.toLowerCase();
      return iosBeginnings.find(([beginning]) => token.startsWith(beginning))?.[1] ?? 'delivered';
    }
    case 'web': {
      const url = parseUrl(target.endpoint);
      if (url?.hostname !== simulatorHost) return 'delivered';
      return simulatedPushOutcomes.find((name) => url.pathname.startsWith(`/${name}/`)) ?? 'delivered';
    }
  }
}

/** Long enough to see that a push is on its way, short enough to wait for. */
const slowMs = 5_000;
const throttledMs = 60_000;
/** More would only fill the database's connections. */
const handOffsMax = 64;

/** Delivers into a built-in inbox, and nowhere else. */
export function createSandboxPushProvider(tools: SandboxPushTools): PushProvider {
  const underWay = createUnderWay(handOffsMax);
  let isClosed = false;
  const keepOrRefuse = async (handOff: PushHandOff): Promise<PushOutcome> => {
    handOff.signal.throwIfAborted();
    const outcome = chooseOutcome(handOff.target);
    if (outcome === 'throttled')
      return {
        kind: 'deferred',
        reason: 'rate_limited',
        retryAfterMs: throttledMs,
        reply: reply('The simulator asks to try again later'),
      };
    await handOff.confirm();
    if (outcome === 'slow') await sleep(tools.clock, slowMs);
    const { platform, address } = addressOfTarget(handOff.target);
    await tools.keep({
      reference: handOff.reference,
      recipient: address,
      sender: platform,
      outcome,
      source: Buffer.from(describeContent(handOff.content), 'utf8'),
    });
    return simulate(outcome, handOff);
  };
  return {
    name: 'sandbox',
    concurrency: handOffsMax,
    handOff: async (handOff) => {
      handOff.signal.throwIfAborted();
      if (isClosed)
        return { kind: 'deferred', reason: 'provider_unavailable', reply: reply('The sandbox is closed') };
      return underWay.run(() => keepOrRefuse(handOff));
    },
    probe: () => Promise.resolve(null),
    close: () => {
      isClosed = true;
      return underWay.end();
    },
  };
}

function simulate(outcome: Exclude<SimulatedPushOutcome, 'throttled'>, handOff: PushHandOff): PushOutcome {
  switch (outcome) {
    case 'delivered':
    case 'slow':
      return {
        kind: 'accepted',
        providerMessageId: handOff.notificationId,
        reply: reply('Kept in the sandbox'),
      };
    case 'unregistered':
      return { kind: 'rejected', reason: 'unregistered', reply: reply('The simulated app was removed') };
    case 'invalid':
      return { kind: 'rejected', reason: 'invalid_token', reply: reply('The simulated token never was one') };
    case 'lost':
      return { kind: 'unknown', reply: reply('The simulator took the push, and its response was lost') };
  }
}

function describeContent(content: PushContent): string {
  const parts = Object.entries(content).filter(([, part]) => part !== null && !isEmpty(part));
  return JSON.stringify(Object.fromEntries(parts), null, 2);
}

function isEmpty(part: string | object): boolean {
  return typeof part === 'object' && Object.keys(part).length === 0;
}

function reply(diagnostic: string): RemoteReply {
  return { code: null, enhancedCode: null, diagnostic, remote: null };
}
