import { type Clock, within } from '../platform/clock.ts';
import type { Resolver } from '../platform/dns/dns.ts';
import { findDomainFault } from './domain-fault.ts';

/**
 * Judges our own name servers by domains that no sender has chosen. Name servers that know the names of one network only
 * deny all others, so that every recipient would seem to be at a domain that does not exist.
 */
export type ControlLookup = {
  /** What is known from a moment ago, or else asked now. Takes three seconds at most. */
  verdict: () => Promise<NameServerVerdict>;
  /** Asks now. */
  ask: () => Promise<NameServerVerdict>;
};

/**
 * `answer`: mail can be delivered to one of the large domains at least. `deny`: to none, and not all of the questions
 * failed. `silent`: all of them failed, or took too long.
 */
export type NameServerVerdict = 'answer' | 'deny' | 'silent';

/** Domains of large providers: name servers that answer for none of them are unfit to judge any other. */
export const wellKnownDomains: readonly string[] = ['gmail.com', 'outlook.com', 'yahoo.com'];

const waitMaxMs = 3_000;

/**
 * How long a verdict holds. If shorter, name servers that drop recipients are asked more; if longer, more recipients are
 * dropped after they have begun to deny, and more go unchecked after they have ended.
 */
const verdictMs = 30_000;

export function createControlLookup({
  resolver,
  clock,
}: {
  resolver: Resolver;
  clock: Clock;
}): ControlLookup {
  let latest: { verdict: Promise<NameServerVerdict>; validUntilMs: number } | null = null;

  const look = async (): Promise<NameServerVerdict> => {
    let isAnyDenied = false;
    const asked = wellKnownDomains.map(async (domain) => {
      const answer = await resolver.mx(domain, { isFresh: true, isUrgent: true });
      if (answer.kind === 'failed') throw new Error(answer.detail);
      if ((await findDomainFault(resolver, domain)) === null) return;
      isAnyDenied = true;
      throw new Error(`${domain} is denied`);
    });
    const isAnyFound = Promise.any(asked).then(
      () => true,
      () => false,
    );
    if (await within(clock, waitMaxMs, isAnyFound, false)) return 'answer';
    return isAnyDenied ? 'deny' : 'silent';
  };
  const ask = () => {
    latest = { verdict: look(), validUntilMs: clock.monotonicMs() + verdictMs };
    return latest.verdict;
  };
  return {
    ask,
    verdict: () => (latest !== null && clock.monotonicMs() < latest.validUntilMs ? latest.verdict : ask()),
  };
}
