import { expect, test } from 'vitest';
import { type Findings, isComplete, listIssues, nextCheckAtMs, updateFindings } from './findings.ts';
import { listExpectedRecords, type Observation, type RecordKind } from './records.ts';

const at = new Date('2026-11-21T12:00:00.000Z');
const settings = {
  name: 'example.com',
  returnPathSubdomain: 'send',
  trackingSubdomain: null,
  dkim: { selector: 'pst', publicKey: 'AAAA' },
};
const expected = listExpectedRecords(settings, { bounceHost: 'mail.host.test', trackingHost: 'host.test' });

const seen = (isAsExpected: boolean, ...found: string[]): Observation => ({
  kind: 'seen',
  found,
  isAsExpected,
});
const observe = (observation: Observation, before: Findings = {}) =>
  updateFindings(before, new Map<RecordKind, Observation>([['dkim', observation]]), at).dkim;

test('what was never there is pending, something else is failed, and what it should be is verified', () => {
  expect(observe(seen(false))).toEqual({ status: 'pending', found: [], checkedAt: at.toISOString() });
  expect(observe(seen(false, 'other'))).toMatchObject({ status: 'failed', found: ['other'] });
  expect(observe(seen(true, 'right'))).toMatchObject({ status: 'verified', found: ['right'] });
});

test('what has vanished is failed, and comes back as verified', () => {
  const before = { dkim: { status: 'verified', found: ['right'], checkedAt: 'then' } } as const;
  expect(observe(seen(false), before)).toMatchObject({ status: 'failed', found: [] });
  expect(
    observe(seen(true, 'right'), { dkim: { status: 'failed', found: [], checkedAt: null } }),
  ).toMatchObject({
    status: 'verified',
  });
});

test('a check that nobody could answer changes nothing, not even when it was last checked', () => {
  const before = { dkim: { status: 'verified', found: ['right'], checkedAt: 'then' } } as const;
  expect(observe({ kind: 'unknown', detail: 'SERVFAIL' }, before)).toEqual(before.dkim);
  expect(observe({ kind: 'unknown', detail: 'SERVFAIL' })).toBeUndefined();
});

test('what is no longer asked for is forgotten, and begins anew when it is asked for again', () => {
  const verified = { status: 'verified', found: ['right'], checkedAt: 'then' } as const;
  const before: Findings = { dkim: verified, return_path_mx: verified };
  const after = updateFindings(before, new Map([['dkim', seen(true, 'right')]]), at);
  expect(Object.keys(after)).toEqual(['dkim']);
});

test('a domain is complete with all that is required, and dmarc is not', () => {
  const verified = { status: 'verified', found: [], checkedAt: null } as const;
  const complete: Findings = { dkim: verified, return_path_mx: verified, return_path_spf: verified };
  expect(isComplete(expected, complete)).toBe(true);
  for (const kind of ['dkim', 'return_path_mx', 'return_path_spf'] as const) {
    expect(isComplete(expected, { ...complete, [kind]: { ...verified, status: 'failed' } })).toBe(false);
    expect(isComplete(expected, { ...complete, [kind]: undefined })).toBe(false);
  }
  const tracked = listExpectedRecords(
    { ...settings, trackingSubdomain: 'click' },
    { bounceHost: 'mail.host.test', trackingHost: 'host.test' },
  );
  expect(isComplete(tracked, complete)).toBe(false);
  expect(isComplete(tracked, { ...complete, tracking: verified })).toBe(true);
});

test('issues name what is missing and what is wrong', () => {
  const failed = { status: 'failed', checkedAt: null } as const;
  expect(
    listIssues(expected, {
      dkim: { ...failed, found: [] },
      return_path_spf: { ...failed, found: ['v=spf1 -all'] },
      dmarc: { ...failed, found: ['nonsense'] },
    }),
  ).toEqual([
    'The TXT record of pst._domainkey.example.com is missing.',
    'The TXT record of send.example.com is not what it should be.',
  ]);
});

test.each([
  [[expected[0]!.value, 'v=DKIM1; k=rsa; p=OTHER'], 'v=DKIM1; k=rsa; p=OTHER'],
  [['v=DKIM1; k=rsa; p=OTHER', expected[0]!.value], 'v=DKIM1; k=rsa; p=OTHER'],
  [[expected[0]!.value, expected[0]!.value], expected[0]!.value],
  [[expected[0]!.value, 'x'.repeat(900)], 'x'.repeat(100)],
])('of the keys %j at one selector the second is named', (found, second) => {
  expect(listIssues(expected, { dkim: { status: 'failed', checkedAt: null, found } })).toEqual([
    `There must be one TXT record at pst._domainkey.example.com, and there is a second one: ${second}`,
  ]);
});

test.each([
  [0, 1],
  [29, 1],
  [30, 10],
  [24 * 60 - 1, 10],
  [24 * 60, 60],
  [24 * 60 * 365, 60],
])('%i minutes after it was registered a domain is looked at again after %i minutes', (age, pause) => {
  const minuteMs = 60_000;
  expect(nextCheckAtMs(1_000, 1_000 + age * minuteMs)).toBe(1_000 + (age + pause) * minuteMs);
});
