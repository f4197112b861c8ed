import { untried } from '../../../test/support/jobs.ts';
import { expect, test } from 'vitest';
import {
  type FailureClass,
  failureClasses,
  type RemoteReply,
  type SendOutcome,
} from '../../channels/outcome.ts';
import type { Job } from '../channel.ts';
import { emailChannel } from '../../email/channel.ts';
import { pauseMsMax } from './retry.ts';
import { smsChannel } from '../../sms/channel.ts';
import {
  dropJob,
  failJob,
  releaseJob,
  settleAmbiguity,
  settleCrash,
  type SettlementContext,
  settleObjection,
  settleOutcome,
} from './settlement.ts';

const hourMs = 3_600_000;
const atMs = Date.parse('2026-11-21T12:00:00.000Z');
const context: SettlementContext = { atMs, random: 0.5, dateOf: (epochMs) => new Date(epochMs) };

function aJob(more: Partial<Job> = {}): Job {
  const { channel = emailChannel, isCampaign = false } = more;
  return {
    organizationId: '01930000-0000-7000-8000-000000000001',
    messageId: '01930000-0000-7000-8000-000000000002',
    ordinal: 0,
    channel,
    policy: channel.policyOf({ isCampaign }),
    isCampaign,
    address: 'Ann@example.com',
    addressKey: 'ann@example.com',
    ...untried,
    acceptedAt: new Date(atMs),
    ...more,
  };
}

const reply: RemoteReply = { code: 451, enhancedCode: '4.7.1', diagnostic: 'Later', remote: 'mx.example' };
const nothing = {
  status: null,
  dropReason: null,
  failure: null,
  providerMessageId: null,
  wasHandedOff: false,
  isAmbiguous: false,
  requeue: null,
};

function deferral(reason: FailureClass, more: { retryAfterMs?: number } = {}): SendOutcome {
  return { kind: 'deferred', reason, reply, ...more };
}

test('nothing is put off for longer than what passes for the work of a clock that was ahead', () => {
  const retryAfterMs = 30 * 24 * hourMs;
  const settlements = [
    settleOutcome(aJob(), { kind: 'postponed', retryAfterMs, reply }, context),
    settleOutcome(aJob(), deferral('mailbox_full', { retryAfterMs }), context),
    settleAmbiguity(aJob(), context),
    releaseJob(aJob(), context, retryAfterMs),
    settleObjection(aJob({ isCampaign: true }), 'suspended', context),
  ];
  for (const { requeue } of settlements) {
    expect(requeue!.dueAt.getTime()).toBeGreaterThan(atMs);
    expect(requeue!.dueAt.getTime()).toBeLessThanOrEqual(atMs + pauseMsMax);
  }
});

test('a single message has failed whose organization is suspended when its time comes', () => {
  const { status, failure, requeue } = settleObjection(aJob(), 'suspended', context);
  expect([status, failure?.class, requeue]).toEqual(['failed', 'other', null]);
  expect(failure?.diagnostic).toContain('suspended');
});

test('what was accepted is delivered, under the name that the provider gave it', () => {
  const job = aJob();
  const outcome: SendOutcome = { kind: 'accepted', providerMessageId: 'Q1', reply: null };
  expect(settleOutcome(job, outcome, context)).toEqual({
    ...nothing,
    job,
    status: 'delivered',
    providerMessageId: 'Q1',
    wasHandedOff: true,
  });
});

test('only an address that does not exist bounces hard; a message that is refused for itself has failed', () => {
  const fates = failureClasses.map((reason) => {
    const { status, failure, requeue } = settleOutcome(aJob(), { kind: 'rejected', reason, reply }, context);
    expect(requeue).toBeNull();
    return [reason, `${status} ${failure?.type}`];
  });
  expect(Object.fromEntries(fates)).toEqual({
    mailbox_not_found: 'bounced hard',
    domain_not_found: 'bounced hard',
    mailbox_full: 'bounced soft',
    policy: 'failed soft',
    spam: 'failed soft',
    message_too_large: 'failed soft',
    auth_failure: 'failed soft',
    rate_limited: 'failed soft',
    other: 'failed soft',
  });
});

test("a refusal keeps the remote side's own words", () => {
  const { failure } = settleOutcome(aJob(), { kind: 'rejected', reason: 'spam', reply }, context);
  expect(failure).toEqual({
    type: 'soft',
    class: 'spam',
    smtpCode: 451,
    enhancedCode: '4.7.1',
    diagnostic: 'Later',
    remote: 'mx.example',
  });
});

