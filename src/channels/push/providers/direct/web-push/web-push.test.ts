import { createECDH, createPublicKey, randomBytes, verify } from 'node:crypto';
import { decrypt } from 'http_ece';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Http2Peer, PeerRequest } from '../../../../../../test/support/http2-peer.ts';
import { aPush } from '../../../../../../test/support/push-provider-conformance.ts';
import {
  handingOffTo,
  type ServicePeers,
  startServicePeers,
} from '../../../../../../test/support/push-service.ts';
import { composeForWeb } from '../../../notification.ts';
import { generateVapidKeys } from '../../../web-push/vapid.ts';
import type { PushService } from '../service.ts';
import { createWebPushService, type WebPushHandOff, type WebPushTools } from './web-push.ts';

const mozilla = 'https://updates.push.services.mozilla.com';
const google = 'https://fcm.googleapis.com';
const apple = 'https://web.push.apple.com';
const origins = [mozilla, google, apple];
const away = 'https://away.push.example.com';
const hosts = [
  'fcm.googleapis.com',
  new URL(mozilla).host,
  new URL(away).host,
  '*.push.services.mozilla.com',
  '*.push.apple.com',
];
const vapidSubject = 'https://push.example.com';

const browser = createECDH('prime256v1');
browser.generateKeys();
const authSecret = randomBytes(16);
const keys = { p256dh: browser.getPublicKey('base64url'), auth: authSecret.toString('base64url') };

const credentials: WebPushHandOff['credentials'] = { id: 'c', platform: 'web', ...generateVapidKeys() };
const subscribedAt = (endpoint: string): WebPushHandOff['target'] => ({ platform: 'web', endpoint, ...keys });
const target = subscribedAt(`${mozilla}/wpush/v2/gAAAA?x=1`);

const silence = () =>
  Promise.resolve({ kind: 'failed', reason: 'timeout', detail: 'nobody answers' } as const);
/** Name servers that say nothing; `unknown-host.test.ts` has others. */
const silent = { a: silence, cname: silence };

let world: ServicePeers;
let peer: Http2Peer;
let service: PushService<WebPushHandOff>;
let handOff: ReturnType<typeof handingOffTo<WebPushHandOff>>['handOff'];
let counted: { confirmed: number };

function open(more: Partial<WebPushTools> = {}): void {
  service = createWebPushService({ ...world.tools, vapidSubject, hosts, resolver: silent, ...more });
  ({ handOff, counted } = handingOffTo(service, { target, credentials }));
}

beforeEach(async () => {
  world = await startServicePeers(origins);
  peer = world.peers.get(mozilla)!;
  peer.answerBy(() => ({ status: 201, headers: { location: `${mozilla}/m/1` } }));
  open();
});
afterEach(async () => {
  await service.close();
  await world.stop();
});

/** As the browser reads it. */
function read({ body }: PeerRequest): unknown {
  const plaintext = decrypt(body, {
    version: 'aes128gcm',
    privateKey: browser,
    authSecret: keys.auth,
  });
  return JSON.parse(plaintext.toString());
}

/** As the push service reads it: the claims, after the signature under the key beside them. */
function readVapid({ headers }: PeerRequest) {
  const [, head = '', claims = '', signature = '', key = ''] =
    /^vapid t=([^.]+)\.([^.]+)\.([^,]+), k=(.+)$/.exec(headers.authorization ?? '') ?? [];
  const point = Buffer.from(key, 'base64url');
  const publicKey = createPublicKey({
    key: {
      kty: 'EC',
      crv: 'P-256',
      x: point.toString('base64url', 1, 33),
      y: point.toString('base64url', 33),
    },
    format: 'jwk',
  });
  const isGenuine = verify(
    'sha256',
    Buffer.from(`${head}.${claims}`),
    { key: publicKey, dsaEncoding: 'ieee-p1363' },
    Buffer.from(signature, 'base64url'),
  );
  return { isGenuine, key, claims: JSON.parse(Buffer.from(claims, 'base64url').toString()) as object };
}

