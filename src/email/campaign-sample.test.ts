import { expect, test } from 'vitest';
import type { PreparedMessage } from '../campaigns/channel.ts';
import { renderEmailSample, submitEmailTest } from './campaign-sample.ts';

const at = new Date(Date.UTC(2026, 10, 21));
const publicUrl = 'https://mail.example';

function aMessage(
  content: { html?: string | null; text?: string | null },
  tracking = { opens: false, clicks: false },
): PreparedMessage {
  return {
    sender: 'news@example.com',
    subject: 'Hello {{first_name}}',
    category: null,
    templateId: null,
    details: JSON.stringify({ fromName: 'News', replyTo: null, attachments: [], tracking, listIds: ['a'] }),
    content: JSON.stringify({ to: [], cc: [], html: null, text: null, ...content }),
    variableNames: ['first_name'],
  };
}

function warningsOf(html: string, text: string | null = 'Hello'): string[] {
  const sample = renderEmailSample(aMessage({ html, text }), {
    values: { first_name: 'Ann' },
    publicUrl,
    at,
  });
  return sample?.warnings ?? [];
}

const leave = '<a href="{{unsubscribe_url}}">Leave</a>';

test('what may be a mistake is warned of, and nothing else', () => {
  expect(warningsOf(`<p>Hello</p>${leave}`)).toEqual([]);
  expect(warningsOf('<p>Hello</p>', 'Leave: {{unsubscribe_url}}')).toEqual([]);
  expect(warningsOf('<p>Hello</p>')).toEqual([expect.stringContaining('{{unsubscribe_url}}')]);
  expect(warningsOf(leave, null)).toEqual([expect.stringContaining('no text part')]);
  expect(warningsOf(`${leave}${'x'.repeat(102 * 1_024)}`)).toEqual([expect.stringContaining('102 kB')]);
  const links = ['http://shop.example/', 'http://localhost:3000/a', 'https://127.0.0.1/'];
  expect(warningsOf(`${leave}${links.map((link) => `<a href="${link}">x</a>`).join('')}`)).toEqual([
    expect.stringContaining('without encryption: http://shop.example/'),
    expect.stringContaining('own machine: http://localhost:3000/a'),
    expect.stringContaining('own machine: https://127.0.0.1/'),
  ]);
});

test('a link that shows an address is said not to be tracked, and one that is filled in to be', () => {
  const html = `${leave}
    <a href="https://shop.example/x"><b>www.shop.com</b></a><a href="https://shop.example/y">www.shop.com</a>
    <a href="https://shop.example/z">{{site}}</a> <a href="https://shop.example/">The shop</a>`;
  const values = { site: 'shop.co.uk', first_name: 'Ann' };
  const warningsWith = (tracking: { opens: boolean; clicks: boolean }) =>
    renderEmailSample(aMessage({ html, text: 'Hello' }, tracking), { values, publicUrl, at })?.warnings;
  expect(warningsWith({ opens: true, clicks: false })).toEqual([]);
  expect(warningsWith({ opens: false, clicks: true })).toEqual([
    'A link shows an address, and its clicks are not tracked: www.shop.com',
    'A link shows an address only when it is filled in, and is tracked: shop.co.uk',
  ]);
});

test('a copy is filled with the values, and its links are listed once each', () => {
  const html = `<a href="https://shop.example/{{first_name}}">a</a><a href="https://shop.example/Ann">b</a>${leave}`;
  const sample = renderEmailSample(aMessage({ html }), { values: { first_name: 'Ann' }, publicUrl, at });
  expect(sample?.record).toMatchObject({
    subject: 'Hello Ann',
    html: expect.stringContaining('https://mail.example/u/sample') as string,
    links: ['https://shop.example/Ann'],
  });
});

test('a test says nothing of the lists and links of the campaign that it is of', () => {
  const submission = submitEmailTest(aMessage({ text: 'Hello' }), {
    values: { first_name: 'Ann' },
    publicUrl,
    at,
    organizationId: 'o',
    to: 'Ann@Example.com',
  });
  expect(submission).toMatchObject({
    class: 'transactional',
    senderName: 'example.com',
    subject: 'Hello Ann',
  });
  expect(submission?.recipients).toEqual([
    { field: 'to', address: 'Ann@Example.com', addressKey: 'ann@example.com', dropReason: null },
  ]);
  expect(JSON.parse(submission?.details ?? '')).toEqual({ fromName: 'News', replyTo: null, attachments: [] });
});
