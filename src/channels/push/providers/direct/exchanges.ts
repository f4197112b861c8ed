import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type { HttpAnswer, HttpClient, HttpPermit } from '../../../http2/client.ts';
import type { RemoteReply } from '../../../outcome.ts';
import type { PushOutcome } from '../../provider.ts';

/** What the services do alike with the requests and answers of a hand-off. */

/**
 * For a request after the first of a hand-off: nothing is confirmed twice, and what was confirmed is carried through,
 * whatever the worker is about to do.
 */
export function permitFurtherRequest(): HttpPermit {
  return { confirm: () => Promise.resolve(), signal: new AbortController().signal };
}

/** Why a service cannot be reached, with its host, or null. */
export async function probeHost(client: HttpClient, origin: string): Promise<string | null> {
  const problem = await client.probe();
  return problem === null ? null : `${new URL(origin).host}: ${problem}`;
}

/** A place on a connection is free again after some hundred milliseconds. */
const postponedMs = 1_000;

/** What becomes of a hand-off that its service has not answered. `random` is from 0 to 1. */
export function outcomeOfSilence(
  answer: Exclude<HttpAnswer, { kind: 'answered' }>,
  remote: string,
  random: number,
): PushOutcome {
  const reply = ownWords(answer.detail, remote);
  switch (answer.kind) {
    case 'unreachable':
      return { kind: 'deferred', reason: 'provider_unavailable', reply };
    case 'busy':
    case 'unprocessed':
      return { kind: 'postponed', retryAfterMs: spread(postponedMs, random), reply };
    case 'unanswered':
      return { kind: 'unknown', reply };
  }
}

/** What becomes of a hand-off for which there is no place (`places.ts`). */
export function postponeForSlowness(remote: string, random: number): PushOutcome {
  return outcomeOfSilence({ kind: 'busy', detail: 'its push service is slow' }, remote, random);
}

/**
 * With a shorter pause, a single device of another app would at once have the account taken for away, which delays the
 * pushes of all others.
 */
const unprovenPauseMs = 60_000;

/**
 * A token that never can work with these credentials. But if these are of the wrong app, every device of the
 * organization gets that answer: none is given up before a push with them was taken. `advice` says what to check.
 */
export function refuseToken(
  reply: RemoteReply,
  { areCredentialsProven, advice, random }: { areCredentialsProven: boolean; advice: string; random: number },
): PushOutcome {
  if (areCredentialsProven) return { kind: 'rejected', reason: 'invalid_token', reply };
  return {
    kind: 'deferred',
    reason: 'provider_unavailable',
    retryAfterMs: spread(unprovenPauseMs, random),
    reply: { ...reply, diagnostic: sanitiseDiagnostic(`${advice} ${reply.diagnostic}`) },
  };
}

/** `pauseMs` or up to half as much again, so that not all come back together. */
export function spread(pauseMs: number, random: number): number {
  return Math.round(pauseMs * (1 + random / 2));
}

/** Ours, where the service said nothing. */
export function ownWords(detail: string, remote: string | null): RemoteReply {
  return { code: null, enhancedCode: null, diagnostic: sanitiseDiagnostic(detail), remote };
}
