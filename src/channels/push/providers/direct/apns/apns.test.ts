import { createPublicKey, generateKeyPairSync, verify } from 'node:crypto';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Http2Peer, PeerAnswer } from '../../../../../../test/support/http2-peer.ts';
import { aPush } from '../../../../../../test/support/push-provider-conformance.ts';
import {
  handingOffTo,
  type ServicePeers,
  startServicePeers,
} from '../../../../../../test/support/push-service.ts';
import { dateOf } from '../../../../../platform/clock.ts';
import type { PushService } from '../service.ts';
import { outcomeOf, readAnswer } from './answers.ts';
import { type ApnsHandOff, createApnsService } from './apns.ts';
import { openApnsConnections } from './connections.ts';
import type { ShareApnsToken } from './provider-tokens.ts';

const production = 'https://api.push.apple.com';
const sandbox = 'https://api.sandbox.push.apple.com';
const minuteMs = 60_000;

const { privateKey, publicKey } = generateKeyPairSync('ec', {
  namedCurve: 'P-256',
  privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  publicKeyEncoding: { type: 'spki', format: 'pem' },
});

const credentials: ApnsHandOff['credentials'] = {
  id: 'credentials of Acme',
  platform: 'ios',
  keyId: 'ABC123DEFG',
  teamId: 'DEF123GHIJ',
  topic: 'com.acme.shop',
  privateKey,
};
const target: ApnsHandOff['target'] = {
  platform: 'ios',
  token: '00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0',
  environment: 'production',
};
const taken: PeerAnswer = { status: 200 };
const refusal = (status: number, reason: string, more: object = {}): PeerAnswer => ({
  status,
  body: { reason, ...more },
});

let world: ServicePeers;
/** The two environments. */
let live: Http2Peer;
let development: Http2Peer;
let service: PushService<ApnsHandOff>;
let handOff: ReturnType<typeof handingOffTo<ApnsHandOff>>['handOff'];
let counted: { confirmed: number };
/** What the installation was asked for, and what it answers. */
let asked: { credentials: { organizationId: string; id: string }; refused: string | null }[];
let share: ShareApnsToken;

beforeEach(async () => {
  world = await startServicePeers([production, sandbox]);
  live = world.peers.get(production)!;
  development = world.peers.get(sandbox)!;
  asked = [];
  share = (_credentials, sign) => {
    const madeAt = dateOf(world.clock.nowMs());
    return Promise.resolve({ token: sign(madeAt), madeAt });
  };
  service = createApnsService({
    ...world.tools,
    shareApnsToken: (of, sign, refused) => {
      asked.push({ credentials: of, refused });
      return share(of, sign, refused);
    },
  });
  ({ handOff, counted } = handingOffTo(service, { target, credentials }));
});
afterEach(async () => {
  await service.close();
  await world.stop();
});

const bearersOf = (peer: Http2Peer) => peer.requests.map(({ headers }) => headers.authorization);
/** For each request, on which connection it came: 0 is the first that was used. */
const connectionsOf = ({ requests }: Http2Peer) => {
  const used = [...new Set(requests.map(({ connection }) => connection))];
  return requests.map(({ connection }) => used.indexOf(connection));
};
const unavailable = { kind: 'deferred', reason: 'provider_unavailable' };
const sharing = (token: string) => () => Promise.resolve({ token, madeAt: dateOf(world.clock.nowMs()) });

