import { createPublicKey, generateKeyPairSync, verify } from 'node:crypto';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Http2Peer, PeerAnswer, PeerRequest } from '../../../../../../test/support/http2-peer.ts';
import { aPush } from '../../../../../../test/support/push-provider-conformance.ts';
import {
  handingOffTo,
  type ServicePeers,
  startServicePeers,
} from '../../../../../../test/support/push-service.ts';
import type { PushOutcome } from '../../../provider.ts';
import type { PushService } from '../service.ts';
import { outcomeOf } from './answers.ts';
import { createFcmService, type FcmHandOff } from './fcm.ts';

const origin = 'https://fcm.googleapis.com';
const tokenOrigin = 'https://oauth2.googleapis.com';
const minuteMs = 60_000;

/** Made once: an RSA key takes longer than most tests. */
const { privateKey, publicKey } = generateKeyPairSync('rsa', {
  modulusLength: 2_048,
  privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  publicKeyEncoding: { type: 'spki', format: 'pem' },
});

const credentials: FcmHandOff['credentials'] = {
  id: 'credentials of Acme',
  platform: 'android',
  projectId: 'acme-shop',
  clientEmail: 'push@acme-shop.iam.gserviceaccount.com',
  privateKeyId: 'key 7',
  privateKey,
};
const target: FcmHandOff['target'] = { platform: 'android', token: 'cXyz:APA91b_-', isInstrumented: true };
const name = 'projects/acme-shop/messages/0:1700000000000000%a1b2c3';
const taken: PeerAnswer = { status: 200, body: { name } };

let world: ServicePeers;
let fcm: Http2Peer;
let google: Http2Peer;
let service: PushService<FcmHandOff>;
let handOff: ReturnType<typeof handingOffTo<FcmHandOff>>['handOff'];
let counted: { confirmed: number };
/** How many access tokens were given. */
let granted: number;

beforeEach(async () => {
  world = await startServicePeers([origin, tokenOrigin]);
  fcm = world.peers.get(origin)!;
  google = world.peers.get(tokenOrigin)!;
  service = createFcmService(world.tools);
  ({ handOff, counted } = handingOffTo(service, { target, credentials }));
  granted = 0;
  google.answerBy(grant);
  fcm.answerBy(() => taken);
});
afterEach(async () => {
  await service.close();
  await world.stop();
});

const grant = (): PeerAnswer => ({
  status: 200,
  body: { access_token: `ya29.${(granted += 1)}`, expires_in: 3_600, token_type: 'Bearer' },
});

/** As FCM writes it. */
function refusal(
  code: number,
  status: string,
  { message = 'Refused.', details = [] as readonly object[] } = {},
): { status: number; body: object } {
  return { status: code, body: { error: { code, message, status, details } } };
}
const ofFcm = (errorCode: string) => ({
  '@type': 'type.googleapis.com/google.firebase.fcm.v1.FcmError',
  errorCode,
});
const violating = (field: string) => ({
  '@type': 'type.googleapis.com/google.rpc.BadRequest',
  fieldViolations: [{ field, description: 'Wrong.' }],
});
const exceeding = (subject: string, description = '') => ({
  '@type': 'type.googleapis.com/google.rpc.QuotaFailure',
  violations: [{ subject, description }],
});
const page = '<!DOCTYPE html>\n<html lang=en>\n  <title>Error 404 (Not Found)!!1</title>';
const tokenInvalid = 'The registration token is not a valid FCM registration token';

const bodyOf = (request: PeerRequest | undefined) =>
  JSON.parse(request!.body.toString('utf8')) as Record<string, unknown>;
const bearersOf = (peer: Http2Peer) => peer.requests.map(({ headers }) => headers.authorization);

