import { expect, test } from 'vitest';
import type { StoredSmsContent } from './stored.ts';
import type { PreparedMessage } from '../campaigns/channel.ts';
import { renderSmsSample, submitSmsTest } from './campaign-sample.ts';

const at = new Date(Date.UTC(2026, 10, 22));
const publicUrl = 'https://mail.example';

function aMessage(text: string): PreparedMessage {
  const content: StoredSmsContent = { text, defaults: {} };
  return {
    sender: 'Postillion',
    subject: null,
    category: 'sale',
    templateId: null,
    details: '{}',
    content: JSON.stringify(content),
    variableNames: ['name'],
  };
}

const render = (text: string, values = {}) => renderSmsSample(aMessage(text), { values, publicUrl, at });

test('a copy is filled with the values as they are, and measured with them', () => {
  expect(render('Hello {{name}}', { name: '<Ann & Co>' })).toEqual({
    record: { from: 'Postillion', body: 'Hello <Ann & Co>', encoding: 'gsm7', segments: 1 },
    warnings: [],
  });
  expect(render('{{name}}', { name: 'x'.repeat(161) })?.record).toMatchObject({ segments: 2 });
});

test.each([
  ['x'.repeat(160), []],
  ['x'.repeat(161), ['This copy is sent in 2 segments, each of which counts as one text.']],
  [
    'Привет',
    [
      'A segment holds 70 characters instead of 160, because of what the GSM alphabet does not have: “П” (U+041F), “р” (U+0440), “и” (U+0438), “в” (U+0432), “е” (U+0435) and others.',
    ],
  ],
  [
    'No\u00a0break, \u201cquoted\u201d, \u00a0',
    [
      'A segment holds 70 characters instead of 160, because of what the GSM alphabet does not have: U+00A0, “\u201c” (U+201C), “\u201d” (U+201D).',
    ],
  ],
  [
    `${'x'.repeat(70)}\u{1f600}`,
    [
      'This copy is sent in 2 segments, each of which counts as one text.',
      'A segment holds 67 characters instead of 153, because of what the GSM alphabet does not have: “\u{1f600}” (U+1F600).',
    ],
  ],
])('of %j is said what makes it dearer than it looks', (text, warnings) => {
  expect(render(text)?.warnings).toEqual(warnings);
});

test('there is no copy of a text that its values make empty, or too long', () => {
  expect(render('{{name}}', { name: '' })).toBeNull();
  expect(render('{{name}}', { name: 'x'.repeat(1_600) })).not.toBeNull();
  expect(render('{{name}}', { name: 'x'.repeat(1_601) })).toBeNull();
});

test('a test is a transactional text, which takes of the quota what it has of segments', () => {
  const copy = { values: { name: 'ö'.repeat(155) }, publicUrl, at, organizationId: 'o', to: '+14155550123' };
  const submission = submitSmsTest(aMessage('Hello {{name}}'), copy);
  expect(submission).toMatchObject({
    organizationId: 'o',
    channel: 'sms',
    class: 'transactional',
    sender: 'Postillion',
    category: 'sale',
    quotaUnits: 2,
    recipients: [{ field: 'to', address: '+14155550123', addressKey: '+14155550123', dropReason: null }],
  });
  expect(JSON.parse(String(submission?.content))).toEqual({ text: `Hello ${'ö'.repeat(155)}` });
  expect(submitSmsTest(aMessage('{{name}}'), { ...copy, values: { name: '' } })).toBeNull();
});