test('a push is posted to its endpoint, and only the browser can read it', async () => {
  const expiresAt = new Date(world.clock.nowMs() + 90_900);
  expect(await handOff({ expiresAt })).toEqual({
    kind: 'accepted',
    providerMessageId: `${mozilla}/m/1`,
    reply: { code: 201, enhancedCode: null, diagnostic: 'HTTP status 201', remote: new URL(mozilla).host },
  });
  expect([counted.confirmed, peer.requests.length]).toEqual([1, 1]);
  const [request] = peer.requests as [PeerRequest];
  expect(request).toMatchObject({ method: 'POST', path: '/wpush/v2/gAAAA?x=1' });
  expect(request.headers).toMatchObject({
    ttl: '90',
    topic: '0193a5f0000070008000000000000002',
    'content-encoding': 'aes128gcm',
    'content-type': 'application/octet-stream',
  });
  expect(request.headers).not.toHaveProperty('urgency');
  expect(read(request)).toEqual(JSON.parse(composeForWeb(aPush().messageId, aPush().content).toString()));
  expect(readVapid(request)).toEqual({
    isGenuine: true,
    key: credentials.publicKey,
    claims: {
      aud: mozilla,
      sub: vapidSubject,
      exp: world.clock.nowMs() / 1_000 + 12 * 3_600,
    },
  });
});

test('how urgent it is, is said as it was asked for', async () => {
  for (const priority of ['high', 'normal'] as const)
    await handOff({ content: { ...aPush().content, priority } });
  expect(peer.requests.map(({ headers }) => headers.urgency)).toEqual(['high', 'normal']);
});

test('a push in its last second is tried once, and not kept', async () => {
  await handOff({ expiresAt: new Date(world.clock.nowMs() + 999) });
  expect(peer.requests[0]?.headers.ttl).toBe('0');
});

test('the services are told apart, and each gets a token of its own', async () => {
  for (const origin of origins) await handOff({ target: subscribedAt(`${origin}/one`) });
  const audiences = origins.map((origin) => {
    const { requests } = world.peers.get(origin)!;
    expect(requests).toHaveLength(1);
    return (readVapid(requests[0]!).claims as { aud: string }).aud;
  });
  expect(audiences).toEqual(origins);
});

test.each([
  ['a service that is not allowed any more', 'https://push.example.org/one'],
  ['an address inside of the network', 'https://169.254.169.254/latest'],
  ['what is not TLS', 'http://fcm.googleapis.com/fcm/send/one'],
  ['another port', 'https://fcm.googleapis.com:8443/one'],
  ['a name that ends alike', 'https://evil-fcm.googleapis.com/one'],
  ['no URL', 'one'],
])('nothing is sent to %s, and the device is not retired', async (_, endpoint) => {
  expect(await handOff({ target: subscribedAt(endpoint) })).toMatchObject({
    kind: 'rejected',
    reason: 'other',
    reply: { remote: null, diagnostic: expect.stringContaining('POSTILLION_WEB_PUSH_HOSTS') },
  });
  expect(counted.confirmed).toBe(0);
});

test('a subscription without usable keys never can be sent a push', async () => {
  const offCurve = Buffer.alloc(65, 7).fill(4, 0, 1).toString('base64url');
  for (const broken of [{ p256dh: 'AAAA' }, { p256dh: offCurve }, { auth: 'AAAA' }])
    expect(await handOff({ target: { ...target, ...broken } })).toMatchObject({
      kind: 'rejected',
      reason: 'invalid_token',
    });
  expect(counted.confirmed).toBe(0);
});

test('what browsers take fits, and one octet more is not sent', async () => {
  const emptyBytes = composeForWeb(aPush().messageId, { ...aPush().content, body: '' }).length;
  const withBody = (length: number) => ({ content: { ...aPush().content, body: 'a'.repeat(length) } });
  expect(await handOff(withBody(3_993 - emptyBytes))).toMatchObject({ kind: 'accepted' });
  expect(peer.requests[0]?.body).toHaveLength(4_096);
  expect(await handOff(withBody(3_994 - emptyBytes))).toMatchObject({
    kind: 'rejected',
    reason: 'message_too_large',
  });
  expect(peer.requests).toHaveLength(1);
});

describe('where nobody has said who runs the installation', () => {
  beforeEach(() => {
    open({ vapidSubject: null });
  });

  test('Apple is sent nothing, and its devices wait', async () => {
    expect(await handOff({ target: subscribedAt(`${apple}/one`) })).toMatchObject({
      kind: 'deferred',
      reason: 'provider_unavailable',
      reply: { diagnostic: expect.stringContaining('POSTILLION_VAPID_SUBJECT') },
    });
    expect([counted.confirmed, world.peers.get(apple)!.requests.length]).toEqual([0, 0]);
  });

  test('the others are sent tokens without it', async () => {
    expect(await handOff()).toMatchObject({ kind: 'accepted' });
    const { isGenuine, claims } = readVapid(peer.requests[0]!);
    expect([isGenuine, Object.keys(claims)]).toEqual([true, ['aud', 'exp']]);
  });
});

