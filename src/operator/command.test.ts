import { expect, test } from 'vitest';
import { escapeControls } from './command.ts';

test('what a terminal would obey is written out, and lines and columns stay', () => {
  expect(escapeControls('a\u001b[31m\u0007b\r\n\tc\u009b\u007f\0')).toBe(
    'a\\u001b[31m\\u0007b\\u000d\n\tc\\u009b\\u007f\\u0000',
  );
});

test('an object that is printed stays the same object', () => {
  const object = { name: 'a\u001b\u009bü\u0085', text: '\n' };
  const printed = escapeControls(JSON.stringify(object));
  expect(printed).not.toMatch(/\p{Cc}/u);
  expect(JSON.parse(printed)).toEqual(object);
});
