import { expect, test } from 'vitest';
import { findHeaderIssues } from './custom-headers.ts';

test.each([
  { 'X-Order': '1234', 'x-mailer_tag': 'Grüße' },
  { 'In-Reply-To': '<1@example.com>', References: '<1@example.com> <2@example.com>' },
  { 'List-Id': 'Orders <orders.example.com>', 'List-Unsubscribe': '<https://example.com/u>' },
  { 'Auto-Submitted': 'auto-generated', Importance: 'high', PRIORITY: 'urgent', 'Thread-Topic': 'Größe' },
  { 'X-Long': 'x'.repeat(900) },
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
