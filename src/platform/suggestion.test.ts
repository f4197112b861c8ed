import fc from 'fast-check';
import { expect, test } from 'vitest';
import { didYouMean, suggestName } from './suggestion.ts';

const fields = ['to', 'cc', 'from', 'from_name', 'reply_to', 'subject', 'template_id', 'scheduled_at'];

test.each([
  ['subjet', 'subject'],
  ['schedule_at', 'scheduled_at'],
  ['template-id', 'template_id'],
  ['replyTo', 'reply_to'],
  ['FROM', 'from'],
  ['form', 'from'],
  ['fron', 'from'],
  ['frum', 'from'],
  ['frxm y', null],
  ['too', 'to'],
  ['t', null],
  ['id', null],
  ['status', null],
  ['body', null],
  ['', null],
])('%j is taken for %j', (given, meant) => {
  expect(suggestName(given, fields)).toBe(meant);
});

test('the nearest of several is named, and nothing where nothing is known', () => {
  expect(suggestName('POSTILLION_SMPT_URL', ['POSTILLION_SMPP_URL', 'POSTILLION_SMTP_URL'])).toBe(
    'POSTILLION_SMPP_URL',
  );
  expect(suggestName('subject', [])).toBeNull();
  expect(didYouMean('subjet', fields)).toBe(' (did you mean subject?)');
  expect(didYouMean('colour', fields)).toBe('');
});

test('whatever is given, the suggestion is a known name, and a known name is its own', () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 200 }), (given) => {
      const suggestion = suggestName(given, fields);
      if (suggestion !== null) expect(fields).toContain(suggestion);
    }),
  );
  for (const name of fields) expect(suggestName(name, fields)).toBe(name);
});
