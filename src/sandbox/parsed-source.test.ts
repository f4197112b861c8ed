import fc from 'fast-check';
import { expect, test } from 'vitest';
import { parseHead, parseSource } from './parsed-source.ts';

const lines = (...all: string[]) => Buffer.from(all.join('\r\n'));

const order = lines(
  'From: =?utf-8?q?J=C3=B6rg?= <Shop@postillion.test>',
  'To: someone.else@example.com',
  'Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=',
  'X-Tag: one',
  'X-Tag: two,',
  ' folded',
  'Content-Type: multipart/mixed; boundary=outer',
  '',
  '--outer',
  'Content-Type: multipart/alternative; boundary=inner',
  '',
  '--inner',
  'Content-Type: text/plain; charset=utf-8',
  '',
  'Hello',
  '',
  'Bye',
  '--inner',
  'Content-Type: text/html; charset=utf-8',
  'Content-Transfer-Encoding: quoted-printable',
  '',
  '<p title=3D"x">Hello</p>',
  '--inner--',
  '--outer',
  'Content-Type: image/png; name="logo.png"',
  'Content-ID: <logo@postillion.test>',
  'Content-Disposition: inline; filename="logo.png"',
  'Content-Transfer-Encoding: base64',
  '',
  'AQIDBA==',
  '--outer--',
  '',
);

test('a message is shown as its recipient would see it', async () => {
  expect(await parseSource('email', order)).toEqual({
    from: 'Shop@postillion.test',
    subject: 'Grüße',
    addresses: {
      from: [{ name: 'Jörg', address: 'Shop@postillion.test' }],
      to: [{ name: '', address: 'someone.else@example.com' }],
      cc: [],
      bcc: [],
      reply_to: [],
    },
    headers: [
      { name: 'From', value: '=?utf-8?q?J=C3=B6rg?= <Shop@postillion.test>' },
      { name: 'To', value: 'someone.else@example.com' },
      { name: 'Subject', value: '=?utf-8?q?Gr=C3=BC=C3=9Fe?=' },
      { name: 'X-Tag', value: 'one' },
      { name: 'X-Tag', value: 'two, folded' },
      { name: 'Content-Type', value: 'multipart/mixed; boundary=outer' },
    ],
    html: '<p title="x">Hello</p>',
    text: 'Hello\n\nBye',
    attachments: [
      {
        filename: 'logo.png',
        contentType: 'image/png',
        content: new Uint8Array([1, 2, 3, 4]),
        contentId: 'logo@postillion.test',
      },
    ],
  });
});

test('of the beginning of a message the headers can be read', async () => {
  const whole = await parseSource('email', order);
  for (const bytes of [order.length, 400, order.indexOf('\r\n\r\n') + 4]) {
    const { from, subject, headers, html, text, attachments } = await parseHead(
      'email',
      order.subarray(0, bytes),
    );
    expect({ from, subject, headers }).toEqual({
      from: whole.from,
      subject: whole.subject,
      headers: whole.headers,
    });
    expect({ html, text, attachments }).toEqual({ html: null, text: null, attachments: [] });
  }
});

test('what is no email is text', async () => {
  const parsed = await parseSource('sms', Buffer.from('From: here\r\n\r\nYour code is 1234 ✓'));
  expect(parsed).toMatchObject({
    text: 'From: here\r\n\r\nYour code is 1234 ✓',
    html: null,
    headers: [],
    from: null,
  });
});

test('no bytes whatever make reading fail', async () => {
  const piece = fc.oneof(
    fc.uint8Array({ maxLength: 60 }).map((bytes) => Buffer.from(bytes)),
    fc
      .constantFrom(
        'Content-Type: multipart/mixed; boundary=a\r\n',
        'Content-Type: text/html; charset=nonsense\r\n',
        'Content-Transfer-Encoding: base64\r\n',
        'From: \r\n',
        'Subject: =?x?q?=FF?=\r\n',
        '\r\n',
        '--a\r\n',
        '--a--\r\n',
      )
      .map((text) => Buffer.from(text)),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(piece, { maxLength: 12 }), async (pieces) => {
      const parsed = await parseSource('email', Buffer.concat(pieces));
      expect(Array.isArray(parsed.headers)).toBe(true);
      await parseHead('email', Buffer.concat(pieces));
    }),
    { numRuns: 200 },
  );
});

test('a message nested too deeply is shown as nothing but its source', async () => {
  const nested = Array.from({ length: 60 }, (_, depth) => [
    `Content-Type: multipart/mixed; boundary=b${depth}`,
    '',
    `--b${depth}`,
  ]).flat();
  expect(await parseSource('email', lines(...nested))).toMatchObject({ headers: [], html: null, text: null });
});
