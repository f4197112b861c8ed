import { expect, test } from 'vitest';
import { readMessage } from './reading.ts';
import { translateMessage } from './translation.ts';

const head = ['From: Acme <hello@acme.test>', 'To: ada@example.com', 'Subject: Hello', 'MIME-Version: 1.0'];

function translate(lines: readonly string[], recipients: readonly string[] = ['ada@example.com']) {
  return translateMessage(Buffer.from([...head, ...lines].join('\r\n'), 'latin1'), recipients);
}

/** Of files with their content as text. */
function bodyOf(lines: readonly string[], recipients?: readonly string[]) {
  const translation = translate(lines, recipients);
  if (translation.kind === 'untranslatable') throw new Error(translation.problem);
  return translation.body;
}

const base64 = (text: string) => Buffer.from(text).toString('base64');

const part = (header: readonly string[], body: string, boundary = 'b') => [
  `--${boundary}`,
  ...header,
  '',
  body,
];

test('of alternatives with an image, each is in its place, and only what is shown has an id', () => {
  expect(
    bodyOf([
      'Content-Type: multipart/related; boundary="b"',
      '',
      '--b',
      'Content-Type: multipart/alternative; boundary="b-2"',
      '',
      ...part(['Content-Type: text/plain'], 'Text', 'b-2'),
      ...part(['Content-Type: text/html'], '<img src="cid:logo@acme">', 'b-2'),
      '--b-2--',
      ...part(
        [
          'Content-Type: image/png; name=logo.png',
          'Content-ID: <logo@acme>',
          'Content-Transfer-Encoding: base64',
        ],
        base64('png'),
      ),
      ...part(
        ['Content-Type: application/pdf', 'Content-ID: <other>', 'Content-Transfer-Encoding: base64'],
        base64('pdf'),
      ),
      '--b--',
    ]),
  ).toMatchObject({
    text: 'Text',
    html: '<img src="cid:logo@acme">',
    attachments: [
      { filename: 'logo.png', content_type: 'image/png', content_id: 'logo@acme', content: base64('png') },
      { filename: 'document.pdf', content: base64('pdf') },
    ],
  });
});

test('texts before and after a file are one text, and become HTML where one of them is', () => {
  const mixed = (second: string, body: string) => [
    'Content-Type: multipart/mixed; boundary=b',
    '',
    ...part(['Content-Type: text/plain'], '1 < 2'),
    ...part(['Content-Type: text/plain; name=a.txt'], 'file'),
    ...part([`Content-Type: ${second}`], body),
    '--b--',
  ];
  expect(bodyOf(mixed('text/plain', 'after'))).toMatchObject({
    text: '1 < 2\nafter',
    attachments: [{ filename: 'a.txt' }],
  });
  const html = bodyOf(mixed('text/html', '<p>after</p>'));
  expect(html).toMatchObject({ html: '<p>1 &lt; 2</p>\n<p>after</p>' });
  expect(html).not.toHaveProperty('text');
});

test.each([
  ['iso-8859-1', 'Gr\xfc\xdfe', 'Grüße'],
  ['utf-8', 'Gr\xc3\xbc\xc3\x9fe', 'Grüße'],
  ['us-ascii', 'Gr\xfc\xdfe', 'Grüße'],
])('a text in %s is read', (charset, octets, text) => {
  expect(
    bodyOf([`Content-Type: text/plain; charset=${charset}`, 'Content-Transfer-Encoding: 8bit', '', octets]),
  ).toMatchObject({ text });
});

test.each([
  [`Content-Disposition: attachment; filename*=utf-8''%C3%9Cber%20sicht.pdf`, 'Über sicht.pdf'],
  [`Content-Disposition: attachment; filename*0*=utf-8''%C3%9Cber; filename*1="sicht.pdf"`, 'Übersicht.pdf'],
  [`Content-Disposition: attachment; filename="=?utf-8?B?${base64('Übersicht.pdf')}?="`, 'Übersicht.pdf'],
  ['Content-Disposition: attachment; filename="a;b.pdf"', 'a;b.pdf'],
])('the name of a file is read: %s', (disposition, filename) => {
  expect(bodyOf(['Content-Type: application/pdf', disposition, '', 'x'])).toMatchObject({
    attachments: [{ filename }],
  });
});

test('mail that is attached to another is a file, and an empty text beside it is one', () => {
  expect(
    bodyOf([
      'Content-Type: multipart/mixed; boundary=b',
      '',
      ...part(['Content-Type: text/plain'], ''),
      ...part(
        ['Content-Type: message/rfc822'],
        'Subject: Inside\r\nContent-Type: text/html\r\n\r\n<p>Inside</p>',
      ),
      '--b--',
    ]),
  ).toMatchObject({ text: '\n', attachments: [{ filename: 'message.eml', content_type: 'message/rfc822' }] });
});

test.each([
  [
    'a signed message',
    ['Content-Type: multipart/signed; boundary=b', '', ...part([], 'x'), '--b--'],
    /signed or encrypted/,
  ],
  ['an encrypted message', ['Content-Type: application/pkcs7-mime', '', 'x'], /signed or encrypted/],
  ['a charset that is not known', ['Content-Type: text/plain; charset=klingon', '', 'x'], /charset/],
  ['two senders', ['From: other@acme.test', '', 'x'], /one From field/],
  ['variables that are no object', ['X-Postillion-Variables: [1]', '', 'x'], /must be a JSON object/],
  [
    'more than 200 parts',
    [
      'Content-Type: multipart/mixed; boundary=b',
      '',
      ...Array.from({ length: 201 }, () => part([], 'x')).flat(),
    ],
    /more than 200 parts/,
  ],
  ['a header of more than 256 kB', [`X-Long: ${'x'.repeat(262_144)}`, '', 'x'], /header must have at most/],
  ['a line that is no field', ['no field', '', 'x'], /no field/],
])('%s is refused', (_name, lines, problem) => {
  expect(translate(lines)).toMatchObject({ kind: 'untranslatable', problem: expect.stringMatching(problem) });
});

test('who is alone and named by nobody is shown to themself, and of several nobody is', () => {
  expect(bodyOf(['', 'x'], ['ben@example.com'])).toMatchObject({ to: ['ben@example.com'] });
  expect(bodyOf(['', 'x'], ['ben@example.com', 'cleo@example.com'])).toMatchObject({
    to: [],
    bcc: ['ben@example.com', 'cleo@example.com'],
  });
});

test('a NUL that was encoded is refused as in a request', () => {
  const source = Buffer.from([...head, 'Content-Transfer-Encoding: base64', '', base64('a\0b')].join('\r\n'));
  expect(readMessage({ source, recipients: ['ada@example.com'], at: new Date(0) })).toMatchObject({
    kind: 'refused',
    message: 'text must not contain NUL or unpaired surrogates',
  });
});
