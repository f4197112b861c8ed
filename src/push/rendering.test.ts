import { expect, test } from 'vitest';
import { payloadSize, webPayloadBytesMax } from '../channels/push/notification.ts';
import { compilePush, fillPush, listPushPlaceholders, withoutPlaceholders } from './rendering.ts';
import type { PushContentBody } from './schema.ts';
import { toPushContent } from './stored.ts';

const everything: PushContentBody = {
  title: 'To {{name}}',
  body: '{{greeting}} {{name}}',
  image_url: 'https://acme.test/{{image}}.png',
  icon_url: 'https://acme.test/{{icon}}.png',
  deep_link: 'acme://{{link}}',
  android_channel_id: '{{channel}}',
  ttl_seconds: 60,
  priority: 'high',
  action_buttons: [{ action_id: '{{action}}', label: '{{label}}', deep_link: '{{button}}' }],
  data_payload: { '{{key}}': '{{datum}}' },
};

const fill = (content: PushContentBody, values = {}) => fillPush(compilePush(content), values);
const plain = (more: Partial<PushContentBody>): PushContentBody => ({
  title: 'Hello',
  body: 'Hello',
  ...more,
});

test('every text that is read, opened or handed to the app is filled, and no name', () => {
  const names = ['name', 'greeting', 'image', 'icon', 'link', 'label', 'button', 'datum'];
  expect(listPushPlaceholders(everything)).toEqual(names);
  const values = Object.fromEntries(
    [...names, 'channel', 'action', 'key'].map((name) => [name, `of-${name}`]),
  );
  values.button = 'https://of-button.test/';
  expect(fill(everything, values)).toEqual({
    kind: 'filled',
    content: {
      title: 'To of-name',
      body: 'of-greeting of-name',
      image_url: 'https://acme.test/of-image.png',
      icon_url: 'https://acme.test/of-icon.png',
      deep_link: 'acme://of-link',
      android_channel_id: '{{channel}}',
      ttl_seconds: 60,
      priority: 'high',
      action_buttons: [{ action_id: '{{action}}', label: 'of-label', deep_link: 'https://of-button.test/' }],
      data_payload: { '{{key}}': 'of-datum' },
    },
  });
});

test('what has no value stays as it was written, and a value that looks like a placeholder is none', () => {
  expect(fill(plain({ body: '{{a}} {{b}}' }), { a: '{{b}}' })).toMatchObject({
    content: { body: '{{b}} {{b}}' },
  });
});

test('a value is a part of its URL alone, and one that is a whole link is a web address or left out', () => {
  const content = plain({
    title: '{{a}}',
    image_url: 'https://acme.test/i?c={{a}}',
    deep_link: '{{a}}',
    action_buttons: [{ action_id: 'a', label: 'A', deep_link: 'acme://orders/{{a}}?b={{{a}}}' }],
    data_payload: { link: 'https://acme.test/?c={{a}}', code: '{{a}}' },
  });
  expect(fill(content, { a: 'javascript:x&y' })).toEqual({
    kind: 'filled',
    content: {
      title: 'javascript:x&y',
      body: 'Hello',
      image_url: 'https://acme.test/i?c=javascript%3Ax%26y',
      action_buttons: [
        { action_id: 'a', label: 'A', deep_link: 'acme://orders/javascript:x&y?b=javascript:x&y' },
      ],
      data_payload: { link: 'https://acme.test/?c=javascript%3Ax%26y', code: 'javascript:x&y' },
    },
  });
});

test('a link that is filled with nothing is left out', () => {
  const filled = fill(
    plain({
      deep_link: '{{link}}',
      action_buttons: [{ action_id: 'a', label: 'A', deep_link: '{{link}}' }],
    }),
    { link: '' },
  );
  expect(filled).toEqual({
    kind: 'filled',
    content: plain({ action_buttons: [{ action_id: 'a', label: 'A' }] }),
  });
});

test('line breaks of a value are kept in the body and the data alone', () => {
  const content = plain({
    title: 'A {{a}}',
    body: 'A {{a}}',
    deep_link: 'a:{{a}}',
    data_payload: { a: '{{a}}' },
  });
  expect(fill(content, { a: 'x\r\ny' })).toMatchObject({
    content: { title: 'A x y', body: 'A x\r\ny', deep_link: 'a:x%0D%0Ay', data_payload: { a: 'x\r\ny' } },
  });
});

test.each([
  [{ title: '{{a}}' }, '😀'.repeat(200), null],
  [{ title: '{{a}}' }, '😀'.repeat(201), 'title has more than 200 characters with its placeholders filled.'],
  [{ title: '{{a}}' }, ' ', 'title is empty with its placeholders filled.'],
  [{ body: '{{a}}' }, 'x'.repeat(1_001), 'body has more than 1000 characters with its placeholders filled.'],
  [{ body: '{{a}}' }, '\n', 'body is empty with its placeholders filled.'],
  [
    { deep_link: 'a:{{a}}' },
    'x'.repeat(2_049),
    'deep_link has more than 2048 characters with its placeholders filled.',
  ],
  [
    { image_url: 'https://{{a}}' },
    'not a host',
    'image_url is not an https URL with its placeholders filled.',
  ],
  [
    { action_buttons: [{ action_id: 'a', label: '{{a}}' }] },
    '',
    'action_buttons[0].label is empty with its placeholders filled.',
  ],
  [
    { action_buttons: [{ action_id: 'a', label: '{{a}}' }] },
    'x'.repeat(65),
    'action_buttons[0].label has more than 64 characters with its placeholders filled.',
  ],
])('of %j only copies leave that keep its rule', (more, a, diagnostic) => {
  expect(fill(plain(more), { a })).toMatchObject(
    diagnostic === null ? { kind: 'filled' } : { kind: 'unfit', reason: 'invalid_message', diagnostic },
  );
});

test('a copy leaves as long as it fits the narrowest platform', () => {
  const content = plain({ data_payload: { a: '{{a}}' } });
  const { bytes } = payloadSize(toPushContent(withoutPlaceholders(content)));
  const room = webPayloadBytesMax - bytes;
  expect(fill(content, { a: 'x'.repeat(room) })).toMatchObject({ kind: 'filled' });
  for (const a of ['x'.repeat(room + 1), 'é'.repeat(room), 'x'.repeat(1_000_000)])
    expect(fill(content, { a })).toMatchObject({ kind: 'unfit', reason: 'message_too_large' });
});

test('without its placeholders a push is no larger than any copy', () => {
  expect(withoutPlaceholders(everything)).toMatchObject({
    title: 'To ',
    body: ' ',
    image_url: 'https://acme.test/.png',
    deep_link: 'acme://',
    action_buttons: [{ action_id: '{{action}}', label: '' }],
    data_payload: { '{{key}}': '' },
  });
});
