import { createECDH, generateKeyPairSync, randomBytes } from 'node:crypto';
import { decrypt } from 'http_ece';
import { expect, test } from 'vitest';
import {
  type Http2Peer,
  type PeerAnswer,
  type PeerRequest,
  startHttp2Peer,
} from '../../../../../test/support/http2-peer.ts';
import { createManualClock } from '../../../../../test/support/manual-clock.ts';
import {
  aPush,
  describePushProvider,
  type PushProviderHarness,
} from '../../../../../test/support/push-provider-conformance.ts';
import type { Resolver } from '../../../../platform/dns/dns.ts';
import { createHttpClient, type HttpClientOptions } from '../../../http2/client.ts';
import type { PushPlatform } from '../../notification.ts';
import type { PushHandOff } from '../../provider.ts';
import { generateVapidKeys } from '../../web-push/vapid.ts';
import { createDirectPushProvider, type DirectPushTools } from './direct.ts';

const pemOf = (key: { export: (options: { type: 'pkcs8'; format: 'pem' }) => string | Buffer }) =>
  key.export({ type: 'pkcs8', format: 'pem' }).toString();
const rsaKey = pemOf(generateKeyPairSync('rsa', { modulusLength: 2_048 }).privateKey);
const browser = createECDH('prime256v1');
browser.generateKeys();
const authSecret = randomBytes(16);
const endpointHost = 'push.example.com';

const hash = (text: string) => Buffer.from(text).toString('hex');

/** How a recipient is reached on each platform, and how a service reads who it is and what it is told. */
const platforms = {
  android: {
    compose: (recipient) => ({
      target: { platform: 'android', token: recipient, isInstrumented: true },
      credentials: { ...aPush().credentials, platform: 'android', privateKey: rsaKey } as never,
    }),
    recipientOf: (request) => fcmMessageOf(request).token,
    titleOf: (request) => fcmMessageOf(request).data.postillion_title ?? '',
    answers: {
      accepted: { status: 200, body: { name: 'projects/acme/messages/0:1' } },
      rejected: {
        status: 404,
        body: { error: { code: 404, status: 'NOT_FOUND', details: [fcmError('UNREGISTERED')] } },
      },
      deferred: { status: 500, body: { error: { code: 500, status: 'INTERNAL' } } },
    },
  },
  ios: {
    compose: (recipient) => ({
      target: { platform: 'ios', token: hash(recipient), environment: 'production' },
      credentials: {
        id: 'c',
        platform: 'ios',
        keyId: 'ABCDEFGHIJ',
        teamId: 'KLMNOPQRST',
        topic: 'com.example.app',
        privateKey: pemOf(generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey),
      },
    }),
    recipientOf: ({ path }) => Buffer.from(path.replace('/3/device/', ''), 'hex').toString(),
    titleOf: ({ body }) =>
      (JSON.parse(body.toString()) as { aps: { alert: { title: string } } }).aps.alert.title,
    answers: {
      accepted: { status: 200, headers: { 'apns-id': '1' } },
      rejected: { status: 410, body: { reason: 'Unregistered' } },
      deferred: { status: 429, body: { reason: 'TooManyRequests' } },
    },
  },
  web: {
    compose: (recipient) => ({
      target: {
        platform: 'web',
        endpoint: `https://${endpointHost}/${recipient}`,
        p256dh: browser.getPublicKey('base64url'),
        auth: authSecret.toString('base64url'),
      },
      credentials: { id: 'c', platform: 'web', ...generateVapidKeys() },
    }),
    recipientOf: ({ path }) => path.slice(1),
    titleOf: ({ body }) => {
      const read = decrypt(body, {
        version: 'aes128gcm',
        privateKey: browser,
        authSecret: authSecret.toString('base64url'),
      });
      return (JSON.parse(read.toString()) as { title: string }).title;
    },
    answers: {
      accepted: { status: 201, headers: { location: '/m/1' } },
      rejected: { status: 410 },
      deferred: { status: 429 },
    },
  },
} satisfies Record<
  PushPlatform,
  {
    compose: (recipient: string) => Pick<PushHandOff, 'target' | 'credentials'>;
    recipientOf: (request: PeerRequest) => string;
    titleOf: (request: PeerRequest) => string;
    answers: Record<'accepted' | 'rejected' | 'deferred', PeerAnswer>;
  }
>;

function fcmError(errorCode: string) {
  return { '@type': 'type.googleapis.com/google.firebase.fcm.v1.FcmError', errorCode };
}

function fcmMessageOf({ body }: PeerRequest) {
  const { message } = JSON.parse(body.toString()) as {
    message: { token: string; data: Record<string, string> };
  };
  return message;
}

