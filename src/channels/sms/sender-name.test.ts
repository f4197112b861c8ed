import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isNumericName, parseSender, senderTypes, trimSenderName } from './sms.ts';

test.each([
  ['Postillion', 'Postillion', 'alphanumeric'],
  ['Booking.com', 'Booking.com', 'alphanumeric'],
  ['Fern & Way', 'Fern & Way', 'alphanumeric'],
  ['Canal+', 'Canal+', 'alphanumeric'],
  ['24-7_Taxi', '24-7_Taxi', 'alphanumeric'],
  ['a', 'a', 'alphanumeric'],
  [' Acme ', 'Acme', 'alphanumeric'],
  ['+14155550123', '14155550123', 'long_code'],
  ['14155550123', '14155550123', 'long_code'],
  ['123456789012345', '123456789012345', 'long_code'],
  ['12345', '12345', 'long_code'],
])('%j is the sender %s, %s unless something else is said', (text, name, type) => {
  expect(parseSender(text, null)).toEqual({ name, type });
});

test.each([
  '',
  ' ',
  '+',
  'Twelve chars',
  '1234567890123456',
  '+1234567890123456',
  '++1415555',
  '+Acme',
  '-Acme',
  '415 555 0123',
  '1-2',
  'Two  spaces',
  'Müller',
  'Привет',
  'A\u00a0B',
  'A\nB',
  'A\u0000',
  'A@B',
  'A\u{1F600}',
  '١٢٣',
])('%j is no sender', (text) => {
  expect(parseSender(text, null)).toBe('invalid_name');
});

test('a number is of the type that is said, and of no name; a name is alphanumeric only', () => {
  expect(parseSender('12345', 'short_code')).toEqual({ name: '12345', type: 'short_code' });
  expect(parseSender('+18005550123', 'toll_free')).toEqual({ name: '18005550123', type: 'toll_free' });
  expect(parseSender('12345', 'alphanumeric')).toBe('wrong_type');
  for (const type of ['long_code', 'short_code', 'toll_free'] as const)
    expect(parseSender('Acme', type)).toBe('wrong_type');
});

test('a number as it is dialled at home is no long code, while a short code may begin with 0', () => {
  expect(parseSender('01711234567', null)).toBe('no_country_code');
  expect(parseSender('08001234567', 'toll_free')).toBe('no_country_code');
  expect(parseSender('0800', 'short_code')).toEqual({ name: '0800', type: 'short_code' });
});

test('only a number loses its plus', () => {
  expect(trimSenderName('+14155550123')).toBe('14155550123');
  for (const text of ['+Acme', '++1', '+', 'Canal+', ' +1']) expect(trimSenderName(text)).toBe(text);
});

describe('whatever text is given', () => {
  const text = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 20 }),
    fc.stringMatching(/^[+0-9A-Za-z .&_-]{0,17}$/),
  );
  const type = fc.constantFrom(null, ...senderTypes);

  test('a sender has a form that networks take, and read once more it is the same sender', () => {
    fc.assert(
      fc.property(text, type, (given, wanted) => {
        const sender = parseSender(given, wanted);
        if (typeof sender === 'string') return;
        expect(sender.name).toMatch(/^(\d{1,15}|(?=.*[A-Za-z])[ -~]{1,11})$/);
        expect(isNumericName(sender.name)).toBe(sender.type !== 'alphanumeric');
        expect(parseSender(sender.name, sender.type)).toEqual(sender);
      }),
    );
  });
});
