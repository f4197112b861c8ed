import fc from 'fast-check';
import { expect, test } from 'vitest';
import { readKeyword } from './keywords.ts';
import { defaultReplies } from './sms/keyword-replies.ts';

test.each([
  ['STOP', 'stop'],
  ['stop', 'stop'],
  ['Stop.', 'stop'],
  ['  STOP!!!\n', 'stop'],
  ['"STOP"', 'stop'],
  ['STOP 🙏🏽', 'stop'],
  ['\u200bSTOP\ufeff', 'stop'],
  ['ＳＴＯＰ', 'stop'],
  ['STOPALL', 'stop'],
  ['stop  all', 'stop'],
  ['Opt-out', 'stop'],
  ['opt out', 'stop'],
  ['OPTOUT', 'stop'],
  ['Unsubscribe', 'stop'],
  ['Unsub', 'stop'],
  ['Remove', 'stop'],
  ['QUIT', 'stop'],
  ['CANCEL', 'stop'],
  ['END', 'stop'],
  ['quıt', 'stop'],
  ['Revoke', 'stop'],
  ['Arrêt', 'stop'],
  ['ARRE\u0302T', 'stop'],
  ['Arrêté', 'stop'],
  ['arrêter', 'stop'],
  ['Alto', 'stop'],
  ['Baja', 'stop'],
  ['Parar', 'stop'],
  ['Stopp', 'stop'],
  ['Стоп', 'stop'],
  ['START', 'start'],
  ['unstop', 'start'],
  ['help?', 'help'],
  ['INFO', 'help'],
  ['Aide', 'help'],
  ['Ayuda', 'help'],
] as const)('%j is the keyword %s', (text, keyword) => {
  expect(readKeyword(text)).toBe(keyword);
});

test.each([
  '',
  '   ',
  '!?',
  'YES',
  'STOP PLEASE',
  'please stop',
  'Stop it',
  'STOP2',
  '2END',
  'non-stop',
  'helpful',
  'Do not start',
  'constructor',
  '__proto__',
])('%j is no keyword', (text) => {
  expect(readKeyword(text)).toBeNull();
});

test('a keyword is known with whatever stands around it that is no letter and no digit', () => {
  const around = fc.stringMatching(/^[\s\p{P}\p{Z}]{0,20}$/u);
  fc.assert(
    fc.property(around, around, fc.constantFrom('stop', 'StArT', 'INFO'), (before, after, word) => {
      expect(readKeyword(`${before}${word}${after}`)).toBe(readKeyword(word));
    }),
  );
});

test('a long text is no keyword, however it begins', () => {
  expect(readKeyword(`STOP${' '.repeat(60)}`)).toBe('stop');
  expect(readKeyword(`STOP${' '.repeat(61)}`)).toBeNull();
});

test.each(Object.entries(defaultReplies))(
  'the default reply to %s fits into one segment, and is no keyword itself',
  (_, reply) => {
    // The characters that ASCII and GSM 7-bit have in common, and that take one septet.
    expect(reply).toMatch(/^[A-Za-z0-9 .,;:!?'"()/+*=<>%&#@$_-]{1,160}$/);
    expect(readKeyword(reply)).toBeNull();
  },
);