test('what was deferred is delayed, counts as an attempt, and comes back after the pause', () => {
  const { status, failure, wasHandedOff, requeue } = settleOutcome(
    aJob({ attempts: 1, crashes: 2 }),
    deferral('policy'),
    context,
  );
  expect({ status, wasHandedOff, type: failure?.type }).toEqual({
    status: 'delayed',
    wasHandedOff: false,
    type: 'soft',
  });
  expect(requeue).toEqual({ dueAt: new Date(atMs + 300_000), attempts: 2, crashes: 0, setAsideAt: null });
});

test('the pause that the remote side asks for is obeyed', () => {
  const { requeue } = settleOutcome(aJob(), deferral('rate_limited', { retryAfterMs: 90_000 }), context);
  expect(requeue?.dueAt).toEqual(new Date(atMs + 90_000));
});

test('it is tried up to 72 hours after its acceptance, and has failed behind them', () => {
  const settleAfter = (ageMs: number) =>
    settleOutcome(aJob({ acceptedAt: new Date(atMs - ageMs) }), deferral('policy'), context);
  const last = settleAfter(72 * hourMs - 60_000);
  expect([last.status, last.requeue?.dueAt]).toEqual(['delayed', new Date(atMs + 60_000)]);
  const late = settleAfter(72 * hourMs - 59_999);
  expect([late.status, late.requeue, late.failure?.class]).toEqual(['failed', null, 'policy']);
});

test('a provider that is not there costs no attempt and leaves the recipient as it was', () => {
  const job = aJob({ attempts: 3, crashes: 1, acceptedAt: new Date(atMs - 72 * hourMs) });
  const settlement = settleOutcome(job, { kind: 'deferred', reason: 'provider_unavailable', reply }, context);
  expect(settlement).toEqual({
    ...nothing,
    job,
    requeue: { dueAt: new Date(atMs), attempts: 3, crashes: 1, setAsideAt: null },
  });
  expect(settlement).toEqual(releaseJob(job, context));
});

test('a provider that says for how long it is away is asked again then, and no attempt is counted', () => {
  const outcome = { kind: 'deferred', reason: 'provider_unavailable', retryAfterMs: 30_000, reply } as const;
  const { requeue } = settleOutcome(aJob({ attempts: 3 }), outcome, context);
  expect(requeue).toEqual({ dueAt: new Date(atMs + 30_000), attempts: 3, crashes: 0, setAsideAt: null });
});

test('a message that no provider would take for 72 hours has failed', () => {
  const job = aJob({ acceptedAt: new Date(atMs - 72 * hourMs - 1) });
  const settlement = settleOutcome(job, { kind: 'deferred', reason: 'provider_unavailable', reply }, context);
  expect([settlement.status, settlement.requeue, settlement.failure?.class]).toEqual([
    'failed',
    null,
    'other',
  ]);
});

test('a transactional hand-off that was cut off is repeated once, a minute later', () => {
  const job = aJob({ attempts: 2 });
  expect(settleOutcome(job, { kind: 'unknown', reply }, context)).toEqual({
    ...nothing,
    job,
    wasHandedOff: true,
    isAmbiguous: true,
    requeue: { dueAt: new Date(atMs + 60_000), attempts: 3, crashes: 0, setAsideAt: null },
  });
  expect(settleAmbiguity(aJob({ ambiguities: 1 }), context).requeue).toBeNull();
});

test('a text is never repeated after a hand-off that was cut off: it costs money, and a receipt may tell', () => {
  expect(settleAmbiguity(aJob({ channel: smsChannel }), context)).toMatchObject({
    isAmbiguous: true,
    wasHandedOff: true,
    requeue: null,
  });
});

test('a campaign is not repeated after a hand-off that was cut off, unless it says so', () => {
  const settlement = settleAmbiguity(aJob({ isCampaign: true }), context);
  expect(settlement).toMatchObject({ isAmbiguous: true, wasHandedOff: true, status: null, requeue: null });
  const policy = emailChannel.policyOf({ isCampaign: true, details: { repeatsUncertain: true } });
  const repeated = settleAmbiguity(aJob({ isCampaign: true, policy }), context);
  expect(repeated.requeue).toMatchObject({ dueAt: new Date(atMs + 60_000), attempts: 1 });
  const twice = settleAmbiguity(aJob({ isCampaign: true, policy, attempts: 1, ambiguities: 1 }), context);
  expect(twice.requeue).toBeNull();
});