test('a foreign subscription is given up only after the key has proved good', async () => {
  const foreign = { status: 400, body: { reason: 'VapidPkHashMismatch' } };
  peer.answerBy(() => foreign);
  for (let count = 0; count < 2; count += 1)
    expect(await handOff()).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
  peer.answerBy(() => ({ status: 201 }));
  expect(await handOff()).toMatchObject({ kind: 'accepted', providerMessageId: aPush().notificationId });
  expect([...world.proven]).toEqual([credentials.id]);
  peer.answerBy(() => foreign);
  expect(await handOff()).toMatchObject({ kind: 'rejected', reason: 'invalid_token' });
  expect(await handOff({ credentials: { ...credentials, id: 'another' } })).toMatchObject({
    kind: 'deferred',
  });
});

test('no other place is asked because an answer leads there', async () => {
  peer.answerBy(() => ({ status: 307, headers: { location: `${world.peers.get(google)!.origin}/one` } }));
  expect(await handOff()).toMatchObject({ kind: 'rejected', reason: 'other', reply: { code: 307 } });
  expect(world.peers.get(google)!.requests).toEqual([]);
});

test('a request that was refused unread is postponed, and one that was lost may have been taken', async () => {
  expect(await handOff()).toMatchObject({ kind: 'accepted' });
  peer.answerBy(() => 'refuse');
  expect(await handOff()).toMatchObject({ kind: 'postponed', retryAfterMs: 1_000 });
  peer.answerBy(() => 'reset');
  expect(await handOff()).toMatchObject({ kind: 'unknown' });
  peer.answerBy(() => 'cut');
  expect(await handOff()).toMatchObject({ kind: 'unknown' });
});

test('a service that nobody reaches is put off, with nothing announced', async () => {
  expect(await handOff({ target: subscribedAt(`${away}/one`) })).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: { remote: new URL(away).host },
  });
  expect(counted.confirmed).toBe(0);
});

test('a host that a browser may have made up is away by itself, until it has answered once', async () => {
  const device = { target: subscribedAt('https://db5.push.services.mozilla.com/one') };
  const remote = 'db5.push.services.mozilla.com';
  expect(await handOff(device)).toMatchObject({
    kind: 'postponed',
    retryAfterMs: 60_000,
    reply: { code: null, remote },
  });
  expect(counted.confirmed).toBe(0);
  let isAway = false;
  open({
    createClient: () => {
      const client = world.tools.createClient(mozilla);
      const exchange: typeof client.exchange = (request, permit) =>
        isAway
          ? Promise.resolve({ kind: 'unreachable', detail: 'ECONNREFUSED' })
          : client.exchange(request, permit);
      return { ...client, exchange };
    },
  });
  expect(await handOff(device)).toMatchObject({ kind: 'accepted' });
  isAway = true;
  expect(await handOff(device)).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: { remote },
  });
});

test('a service that is slow gets 250 pushes at once, postpones others, and delays no other service', async () => {
  const release: (() => void)[] = [];
  peer.answerBy(
    () =>
      new Promise((resolve) => {
        release.push(() => {
          resolve({ status: 201 });
        });
      }),
  );
  const held = Array.from({ length: 250 }, () => handOff());
  while (release.length < 250) await peer.nextRequest();
  held.push(handOff());
  while (release.length < 251) await peer.nextRequest();
  world.clock.advance(3_001);
  expect(await handOff()).toMatchObject({
    kind: 'postponed',
    reply: { remote: new URL(mozilla).host, diagnostic: 'its push service is slow' },
  });
  expect(await handOff({ target: subscribedAt(`${google}/one`) })).toMatchObject({ kind: 'accepted' });
  for (const end of release.splice(0)) end();
  expect((await Promise.all(held)).map(({ kind }) => kind)).toEqual(Array(251).fill('accepted'));
  peer.answerBy(() => ({ status: 201 }));
  expect(await handOff()).toMatchObject({ kind: 'accepted' });
});

test('what fails before it is sent gives its place back', async () => {
  const lost = new Error('the claim is lost');
  for (let count = 0; count < 300; count += 1)
    await expect(handOff({ confirm: () => Promise.reject(lost) })).rejects.toBe(lost);
  expect(peer.requests).toEqual([]);
  world.clock.advance(3_001);
  expect(await handOff()).toMatchObject({ kind: 'accepted' });
});