describe('a push to an Android device', () => {
  test('goes to its project with what the notification says, and is named by FCM', async () => {
    const leftMs = 90 * minuteMs;
    const outcome = await handOff({ expiresAt: new Date(world.clock.nowMs() + leftMs + 999) });
    expect(outcome).toEqual({
      kind: 'accepted',
      providerMessageId: name,
      reply: { code: 200, enhancedCode: null, diagnostic: 'HTTP status 200', remote: 'fcm.googleapis.com' },
    });
    expect(fcm.requests).toHaveLength(1);
    const [request] = fcm.requests;
    expect(request).toMatchObject({ method: 'POST', path: '/v1/projects/acme-shop/messages:send' });
    expect(request!.headers).toMatchObject({
      authorization: 'Bearer ya29.1',
      'content-type': 'application/json',
    });
    const { messageId, content } = aPush();
    expect(bodyOf(request)).toEqual({
      message: {
        token: target.token,
        android: { priority: 'HIGH', ttl: '5400s' },
        data: {
          postillion_message_id: messageId,
          postillion_title: content.title,
          postillion_body: content.body,
        },
      },
    });
    expect(counted.confirmed).toBe(1);
    expect(world.proven).toEqual(new Set([credentials.id]));
  });

  test('whose app has no SDK is shown by the system, over what the same message showed before', async () => {
    await handOff({ target: { ...target, isInstrumented: false } });
    const { messageId, content } = aPush();
    expect(bodyOf(fcm.requests[0])).toMatchObject({
      message: {
        notification: { title: content.title, body: content.body },
        // No longer than FCM stores anything.
        android: { ttl: '2419200s', notification: { tag: messageId } },
      },
    });
  });

  test('asks nobody if the id of its project would lead elsewhere', async () => {
    for (const projectId of ['a/../b', 'a%2f', '..', 'a b', 'A', 'a?b', 'a#b', '', 'a\r\nb']) {
      const outcome = await handOff({ credentials: { ...credentials, projectId } });
      expect(outcome).toMatchObject({ kind: 'deferred', reason: 'provider_unavailable' });
    }
    expect([fcm.requests, google.requests, counted.confirmed]).toEqual([[], [], 0]);
    await handOff({ credentials: { ...credentials, projectId: 'example.com:shop' } });
    expect(fcm.requests[0]!.path).toBe('/v1/projects/example.com:shop/messages:send');
  });
});

const unavailable = { kind: 'deferred', reason: 'provider_unavailable' };

