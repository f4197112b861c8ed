import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import {
  aChatAppHandOff,
  aCodeTemplate,
  anAccount,
  aTemplate,
  describeChatAppProvider,
} from '../../../../../test/support/chat-app-provider-conformance.ts';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import type { ChatAppHandOff } from '../../provider.ts';
import type { SandboxChatAppMessage } from '../../provider-definition.ts';
import type { SandboxReport } from './reports.ts';
import { parsePeoplePerDay } from './limit.ts';
import { parseReviewMs } from './reviews.ts';
import { createSandboxChatAppProvider } from './sandbox.ts';
import { simulatorNumbers } from './simulator.ts';

const reference = { organizationId: 'o', messageId: 'm', ordinal: 3 };

function arrange(more: { keep?: () => Promise<void>; take?: () => Promise<void> } = {}) {
  const clock = createManualClock();
  const kept: SandboxChatAppMessage[] = [];
  const told: SandboxReport[] = [];
  const limits: SandboxReport[] = [];
  const events: string[] = [];
  const provider = createSandboxChatAppProvider({
    clock,
    reviewMs: 3_000,
    peoplePerDayMax: 250,
    keep: async (message) => {
      await more.keep?.();
      events.push(`kept ${message.outcome}`);
      kept.push(message);
    },
    take: async (report) => {
      if (report.kind === 'people_limit') return void limits.push(report);
      events.push(`told ${report.kind === 'status' ? report.report.status : report.kind}`);
      await more.take?.();
      told.push(report);
    },
  });
  const handOffTo = (to: string, changes: Partial<ChatAppHandOff> = {}) =>
    provider.handOff(
      aChatAppHandOff({
        reference,
        to,
        confirm: async () => {
          events.push('confirmed');
        },
        ...changes,
      }),
    );
  return { provider, clock, kept, told, limits, events, handOffTo };
}