describe('a push to an iPhone', () => {
  test('goes to its token with the headers that Apple wants, and is named by them', async () => {
    live.answerBy(() => ({ status: 200, headers: { 'apns-id': 'EABEAE54-14A8-11E5-B60B-1697F925EC7B' } }));
    const expiresAt = dateOf(world.clock.nowMs() + 3_600_999);
    expect(await handOff({ expiresAt })).toEqual({
      kind: 'accepted',
      providerMessageId: 'EABEAE54-14A8-11E5-B60B-1697F925EC7B',
      reply: { code: 200, enhancedCode: null, diagnostic: 'HTTP status 200', remote: 'api.push.apple.com' },
    });
    const { notificationId, messageId, content } = aPush();
    const [request] = live.requests;
    expect(request).toMatchObject({ method: 'POST', path: `/3/device/${target.token}` });
    expect(request!.headers).toMatchObject({
      authorization: expect.stringMatching(/^bearer [\w-]+\.[\w-]+\.[\w-]+$/) as string,
      'apns-id': notificationId,
      'apns-collapse-id': messageId,
      'apns-topic': 'com.acme.shop',
      'apns-push-type': 'alert',
      'apns-priority': '10',
      'apns-expiration': String(Math.floor(expiresAt.getTime() / 1_000)),
    });
    expect(JSON.parse(request!.body.toString())).toEqual({
      aps: { alert: { title: content.title, body: content.body }, sound: 'default', 'mutable-content': 1 },
      postillion_message: { id: messageId },
    });
    expect([counted.confirmed, development.connections()]).toEqual([1, 0]);
    expect(world.proven).toEqual(new Set([credentials.id]));
  });

  test('has the name that we gave it where APNs gives none, or a strange one', async () => {
    expect(await handOff()).toMatchObject({ providerMessageId: aPush().notificationId });
    live.answerBy(() => ({ status: 200, headers: { 'apns-id': 'x'.repeat(5_000) } }));
    expect(await handOff()).toMatchObject({ providerMessageId: aPush().notificationId });
  });

  test('has the priority that it was given, and Apple’s own if it was given none', async () => {
    for (const priority of ['high', 'normal', null] as const)
      await handOff({ content: { ...aPush().content, priority } });
    expect(live.requests.map(({ headers }) => headers['apns-priority'])).toEqual(['10', '5', '10']);
  });

  test('of a development build goes to the other environment', async () => {
    await handOff({ target: { ...target, environment: 'sandbox' } });
    expect([live.connections(), development.requests.length]).toEqual([0, 1]);
  });

  test('asks nobody if its token would lead elsewhere', async () => {
    for (const token of ['', 'abc', '../x', 'ab/cd', 'ab?c=d', 'ab\r\n', 'zz', '%61', 'ab'.repeat(257)])
      expect(await handOff({ target: { ...target, token } })).toMatchObject({
        kind: 'rejected',
        reason: 'invalid_token',
      });
    expect([asked, live.connections(), counted.confirmed]).toEqual([[], 0, 0]);
    await handOff({ target: { ...target, token: 'ABCD' } });
    expect(live.requests[0]!.path).toBe('/3/device/abcd');
  });
});

const invalid = { kind: 'rejected', reason: 'invalid_message' };

