import { expect, test } from 'vitest';
import { untried } from '../../../test/support/jobs.ts';
import { createPigeons } from '../../../test/support/pigeons.ts';
import { dateOf } from '../../platform/clock.ts';
import type { Job } from '../channel.ts';
import { endOf, settledOutcomeOf } from './observer.ts';
import { dropJob, failJob, releaseJob, settleAmbiguity, settleCrash, settleOutcome } from './settlement.ts';

const { channel } = createPigeons();
const reply = { code: 452, enhancedCode: null, diagnostic: 'in its own words', remote: null };
const context = { atMs: 1_000, random: 0.5, dateOf };

function aJob(more: Partial<Job> = {}): Job {
  const isCampaign = more.isCampaign ?? false;
  return {
    organizationId: 'a',
    messageId: 'b',
    ordinal: 0,
    channel,
    policy: channel.policyOf({ isCampaign }),
    isCampaign,
    address: '+491701234567',
    addressKey: '+491701234567',
    ...untried,
    acceptedAt: dateOf(0),
    ...more,
  };
}

const repeating = (ambiguities = 0) => {
  const job = aJob({ ambiguities });
  return { ...job, policy: { ...job.policy, repeatsAmbiguous: true } };
};

test('each settlement has the outcome that an operator would call it', () => {
  const taken = { kind: 'accepted', providerMessageId: '7', reply: null } as const;
  const deferred = { kind: 'deferred', reason: 'storm', reply } as const;
  const away = { kind: 'deferred', reason: 'provider_unavailable', reply } as const;
  const found = {
    sent: settleOutcome(aJob(), taken, context),
    delayed: settleOutcome(aJob(), deferred, context),
    failed: failJob(aJob(), 'storm', 'too windy'),
    released: releaseJob(aJob(), context),
    dropped: dropJob(aJob(), 'suppressed'),
    repeated: settleAmbiguity(repeating(), context),
    uncertain: settleAmbiguity(repeating(1), context),
    set_aside: settleCrash(aJob({ crashes: 2 }), context),
  };
  for (const [outcome, settlement] of Object.entries(found))
    expect(settledOutcomeOf(settlement)).toBe(outcome);
  expect(settledOutcomeOf(settleOutcome(aJob(), away, context))).toBe('released');
  expect(settledOutcomeOf(settleCrash(aJob(), context))).toBe('released');
  // Nothing is known of it but that an earlier hand-off was cut off.
  expect(settledOutcomeOf(dropJob(aJob({ attempts: 1, ambiguities: 1 }), 'suppressed'))).toBe('stopped');
});

test('a provider that cannot be reached is told apart from one that wants to be asked later', () => {
  expect(endOf({ kind: 'outcome', outcome: { kind: 'deferred', reason: 'storm', reply } })).toEqual({
    outcome: 'deferred',
    reason: 'storm',
    code: 452,
  });
  expect(
    endOf({ kind: 'outcome', outcome: { kind: 'deferred', reason: 'provider_unavailable', reply } }),
  ).toEqual({
    outcome: 'unavailable',
    code: 452,
  });
  expect(
    endOf({ kind: 'outcome', outcome: { kind: 'accepted', providerMessageId: '7', reply: null } }),
  ).toEqual({
    outcome: 'accepted',
    code: null,
  });
});
