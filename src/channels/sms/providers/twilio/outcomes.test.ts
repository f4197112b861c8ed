import fc from 'fast-check';
import { expect, test } from 'vitest';
import { failureOf, listedCodes } from './failures.ts';
import { outcomeOf } from './outcomes.ts';

const sid = `SM${'0123456789abcdef'.repeat(2)}`;
const remote = 'api.twilio.com';

function answered(status: number, body: unknown, retryAfter: string | null = null) {
  const text = typeof body === 'string' || body === null ? body : JSON.stringify(body);
  const headers = retryAfter === null ? {} : { 'retry-after': retryAfter };
  return outcomeOf({ kind: 'answered', status, headers, body: text }, remote);
}

function refused(status: number, code: number) {
  return answered(status, { code, message: 'No.', more_info: 'https://…', status });
}

test('an answer that names the message is accepted', () => {
  expect(answered(201, { sid, status: 'queued', error_code: null })).toEqual({
    kind: 'accepted',
    providerMessageId: sid,
    reply: { code: 201, enhancedCode: null, diagnostic: 'HTTP status 201', remote },
  });
});

test.each([
  ['nothing', ''],
  ['a body that did not arrive', null],
  ['a page of a proxy', '<html><body>Welcome to the hotel</body></html>'],
  ['half an object', `{"sid":"${sid}"`],
  ['no name', { status: 'queued' }],
  ['an odd name', { sid: 'SM1' }],
  ['a name that is no text', { sid: [sid] }],
  ['a list', [{ sid }]],
  ['null', 'null'],
])('a success with %s is uncertain', (_, body) => {
  expect(answered(201, body).kind).toBe('unknown');
});

test.each([
  [400, 21211, 'rejected', 'unknown_subscriber'],
  [400, 21408, 'rejected', 'sender_rejected'],
  [403, 21408, 'rejected', 'sender_rejected'],
  [400, 21606, 'rejected', 'sender_rejected'],
  [400, 21610, 'rejected', 'blocked'],
  [400, 21612, 'rejected', 'sender_rejected'],
  [400, 21614, 'rejected', 'unknown_subscriber'],
  [400, 21617, 'rejected', 'invalid_message'],
  [400, 30007, 'rejected', 'spam'],
  [400, 21611, 'deferred', 'rate_limited'],
  [429, 21611, 'deferred', 'rate_limited'],
  [429, 20429, 'deferred', 'rate_limited'],
  [400, 20429, 'deferred', 'rate_limited'],
  [401, 20003, 'deferred', 'provider_unavailable'],
  // A refusal of the credentials says nothing of the text.
  [401, 21211, 'deferred', 'provider_unavailable'],
  [403, 20003, 'deferred', 'provider_unavailable'],
  [404, 20404, 'deferred', 'provider_unavailable'],
  [400, 21609, 'deferred', 'provider_unavailable'],
  [400, 21701, 'deferred', 'provider_unavailable'],
  [400, 29999, 'deferred', 'other'],
])('%i with the error %i is %s as %s', (status, code, kind, reason) => {
  expect(refused(status, code)).toMatchObject({ kind, reason, reply: { code, diagnostic: 'No.' } });
});

test.each([
  [301, 'provider_unavailable'],
  [307, 'provider_unavailable'],
  [400, 'other'],
  [401, 'provider_unavailable'],
  [402, 'provider_unavailable'],
  [403, 'provider_unavailable'],
  [404, 'provider_unavailable'],
  [405, 'provider_unavailable'],
  [408, 'other'],
  [413, 'other'],
  [418, 'other'],
  [429, 'rate_limited'],
])('%i without words is put off as %s', (status, reason) => {
  for (const body of [null, '', '<html></html>', '{}', '{"code":"21211"}', '{"code":1e999}']) {
    const reply = { code: status, diagnostic: `HTTP status ${status}` };
    expect(answered(status, body)).toMatchObject({ kind: 'deferred', reason, reply });
  }
});