test('a worker that stops begins nothing more', async () => {
  const stopped = new Error('the worker stops');
  await expect(handOff({ signal: AbortSignal.abort(stopped) })).rejects.toBe(stopped);
  await expect(handOff({ signal: AbortSignal.abort(stopped), target: subscribedAt('one') })).rejects.toBe(
    stopped,
  );
  expect([counted.confirmed, peer.requests.length]).toEqual([0, 0]);
});

test('of many services those last used stay connected, and a push on another ends in peace', async () => {
  const made: string[] = [];
  const closed: string[] = [];
  open({
    createClient: (origin) => {
      made.push(origin);
      const client = world.tools.createClient(origin);
      const close = async () => {
        await client.close();
        closed.push(origin);
      };
      return { ...client, close };
    },
  });
  const many = Array.from({ length: 100 }, (_each, count) => `https://n${count}.push.services.mozilla.com`);
  let answer = (): void => undefined;
  peer.answerBy(
    () =>
      new Promise((resolve) => {
        answer = () => {
          resolve({ status: 201 });
        };
      }),
  );
  const arrived = peer.nextRequest();
  const slow = handOff();
  await arrived;
  for (const origin of many) await handOff({ target: subscribedAt(`${origin}/one`) });
  expect([made.length, closed]).toEqual([101, []]);
  answer();
  expect(await slow).toMatchObject({ kind: 'accepted' });
  await service.close();
  expect(closed.toSorted()).toEqual(made.toSorted());
});

describe('whether browsers can be reached', () => {
  test('is so as soon as one of the services is', async () => {
    expect(await service.probe()).toBeNull();
    open({ hosts: ['*.push.apple.com', 'simulator.postillion.test'] });
    expect(await service.probe()).toBeNull();
    expect(peer.requests).toEqual([]);
  });

  test('is told where none is', async () => {
    open({ hosts: ['push.example.org'] });
    expect(await service.probe()).toEqual(expect.any(String));
  });
});

/** What a service says, with headers in lower case. */
type Said = { status: number; body?: string; headers?: Record<string, string> };

/** As Mozilla writes it. */
function fromMozilla(code: number, errno: number, message: string): Said {
  return {
    status: code,
    body: JSON.stringify({ code, errno, error: 'Error', message, more_info: 'http://…' }),
  };
}

function fromApple(status: number, reason: string): Said {
  return { status, body: JSON.stringify({ reason }) };
}

const googleMismatch =
  'the VAPID credentials in the authorization header do not correspond to the credentials used to create the subscriptions.\n';
const googlePage =
  '<!DOCTYPE html>\n<html lang=en>\n  <title>Error 404 (Not Found)!!1</title>\n  <p>That’s all we know.';

/** `isProven`: whether a push with the same key was taken lately. */
function outcomeFor(said: Said, isProven = true) {
  world.proven.clear();
  if (isProven) world.proven.add(credentials.id);
  peer.answerBy(() => said);
  return handOff();
}

test.each<[string, Said]>([
  ['Google', { status: 403, body: googleMismatch }],
  ['Google', { status: 400, body: 'UnauthorizedRegistration' }],
  ['Apple', fromApple(400, 'VapidPkHashMismatch')],
  ['Apple', fromApple(403, 'VapidPkHashMismatch')],
  ['Mozilla', fromMozilla(401, 109, 'VAPID public key mismatch')],
])('that a subscription has another key, in the words of %s, ends it only if ours works', async (_, said) => {
  expect(await outcomeFor(said, true)).toMatchObject({ kind: 'rejected', reason: 'invalid_token' });
  expect(await outcomeFor(said, false)).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: {
      code: said.status,
      diagnostic: expect.stringMatching(/^No push with this VAPID key was taken lately/),
    },
  });
});