describe('FCM answers', () => {
  test.each<[string, { status: number; body: object | string }, object]>([
    [
      'the app was removed',
      refusal(404, 'NOT_FOUND', { details: [ofFcm('UNREGISTERED')] }),
      { kind: 'rejected', reason: 'unregistered' },
    ],
    [
      'a token of another project',
      refusal(403, 'PERMISSION_DENIED', { details: [ofFcm('SENDER_ID_MISMATCH')] }),
      { kind: 'rejected', reason: 'invalid_token' },
    ],
    [
      'never a token',
      refusal(400, 'INVALID_ARGUMENT', { message: tokenInvalid, details: [ofFcm('INVALID_ARGUMENT')] }),
      { kind: 'rejected', reason: 'invalid_token' },
    ],
    [
      'never a token, by its field',
      refusal(400, 'INVALID_ARGUMENT', { details: [violating('message.token')] }),
      { kind: 'rejected', reason: 'invalid_token' },
    ],
    [
      'a message at fault',
      refusal(400, 'INVALID_ARGUMENT', {
        details: [ofFcm('INVALID_ARGUMENT'), violating('message.data[0].value')],
      }),
      { kind: 'rejected', reason: 'invalid_message' },
    ],
    [
      'a message at fault, without a code of FCM',
      refusal(400, 'INVALID_ARGUMENT', { details: [violating('message.android.ttl')] }),
      { kind: 'rejected', reason: 'invalid_message' },
    ],
    [
      'a message that is too large',
      refusal(400, 'INVALID_ARGUMENT', {
        message: 'Android message is too big',
        details: [ofFcm('INVALID_ARGUMENT'), violating('message')],
      }),
      { kind: 'rejected', reason: 'message_too_large' },
    ],
    [
      'a message that is too large, without a code of FCM',
      refusal(400, 'INVALID_ARGUMENT', { message: 'Android message is too big' }),
      { kind: 'rejected', reason: 'message_too_large' },
    ],
    [
      'a request that is too large',
      { status: 413, body: page },
      { kind: 'rejected', reason: 'message_too_large' },
    ],
    [
      'credentials that the project lacks',
      refusal(401, 'UNAUTHENTICATED', { details: [ofFcm('THIRD_PARTY_AUTH_ERROR')] }),
      { kind: 'rejected', reason: 'credentials' },
    ],
    ['an account that may not', refusal(403, 'PERMISSION_DENIED'), unavailable],
    ['an account that may not, as a page', { status: 403, body: page }, unavailable],
    ['no such project', refusal(404, 'NOT_FOUND'), unavailable],
    ['nothing there, as a page', { status: 404, body: page }, unavailable],
    ['nothing there, and no word', { status: 404, body: '' }, unavailable],
    [
      'another code of FCM',
      refusal(404, 'NOT_FOUND', { details: [ofFcm('UNSPECIFIED_ERROR')] }),
      unavailable,
    ],
    [
      'too much to one device',
      refusal(429, 'RESOURCE_EXHAUSTED', {
        details: [ofFcm('QUOTA_EXCEEDED'), exceeding('device:cXyz', 'Device message rate exceeded')],
      }),
      { kind: 'deferred', reason: 'rate_limited', retryAfterMs: 60_000 },
    ],
    [
      'too much to one device, without a code of FCM',
      refusal(429, 'RESOURCE_EXHAUSTED', { message: 'Device message rate exceeded.' }),
      { kind: 'deferred', reason: 'rate_limited', retryAfterMs: 60_000 },
    ],
    [
      'too much of a project',
      refusal(429, 'RESOURCE_EXHAUSTED', {
        details: [ofFcm('QUOTA_EXCEEDED'), exceeding('project:1', 'Message rate exceeded')],
      }),
      { kind: 'postponed', retryAfterMs: 60_000 },
    ],
    [
      'too much, without a code of FCM',
      refusal(429, 'RESOURCE_EXHAUSTED'),
      { kind: 'postponed', retryAfterMs: 60_000 },
    ],
    ['too much, as a page', { status: 429, body: page }, { kind: 'postponed', retryAfterMs: 60_000 }],
    [
      'a fault of theirs',
      refusal(500, 'INTERNAL', { details: [ofFcm('INTERNAL')] }),
      { kind: 'deferred', reason: 'other' },
    ],
    [
      'a fault of theirs, without a code of FCM',
      refusal(500, 'INTERNAL'),
      { kind: 'deferred', reason: 'other' },
    ],
    ['a fault on the way', { status: 502, body: page }, { kind: 'deferred', reason: 'other' }],
    [
      'away',
      refusal(503, 'UNAVAILABLE', { details: [ofFcm('UNAVAILABLE')] }),
      { ...unavailable, retryAfterMs: 10_000 },
    ],
    ['away, without a code of FCM', refusal(503, 'UNAVAILABLE'), { ...unavailable, retryAfterMs: 10_000 }],
    ['away, as a page', { status: 503, body: page }, { ...unavailable, retryAfterMs: 10_000 }],
    ['elsewhere', { status: 302, body: '' }, unavailable],
    ['no listed status', { status: 418, body: '' }, { kind: 'deferred', reason: 'other' }],
    ['a refusal as a page', { status: 400, body: page }, { kind: 'deferred', reason: 'other' }],
    ['taken, and no name', { status: 200, body: {} }, { kind: 'unknown' }],
    ['taken, as a page', { status: 200, body: page }, { kind: 'unknown' }],
  ])('%s', async (_what, answer, outcome) => {
    world.proven.add(credentials.id);
    fcm.answerBy(() => answer);
    const result = await handOff();
    expect(result).toMatchObject(outcome);
    expect(Object.keys(result).includes('retryAfterMs')).toBe('retryAfterMs' in outcome);
    expect([fcm.requests.length, counted.confirmed]).toEqual([1, 1]);
  });

  test.each([429, 500, 503, 401, 403])('%i, and after how long to come back', async (status) => {
    fcm.answerBy(() => ({ status, headers: { 'retry-after': '120' } }));
    expect(await handOff()).toMatchObject({ retryAfterMs: 120_000 });
  });

  test('say in their own words what is wrong', async () => {
    fcm.answerBy(() => refusal(403, 'PERMISSION_DENIED', { message: 'The API is\u0000disabled.' }));
    expect((await handOff()).reply).toEqual({
      code: 403,
      enhancedCode: null,
      diagnostic: 'PERMISSION_DENIED: The API is disabled.',
      remote: 'fcm.googleapis.com',
    });
  });

  test('that a token is of another project end no device before a push was taken with the credentials', async () => {
    const foreign = refusal(403, 'PERMISSION_DENIED', { details: [ofFcm('SENDER_ID_MISMATCH')] });
    fcm.answerBy(() => foreign);
    expect(await handOff()).toMatchObject({
      ...unavailable,
      // Such devices alone do not have the account taken for away.
      retryAfterMs: 60_000,
      reply: { code: 403, diagnostic: expect.stringMatching(/No push .* SENDER_ID_MISMATCH/) as string },
    });
    fcm.answerBy(() => taken);
    await handOff();
    fcm.answerBy(() => foreign);
    expect(await handOff()).toMatchObject({ kind: 'rejected', reason: 'invalid_token' });
    const others = { ...credentials, id: 'of another organization' };
    expect(await handOff({ credentials: others })).toMatchObject(unavailable);
  });

  test('whatever they are, end a device only in words of FCM, and are words that can be stored', () => {
    const codes = fc.constantFrom('UNREGISTERED', 'SENDER_ID_MISMATCH', 'INTERNAL', 'INVALID_ARGUMENT', '');
    const errors = fc
      .tuple(codes, fc.constantFrom('NOT_FOUND', 'INVALID_ARGUMENT', ''), fc.string({ unit: 'binary' }))
      .map(([code, status, message]) =>
        JSON.stringify({ error: { status, message, details: code === '' ? [] : [ofFcm(code)] } }),
      );
    const bodies = fc.oneof(errors, fc.string({ unit: 'binary' }), fc.json(), fc.constant(null));
    fc.assert(
      fc.property(fc.integer({ min: 100, max: 999 }), bodies, (status, body) => {
        const outcome: PushOutcome = outcomeOf(
          { kind: 'answered', status, headers: {}, body },
          { areCredentialsProven: true, remote: 'fcm.googleapis.com', random: 0 },
        );
        expect(outcome.reply!.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
        if (outcome.kind === 'accepted') expect(status).toBeLessThan(300);
        if (outcome.kind !== 'rejected') return;
        if (outcome.reason === 'unregistered') expect(body).toContain('"errorCode":"UNREGISTERED"');
        if (outcome.reason === 'invalid_token')
          expect(body).toMatch(/"SENDER_ID_MISMATCH"|registration token/);
      }),
    );
  });
});

describe('without an answer', () => {
  test.each<[PeerAnswer, object]>([
    ['reset', { kind: 'unknown' }],
    ['cut', { kind: 'unknown' }],
    ['refuse', { kind: 'postponed', retryAfterMs: 1_000 }],
  ])('a request that ends in %s', async (answer, outcome) => {
    fcm.answerBy(() => answer);
    expect(await handOff()).toMatchObject(outcome);
    expect(counted.confirmed).toBe(1);
  });

  test('a service that cannot be reached is away, and nothing is confirmed', async () => {
    await fcm.stop();
    expect(await handOff()).toMatchObject({ ...unavailable, reply: { remote: 'fcm.googleapis.com' } });
    expect(counted.confirmed).toBe(0);
  });

  test('a push whose confirmation fails is not sent', async () => {
    const refused = new Error('the claim is lost');
    await expect(handOff({ confirm: () => Promise.reject(refused) })).rejects.toBe(refused);
    expect(fcm.requests).toEqual([]);
  });
});

test('a service that is slow gets 250 pushes at once, and postpones others until it is fast again', async () => {
  const release: (() => void)[] = [];
  await handOff();
  fcm.answerBy(
    () =>
      new Promise((resolve) => {
        release.push(() => {
          resolve(taken);
        });
      }),
  );
  const held = Array.from({ length: 250 }, () => handOff());
  while (release.length < 250) await fcm.nextRequest();
  world.clock.advance(3_001);
  expect(await handOff()).toMatchObject({
    kind: 'postponed',
    reply: { remote: 'fcm.googleapis.com', diagnostic: 'its push service is slow' },
  });
  expect(counted.confirmed).toBe(251);
  for (const end of release.splice(0)) end();
  expect((await Promise.all(held)).map(({ kind }) => kind)).toEqual(Array(250).fill('accepted'));
  fcm.answerBy(() => taken);
  expect(await handOff()).toMatchObject({ kind: 'accepted' });
});

describe('the access token', () => {
  test('is asked for by an assertion that the service account signed, wherever its file says to', async () => {
    await handOff();
    const [request] = google.requests;
    expect(request).toMatchObject({ method: 'POST', path: '/token' });
    expect(request!.headers['content-type']).toBe('application/x-www-form-urlencoded');
    const form = new URLSearchParams(request!.body.toString());
    expect(form.get('grant_type')).toBe('urn:ietf:params:oauth:grant-type:jwt-bearer');
    const [header, claims, signature] = form.get('assertion')!.split('.') as [string, string, string];
    const signed = Buffer.from(`${header}.${claims}`);
    expect(
      verify('RSA-SHA256', signed, createPublicKey(publicKey), Buffer.from(signature, 'base64url')),
    ).toBe(true);
    expect(JSON.parse(Buffer.from(header, 'base64url').toString())).toEqual({
      alg: 'RS256',
      typ: 'JWT',
      kid: credentials.privateKeyId,
    });
    const iat = Math.floor(world.clock.nowMs() / 1_000);
    expect(JSON.parse(Buffer.from(claims, 'base64url').toString())).toEqual({
      iss: credentials.clientEmail,
      scope: 'https://www.googleapis.com/auth/firebase.messaging',
      aud: 'https://oauth2.googleapis.com/token',
      iat,
      exp: iat + 3_600,
    });
  });

  test('is one for all pushes of an account, and another for each account', async () => {
    await Promise.all(Array.from({ length: 40 }, () => handOff()));
    expect(google.requests).toHaveLength(1);
    await handOff({ credentials: { ...credentials, id: 'of another organization' } });
    expect(google.requests).toHaveLength(2);
    expect(new Set(bearersOf(fcm))).toEqual(new Set(['Bearer ya29.1', 'Bearer ya29.2']));
  });

  test('is renewed five minutes before its end, while pushes go on under the old one', async () => {
    await handOff();
    world.clock.advance(55 * minuteMs - 1);
    await handOff();
    expect(google.requests).toHaveLength(1);
    world.clock.advance(1);
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    google.answerBy(async () => {
      await released;
      return grant();
    });
    const asked = google.nextRequest();
    await Promise.all(Array.from({ length: 10 }, () => handOff()));
    await asked;
    expect(new Set(bearersOf(fcm))).toEqual(new Set(['Bearer ya29.1']));
    release();
    // Ends because the new token comes, or the test runs out of time.
    while (bearersOf(fcm).at(-1) !== 'Bearer ya29.2') await handOff();
    expect(google.requests).toHaveLength(2);
  });

  test('is used to its end if it cannot be renewed, and asked for again every ten seconds only', async () => {
    await handOff();
    google.answerBy(() => ({ status: 503 }));
    world.clock.advance(55 * minuteMs);
    const failed = google.nextRequest();
    await handOff();
    await failed;
    // Answers come in their order.
    await handOff({ credentials: { ...credentials, id: 'of another organization' } });
    await Promise.all(Array.from({ length: 10 }, () => handOff()));
    expect(google.requests).toHaveLength(3);
    world.clock.advance(10_000);
    await handOff();
    world.clock.advance(5 * minuteMs - 10_001);
    expect(await handOff()).toMatchObject({ kind: 'accepted' });
    world.clock.advance(1);
    expect(await handOff()).toMatchObject(unavailable);
    google.answerBy(grant);
    expect(await handOff()).toMatchObject({ kind: 'accepted' });
    expect(bearersOf(fcm).at(-1)).toBe('Bearer ya29.2');
  });

  test('that lives for a short time is not renewed at every push', async () => {
    google.answerBy(() => ({ status: 200, body: { access_token: 'short', expires_in: 240 } }));
    await handOff();
    world.clock.advance(2 * minuteMs - 1);
    await handOff();
    expect(google.requests).toHaveLength(1);
    world.clock.advance(2 * minuteMs + 1);
    await handOff();
    expect(google.requests).toHaveLength(2);
  });

  test('that FCM refuses is replaced once, and the push confirmed once', async () => {
    fcm.answerBy(({ headers }) =>
      headers.authorization === 'Bearer ya29.1' ? refusal(401, 'UNAUTHENTICATED') : taken,
    );
    const outcomes = await Promise.all(Array.from({ length: 10 }, () => handOff()));
    expect(new Set(outcomes.map(({ kind }) => kind))).toEqual(new Set(['accepted']));
    expect(counted.confirmed).toBe(10);
    expect(google.requests).toHaveLength(2);
  });

  test('that FCM refuses again is the fault of the account', async () => {
    fcm.answerBy(() => ({ status: 401, body: page }));
    expect(await handOff()).toMatchObject(unavailable);
    expect([fcm.requests.length, google.requests.length, counted.confirmed]).toEqual([2, 2, 1]);
  });

  test('that FCM refuses and Google does not replace ends the hand-off, which was confirmed', async () => {
    await handOff();
    fcm.answerBy(() => refusal(401, 'UNAUTHENTICATED'));
    google.answerBy(() => ({ status: 400, body: { error: 'invalid_grant' } }));
    expect(await handOff()).toMatchObject({ ...unavailable, reply: { remote: 'oauth2.googleapis.com' } });
    expect([fcm.requests.length, counted.confirmed]).toEqual([2, 2]);
  });

  test('is replaced for a hand-off that is aborted once it is confirmed', async () => {
    const stopping = new AbortController();
    fcm.answerBy(({ headers }) => {
      stopping.abort(new Error('shutting down'));
      return headers.authorization === 'Bearer ya29.1' ? refusal(401, 'UNAUTHENTICATED') : taken;
    });
    expect(await handOff({ signal: stopping.signal })).toMatchObject({ kind: 'accepted' });
  });

  test('is not waited for by a hand-off that is aborted, and goes to the others', async () => {
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    google.answerBy(async () => {
      await released;
      return grant();
    });
    const stopping = new AbortController();
    const asked = google.nextRequest();
    const aborted = handOff({ signal: stopping.signal });
    const other = handOff();
    await asked;
    const reason = new Error('shutting down');
    stopping.abort(reason);
    await expect(aborted).rejects.toBe(reason);
    expect(counted.confirmed).toBe(0);
    release();
    expect(await other).toMatchObject({ kind: 'accepted' });
    expect(google.requests).toHaveLength(1);
    await expect(handOff({ signal: stopping.signal })).rejects.toBe(reason);
  });

  test.each<[string, PeerAnswer, object]>([
    [
      'a key that was deleted',
      { status: 400, body: { error: 'invalid_grant', error_description: 'Invalid JWT Signature.' } },
      { code: 400, diagnostic: expect.stringMatching(/invalid_grant: Invalid JWT Signature\..*clock/) },
    ],
    [
      'no such account',
      { status: 401, body: { error: 'invalid_client' } },
      { code: 401, diagnostic: expect.stringContaining('knows no such') },
    ],
    [
      'an account that may not',
      { status: 403, body: { error: 'access_denied' } },
      { code: 403, diagnostic: expect.stringContaining('may not have') },
    ],
    [
      'an account that may not, in other words',
      { status: 401, body: { error: 'unauthorized_client' } },
      { code: 401, diagnostic: expect.stringContaining('may not have') },
    ],
    ['a page', { status: 404, body: page }, { code: 404, diagnostic: 'No access token: HTTP status 404.' }],
    ['too many', { status: 429 }, { code: 429 }],
    ['a fault', { status: 500 }, { code: 500 }],
    ['elsewhere', { status: 307, headers: { location: 'https://elsewhere.test/' } }, { code: 307 }],
    ['no token', { status: 200, body: { expires_in: 3_600 } }, { code: 200 }],
    ['no text', { status: 200, body: { access_token: 7 } }, { code: 200 }],
    ['a token that is none', { status: 200, body: { access_token: 'a\r\nb: c' } }, { code: 200 }],
    ['an answer cut off', 'cut', { code: null }],
    ['a request reset', 'reset', { code: null }],
    ['a request refused', 'refuse', { code: null }],
  ])('that is not given is the fault of the account: %s', async (_what, answer, reply) => {
    google.answerBy(() => answer);
    expect(await handOff()).toMatchObject({
      ...unavailable,
      reply: { remote: 'oauth2.googleapis.com', ...reply },
    });
    expect([fcm.requests, counted.confirmed]).toEqual([[], 0]);
  });

  test('that is not given for a while is asked for when Google says', async () => {
    google.answerBy(() => ({ status: 503, headers: { 'retry-after': '30' } }));
    expect(await handOff()).toMatchObject({ ...unavailable, retryAfterMs: 30_000 });
  });

  test('is not asked for with a key that cannot be read', async () => {
    expect(await handOff({ credentials: { ...credentials, privateKey: '' } })).toMatchObject(unavailable);
    expect(google.requests).toEqual([]);
  });
});

test('is reachable if both of its hosts are', async () => {
  expect(await service.probe()).toBeNull();
  expect([fcm.connections(), google.connections()]).toEqual([1, 1]);
  await google.stop();
  const other = createFcmService(world.tools);
  expect(await other.probe()).not.toBeNull();
  await other.close();
});
