import fc from 'fast-check';
import { expect, test } from 'vitest';
import { describeError, listedCodes, meaningOf, outcomeOf } from './answers.ts';
import { readGraphError } from './graph-body.ts';

const remote = 'graph.facebook.com';

function refused(
  code: number,
  { status = 400, subcode, transient }: { status?: number; subcode?: number; transient?: boolean } = {},
) {
  const error = {
    ...{ message: `(#${code}) No.`, type: 'OAuthException', code, error_subcode: subcode },
    ...{ is_transient: transient, error_data: { messaging_product: 'whatsapp', details: 'Because.' } },
    fbtrace_id: 'AXsgnV2Cm3Z',
  };
  return outcomeOf(
    { kind: 'answered', status, headers: {}, body: JSON.stringify({ error }) },
    { to: '+4915112345678', remote },
  );
}

/** What each code makes of a hand-off, and of a message that was accepted before. */
const expected: [number, string, string | null, string, (string | null)?][] = [
  [0, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [1, 'deferred', 'other', 'other'],
  [2, 'deferred', 'provider_unavailable', 'other'],
  [3, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [4, 'postponed', null, 'rate_limited'],
  [10, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [33, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [100, 'rejected', 'invalid_message', 'invalid_message', 'invalid_message'],
  [190, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [200, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [299, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [368, 'deferred', 'provider_unavailable', 'sender_rejected', 'campaigns_held'],
  [80007, 'postponed', null, 'rate_limited'],
  [130429, 'postponed', null, 'rate_limited'],
  [130472, 'rejected', 'blocked', 'blocked'],
  [130497, 'rejected', 'sender_rejected', 'sender_rejected'],
  [131000, 'deferred', 'other', 'other'],
  [131005, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [131008, 'rejected', 'invalid_message', 'invalid_message', 'invalid_message'],
  [131009, 'rejected', 'invalid_message', 'invalid_message', 'invalid_message'],
  [131016, 'deferred', 'provider_unavailable', 'other'],
  [131021, 'rejected', 'invalid_message', 'invalid_message'],
  [131026, 'rejected', 'unreachable', 'unreachable', 'unreachable'],
  [131030, 'rejected', 'other', 'other'],
  [131031, 'deferred', 'provider_unavailable', 'sender_rejected', 'campaigns_held'],
  [131037, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [131042, 'deferred', 'provider_unavailable', 'sender_rejected', 'campaigns_held'],
  [131044, 'deferred', 'provider_unavailable', 'sender_rejected', 'campaigns_held'],
  [131045, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [131047, 'rejected', 'other', 'other', 'own_fault'],
  [131048, 'deferred', 'rate_limited', 'rate_limited', 'campaigns_held'],
  [131049, 'rejected', 'blocked', 'blocked'],
  [131050, 'rejected', 'blocked', 'blocked', 'stopped_marketing'],
  [131051, 'rejected', 'invalid_message', 'invalid_message'],
  [131052, 'rejected', 'invalid_message', 'invalid_message'],
  [131053, 'rejected', 'invalid_message', 'invalid_message'],
  [131056, 'postponed', null, 'rate_limited'],
  [131057, 'deferred', 'provider_unavailable', 'other'],
  [131062, 'rejected', 'invalid_message', 'invalid_message'],
  [131063, 'rejected', 'sender_rejected', 'sender_rejected', 'marketing_refused'],
  [131064, 'deferred', 'rate_limited', 'rate_limited', 'campaigns_held'],
  [132000, 'rejected', 'invalid_message', 'invalid_message', 'invalid_message'],
  [132001, 'rejected', 'template_unavailable', 'template_unavailable', null],
  [132005, 'rejected', 'invalid_message', 'invalid_message'],
  [132007, 'rejected', 'template_unavailable', 'template_unavailable', 'rejected'],
  [132012, 'rejected', 'invalid_message', 'invalid_message', 'invalid_message'],
  [132015, 'deferred', 'template_unavailable', 'template_unavailable', 'paused'],
  [132016, 'rejected', 'template_unavailable', 'template_unavailable', 'disabled'],
  [132018, 'rejected', 'invalid_message', 'invalid_message', 'invalid_message'],
  [132068, 'rejected', 'other', 'other'],
  [132069, 'rejected', 'other', 'other'],
  [133004, 'deferred', 'provider_unavailable', 'other'],
  [133006, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [133010, 'deferred', 'provider_unavailable', 'sender_rejected'],
  [135000, 'deferred', 'other', 'other'],
  [2494100, 'deferred', 'provider_unavailable', 'other'],
];

test.each(expected)('%i is %s %s as an answer, and %s in a status', (code, kind, reason, failure, tells) => {
  for (const status of [400, 500]) {
    const { outcome } = refused(code, { status });
    expect([outcome.kind, 'reason' in outcome ? outcome.reason : null]).toEqual([kind, reason]);
    const { finding } = outcome;
    expect(finding?.kind === 'template' ? finding.state : finding?.kind).toBe(tells);
    expect(outcome.reply).toMatchObject({
      code,
      remote,
      diagnostic: `(#${code}) No.: Because. (trace AXsgnV2Cm3Z)`,
    });
  }
  expect(meaningOf({ code, subcode: null })?.failure).toBe(failure);
});

test('every code that has a row is in this list', () => {
  const ranges = [200, 299];
  expect(expected.map(([code]) => code).filter((code) => !ranges.includes(code))).toEqual(
    [...listedCodes].sort((a, b) => a - b),
  );
});

test.each([
  [4, 60_000],
  [80007, 60_000],
  [130429, 1_000],
  [131048, 3_600_000],
  [131056, 6_000],
  [132015, 1_800_000],
])('after %i there is a pause of %i ms', (code, retryAfterMs) => {
  expect(refused(code).outcome).toMatchObject({ retryAfterMs });
});

test('errors without a reason are tried four times at most, and others as long as the policy says', () => {
  const attemptsOf = (code: number) => refused(code, { status: 500 }).outcome.attemptsMax;
  expect([131000, 135000, 1, 131048].map(attemptsOf)).toEqual([4, 4, undefined, undefined]);
});

test('an object that is not there is the fault of the account, and no message fails for it', () => {
  expect(refused(100, { subcode: 33 }).outcome).toMatchObject({
    kind: 'deferred',
    reason: 'provider_unavailable',
  });
  expect(refused(100, { subcode: 2018001 }).outcome.kind).toBe('rejected');
});

test('what is wrong with a message is told in our own words, since those of WhatsApp may repeat its values', () => {
  expect(refused(132012).outcome.finding).toEqual({
    kind: 'invalid_message',
    words: 'A parameter has a wrong form',
  });
  expect(refused(100, { subcode: 33 }).outcome.finding).toBeUndefined();
});

test.each([
  [139999, {}, 'rejected'],
  [131999, { status: 500 }, 'deferred'],
  [138000, { transient: true }, 'deferred'],
  [613, { status: 429 }, 'postponed'],
  [-1, {}, 'deferred'],
])('the unknown code %i with %j is %s', (code, more, kind) => {
  expect(refused(code, more).outcome.kind).toBe(kind);
});

test.each([{ code: '131026' }, { code: 1.5 }, { code: -1, message: 7 }, { code: null }, {}])(
  'an error that reads %j has no code',
  (error) => {
    expect(readGraphError(error).code).toBeNull();
  },
);

test('whatever an answer contains, there is an outcome with words fit to be stored', () => {
  const json = fc.oneof(fc.json(), fc.string(), fc.constant(null));
  fc.assert(
    fc.property(
      fc.integer({ min: 100, max: 599 }),
      json,
      fc.dictionary(fc.string(), fc.string()),
      (status, body, headers) => {
        const { outcome } = outcomeOf({ kind: 'answered', status, headers, body }, { to: '+49', remote });
        expect(outcome.kind).not.toBe('accepted');
        expect(outcome.reply?.diagnostic).toMatch(/^\P{Cc}{1,500}$/u);
      },
    ),
  );
});

test('of a long or hostile text, what is told is one short line that still ends in the trace', () => {
  const message = `No\u0000\r\n\u202e${'x'.repeat(100_000)}`;
  const { outcome } = outcomeOf(
    {
      kind: 'answered',
      status: 400,
      headers: { 'x-fb-trace-id': 'Bz5iGI1bQgF' },
      body: JSON.stringify({ error: { code: 100, message } }),
    },
    { to: '+49', remote },
  );
  expect(outcome.reply?.diagnostic).toMatch(/^(?:\d+ )?No x+ \(trace Bz5iGI1bQgF\)$/);
  expect(outcome.reply?.diagnostic.length).toBeLessThanOrEqual(500);
});

test('a trace that could be anything else is none', () => {
  const body = JSON.stringify({ error: { code: 100, message: 'No', fbtrace_id: 'a) <b>' } });
  const { outcome } = outcomeOf({ kind: 'answered', status: 400, headers: {}, body }, { to: '+49', remote });
  expect(outcome.reply?.diagnostic).not.toContain('trace');
});

test('an error without words has ours', () => {
  expect(describeError(readGraphError({ code: 131026 }))).toBe('131026 Cannot be reached on WhatsApp');
});