/** Lets what a timer began run to its end: nothing here takes longer than its promises. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

const bubbleOf = ({ source }: SandboxChatAppMessage) => JSON.parse(source.toString()) as { body: string };

describeChatAppProvider('sandbox', async () => {
  const { provider, clock, kept } = arrange();
  return {
    provider,
    recipients: { accepted: '+4915112345678', rejected: '+15005550001', deferred: '+15005550014' },
    recipientOfLostAnswer: '+15005550013',
    silence: null,
    // What is refused is kept as well, to be looked at.
    delivered: async () =>
      kept
        .filter(({ outcome }) => outcome !== 'unreachable')
        .map((message) => ({ to: message.recipient, body: bubbleOf(message).body })),
    passReview: async () => {
      clock.advance(3_000);
    },
    dispose: async () => undefined,
  };
});

test.each([
  ['+15005550001', 'rejected', 'unreachable', []],
  ['+15005550004', 'accepted', null, ['failed']],
  ['+15005550006', 'accepted', null, ['delivered']],
  ['+15005550010', 'accepted', null, ['failed']],
  ['+15005550011', 'accepted', null, ['failed']],
  ['+15005550012', 'accepted', null, []],
  ['+15005550013', 'unknown', null, []],
  ['+15005550014', 'deferred', 'rate_limited', []],
  ['+15005550016', 'postponed', null, []],
  ['+15005550017', 'accepted', null, ['delivered']],
  ['+15005550018', 'accepted', null, ['opened']],
  ['+15005550019', 'rejected', 'invalid_message', []],
  ['+15005550020', 'accepted', null, ['failed']],
  ['+15005550021', 'rejected', 'sender_rejected', []],
  ['+15005550099', 'accepted', null, ['delivered']],
  ['+4915112345678', 'accepted', null, ['delivered']],
] as const)('a message to %s is %s, and reported before the answer', async (number, kind, reason, told) => {
  const { handOffTo, events, kept } = arrange();
  const outcome = await handOffTo(number);
  expect(outcome.kind).toBe(kind);
  expect('reason' in outcome ? outcome.reason : null).toBe(reason);
  const isTried = kind !== 'deferred' && kind !== 'postponed';
  const outcomeKept = simulatorNumbers.get(number) ?? 'delivered';
  expect(events).toEqual(
    isTried ? ['confirmed', `kept ${outcomeKept}`, ...told.map((status) => `told ${status}`)] : [],
  );
  expect(kept).toHaveLength(isTried ? 1 : 0);
});

test.each([
  ['+15005550012', ['delivered']],
  ['+15005550013', ['delivered']],
  ['+15005550017', ['delivered', 'opened']],
] as const)('a message to %s is reported five seconds later', async (number, statuses) => {
  const { handOffTo, clock, told } = arrange();
  await handOffTo(number);
  clock.advance(4_999);
  expect(told).toHaveLength(statuses.length - 1);
  clock.advance(1);
  await settled();
  expect(told.map((report) => report.kind === 'status' && report.report.status)).toEqual(statuses);
});

test('a report names the message by its id and by our own, its organization and its account, and the person', async () => {
  const { handOffTo, told } = arrange();
  const outcome = await handOffTo('+15005550004');
  expect(told).toEqual([
    {
      kind: 'status',
      organizationId: 'o',
      businessAccountId: anAccount.businessAccountId,
      report: {
        providerMessageId: outcome.kind === 'accepted' ? outcome.providerMessageId : null,
        reference,
        to: null,
        senderName: null,
        status: 'failed',
        failure: 'blocked',
        diagnostic: expect.stringMatching(/^131050 /),
      },
      person: { waId: '15005550004', userId: null },
      finding: { kind: 'stopped_marketing' },
    },
  ]);
});

test('the documentation lists the numbers of the simulator, and no others', () => {
  const page = readFileSync(new URL('../../../../../docs/chat-app-simulator.md', import.meta.url), 'utf8');
  const listed = [...page.matchAll(/^\| `(\+\d+)` /gm)].map(([, number]) => number);
  expect(listed).toEqual([...simulatorNumbers.keys()]);
});

test('a message that goes too fast to its person is taken when it comes back, and another one is not', async () => {
  const { handOffTo } = arrange();
  expect(await handOffTo('+15005550016')).toMatchObject({ kind: 'postponed', retryAfterMs: 6_000 });
  expect(await handOffTo('+15005550016')).toMatchObject({ kind: 'accepted' });
  const other = { ...reference, messageId: 'another' };
  expect(await handOffTo('+15005550016', { reference: other })).toMatchObject({ kind: 'postponed' });
});

test('the inbox gets the bubble as a person would see it', async () => {
  const { handOffTo, kept } = arrange();
  await handOffTo('+4915112345678');
  await handOffTo('+4915112345678', { template: aCodeTemplate, parameters: { code: '482913' } });
  expect(kept).toMatchObject([
    { reference, recipient: '+4915112345678', sender: 'order_shipped en_US', outcome: 'delivered' },
    { sender: 'sign_in en' },
  ]);
  expect(kept.map(bubbleOf)).toEqual([
    {
      header: 'Order 1047',
      body: 'Hello Ana, it is on its way.',
      footer: 'Reply STOP to stop.',
      buttons: [
        { type: 'quick_reply', text: 'Stop' },
        { type: 'url', text: 'Track', url: 'https://x.test/t/abc' },
        { type: 'phone_number', text: 'Call', phoneNumber: '+15550051310' },
      ],
    },
    {
      body: expect.stringContaining('482913'),
      footer: expect.stringContaining('10 minutes'),
      buttons: [{ type: 'copy_code', text: 'Copy code', code: '482913' }],
    },
  ]);
});

test('every message of a template with mismatch in its name is refused for what it says, and reaches nobody', async () => {
  const { handOffTo, kept } = arrange();
  const outcome = await handOffTo('+4915112345678', { template: { ...aTemplate, name: 'a_mismatch' } });
  expect(outcome).toMatchObject({ kind: 'rejected', finding: { kind: 'invalid_message' } });
  expect(kept).toEqual([]);
});

test('a template with pause in its name is paused at its hundredth message, for one organization alone', async () => {
  const { handOffTo } = arrange();
  const template = { ...aTemplate, name: 'pause_me' };
  for (let count = 1; count < 100; count += 1)
    expect((await handOffTo('+4915112345678', { template })).kind).toBe('accepted');
  const other = { ...reference, organizationId: 'another' };
  expect((await handOffTo('+4915112345678', { template, reference: other })).kind).toBe('accepted');
  expect(await handOffTo('+4915112345678', { template })).toMatchObject({
    kind: 'deferred',
    reason: 'template_unavailable',
    finding: { kind: 'template', state: 'paused' },
  });
});

test('a template is reviewed when its time has come, also by another process', async () => {
  const { provider, clock } = arrange();
  const submission = await provider.submitTemplate(anAccount, { ...aTemplate, name: 'reject_me' });
  if (submission.kind !== 'submitted') throw new Error(submission.kind);
  expect(submission).toMatchObject({
    reviewedAfterMs: 3_000,
    template: { name: 'reject_me', state: 'pending', category: 'utility' },
  });
  const stateAfter = async (ms: number) => {
    const other = arrange();
    other.clock.setWallTime(clock.nowMs() + ms);
    const { providerTemplateId, name, language } = submission.template;
    const asked = [{ providerTemplateId, name, language }];
    const reviewed = await other.provider.reviewTemplates(anAccount, asked);
    return reviewed.kind === 'reviewed' ? reviewed.templates[0] : reviewed;
  };
  expect(await stateAfter(2_999)).toMatchObject({ state: 'pending', rejectionReason: null });
  expect(await stateAfter(3_000)).toMatchObject({
    state: 'rejected',
    rejectionReason: expect.stringContaining('reject'),
  });
});

test.each([
  ['a_notice', { state: 'approved', quality: 'green', category: null, rejectionReason: null }],
  ['disabled_one', { state: 'disabled', rejectionReason: expect.stringContaining('disable') as string }],
  ['archived_one', { state: 'archived', rejectionReason: expect.stringContaining('archive') as string }],
  ['recategorized_one', { state: 'approved', category: 'marketing', rejectionReason: null }],
])('how the review of %s ends, its name says', async (name, end) => {
  const { provider, clock } = arrange();
  const submission = await provider.submitTemplate(anAccount, { ...aTemplate, name });
  if (submission.kind !== 'submitted') throw new Error(submission.kind);
  clock.advance(3_000);
  const reviewed = await provider.reviewTemplates(anAccount, [submission.template]);
  expect(reviewed).toMatchObject({ kind: 'reviewed', templates: [end] });
});

test.each(['', '-1', '1.5', '3s', '86400001', '999999999999'])('%j is no time for a review', (setting) => {
  expect(() => parseReviewMs(setting)).toThrow(/POSTILLION_SANDBOX_REVIEW_MS/);
});

test('what could not be kept is not called accepted, and is not reported', async () => {
  const failure = new Error('the inbox is away');
  const { handOffTo, told } = arrange({ keep: () => Promise.reject(failure) });
  await expect(handOffTo('+15005550006')).rejects.toBe(failure);
  expect(told).toEqual([]);
});

test('a report that could not be stored is given again, and the message is accepted all the same', async () => {
  let isAway = true;
  const { handOffTo, clock, told } = arrange({
    take: () => (isAway ? Promise.reject(new Error('the database is away')) : Promise.resolve()),
  });
  expect((await handOffTo('+15005550006')).kind).toBe('accepted');
  clock.advance(5_000);
  await settled();
  expect(told).toEqual([]);
  isAway = false;
  clock.advance(5_000);
  await settled();
  clock.advance(3_600_000);
  await settled();
  expect(told).toHaveLength(1);
});

test('no more reports wait than there is room for: the rest comes at once', async () => {
  const { handOffTo, told } = arrange();
  for (let count = 0; count < 10_000; count += 1) await handOffTo('+15005550012');
  expect(told).toHaveLength(0);
  await handOffTo('+15005550012');
  expect(told).toHaveLength(1);
});

test('nothing is reported any more once the provider is closed', async () => {
  const { handOffTo, provider, clock, told } = arrange();
  await handOffTo('+15005550012');
  await provider.close();
  clock.advance(5_000);
  await settled();
  expect(told).toEqual([]);
});

test('each organization is told how many people it may write to, once in an hour', async () => {
  const { handOffTo, provider, clock, limits } = arrange();
  const other = { ...anAccount, organizationId: 'other' };
  for (const to of ['+4915100000001', '+4915100000002']) await handOffTo(to);
  await provider.submitTemplate(other, aTemplate);
  await provider.reviewTemplates(other, []);
  clock.advance(3_600_000);
  await handOffTo('+4915100000001');
  const limitOf = ({ organizationId, businessAccountId }: typeof other) => ({
    ...{ kind: 'people_limit', organizationId, businessAccountId, peoplePerDayMax: 250 },
  });
  expect(limits).toEqual([anAccount, other, anAccount].map(limitOf));
  expect(await provider.examineAccount(other)).toMatchObject({ kind: 'examined', peoplePerDayMax: 250 });
});

test('the limit of the sandbox is a number of people, or there is none', () => {
  expect(['250', 'unlimited', '1'].map(parsePeoplePerDay)).toEqual([250, 'unlimited', 1]);
  for (const setting of ['', '0', '-1', '2.5', '1e3', 'TIER_250', ' 250', '9999999999'])
    expect(() => parsePeoplePerDay(setting)).toThrow(/POSTILLION_SANDBOX_PEOPLE_PER_DAY/);
});