test('a message that ends soon is tried again when half of its time is over, and ten seconds later at least', () => {
  const dueAfter = (leftMs: number, outcome: SendOutcome) => {
    const { status, requeue } = settleOutcome(aJob(), outcome, {
      ...context,
      expiresAt: new Date(atMs + leftMs),
    });
    return requeue === null ? status : requeue.dueAt.getTime() - atMs;
  };
  const cutOff: SendOutcome = { kind: 'unknown', reply };
  const lefts = [600_000, 100_000, 12_000, 9_999, -1];
  expect(lefts.map((leftMs) => dueAfter(leftMs, deferral('policy')))).toEqual([
    60_000,
    50_000,
    10_000,
    'failed',
    'failed',
  ]);
  // It may have been sent, so that it has not failed.
  expect(lefts.map((leftMs) => dueAfter(leftMs, cutOff))).toEqual([60_000, 50_000, 10_000, null, null]);
});

test('a pause that the remote side asks for is not shortened: a message that ends before is given up', () => {
  const settle = (leftMs: number) =>
    settleOutcome(aJob(), deferral('rate_limited', { retryAfterMs: 90_000 }), {
      ...context,
      expiresAt: new Date(atMs + leftMs),
    });
  expect(settle(90_000).requeue?.dueAt).toEqual(new Date(atMs + 90_000));
  expect([settle(89_999).status, settle(89_999).requeue]).toEqual(['failed', null]);
});

test('a message that has ended is given up when its provider is away, and waits for it before', () => {
  const settle = (leftMs: number) =>
    settleOutcome(
      aJob(),
      { kind: 'deferred', reason: 'provider_unavailable', reply },
      {
        ...context,
        expiresAt: new Date(atMs + leftMs),
      },
    );
  expect([settle(0).status, settle(0).requeue?.attempts]).toEqual([null, 0]);
  expect([settle(-1).status, settle(-1).requeue]).toEqual(['failed', null]);
});

test('a job that took three workers down is set aside, and no earlier', () => {
  const setAside = [0, 1, 2].map((crashes) => settleCrash(aJob({ crashes }), context).requeue);
  expect(setAside).toEqual([
    { dueAt: new Date(atMs), attempts: 0, crashes: 1, setAsideAt: null },
    { dueAt: new Date(atMs), attempts: 0, crashes: 2, setAsideAt: null },
    { dueAt: new Date(atMs), attempts: 0, crashes: 3, setAsideAt: new Date(atMs) },
  ]);
});

test('a recipient of a campaign over whom three workers died has failed, so that the campaign comes to its end', () => {
  const isCampaign = true;
  expect(settleCrash(aJob({ isCampaign, crashes: 1 }), context)).toMatchObject({
    status: null,
    requeue: { crashes: 2, setAsideAt: null },
  });
  expect(settleCrash(aJob({ isCampaign, crashes: 2 }), context)).toMatchObject({
    status: 'failed',
    requeue: null,
  });
});

test('a recipient that was never tried is dropped and stays at its status', () => {
  const job = aJob();
  expect(dropJob(job, 'suppressed')).toEqual({ ...nothing, job, dropReason: 'suppressed' });
});

test('a recipient that was put off before it failed a check has failed, for it is not at `sent` any more', () => {
  const settlement = dropJob(aJob({ attempts: 2, ambiguities: 1 }), 'suppressed');
  expect(settlement).toMatchObject({ status: 'failed', dropReason: null, requeue: null });
  expect(settlement.failure).toMatchObject({ type: 'soft', class: 'policy', smtpCode: null });
});

test('a recipient whose hand-off was cut off stays uncertain when it fails a check before the repetition', () => {
  const job = aJob({ attempts: 1, ambiguities: 1 });
  expect(dropJob(job, 'suppressed')).toEqual({ ...nothing, job });
});

test('a message that cannot be sent at all has failed and says why', () => {
  const job = aJob();
  expect(failJob(job, 'message_too_large', 'Too large.')).toEqual({
    ...nothing,
    job,
    status: 'failed',
    failure: {
      type: 'soft',
      class: 'message_too_large',
      smtpCode: null,
      enhancedCode: null,
      diagnostic: 'Too large.',
      remote: null,
    },
  });
});