describe('APNs answers', () => {
  test.each<[number, string, object]>([
    [400, 'BadCollapseId', invalid],
    [400, 'BadExpirationDate', invalid],
    [400, 'BadMessageId', invalid],
    [400, 'BadPriority', invalid],
    [400, 'BadTopic', unavailable],
    [400, 'DeviceTokenNotForTopic', { kind: 'rejected', reason: 'invalid_token' }],
    [400, 'DuplicateHeaders', invalid],
    [400, 'IdleTimeout', { kind: 'postponed', retryAfterMs: 1_000 }],
    [400, 'InvalidPushType', invalid],
    [400, 'MissingDeviceToken', invalid],
    [400, 'MissingTopic', unavailable],
    [400, 'PayloadEmpty', invalid],
    [400, 'TopicDisallowed', unavailable],
    [403, 'BadCertificate', unavailable],
    [403, 'BadCertificateEnvironment', unavailable],
    [403, 'BadEnvironmentKeyIdInToken', unavailable],
    [403, 'BadEnvironmentKeyInToken', unavailable],
    [403, 'Forbidden', unavailable],
    [403, 'InvalidProviderToken', unavailable],
    [403, 'MissingProviderToken', unavailable],
    [403, 'UnrelatedKeyIdInToken', { kind: 'postponed', retryAfterMs: 1_000 }],
    [404, 'BadPath', invalid],
    [405, 'MethodNotAllowed', invalid],
    [410, 'ExpiredToken', { kind: 'rejected', reason: 'unregistered' }],
    [410, 'Unregistered', { kind: 'rejected', reason: 'unregistered' }],
    [413, 'PayloadTooLarge', { kind: 'rejected', reason: 'message_too_large' }],
    [429, 'TooManyProviderTokenUpdates', unavailable],
    [429, 'TooManyRequests', { kind: 'deferred', reason: 'rate_limited', retryAfterMs: 60_000 }],
    [500, 'InternalServerError', { kind: 'deferred', reason: 'other' }],
    [503, 'ServiceUnavailable', { ...unavailable, retryAfterMs: 60_000 }],
    [503, 'Shutdown', { ...unavailable, retryAfterMs: 60_000 }],
    // By the status alone.
    [400, 'OfNextYear', { kind: 'deferred', reason: 'other' }],
    [403, 'OfNextYear', unavailable],
    [404, 'Unregistered', { kind: 'deferred', reason: 'other' }],
    [410, 'OfNextYear', { kind: 'deferred', reason: 'other' }],
    [413, 'OfNextYear', { kind: 'rejected', reason: 'message_too_large' }],
    [429, 'OfNextYear', { kind: 'deferred', reason: 'rate_limited', retryAfterMs: 60_000 }],
    [500, 'Unregistered', { kind: 'deferred', reason: 'other' }],
    [502, 'BadDeviceToken', { kind: 'deferred', reason: 'other' }],
    [503, 'OfNextYear', { ...unavailable, retryAfterMs: 60_000 }],
    [302, 'OfNextYear', { kind: 'deferred', reason: 'other' }],
  ])('%i %s', async (status, reason, outcome) => {
    world.proven.add(credentials.id);
    live.answerBy(() => refusal(status, reason));
    const result = await handOff();
    expect(result).toMatchObject({ ...outcome, reply: { code: status, diagnostic: reason } });
    expect(Object.keys(result).includes('retryAfterMs')).toBe('retryAfterMs' in outcome);
    expect([live.requests.length, development.connections(), counted.confirmed]).toEqual([1, 0, 1]);
  });

  test.each([429, 500, 503, 403])('%i, and after how long to come back', async (status) => {
    live.answerBy(() => ({ status, headers: { 'retry-after': '120' } }));
    expect(await handOff()).toMatchObject({ retryAfterMs: 120_000 });
  });

  test('since when a token is dead, so that one that was registered later lives', async () => {
    const at = Date.parse('2026-11-20T10:00:00.000Z');
    live.answerBy(() => refusal(410, 'Unregistered', { timestamp: at }));
    expect(await handOff()).toMatchObject({ reason: 'unregistered', deadSince: dateOf(at) });
    for (const timestamp of [undefined, 'yesterday', 0, -1, 8.64e15 + 1, null]) {
      live.answerBy(() => refusal(410, 'Unregistered', { timestamp }));
      expect(await handOff()).not.toHaveProperty('deadSince');
    }
  });

  test('that a token is of another app end no device before a push was taken with the key', async () => {
    live.answerBy(() => refusal(400, 'DeviceTokenNotForTopic'));
    expect(await handOff()).toMatchObject({
      ...unavailable,
      // Such devices alone do not have the account taken for away.
      retryAfterMs: 60_000,
      reply: { code: 400, diagnostic: expect.stringMatching(/No push .* DeviceTokenNotForTopic/) as string },
    });
    live.answerBy(() => taken);
    await handOff();
    live.answerBy(() => refusal(400, 'DeviceTokenNotForTopic'));
    expect(await handOff()).toMatchObject({ kind: 'rejected', reason: 'invalid_token' });
    const others = { ...credentials, id: 'of another organization' };
    expect(await handOff({ credentials: others })).toMatchObject(unavailable);
  });

  test('whatever they are, end a device only in words of theirs, and are words that can be stored', () => {
    const reasons = fc.constantFrom(
      'Unregistered',
      'ExpiredToken',
      'BadDeviceToken',
      'DeviceTokenNotForTopic',
    );
    const errors = fc.tuple(reasons, fc.anything()).map(([reason, timestamp]) => ({ reason, timestamp }));
    const bodies = fc.oneof(
      errors.map((error) => JSON.stringify(error)),
      fc.string({ unit: 'binary' }),
      fc.json(),
      fc.constant(null),
    );
    fc.assert(
      fc.property(fc.integer({ min: 100, max: 599 }), bodies, (status, body) => {
        const reading = readAnswer({ kind: 'answered', status, headers: {}, body }, 'api.push.apple.com');
        const outcome = outcomeOf(reading, { notificationId: 'n', areCredentialsProven: true, random: 0 });
        expect(outcome.reply!.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
        expect(outcome.kind === 'accepted').toBe(status === 200);
        if (outcome.kind !== 'rejected') return;
        if (outcome.reason === 'unregistered')
          expect([status, body]).toEqual([410, expect.stringContaining('"reason"')]);
        if (outcome.reason === 'invalid_token') expect(status).toBe(400);
      }),
    );
  });
});

describe('a token that its environment does not know', () => {
  const unknown = refusal(400, 'BadDeviceToken');

  test.each([
    ['production', 'sandbox'],
    ['sandbox', 'production'],
  ] as const)('of %s is tried in the other once, and which took it is said', async (environment, other) => {
    const [first, second] = environment === 'production' ? [live, development] : [development, live];
    first.answerBy(() => unknown);
    expect(await handOff({ target: { ...target, environment } })).toMatchObject({
      kind: 'accepted',
      environment: other,
    });
    expect([first.requests.length, second.requests.length, counted.confirmed]).toEqual([1, 1, 1]);
    expect(second.requests[0]!.headers).toMatchObject({
      'apns-id': aPush().notificationId,
      authorization: first.requests[0]!.headers.authorization,
    });
    expect(second.requests[0]!.body).toEqual(first.requests[0]!.body);
    expect(world.proven).toEqual(new Set([credentials.id]));
  });

  test('is dead if the other does not know it either, and a push was taken with the key', async () => {
    live.answerBy(() => unknown);
    development.answerBy(() => unknown);
    expect(await handOff()).toMatchObject({
      ...unavailable,
      reply: { diagnostic: expect.stringMatching(/No push .* BadDeviceToken/) as string },
    });
    world.proven.add(credentials.id);
    expect(await handOff()).toMatchObject({ kind: 'rejected', reason: 'invalid_token' });
    expect(counted.confirmed).toBe(2);
  });

  test.each<[string, PeerAnswer, object]>([
    [
      'speaks for one environment only',
      refusal(403, 'BadEnvironmentKeyIdInToken'),
      { reason: 'invalid_token' },
    ],
    ['has it as one of another app', refusal(400, 'DeviceTokenNotForTopic'), { reason: 'invalid_token' }],
    [
      'has it as one that is dead',
      refusal(410, 'Unregistered', { timestamp: 1_000 }),
      { kind: 'rejected', reason: 'unregistered', deadSince: dateOf(1_000) },
    ],
    ['finds fault with the push', refusal(400, 'BadCollapseId'), invalid],
    ['has had too many', refusal(429, 'TooManyRequests'), { kind: 'deferred', reason: 'rate_limited' }],
    ['takes no key', refusal(403, 'InvalidProviderToken'), { kind: 'deferred', reason: 'other' }],
    ['finds our token too old', refusal(403, 'ExpiredProviderToken'), { kind: 'deferred', reason: 'other' }],
    ['is overloaded', refusal(503, 'ServiceUnavailable'), { kind: 'deferred', reason: 'other' }],
    ['has a fault', refusal(500, 'InternalServerError'), { kind: 'deferred', reason: 'other' }],
    ['does not process it', 'refuse', { kind: 'postponed' }],
    ['does not answer', 'reset', { kind: 'unknown' }],
  ])('lives or dies by what the other says: it %s', async (_what, answer, outcome) => {
    world.proven.add(credentials.id);
    live.answerBy(() => unknown);
    development.answerBy(() => answer);
    share = sharing('the same');
    const result = await handOff();
    expect(result).toMatchObject(outcome);
    expect(result).not.toHaveProperty('environment');
    expect(counted.confirmed).toBe(1);
  });

  test('lives while the other cannot be reached, which is no fault of the account', async () => {
    world.proven.add(credentials.id);
    live.answerBy(() => unknown);
    await development.stop();
    expect(await handOff()).toMatchObject({ kind: 'deferred', reason: 'other' });
  });

  test('is tried in the other after an abort too, since the hand-off is confirmed', async () => {
    const stopping = new AbortController();
    live.answerBy(() => {
      stopping.abort(new Error('shutting down'));
      return unknown;
    });
    expect(await handOff({ signal: stopping.signal })).toMatchObject({ environment: 'sandbox' });
  });
});

describe('our token', () => {
  test('is signed by the key of the team, for the time at which it is made', async () => {
    await handOff();
    expect(asked).toEqual([{ credentials: { organizationId: 'o', id: credentials.id }, refused: null }]);
    const token = bearersOf(live)[0]!.slice('bearer '.length);
    const [header, claims, signature] = token.split('.') as [string, string, string];
    const key = { key: createPublicKey(publicKey), dsaEncoding: 'ieee-p1363' } as const;
    const signed = Buffer.from(`${header}.${claims}`);
    expect(verify('sha256', signed, key, Buffer.from(signature, 'base64url'))).toBe(true);
    expect(JSON.parse(Buffer.from(header, 'base64url').toString())).toMatchObject({
      alg: 'ES256',
      kid: credentials.keyId,
    });
    expect(JSON.parse(Buffer.from(claims, 'base64url').toString())).toEqual({
      iss: credentials.teamId,
      iat: Math.floor(world.clock.nowMs() / 1_000),
    });
  });

  test('is asked for once in 50 minutes by all pushes of a team, and by each team', async () => {
    await Promise.all(Array.from({ length: 20 }, () => handOff()));
    world.clock.advance(50 * minuteMs - 1);
    await handOff();
    expect(asked).toHaveLength(1);
    world.clock.advance(1);
    await Promise.all(Array.from({ length: 20 }, () => handOff()));
    expect(asked).toHaveLength(2);
    await handOff({ credentials: { ...credentials, id: 'of another organization' } });
    expect(asked).toHaveLength(3);
    expect(new Set(bearersOf(live)).size).toBe(3);
  });

  test('that was made earlier is asked for when it is 50 minutes old, and one of the future at once', async () => {
    share = () => Promise.resolve({ token: 'old', madeAt: dateOf(world.clock.nowMs() - 49 * minuteMs) });
    await handOff();
    world.clock.advance(minuteMs);
    await handOff();
    expect(asked).toHaveLength(2);
    world.clock.setWallTime(world.clock.nowMs() - 120 * minuteMs);
    await handOff();
    expect(asked).toHaveLength(3);
  });

  test('that is called expired is asked for again, and the push made once more under the same confirmation', async () => {
    share = (_of, _sign, refused) => sharing(refused === null ? 'first' : 'second')();
    live.answerBy(({ headers }) =>
      headers.authorization === 'bearer first' ? refusal(403, 'ExpiredProviderToken') : taken,
    );
    expect(await handOff()).toMatchObject({ kind: 'accepted' });
    expect(bearersOf(live)).toEqual(['bearer first', 'bearer second']);
    expect(asked.map(({ refused }) => refused)).toEqual([null, 'first']);
    expect(counted.confirmed).toBe(1);
    await handOff();
    expect(asked).toHaveLength(2);
  });

  test('that is called expired and is too young to be replaced is the fault of the account', async () => {
    share = sharing('young');
    live.answerBy(() => refusal(403, 'ExpiredProviderToken'));
    expect(await handOff()).toMatchObject(unavailable);
    expect(bearersOf(live)).toEqual(['bearer young']);
  });

  test('that is called expired twice is the fault of the account', async () => {
    share = (_of, _sign, refused) => sharing(refused === null ? 'first' : 'second')();
    live.answerBy(() => refusal(403, 'ExpiredProviderToken'));
    expect(await handOff()).toMatchObject(unavailable);
    expect([live.requests.length, counted.confirmed]).toEqual([2, 1]);
  });

  test('that cannot be asked for fails the hand-off before it is confirmed, and never after', async () => {
    const away = new Error('the database is away');
    share = () => Promise.reject(away);
    await expect(handOff()).rejects.toBe(away);
    expect(counted.confirmed).toBe(0);
    share = (_of, _sign, refused) => (refused === null ? sharing('first')() : Promise.reject(away));
    live.answerBy(() => refusal(403, 'ExpiredProviderToken'));
    expect(await handOff()).toMatchObject({ ...unavailable, reply: { diagnostic: 'ExpiredProviderToken' } });
  });

  test('of credentials that were replaced is none: the push comes back with others', async () => {
    share = () => Promise.resolve(null);
    expect(await handOff()).toMatchObject({ kind: 'postponed', retryAfterMs: 30_000 });
    expect([live.connections(), counted.confirmed]).toEqual([0, 0]);
  });

  test('is not asked for with a key that cannot be read', async () => {
    expect(await handOff({ credentials: { ...credentials, privateKey: '' } })).toMatchObject(unavailable);
    expect(asked).toEqual([]);
  });

  test('is not waited for by a hand-off that is aborted', async () => {
    share = () => new Promise(() => undefined);
    const stopping = new AbortController();
    const aborted = handOff({ signal: stopping.signal });
    const reason = new Error('shutting down');
    stopping.abort(reason);
    await expect(aborted).rejects.toBe(reason);
    await expect(handOff({ signal: stopping.signal })).rejects.toBe(reason);
    expect(asked).toHaveLength(1);
  });
});

describe('a connection', () => {
  test('takes one request until one shows that our token is good, and then as many as there are', async () => {
    let underWay = 0;
    let releaseFirst = (): void => undefined;
    let releaseOthers = (): void => undefined;
    const first = new Promise<void>((resolve) => (releaseFirst = resolve));
    const others = new Promise<void>((resolve) => (releaseOthers = resolve));
    live.answerBy(async ({ connection }) => {
      if (connection !== live.requests[0]!.connection) return taken;
      underWay += 1;
      if (underWay === 10) releaseOthers();
      await (underWay === 1 ? first : others);
      return taken;
    });
    const arrived = live.nextRequest();
    const outcomes = Array.from({ length: 10 }, () => handOff());
    await arrived;
    // Another team's connection is made and used meanwhile, which takes longer than requests on one that is there.
    await handOff({ credentials: { ...credentials, id: 'of another organization' } });
    expect([underWay, counted.confirmed]).toEqual([1, 2]);
    releaseFirst();
    expect((await Promise.all(outcomes)).map(({ kind }) => kind)).toEqual(Array(10).fill('accepted'));
    expect(new Set(connectionsOf(live)).size).toBe(2);
  });

  test('is open after an answer about a device, and not after one about the team', async () => {
    live.answerBy(() => refusal(403, 'InvalidProviderToken'));
    const refused = await Promise.all(Array.from({ length: 5 }, () => handOff()));
    expect(refused.map(({ kind }) => kind)).toEqual(['deferred', ...Array<string>(4).fill('postponed')]);
    expect([live.requests.length, counted.confirmed]).toEqual([1, 1]);
    live.answerBy(() => refusal(410, 'Unregistered'));
    const gone = await Promise.all(Array.from({ length: 5 }, () => handOff()));
    expect(gone.map(({ kind }) => kind)).toEqual(Array<string>(5).fill('rejected'));
  });

  test('is tried by the next if the first was not to be sent', async () => {
    const refused = new Error('the claim is lost');
    const ends = await Promise.allSettled([
      handOff({ confirm: () => Promise.reject(refused) }),
      ...Array.from({ length: 3 }, () => handOff()),
    ]);
    expect(ends.map(({ status }) => status)).toEqual(['rejected', 'fulfilled', 'fulfilled', 'fulfilled']);
    expect(live.requests).toHaveLength(3);
  });

  test('that is being tried is not waited for by a hand-off that is aborted', async () => {
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    live.answerBy(async () => {
      await released;
      return taken;
    });
    const arrived = live.nextRequest();
    const first = handOff();
    await arrived;
    const stopping = new AbortController();
    const second = handOff({ signal: stopping.signal });
    const reason = new Error('shutting down');
    stopping.abort(reason);
    await expect(second).rejects.toBe(reason);
    release();
    expect(await first).toMatchObject({ kind: 'accepted' });
    expect(counted.confirmed).toBe(1);
  });

  test('is of one team alone', async () => {
    await handOff();
    await handOff({ credentials: { ...credentials, id: 'of another organization' } });
    await handOff();
    expect(connectionsOf(live)).toEqual([0, 1, 0]);
  });

  test.each([
    [403, 'UnrelatedKeyIdInToken'],
    [429, 'TooManyProviderTokenUpdates'],
  ])('that answers %i %s is left, with the same token', async (status, reason) => {
    await handOff();
    live.answerBy(() => refusal(status, reason));
    await handOff();
    live.answerBy(() => taken);
    await handOff();
    expect(connectionsOf(live)).toEqual([0, 0, 1]);
    expect(new Set(bearersOf(live)).size).toBe(1);
  });

  test('that is left is left once, by however many that were under way on it', async () => {
    await handOff();
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    let underWay = 0;
    live.answerBy(async ({ connection }) => {
      if (connection !== live.requests[0]!.connection) return taken;
      underWay += 1;
      if (underWay === 2) await released;
      return refusal(403, 'UnrelatedKeyIdInToken');
    });
    const [quick, slow] = [handOff(), handOff()];
    await quick;
    await handOff();
    release();
    expect(await slow).toMatchObject({ kind: 'postponed' });
    await handOff();
    expect(connectionsOf(live)).toEqual([0, 0, 0, 1, 1]);
  });

  test.each<[PeerAnswer, object]>([
    ['reset', { kind: 'unknown' }],
    ['cut', { kind: 'unknown' }],
    ['refuse', { kind: 'postponed', retryAfterMs: 1_000 }],
  ])('on which a request ends in %s says what may have become of it', async (answer, outcome) => {
    live.answerBy(() => answer);
    expect(await handOff()).toMatchObject(outcome);
    expect(counted.confirmed).toBe(1);
  });

  test('that cannot be had is the fault of the service, and nothing is confirmed', async () => {
    await live.stop();
    expect(await handOff()).toMatchObject({ ...unavailable, reply: { remote: 'api.push.apple.com' } });
    expect(counted.confirmed).toBe(0);
  });

  test('to a service that is slow takes 250 pushes at once, and the other environment as many as there are', async () => {
    const release: (() => void)[] = [];
    await handOff();
    live.answerBy(
      () =>
        new Promise((resolve) => {
          release.push(() => {
            resolve(taken);
          });
        }),
    );
    const held = Array.from({ length: 250 }, () => handOff());
    while (release.length < 250) await live.nextRequest();
    world.clock.advance(3_001);
    expect(await handOff()).toMatchObject({
      kind: 'postponed',
      reply: { remote: 'api.push.apple.com', diagnostic: 'its push service is slow' },
    });
    expect(await handOff({ target: { ...target, environment: 'sandbox' } })).toMatchObject({
      kind: 'accepted',
    });
    for (const end of release.splice(0)) end();
    expect((await Promise.all(held)).map(({ kind }) => kind)).toEqual(Array(250).fill('accepted'));
    live.answerBy(() => taken);
    expect(await handOff()).toMatchObject({ kind: 'accepted' });
  });

  test('is probed in both environments, without a request', async () => {
    expect(await service.probe()).toBeNull();
    expect([live.connections(), development.connections()]).toEqual([1, 1]);
    expect([...live.requests, ...development.requests]).toEqual([]);
    await development.stop();
    expect(await service.probe()).toBe('api.sandbox.push.apple.com: ECONNREFUSED');
  });
});

describe('connections', () => {
  const request = { method: 'POST', path: '/', headers: {}, body: Buffer.from('') } as const;
  const permit = () => ({ confirm: () => Promise.resolve(), signal: new AbortController().signal });

  /** How many clients were made and closed. */
  function arrange(limit?: number) {
    const clients = { made: 0, closed: 0 };
    const connections = openApnsConnections(
      {
        clock: world.clock,
        createClient: (origin) => {
          clients.made += 1;
          const client = world.tools.createClient(origin);
          return {
            ...client,
            close: () => {
              clients.closed += 1;
              return client.close();
            },
          };
        },
      },
      limit,
    );
    const ask = (credentialsId: string) =>
      connections.exchange({ credentialsId, origin: production }, request, permit(), () => 'proven');
    return { clients, connections, ask };
  }

  test('beyond the limit take the place of the one that was used longest ago, and end what it has under way', async () => {
    const { clients, connections, ask } = arrange(2);
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    live.answerBy(async () => {
      await released;
      return taken;
    });
    const arrived = live.nextRequest();
    const first = ask('a');
    await arrived;
    live.answerBy(() => taken);
    await ask('b');
    await ask('c');
    expect(clients).toEqual({ made: 3, closed: 1 });
    release();
    expect(await first).toMatchObject({ status: 200 });
    await ask('b');
    await ask('c');
    expect(clients).toEqual({ made: 3, closed: 1 });
    await connections.close();
    expect(clients).toEqual({ made: 3, closed: 3 });
  });

  test('are closed when nothing has been sent for two hours', async () => {
    const { clients, connections, ask } = arrange();
    await ask('a');
    await ask('b');
    world.clock.advance(110 * minuteMs);
    await ask('b');
    world.clock.advance(20 * minuteMs);
    expect(clients).toEqual({ made: 2, closed: 1 });
    world.clock.advance(120 * minuteMs);
    expect(clients).toEqual({ made: 2, closed: 2 });
    await connections.close();
  });
});