test.each([500, 501, 502, 503, 504, 520, 599])('after %i a text may have been taken', (status) => {
  expect(refused(status, 20500).kind).toBe('unknown');
  // Not even an error that is listed changes it: the server itself does not know how far it came.
  expect(refused(status, 21211).kind).toBe('unknown');
});

test.each([
  ['0', 1_000],
  ['1', 1_000],
  ['30', 30_000],
  ['3600', 3_600_000],
  ['999999999', 3_600_000],
  ['9999999999', 60_000],
  ['-1', 60_000],
  ['Sat, 21 Nov 2026 12:00:00 GMT', 60_000],
])('Retry-After %j means %i ms, with 429 and with 503', (retryAfter, retryAfterMs) => {
  expect(answered(429, {}, retryAfter)).toMatchObject({ reason: 'rate_limited', retryAfterMs });
  expect(answered(503, {}, retryAfter)).toMatchObject({ reason: 'provider_unavailable', retryAfterMs });
  expect(answered(500, {}, retryAfter).kind).toBe('unknown');
});

test('429 without Retry-After leaves the time to the caller', () => {
  expect(answered(429, {})).not.toHaveProperty('retryAfterMs');
});

/** After Twilio's list of errors: what each is for the one who sent the text. */
const meanings: readonly (readonly [kind: string, failure: string, codes: readonly number[]])[] = [
  ['unavailable', 'sender_rejected', [10001, 20003, 20005, 20006, 20008, 20403, 21701, 21705, 30002]],
  ['unavailable', 'other', [20004, 20404, 21609, 21730]],
  ['deferred', 'rate_limited', [20429, 21611, 30001, 30017, 30022, 30023, 30027, 30454]],
  ['rejected', 'unknown_subscriber', [21211, 21214, 21217, 21265, 21268, 21604, 21614, 21635, 30005, 30006]],
  [
    'rejected',
    'sender_rejected',
    [
      21212, 21219, 21266, 21267, 21408, 21601, 21603, 21606, 21607, 21608, 21612, 21616, 21659, 21660, 21661,
      21703, 21704, 21709, 21711, 21712, 30018, 30024, 30032, 30033, 30034, 30035, 30037, 30040, 30041,
    ],
  ],
  ['rejected', 'blocked', [21610, 30004]],
  ['rejected', 'invalid_message', [21602, 21605, 21617, 21618, 21619, 21658, 30019]],
  ['rejected', 'unreachable', [30003, 30046]],
  ['rejected', 'spam', [30007, 30038, 30450, 30453, 30485]],
  ['rejected', 'other', [30008, 30010, 30410, 30500]],
  ['rejected', 'expired', [30036]],
];

test.each(meanings)('is %s for %s: %j', (kind, failure, codes) => {
  for (const code of codes)
    expect([code, failureOf(code)]).toEqual([code, expect.objectContaining({ kind, failure })]);
});

test('no code has a meaning that is not listed here', () => {
  expect(listedCodes.toSorted()).toEqual(meanings.flatMap(([, , codes]) => codes).toSorted());
});

test('each code is listed once, with words of its own', () => {
  expect(new Set(listedCodes).size).toBe(listedCodes.length);
  for (const code of listedCodes) expect(failureOf(code)?.words).toMatch(/^[A-Z].{5,80}[^.]$/);
});

test('whatever the far side answers, it becomes an outcome with words that can be stored', () => {
  const bodies = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 600 }),
    fc.json(),
    fc
      .record({ sid: fc.anything(), code: fc.anything(), message: fc.string({ unit: 'binary' }) })
      .map((body) => {
        try {
          return JSON.stringify(body);
        } catch {
          return '';
        }
      }),
    fc.constant(null),
  );
  fc.assert(
    fc.property(
      fc.integer({ min: 0, max: 999 }),
      bodies,
      fc.option(fc.string()),
      (status, body, retryAfter) => {
        const outcome = answered(status, body, retryAfter);
        expect(outcome.reply?.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
        expect(outcome.kind === 'accepted' && (status < 200 || status > 299)).toBe(false);
      },
    ),
  );
});
