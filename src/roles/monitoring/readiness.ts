import { wellKnownDomains } from '../../email/email.ts';
import { dateOf } from '../../platform/clock.ts';
import type { Condition } from './condition.ts';

type OpenBreaker = Condition['openBreakers'][number];

/** `unreadiness` is null where work can be taken. Degradations are what keeps it from being done in time. */
export type Readiness = { unreadiness: string | null; degradations: readonly Degradation[] };

/** What an operator should look at although requests are accepted: for programs, and in words. */
export type Degradation = {
  kind:
    | 'no_worker'
    | 'jobs_late'
    | 'provider_unavailable'
    | 'accounts_unavailable'
    | 'recipients_unchecked'
    | 'condition_unknown';
  message: string;
};

/** A job that has been due for longer is late. Shorter would tell of every burst, longer would let mail wait unnoticed. */
export const lateMs = 5 * 60_000;

/** `condition` is null where the database did not tell it in time. */
export function findDegradations(condition: Condition | null, nowMs: number): Degradation[] {
  if (condition === null)
    return [{ kind: 'condition_unknown', message: 'the database did not say in time how it is' }];
  const { livingWorkers, oldestDue, openBreakers } = condition;
  const found: Degradation[] = [];
  if (livingWorkers === 0)
    found.push({ kind: 'no_worker', message: 'no worker runs: what is accepted is not delivered' });
  const oldestMs = Math.min(...oldestDue.map(({ dueAt }) => dueAt.getTime()));
  if (nowMs - oldestMs >= lateMs)
    found.push({ kind: 'jobs_late', message: `jobs have been due since ${dateOf(oldestMs).toISOString()}` });
  return [...found, ...openBreakers.map(describeBreaker)];
}

/** A provider that is not available concerns all that is sent; an account at it, whose it is. */
export function describeBreaker({ channel, provider, accounts, openedAt }: OpenBreaker): Degradation {
  const since = openedAt.toISOString();
  if (accounts === null)
    return {
      kind: 'provider_unavailable',
      message: `${provider} has not been available since ${since}: nothing is handed off on the channel ${channel}`,
    };
  const which = accounts === 1 ? 'an account' : `${accounts} accounts`;
  return {
    kind: 'accounts_unavailable',
    message: `${which} of the channel ${channel} at ${provider} cannot be used, the first since ${since}`,
  };
}

/** While name servers deny large domains, those of recipients are not judged by them. */
export const recipientsUnchecked: Degradation = {
  kind: 'recipients_unchecked',
  message: `the name servers deny that mail can be delivered to ${wellKnownDomains.join(', ')}: no recipient's domain is checked`,
};
