import { expect, test } from 'vitest';
import { chooseVapidSubject } from './subject.ts';

test.each([
  ['mailto:push@example.com', null, 'mailto:push@example.com'],
  ['mailto:push@example.com', 'https://push.example.com', 'mailto:push@example.com'],
  ['https://example.com/contact', null, 'https://example.com/contact'],
  ['', 'https://push.example.com/postillion', 'https://push.example.com'],
  ['', 'http://push.example.com:8025', 'https://push.example.com'],
  ['', 'http://localhost:8025', null],
  ['', 'http://printer.local', null],
  ['', 'https://192.0.2.1', null],
  ['', 'https://[2001:db8::1]', null],
  ['', null, null],
])('with the setting %j, an installation at %j is %j to push services', (setting, publicUrl, subject) => {
  expect(chooseVapidSubject(setting, publicUrl)).toBe(subject);
});

test.each(['push@example.com', 'mailto:<push@example.com>', 'http://example.com', 'https://localhost', 'me'])(
  'the setting %j is refused with a word on how to write it, whatever the public URL is',
  (setting) => {
    for (const publicUrl of [null, 'https://push.example.com'])
      expect(() => chooseVapidSubject(setting, publicUrl)).toThrow(/like mailto:push@example\.com/);
  },
);
