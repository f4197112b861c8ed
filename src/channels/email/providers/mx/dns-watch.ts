import type { Clock } from '../../../../platform/clock.ts';
import type { Resolver } from '../../../../platform/dns/dns.ts';

/** Distinguishes a domain whose name servers are away from an installation whose own DNS is. */
export type DnsWatch = {
  /** Null if DNS answers at all, even with a refusal; else what happened instead. */
  probe: () => Promise<string | null>;
  /** The same, asked at most every few seconds, however many want to know. */
  isAway: () => Promise<boolean>;
};

/**
 * The first of the root servers, which every resolver can find. It is the answering that counts and not the answer,
 * so that a resolver that knows nothing but an inner network will do.
 */
const probedName = 'a.root-servers.net';

/** Longer keeps an outage up that is over; shorter asks for every message that waits. */
const probeValidMs = 5_000;

export function createDnsWatch({ resolver, clock }: { resolver: Resolver; clock: Clock }): DnsWatch {
  let latest: { answer: Promise<string | null>; validUntilMs: number } | null = null;
  const probe = async () => {
    const answer = await resolver.a(probedName, { isFresh: true });
    return answer.kind === 'failed' && answer.reason === 'timeout'
      ? `DNS does not answer: ${answer.detail}`
      : null;
  };
  return {
    probe,
    isAway: async () => {
      const nowMs = clock.monotonicMs();
      if (latest === null || nowMs >= latest.validUntilMs) {
        latest = { answer: probe(), validUntilMs: nowMs + probeValidMs };
      }
      return (await latest.answer) !== null;
    },
  };
}
