import type { PushHandOff, PushProvider, PushTarget } from '../../src/channels/push/provider.ts';
import { describeProvider, type ProviderHarness } from './provider-conformance.ts';

/** What every provider of `src/channels/push/provider.ts` promises, beyond what every provider does. */

export type DeliveredPush = { to: string; title: string };

/** Recipients are tokens or endpoints. */
export type PushProviderHarness = ProviderHarness<PushProvider, DeliveredPush>;

const content = {
  title: 'Your parcel is here',
  body: 'It waits at the door.',
  imageUrl: null,
  iconUrl: null,
  deepLink: null,
  androidChannelId: null,
  priority: null,
  actionButtons: [],
  dataPayload: {},
};

/** A hand-off to an Android device, unless `more` says otherwise. */
export function aPush(more: Partial<PushHandOff> = {}): PushHandOff {
  return {
    reference: { organizationId: 'o', messageId: 'm', ordinal: 0 },
    notificationId: '0193a5f0-0000-8000-8000-000000000001',
    messageId: '0193a5f0-0000-7000-8000-000000000002',
    target: { platform: 'android', token: 'a token', isInstrumented: true },
    credentials: {
      id: 'c',
      platform: 'android',
      projectId: 'acme',
      clientEmail: 'push@acme.iam.gserviceaccount.com',
      privateKeyId: '1',
      privateKey: '',
    },
    content,
    expiresAt: new Date('2100-01-01T00:00:00Z'),
    confirm: () => Promise.resolve(),
    signal: new AbortController().signal,
    ...more,
  };
}

const toAndroid = (token: string): PushTarget => ({ platform: 'android', token, isInstrumented: true });

/** `compose` says what is handed off to a recipient; if it is left out, recipients are Android devices. */
export function describePushProvider(
  name: string,
  createHarness: () => Promise<PushProviderHarness>,
  compose: (recipient: string) => Pick<PushHandOff, 'target' | 'credentials'> = (recipient) => ({
    target: toAndroid(recipient),
    credentials: aPush().credentials,
  }),
): void {
  describeProvider<PushHandOff, DeliveredPush, PushProviderHarness>(
    `the ${name} provider keeps the contract of push providers`,
    createHarness,
    {
      compose: (recipient) => ({ ...aPush(), ...compose(recipient) }),
      recipientOf: ({ to }) => to,
      number: (number) => ({ content: { ...content, title: `Number ${number}` } }),
      numberOf: ({ title }) => Number(title.replace('Number ', '')),
      refusal: 'unregistered',
    },
    () => undefined,
  );
}
