import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { describeEmailProvider } from '../../../../../test/support/email-provider-conformance.ts';
import type { SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff } from '../../provider.ts';
import { createSandboxProvider, type SandboxDelivery, simulatedOutcomes } from './sandbox.ts';

function arrange(keep?: () => Promise<void>) {
  const kept: SandboxDelivery[] = [];
  const events: string[] = [];
  const provider = createSandboxProvider({
    keep: async (delivery) => {
      await keep?.();
      events.push(`kept ${delivery.outcome}`);
      kept.push(delivery);
    },
    reportComplaint: async () => {
      events.push('complained');
    },
  });
  const handOffTo = (recipient: string, more: Partial<EmailHandOff> = {}): Promise<SendOutcome> =>
    provider.handOff({
      reference: { organizationId: 'o', messageId: 'm', ordinal: 3 },
      envelopeFrom: 'hello@postillion.test',
      recipient,
      content: [Buffer.from('a: b\r\n'), Buffer.from('\r\nc\r\n')],
      confirm: async () => {
        events.push('confirmed');
      },
      signal: new AbortController().signal,
      ...more,
    });
  return { provider, kept, events, handOffTo };
}

describeEmailProvider('sandbox', async () => {
  const { provider, kept } = arrange();
  return {
    provider,
    recipients: {
      accepted: 'ann@example.com',
      rejected: 'bounced@simulator.postillion.test',
      deferred: 'deferred@simulator.postillion.test',
    },
    recipientOfLostAnswer: null,
    silence: null,
    // What bounces is kept as well, to be looked at.
    delivered: async () =>
      kept
        .filter(({ outcome }) => outcome === 'delivered')
        .map(({ sender, recipient, source }) => ({ envelopeFrom: sender, recipient, content: source })),
    dispose: async () => undefined,
  };
});

test.each([
  ['delivered', 'accepted', null],
  ['bounced', 'rejected', 'mailbox_not_found'],
  ['softbounce', 'rejected', 'mailbox_full'],
  ['complained', 'accepted', null],
  ['deferred', 'deferred', 'rate_limited'],
  ['anything-else', 'accepted', null],
] as const)(
  '%s@ of the simulator is %s, whatever follows a plus, in any case',
  async (name, kind, reason) => {
    const { handOffTo } = arrange();
    for (const localPart of [name, `${name}+1`, name.toUpperCase()]) {
      const outcome = await handOffTo(`${localPart}@simulator.postillion.test`);
      expect(outcome.kind).toBe(kind);
      expect('reason' in outcome ? outcome.reason : null).toBe(reason);
    }
  },
);

test('the same names at any other domain are delivered to', async () => {
  const { handOffTo, kept } = arrange();
  const recipients = ['bounced@example.com', 'deferred@simulator.postillion.test.example'];
  for (const recipient of recipients) expect((await handOffTo(recipient)).kind).toBe('accepted');
  expect(kept.map(({ recipient, outcome }) => [recipient, outcome])).toEqual(
    recipients.map((recipient) => [recipient, 'delivered']),
  );
});

test('a complaint is reported after the delivery, and a delivery is kept after its announcement', async () => {
  const { handOffTo, events } = arrange();
  await handOffTo('complained@simulator.postillion.test');
  expect(events).toEqual(['confirmed', 'kept complained', 'complained']);
});

test('what is put off is neither announced nor kept', async () => {
  const { handOffTo, events } = arrange();
  await handOffTo('deferred@simulator.postillion.test');
  expect(events).toEqual([]);
});

test('what could not be kept is not called accepted', async () => {
  const failure = new Error('the inbox is away');
  const { handOffTo } = arrange(() => Promise.reject(failure));
  await expect(handOffTo('ann@example.com')).rejects.toBe(failure);
});

test('the documentation lists the addresses of the simulator, and no others', () => {
  const page = readFileSync(new URL('../../../../../README.md', import.meta.url), 'utf8');
  const line =
    /^.*addresses at `simulator\.postillion\.test` choose their outcome: ([^;]*);/m.exec(page)?.[1] ?? '';
  const listed = [...line.matchAll(/`(\w+)@`/g)].map(([, name]) => name);
  // That one is dropped before it gets here.
  expect(listed).toEqual([...simulatedOutcomes, 'suppressed']);
});