const nobodyAsked: Resolver = {
  a: () => Promise.reject(new Error('not asked for')),
  aaaa: () => Promise.reject(new Error('not asked for')),
  mx: () => Promise.reject(new Error('not asked for')),
  txt: () => Promise.reject(new Error('not asked for')),
  cname: () => Promise.reject(new Error('not asked for')),
  ptr: () => Promise.reject(new Error('not asked for')),
  close: () => undefined,
};

async function arrange(more: Partial<DirectPushTools> = {}) {
  const clock = createManualClock();
  const peer = await startHttp2Peer();
  const asked: string[] = [];
  const provider = createDirectPushProvider({
    clock,
    random: () => 0.5,
    resolver: nobodyAsked,
    shareApnsToken: async (_credentials, sign) => {
      const madeAt = new Date(clock.nowMs());
      return { token: sign(madeAt), madeAt };
    },
    vapidSubject: 'https://push.example.com',
    hosts: [endpointHost],
    connect: ({ origin, lookup: _lookup, ...options }: HttpClientOptions) => {
      asked.push(origin);
      return createHttpClient({ ...options, origin: peer.origin, authorities: peer.certificate });
    },
    ...more,
  });
  return { clock, peer, provider, asked };
}

const grant: PeerAnswer = {
  status: 200,
  body: { access_token: 'ya29.x', expires_in: 3_600, token_type: 'Bearer' },
};

for (const [name, { compose, recipientOf, titleOf, answers }] of Object.entries(platforms))
  describePushProvider(
    `direct, on ${name},`,
    async (): Promise<PushProviderHarness> => {
      const { clock, peer, provider } = await arrange();
      const taken: { to: string; title: string }[] = [];
      const take = (request: PeerRequest) =>
        taken.push({ to: recipientOf(request), title: titleOf(request) });
      peer.answerBy((request) => {
        if (request.path === '/token') return grant;
        const to = recipientOf(request);
        if (to === 'rejected' || to === 'deferred') return answers[to];
        take(request);
        if (to === 'lost') return 'cut';
        return to === 'silent' ? 'silence' : answers.accepted;
      });
      return {
        provider,
        recipients: { accepted: 'accepted', rejected: 'rejected', deferred: 'deferred' },
        recipientOfLostAnswer: 'lost',
        silence: {
          recipient: 'silent',
          whenTaken: () => takenBy(peer, (request) => recipientOf(request) === 'silent'),
          passTime: clock.advance,
        },
        delivered: async () => taken,
        dispose: peer.stop,
      };
    },
    compose,
  );

async function takenBy(peer: Http2Peer, isIt: (request: PeerRequest) => boolean): Promise<void> {
  for (;;) {
    const request = await peer.nextRequest();
    if (request.path !== '/token' && isIt(request)) return;
  }
}

test('each platform is asked at its own service, and the web at the endpoints of its browsers', async () => {
  const { provider, peer, asked } = await arrange();
  peer.answerBy(({ path }) => (path === '/token' ? grant : { status: 201, body: { name: 'n' } }));
  for (const { compose } of Object.values(platforms))
    await provider.handOff({ ...aPush(), ...compose('accepted') });
  expect(new Set(asked)).toEqual(
    new Set([
      'https://fcm.googleapis.com',
      'https://oauth2.googleapis.com',
      'https://api.push.apple.com',
      `https://${endpointHost}`,
    ]),
  );
  await provider.close();
  await peer.stop();
});

test('an endpoint whose name leads into the private network is not asked', async () => {
  const resolver: Resolver = {
    ...nobodyAsked,
    a: async () => ({ kind: 'found', records: ['127.0.0.1', '169.254.169.254'] }),
    aaaa: async () => ({ kind: 'found', records: ['::1'] }),
  };
  const peer = await startHttp2Peer();
  const { provider, peer: unused } = await arrange({
    resolver,
    hosts: [`localtest.example.com:${new URL(peer.origin).port}`],
    connect: (options) => createHttpClient({ ...options, authorities: peer.certificate }),
  });
  const { target, credentials } = platforms.web.compose('x');
  const outcome = await provider.handOff({
    ...aPush(),
    target: { ...target, endpoint: `https://localtest.example.com:${new URL(peer.origin).port}/x` },
    credentials,
  });
  expect(outcome).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: { diagnostic: 'the host has private addresses only' },
  });
  expect(peer.connections()).toBe(0);
  await provider.close();
  await Promise.all([peer.stop(), unused.stop()]);
});

test('the doctor hears which of the services cannot be reached', async () => {
  const { provider, peer } = await arrange();
  expect(await provider.probe()).toBeNull();
  await peer.stop();
  const { provider: other, peer: gone } = await arrange();
  await gone.stop();
  const problem = await other.probe();
  expect(problem?.split('; ')).toEqual([
    'FCM: fcm.googleapis.com: ECONNREFUSED',
    'APNs: api.push.apple.com: ECONNREFUSED',
    expect.stringMatching(/^Web Push: \S+: ECONNREFUSED$/),
  ]);
  await Promise.all([provider.close(), other.close()]);
});
