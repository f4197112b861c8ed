import { expect, test } from 'vitest';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import { aPush, describePushProvider } from '../../../../../test/support/push-provider-conformance.ts';
import type { PushTarget } from '../../provider.ts';
import { chooseOutcome, createSandboxPushProvider, type SandboxPush } from './sandbox.ts';

function arrange() {
  const clock = createManualClock();
  const kept: SandboxPush[] = [];
  const provider = createSandboxPushProvider({
    clock,
    keep: async (push) => {
      kept.push(push);
    },
  });
  return { clock, kept, provider };
}

describePushProvider('sandbox', async () => {
  const { provider, kept } = arrange();
  return {
    provider,
    recipients: {
      accepted: 'a-token-of-somebody',
      rejected: 'simulator-unregistered-1',
      deferred: 'simulator-throttled-1',
    },
    recipientOfLostAnswer: 'simulator-lost-1',
    silence: null,
    // What is refused is kept as well, to be looked at.
    delivered: async () =>
      kept
        .filter(({ outcome }) => outcome === 'delivered' || outcome === 'lost')
        .map(({ recipient, source }) => ({
          to: recipient,
          title: (JSON.parse(source.toString()) as { title: string }).title,
        })),
    dispose: async () => undefined,
  };
});

const web = (endpoint: string): PushTarget => ({ platform: 'web', endpoint, p256dh: '', auth: '' });
const ios = (token: string): PushTarget => ({ platform: 'ios', token, environment: 'production' });
const android = (token: string): PushTarget => ({ platform: 'android', token, isInstrumented: false });

test.each([
  [android('simulator-unregistered-1'), 'unregistered'],
  [android('simulator-invalid-1'), 'invalid'],
  [android('simulator-throttled-1'), 'throttled'],
  [android('simulator-slow-1'), 'slow'],
  [android('simulator-lost-1'), 'lost'],
  [android('simulator-unregistered'), 'delivered'],
  [android('not-simulator-lost-1'), 'delivered'],
  [android('dead00'), 'delivered'],
  [ios('dead0123'), 'unregistered'],
  [ios('BAD0cafe'), 'invalid'],
  [ios('429a0000'), 'throttled'],
  [ios('105e0000'), 'lost'],
  [ios('00dead00'), 'delivered'],
  [web('https://simulator.postillion.test/unregistered/1'), 'unregistered'],
  [web('https://simulator.postillion.test/invalid/1'), 'invalid'],
  [web('https://simulator.postillion.test/throttled/1'), 'throttled'],
  [web('https://simulator.postillion.test/slow/1'), 'slow'],
  [web('https://simulator.postillion.test/lost/1'), 'lost'],
  [web('https://simulator.postillion.test/1'), 'delivered'],
  [web('https://fcm.googleapis.com/lost/1'), 'delivered'],
  [web('no url'), 'delivered'],
] as const)('the target %o chooses its outcome: %s', (target, outcome) => {
  expect(chooseOutcome(target)).toBe(outcome);
});

test('a slow device takes its push after five seconds, and keeps nobody else waiting', async () => {
  const { clock, kept, provider } = arrange();
  const slow = provider.handOff(aPush({ target: android('simulator-slow-1') }));
  await provider.handOff(aPush({ target: android('quick') }));
  expect(kept.map(({ recipient }) => recipient)).toEqual(['quick']);
  clock.advance(5_000);
  expect(await slow).toMatchObject({ kind: 'accepted' });
  expect(kept).toHaveLength(2);
});

test('each rejection says what is wrong with the token', async () => {
  const { provider } = arrange();
  const reasons = [];
  for (const token of ['simulator-unregistered-1', 'simulator-invalid-1'])
    reasons.push(await provider.handOff(aPush({ target: android(token) })));
  expect(reasons).toMatchObject([
    { kind: 'rejected', reason: 'unregistered' },
    { kind: 'rejected', reason: 'invalid_token' },
  ]);
});
