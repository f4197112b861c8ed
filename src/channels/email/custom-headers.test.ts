import { expect, test } from 'vitest';
import { findHeaderIssues, shortenReferences } from './custom-headers.ts';

function idsOf(count: number): string[] {
  return Array.from({ length: count }, (_, index) => `<${index}@example.com>`);
}

test.each([
  { 'X-Order': '1234', 'x-mailer_tag': 'Grüße' },
  { 'In-Reply-To': '<1@example.com>', References: '<1@example.com> <2@example.com>' },
  { 'List-Id': 'Orders <orders.example.com>', 'List-Unsubscribe': '<https://example.com/u>' },
  { 'Auto-Submitted': 'auto-generated', Importance: 'high', PRIORITY: 'urgent', 'Thread-Topic': 'Größe' },
  { 'X-Long': 'x'.repeat(900) },
  { references: idsOf(1_000).join(' ') },
  { [`X-${'n'.repeat(74)}`]: 'y' },
])('%j may be set', (headers) => {
  expect(findHeaderIssues(headers)).toEqual([]);
});

test.each([
  ['From', 'a@example.com'],
  ['bcc', 'a@example.com'],
  ['Sender', 'a@example.com'],
  ['Return-Path', '<a@example.com>'],
  ['Received', 'from a'],
  ['DKIM-Signature', 'v=1'],
  ['Content-Type', 'text/html'],
  ['MIME-Version', '1.0'],
  ['Message-ID', '<a@example.com>'],
  ['Date', 'Sat, 21 Nov 2026 11:41:50 +0000'],
  ['Feedback-ID', 'a:b:c:d'],
  ['ARC-Seal', 'i=1'],
  ['Authentication-Results', 'mx; dkim=pass'],
  ['X-', 'y'],
  ['X-A: y\r\nBcc', 'y'],
  ['X-Ä', 'y'],
  ['', 'y'],
  ['__proto__', 'y'],
])('%j cannot be set', (name, value) => {
  expect(findHeaderIssues(Object.fromEntries([[name, value]]))).toEqual([
    { name, issue: 'is not a header that can be set' },
  ]);
});

test.each([
  ['X-A', 'a\r\nBcc: b@example.com', 'must be a line of text that is not blank'],
  ['X-A', 'a\nb', 'must be a line of text that is not blank'],
  ['X-A', 'a\0b', 'must be a line of text that is not blank'],
  ['X-A', 'a\u2028b', 'must be a line of text that is not blank'],
  ['X-A', ' ', 'must be a line of text that is not blank'],
  ['X-A', 'x'.repeat(901), 'must have at most 900 characters'],
  ['References', '<ü@example.com>', 'must be ASCII'],
  ['References', `<1@example.com> ${'x'.repeat(901)}`, 'must have a blank at least every 900 characters'],
  ['References', `${'x'.repeat(900)} `.repeat(23), 'must have at most 20000 characters'],
  ['In-Reply-To', idsOf(60).join(' '), 'must have at most 900 characters'],
  [`X-${'n'.repeat(75)}`, 'y', 'must have a name of at most 76 characters'],
])('%j with %j is refused', (name, value, issue) => {
  expect(findHeaderIssues({ [name]: value })).toEqual([{ name, issue }]);
});

test('each field is named that is wrong, and one that is there twice in another case', () => {
  expect(findHeaderIssues({ To: 'a', 'X-A': 'b', Cc: 'c', 'x-a': 'd' })).toEqual([
    { name: 'To', issue: 'is not a header that can be set' },
    { name: 'Cc', issue: 'is not a header that can be set' },
    { name: 'x-a', issue: 'must not be given twice' },
  ]);
});

test('long references keep the first message of the thread and as many of the newest as a line holds', () => {
  const ids = idsOf(1_000);
  const { rEferences: kept = '', 'X-Long': other } = shortenReferences({
    rEferences: ids.join('  '),
    'X-Long': 'x'.repeat(900),
  });
  const [first, ...newest] = kept.split(' ');
  expect(first).toBe(ids[0]);
  expect(newest).toEqual(ids.slice(-newest.length));
  expect(kept.length).toBeLessThanOrEqual(900);
  expect(`${kept} ${ids.at(-newest.length - 1)}`.length).toBeGreaterThan(900);
  expect(other).toBe('x'.repeat(900));
});

test('references that fit stay as they are, and one id that leaves room for no other stays with the first', () => {
  const short = { References: '<1@example.com>  <2@example.com>' };
  expect(shortenReferences(short)).toEqual(short);
  const [first, last] = [`<${'a'.repeat(800)}@a>`, `<${'b'.repeat(800)}@b>`];
  expect(shortenReferences({ References: `${first} ${last}` })).toEqual({ References: first });
});
