import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { describeSmsProvider } from '../../../../../test/support/sms-provider-conformance.ts';
import type { SendOutcome } from '../../../outcome.ts';
import type { SmsFailure, SmsHandOff, SmsReceipt } from '../../provider.ts';
import { createSandboxSmsProvider, simulatorNumbers } from './sandbox.ts';
import type { SandboxText } from './sandbox.ts';

const reference = { organizationId: 'o', messageId: 'm', ordinal: 3 };

function arrange(more: { keep?: () => Promise<void>; report?: () => Promise<void> } = {}) {
  const clock = createManualClock();
  const kept: SandboxText[] = [];
  const receipts: SmsReceipt[] = [];
  const events: string[] = [];
  const provider = createSandboxSmsProvider({
    clock,
    keep: async (text) => {
      await more.keep?.();
      events.push(`kept ${text.outcome}`);
      kept.push(text);
    },
    report: async (receipt) => {
      events.push(`reported ${receipt.status}`);
      await more.report?.();
      receipts.push(receipt);
    },
  });
  const handOffTo = (to: string, changes: Partial<SmsHandOff> = {}): Promise<SendOutcome<SmsFailure>> =>
    provider.handOff({
      reference,
      sender: { name: 'Postillion', type: 'alphanumeric' },
      to,
      text: 'Schöne Grüße 👋',
      confirm: async () => {
        events.push('confirmed');
      },
      signal: new AbortController().signal,
      ...changes,
    });
  return { provider, clock, kept, receipts, events, handOffTo };
}

/** Lets what a timer began run to its end: nothing here takes longer than its promises. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

describeSmsProvider('sandbox', async () => {
  const { provider, kept, receipts } = arrange();
  return {
    provider,
    recipients: { accepted: '+447700900123', rejected: '+15005550001', deferred: '+15005550014' },
    recipientOfLostAnswer: '+15005550013',
    silence: null,
    // What is refused is kept as well, to be looked at.
    delivered: async () =>
      kept
        .filter(({ outcome }) => outcome === 'delivered' || outcome === 'unknown')
        .map(({ sender, recipient, source }) => ({ from: sender, to: recipient, text: source.toString() })),
    receiptOf: async (id) => receipts.find(({ providerMessageId }) => providerMessageId === id)!,
    dispose: async () => undefined,
  };
});

test.each([
  ['+15005550001', 'rejected', 'unknown_subscriber'],
  ['+15005550004', 'rejected', 'blocked'],
  ['+15005550006', 'accepted', null],
  ['+15005550010', 'accepted', null],
  ['+15005550011', 'accepted', null],
  ['+15005550012', 'accepted', null],
  ['+15005550013', 'unknown', null],
  ['+15005550014', 'deferred', 'rate_limited'],
  ['+15005550099', 'accepted', null],
  ['+4915112345678', 'accepted', null],
] as const)('a text to %s is %s', async (number, kind, reason) => {
  const { handOffTo } = arrange();
  const outcome = await handOffTo(number);
  expect(outcome.kind).toBe(kind);
  expect('reason' in outcome ? outcome.reason : null).toBe(reason);
});

test.each([
  ['+15005550006', 'delivered', null],
  ['+15005550010', 'undelivered', 'unreachable'],
  ['+15005550011', 'expired', 'expired'],
  ['+4915112345678', 'delivered', null],
] as const)('a text to %s is reported at once as %s', async (number, status, failure) => {
  const { handOffTo, receipts, events } = arrange();
  const outcome = await handOffTo(number);
  expect(receipts).toEqual([
    {
      providerMessageId: outcome.kind === 'accepted' ? outcome.providerMessageId : null,
      reference,
      to: number,
      senderName: 'Postillion',
      status,
      failure,
      diagnostic: failure === null ? null : expect.any(String),
    },
  ]);
  expect(events).toEqual([
    'confirmed',
    `kept ${simulatorNumbers.get(number) ?? status}`,
    `reported ${status}`,
  ]);
});

test.each(['+15005550001', '+15005550004'])(
  'of a text to %s nothing is reported after its refusal',
  async (number) => {
    const { handOffTo, clock, events } = arrange();
    await handOffTo(number);
    clock.advance(3_600_000);
    expect(events).toEqual(['confirmed', expect.stringContaining('kept')]);
  },
);

test.each(['+15005550012', '+15005550013'])(
  'a text to %s is reported as delivered only after five seconds',
  async (number) => {
    const { handOffTo, clock, receipts } = arrange();
    await handOffTo(number);
    clock.advance(4_999);
    expect(receipts).toEqual([]);
    clock.advance(1);
    await settled();
    expect(receipts).toMatchObject([{ reference, to: number, status: 'delivered' }]);
  },
);

test('the documentation lists the numbers of the simulator, and no others', () => {
  const page = readFileSync(new URL('../../../../../docs/sms-simulator.md', import.meta.url), 'utf8');
  const listed = [...page.matchAll(/^\| `(\+\d+)` /gm)].map(([, number]) => number);
  expect(listed).toEqual([...simulatorNumbers.keys()]);
});

test('what is put off is neither announced nor kept', async () => {
  const { handOffTo, events } = arrange();
  await handOffTo('+15005550014');
  expect(events).toEqual([]);
});

test('the inbox gets the text in UTF-8, its number and its sender', async () => {
  const { handOffTo, kept } = arrange();
  await handOffTo('+15005550004');
  expect(kept).toEqual([
    {
      reference,
      recipient: '+15005550004',
      sender: 'Postillion',
      outcome: 'blocked',
      source: Buffer.from('Schöne Grüße 👋'),
    },
  ]);
});

test('what could not be kept is not called accepted, and has no receipt', async () => {
  const failure = new Error('the inbox is away');
  const { handOffTo, receipts } = arrange({ keep: () => Promise.reject(failure) });
  await expect(handOffTo('+15005550006')).rejects.toBe(failure);
  expect(receipts).toEqual([]);
});

test('a receipt that could not be stored is given again, and the text is accepted all the same', async () => {
  let isAway = true;
  const { handOffTo, clock, receipts } = arrange({
    report: () => (isAway ? Promise.reject(new Error('the database is away')) : Promise.resolve()),
  });
  expect((await handOffTo('+15005550006')).kind).toBe('accepted');
  clock.advance(5_000);
  await settled();
  expect(receipts).toEqual([]);
  isAway = false;
  clock.advance(5_000);
  await settled();
  expect(receipts).toMatchObject([{ status: 'delivered' }]);
  clock.advance(3_600_000);
  await settled();
  expect(receipts).toHaveLength(1);
});

test('a receipt that never can be stored is given up', async () => {
  const { handOffTo, clock, events } = arrange({ report: () => Promise.reject(new Error('away')) });
  await handOffTo('+15005550006');
  for (let round = 0; round < 200; round += 1) {
    clock.advance(5_000);
    await settled();
  }
  expect(events.filter((event) => event === 'reported delivered')).toHaveLength(100);
});

test('no more receipts wait than there is room for: the rest comes at once', async () => {
  const { handOffTo, receipts } = arrange();
  for (let count = 0; count < 10_000; count += 1) await handOffTo('+15005550012');
  expect(receipts).toHaveLength(0);
  await handOffTo('+15005550012');
  expect(receipts).toHaveLength(1);
});

test('no receipt is given any more once the provider is closed', async () => {
  const { handOffTo, provider, clock, receipts } = arrange();
  await handOffTo('+15005550012');
  await provider.close();
  clock.advance(5_000);
  await settled();
  expect(receipts).toEqual([]);
});