test.each<[string, Said, object]>([
  ['a subscription that ended', { status: 410 }, { kind: 'rejected', reason: 'unregistered' }],
  ['a subscription that ended, by RFC 8030', { status: 404 }, { kind: 'rejected', reason: 'unregistered' }],
  ['… Mozilla, URL', fromMozilla(404, 102, 'Not Found'), { kind: 'rejected', reason: 'unregistered' }],
  ['… Mozilla', fromMozilla(410, 103, 'Expired URL endpoint'), { kind: 'rejected', reason: 'unregistered' }],
  [
    '… Mozilla',
    fromMozilla(410, 105, 'Endpoint became unavailable'),
    { kind: 'rejected', reason: 'unregistered' },
  ],
  ['… Mozilla', fromMozilla(410, 106, 'Invalid subscription'), { kind: 'rejected', reason: 'unregistered' }],
  ['… Apple', fromApple(410, 'Unregistered'), { kind: 'rejected', reason: 'unregistered' }],
  [
    '… Google',
    { status: 410, body: 'push subscription has unsubscribed or expired.\n' },
    { kind: 'rejected', reason: 'unregistered' },
  ],
  ['a page in place of an answer', { status: 404, body: googlePage }, { kind: 'deferred', reason: 'other' }],
  [
    'a page too long to be read',
    { status: 404, body: 'a'.repeat(100_000) },
    { kind: 'deferred', reason: 'other' },
  ],
  [
    'Mozilla, encryption',
    fromMozilla(400, 110, 'Invalid crypto keys'),
    { kind: 'rejected', reason: 'invalid_message' },
  ],
  ['Mozilla, TTL', fromMozilla(400, 111, 'Missing TTL'), { kind: 'rejected', reason: 'invalid_message' }],
  ['Mozilla, TTL', fromMozilla(400, 112, 'Invalid TTL'), { kind: 'rejected', reason: 'invalid_message' }],
  ['Mozilla, topic', fromMozilla(400, 113, 'Invalid topic'), { kind: 'rejected', reason: 'invalid_message' }],
  ['Apple, TTL', fromApple(400, 'BadTtl'), { kind: 'rejected', reason: 'invalid_message' }],
  ['Apple, urgency', fromApple(400, 'BadUrgency'), { kind: 'rejected', reason: 'invalid_message' }],
  ['Apple, topic', fromApple(400, 'BadWebPushTopic'), { kind: 'rejected', reason: 'invalid_message' }],
  [
    'Mozilla, token',
    fromMozilla(401, 109, 'Invalid aud'),
    { kind: 'deferred', reason: 'provider_unavailable' },
  ],
  ['Apple, token', fromApple(403, 'BadJwtToken'), { kind: 'deferred', reason: 'provider_unavailable' }],
  ['Apple, key', fromApple(403, 'BadVapidPublicKey'), { kind: 'deferred', reason: 'provider_unavailable' }],
  ['no words', { status: 401 }, { kind: 'deferred', reason: 'provider_unavailable' }],
  ['no words', { status: 403 }, { kind: 'deferred', reason: 'provider_unavailable' }],
  [
    'Google, for a day',
    { status: 401, body: 'invalid push subscription endpoint' },
    { kind: 'deferred', reason: 'other' },
  ],
  [
    'Mozilla, bridge',
    fromMozilla(413, 104, 'Payload too large'),
    { kind: 'rejected', reason: 'message_too_large' },
  ],
  ['Microsoft', { status: 406 }, { kind: 'deferred', reason: 'rate_limited', retryAfterMs: 60_000 }],
  ['too many', { status: 429 }, { kind: 'deferred', reason: 'rate_limited', retryAfterMs: 60_000 }],
  ['Mozilla', fromMozilla(500, 999, 'Internal'), { kind: 'deferred', reason: 'other' }],
  ['Mozilla, bridge', fromMozilla(502, 0, 'Bad gateway'), { kind: 'deferred', reason: 'other' }],
  ['a proxy', { status: 504, body: googlePage }, { kind: 'deferred', reason: 'other' }],
  ['Mozilla', fromMozilla(503, 201, 'Try later'), { kind: 'deferred', reason: 'provider_unavailable' }],
  ['elsewhere', { status: 301 }, { kind: 'rejected', reason: 'other' }],
  ['elsewhere', { status: 307 }, { kind: 'rejected', reason: 'other' }],
  ['nothing listed', { status: 418 }, { kind: 'deferred', reason: 'other' }],
  ['nothing listed', { status: 204 }, { kind: 'deferred', reason: 'other' }],
  ['nothing listed', { status: 599 }, { kind: 'deferred', reason: 'other' }],
])('an answer has its meaning: %s, %j', async (_, said, outcome) => {
  for (const isProven of [true, false])
    expect(await outcomeFor(said, isProven)).toMatchObject({
      ...outcome,
      reply: { code: said.status, remote: new URL(mozilla).host },
    });
});

test.each([406, 429, 500, 503, 401])(
  '%i with Retry-After is tried again when the service says',
  async (status) => {
    expect(await outcomeFor({ status, headers: { 'retry-after': '120' } })).toMatchObject({
      retryAfterMs: 120_000,
    });
  },
);
