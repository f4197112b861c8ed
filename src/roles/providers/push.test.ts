import { expect, test } from 'vitest';
import { readConfig } from '../../config.ts';
import { findPushShortcoming } from './push.ts';

const find = (settings: Readonly<Record<string, string>>) =>
  findPushShortcoming({ config: readConfig(settings) });

const direct = { POSTILLION_PUSH_PROVIDER: 'direct' };

test.each([
  ['no public URL', {}],
  ['one that only this machine knows', { POSTILLION_PUBLIC_URL: 'http://localhost:8025' }],
])('a start and the doctor say that Safari gets nothing, with %s', async (_, settings) => {
  expect(await find({ ...direct, ...settings })).toEqual({
    found: expect.stringContaining('Safari'),
    advice: expect.stringContaining('POSTILLION_VAPID_SUBJECT'),
  });
});

test.each([
  ['pushes stay in the sandbox', {}],
  ['the public URL says who sends', { ...direct, POSTILLION_PUBLIC_URL: 'https://push.example.com' }],
  ['the setting says it', { ...direct, POSTILLION_VAPID_SUBJECT: 'mailto:push@example.com' }],
])('they say nothing where %s', async (_, settings) => {
  expect(await find(settings)).toBeNull();
});
