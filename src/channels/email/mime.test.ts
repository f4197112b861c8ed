import fc from 'fast-check';
import PostalMime, { type Email } from 'postal-mime';
import { describe, expect, it } from 'vitest';
import type { Values } from '../placeholders.ts';
import {
  type EmailAttachment,
  type EmailContent,
  type FilledEmail,
  type PersonalHeaders,
  compileEmail,
  fillEmail,
  listChunks,
} from './mime.ts';

const date = new Date('2026-11-21T11:41:50Z');

function content(changes: Partial<EmailContent> = {}): EmailContent {
  return {
    messageId: '0198f2a0-0000-7000-8000-000000000001@example.com',
    from: { address: 'shop@example.com', name: 'The Shop' },
    replyTo: null,
    to: ['ada@example.net'],
    cc: [],
    subject: 'Your order',
    html: null,
    text: 'Thank you.',
    attachments: [],
    headers: [],
    ...changes,
  };
}

function attachment(changes: Partial<EmailAttachment> = {}): EmailAttachment {
  return {
    filename: 'a.bin',
    contentType: 'application/octet-stream',
    contentId: null,
    content: Buffer.from('content'),
    ...changes,
  };
}

/** The message as octets, after a strict look at what every message has to be. */
function compose(
  changes: Partial<EmailContent>,
  values: Values | null = null,
  personal?: PersonalHeaders,
): string {
  const compiled = compileEmail(content(changes), { personalised: values !== null, isSigned: true });
  const filled = fillEmail(compiled, { date, values: values ?? {}, personal: personal ?? null });
  if (typeof filled === 'string') throw new Error(filled);
  const message = Buffer.concat(listChunks(filled)).toString('latin1');
  expect(message).toMatch(/^[\t\r\n -~]*\r\n$/);
  expect(message.replaceAll('\r\n', '')).not.toMatch(/[\r\n]/);
  expect(message.split('\r\n').every((line) => line.length <= 998)).toBe(true);
  expect(filled.header).toBe(message.slice(0, message.indexOf('\r\n\r\n') + 2));
  return message;
}

function parse(message: string): Promise<Email> {
  return PostalMime.parse(Buffer.from(message, 'latin1'));
}

type Part = { fields: Map<string, string>; children: Part[]; body: string; bytes: Buffer };

/** Reads a part to the letter of RFC 2045 and 2046, and refuses everything that a reader would have to guess. */
function readPart(text: string): Part {
  const headerEnd = text.indexOf('\r\n\r\n');
  expect(headerEnd).toBeGreaterThan(0);
  const fields = new Map<string, string>();
  for (const line of text
    .slice(0, headerEnd)
    .replace(/\r\n(?=[ \t])/g, '')
    .split('\r\n')) {
    const match = /^([!-9;-~]+):(?: (.*))?$/.exec(line);
    expect(match, line).not.toBeNull();
    const name = match![1]!.toLowerCase();
    expect(fields.has(name), `${name} twice`).toBe(false);
    fields.set(name, match![2] ?? '');
  }
  const body = text.slice(headerEnd + 4);
  const boundary = /^multipart\/.*; boundary="([^"]+)"/.exec(fields.get('content-type') ?? '')?.[1];
  const children = boundary === undefined ? [] : splitParts(body, boundary).map(readPart);
  return { fields, children, body, bytes: decodeBody(fields.get('content-transfer-encoding'), body) };
}

function splitParts(body: string, boundary: string): string[] {
  const sections = `\r\n${body}`.split(`\r\n--${boundary}`);
  expect(sections[0]).toBe('');
  expect(sections.at(-1)).toMatch(/^--(?:\r\n)*$/);
  return sections.slice(1, -1).map((section) => {
    expect(section.startsWith('\r\n')).toBe(true);
    return section.slice(2);
  });
}

function decodeBody(encoding: string | undefined, body: string): Buffer {
  const lines = body.split('\r\n');
  if (encoding === 'base64') {
    expect(lines.every((line) => /^[A-Za-z0-9+/]{0,76}={0,2}$/.test(line) && line.length <= 76)).toBe(true);
    return Buffer.from(body, 'base64');
  }
  if (encoding === 'quoted-printable') {
    for (const line of lines) {
      expect(line.length).toBeLessThanOrEqual(76);
      expect(line).toMatch(/^(?!\.|From )(?:[\t -<>-~]|=[0-9A-F]{2})*=?$/);
      expect(line).not.toMatch(/[ \t]$/);
    }
    const joined = body.replaceAll('=\r\n', '');
    return Buffer.from(
      joined.replace(/=([0-9A-F]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16))),
      'latin1',
    );
  }
  return Buffer.from(body, 'latin1');
}

function describeTree(part: Part): unknown {
  const type = (part.fields.get('content-type') ?? '').split(';')[0];
  return part.children.length === 0 ? type : [type, ...part.children.map(describeTree)];
}

function findLeaf(part: Part, type: string): Part {
  const found = listLeaves(part).find((leaf) => leaf.fields.get('content-type')?.startsWith(type));
  expect(found).toBeDefined();
  return found!;
}

function listLeaves(part: Part): Part[] {
  return part.children.length === 0 ? [part] : part.children.flatMap(listLeaves);
}

/** Any Unicode without lone surrogates and without NUL, which requests can't bring in. */
const anyText = fc
  .oneof(
    fc.string({ unit: 'binary', maxLength: 200 }),
    fc.string({ unit: 'grapheme', maxLength: 200 }),
    fc.string({
      unit: fc.constantFrom('\r', '\n', '\r\n', '.', 'From ', ' ', '\t', '=', 'a', 'ü', '--', '=_'),
    }),
    fc.string({ unit: 'grapheme-ascii', maxLength: 1500 }),
  )
  .map((text) => text.replaceAll('\0', ''));

function withLineEnds(text: string): string {
  return text.replace(/\r\n|\r|\n/g, '\r\n');
}

/** What remains of a text in a header: the same rule as the code under test, written once more. */
function asHeader(text: string): string {
  return [...text.replaceAll('\r\n', ' ')]
    .map((character) => (/^[\p{Cc}\u2028\u2029]$/u.test(character) ? ' ' : character))
    .join('')
    .replace(/ +/g, ' ')
    .trim();
}

describe('a composed message', () => {
  it('stays as small as its content allows', () => {
    expect(compose({})).toBe(
      [
        'From: The Shop <shop@example.com>',
        'To: ada@example.net',
        'Subject: Your order',
        'Date: Sat, 21 Nov 2026 11:41:50 +0000',
        'Message-ID: <0198f2a0-0000-7000-8000-000000000001@example.com>',
        'MIME-Version: 1.0',
        'Content-Type: text/plain; charset=utf-8',
        'Content-Transfer-Encoding: 7bit',
        '',
        'Thank you.',
        '',
      ].join('\r\n'),
    );
  });

  it('has the date of each copy', () => {
    const compiled = compileEmail(content(), { personalised: false, isSigned: false });
    const dates = ['2026-11-21T11:41:50.999Z', '2026-11-21T15:41:51Z', '2026-11-21T11:41:50Z'].map((at) => {
      const filled = fillEmail(compiled, { date: new Date(at), values: {}, personal: null });
      return /\r\nDate: (.*)\r\n/.exec((filled as FilledEmail).header)?.[1];
    });
    expect(dates).toEqual([
      'Sat, 21 Nov 2026 11:41:50 +0000',
      'Sat, 21 Nov 2026 15:41:51 +0000',
      'Sat, 21 Nov 2026 11:41:50 +0000',
    ]);
  });

  it('is the same to the octet each time', () => {
    const changes = { html: '<p>{{a}} ü</p>', text: 'x', attachments: [attachment()] };
    expect(compose(changes, { a: 'é' })).toBe(compose(changes, { a: 'é' }));
  });

  it('gives back any text, with CRLF for every line end', () => {
    fc.assert(
      fc.property(anyText, anyText, (text, html) => {
        const root = readPart(compose({ text, html }));
        expect(findLeaf(root, 'text/plain').bytes.toString()).toBe(withLineEnds(text));
        expect(findLeaf(root, 'text/html').bytes.toString()).toBe(withLineEnds(html));
      }),
      { numRuns: 400 },
    );
  });

  it('gives back any text to a reader that knows nothing of us', async () => {
    const compare = (text: string) => text.replace(/\r*\n/g, '\n').replace(/[\r\n]+$/, '');
    await fc.assert(
      fc.asyncProperty(anyText, fc.string({ unit: 'grapheme', maxLength: 1000 }), async (text, html) => {
        const parsed = await parse(compose({ text: withLineEnds(text), html, subject: asHeader(html) }));
        expect(compare(parsed.text ?? '')).toBe(compare(withLineEnds(text).replace(/^\ufeff/, '')));
        expect(compare(parsed.html ?? '')).toBe(compare(withLineEnds(html)));
      }),
      { numRuns: 200 },
    );
  });

  it('gives back any subject and name', async () => {
    await fc.assert(
      fc.asyncProperty(anyText, anyText, async (subject, name) => {
        const parsed = await parse(compose({ subject, from: { address: 'shop@example.com', name } }));
        expect(parsed.subject ?? '').toBe(asHeader(subject));
        expect(parsed.from).toEqual({ address: 'shop@example.com', name: asHeader(name) });
      }),
      { numRuns: 400 },
    );
  });

  it('gives back any filename', async () => {
    // Names that contain encoded words are refused before a message is composed.
    const filenames = fc
      .string({ unit: fc.constantFrom(...'abc .-_"\\\'%;()ü表😀é*<>@,'), minLength: 1, maxLength: 255 })
      .map((name) => `a${name}.pdf`);
    await fc.assert(
      fc.asyncProperty(filenames, async (filename) => {
        const parsed = await parse(compose({ attachments: [attachment({ filename })] }));
        expect(parsed.attachments.map((file) => file.filename)).toEqual([filename]);
      }),
      { numRuns: 300 },
    );
  });

  it('gives back any file', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 400 }), fc.nat(400), (bytes, from) => {
        // A view into a larger buffer, as request bodies are.
        const view = bytes.subarray(Math.min(from, bytes.length));
        const root = readPart(compose({ attachments: [attachment({ content: view })] }));
        expect(findLeaf(root, 'application/octet-stream').bytes).toEqual(Buffer.from(view));
      }),
      { numRuns: 300 },
    );
  });

  it('keeps every line of a header within 78 characters as far as it can', () => {
    const message = compose({
      subject: 'Übergrößenträger '.repeat(20),
      from: { address: 'shop@example.com', name: 'Wörterbuch '.repeat(20) },
      to: Array.from({ length: 50 }, (_, index) => `recipient-number-${index}@example.net`),
      attachments: [attachment({ filename: `${'ü'.repeat(120)}.pdf` })],
    });
    expect(message.split('\r\n').filter((line) => line.length > 78)).toEqual([]);
    expect(message).not.toMatch(/=\?[^ ]{74,}\?=/);
  });

  it('writes a subject without any space as encoded words rather than as a line of a thousand', () => {
    const message = compose({ subject: 'x'.repeat(998) });
    expect(message.split('\r\n').every((line) => line.length <= 78)).toBe(true);
  });

  it.each([
    ['Ada', 'From: Ada <shop@example.com>'],
    ['Doe, Jane', 'From: "Doe, Jane" <shop@example.com>'],
    ['a "b" \\ c', 'From: "a \\"b\\" \\\\ c" <shop@example.com>'],
    ['x@example.org', 'From: "x@example.org" <shop@example.com>'],
    ['=?utf-8?Q?x?=', 'From: =?utf-8?B?PT91dGYtOD9RP3g/PQ==?=\r\n <shop@example.com>'],
    ['Zoë', 'From: =?utf-8?Q?Zo=C3=AB?=\r\n <shop@example.com>'],
    ['Ада', 'From: =?utf-8?B?0JDQtNCw?=\r\n <shop@example.com>'],
    [' The  Shop ', 'From: The Shop <shop@example.com>'],
    [' ', 'From: shop@example.com'],
    [
      'The Committee, Friends and Neighbours of the Library and Museum of Lisbon',
      'From: "The Committee, Friends and Neighbours of the Library and Museum of\r\n Lisbon" <shop@example.com>',
    ],
    ['', 'From: shop@example.com'],
    [null, 'From: shop@example.com'],
  ])('names the sender %j so that no reader takes a part of it for an address', (name, expected) => {
    expect(compose({ from: { address: 'shop@example.com', name } }).startsWith(`${expected}\r\n`)).toBe(true);
  });

  it.each([
    ['Your order, {{name}}: ', 'Subject: Your order, {{name}}:'],
    [' Hello , two  blanks', 'Subject: Hello , two blanks'],
    ['   ', 'Subject:'],
    [
      `Look at https://shop.example/${'offers/'.repeat(10)} (today)`,
      [
        'Subject: =?utf-8?Q?Look_at_https=3A//shop=2Eexample/offers/offers/offers/off?=',
        ' =?utf-8?Q?ers/offers/offers/offers/offers/offers/offers/_=28today=29?=',
      ].join('\r\n'),
    ],
    ['Ihre Bestellung aus München', 'Subject: =?utf-8?Q?Ihre_Bestellung_aus_M=C3=BCnchen?='],
    ['注文が届きました', 'Subject: =?utf-8?B?5rOo5paH44GM5bGK44GN44G+44GX44Gf?='],
  ])('writes the subject %j as a person would', (subject, expected) => {
    expect(compose({ subject })).toContain(`\r\n${expected}\r\nDate: `);
  });

  it('speaks UTF-8 alone, of which ASCII is a part, in whatever is accented and whatever is not', () => {
    const plain = { subject: 'Your order', text: 'Thank you.', html: '<p>Thank you.</p>', name: 'The Shop' };
    const accented = {
      subject: 'Zoé',
      text: 'Merci, à bientôt.',
      html: '<p>À bientôt.</p>',
      name: 'Café Zoé',
    };
    const invitation = (summary: string) =>
      attachment({
        filename: `${summary}.ics`,
        contentType: 'text/calendar; method=REQUEST',
        content: Buffer.from(`BEGIN:VCALENDAR\r\nSUMMARY:${summary}\r\nEND:VCALENDAR\r\n`),
      });
    // Each of them accented alone, beside the others in ASCII, and all of them.
    const choices = [...Object.keys(plain), 'all', 'none'];
    for (const choice of choices) {
      const pick = (field: keyof typeof plain) =>
        choice === field || choice === 'all' ? accented[field] : plain[field];
      const message = compose({
        from: { address: 'shop@example.com', name: pick('name') },
        replyTo: 'answers@example.com',
        subject: pick('subject'),
        text: pick('text'),
        html: pick('html'),
        headers: [{ name: 'X-Shop', value: pick('name') }],
        attachments: [invitation(pick('subject'))],
      });
      const declared = [...message.matchAll(/charset=("?)([^\s;"]+)\1/gi)].map(([, , charset]) => charset);
      // Of the text, the HTML and the invitation; the attached file says nothing of its own.
      expect([choice, declared]).toEqual([choice, ['utf-8', 'utf-8', 'utf-8']]);
      const ofWords = [...message.matchAll(/=\?([^?\s]+)\?[QB]\?/gi)].map(([, charset]) => charset);
      const ofParameters = [...message.matchAll(/\*0?\*?=([\w-]*)'[\w-]*'/g)].map(([, charset]) => charset);
      expect([
        choice,
        new Set([...ofWords, ...ofParameters].map((charset) => charset?.toLowerCase())),
      ]).toEqual([
        choice,
        new Set(choice === 'none' || choice === 'text' || choice === 'html' ? [] : ['utf-8']),
      ]);
    }
  });

  it('has encoded words of at most 75 characters, each of which can be read by itself', () => {
    const texts = fc.oneof(
      fc.string({ unit: 'grapheme', minLength: 1, maxLength: 300 }),
      fc.string({ unit: fc.constantFrom('ü', '表', '😀', 'a', ' ', '?', '='), minLength: 1, maxLength: 300 }),
    );
    fc.assert(
      fc.property(texts, (subject) => {
        const [, written = ''] = /\r\nSubject:((?:.|\r\n )*)\r\nDate:/.exec(compose({ subject })) ?? [];
        for (const word of written.split(/\s+/).filter((each) => each.startsWith('=?'))) {
          expect(word.length).toBeLessThanOrEqual(75);
          const [, encoding, text = ''] = /^=\?utf-8\?([QB])\?([!->@-~]+)\?=$/.exec(word) ?? [];
          const octets =
            encoding === 'B'
              ? Buffer.from(text, 'base64')
              : Buffer.from(
                  text
                    .replaceAll('_', ' ')
                    .replace(/=([0-9A-F]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16))),
                  'latin1',
                );
          expect(() => new TextDecoder('utf-8', { fatal: true }).decode(octets)).not.toThrow();
        }
        expect(written.split('\r\n').every((line) => line.length <= 78)).toBe(true);
      }),
      { numRuns: 300 },
    );
  });

  it('never lets ASCII text be taken for an encoded word', async () => {
    const subject = '=?utf-8?B?QmNj?= {{x}}';
    const parsed = await parse(compose({ subject, from: { address: 'a@example.com', name: subject } }));
    expect(parsed.subject).toBe(subject);
    expect(parsed.from?.name).toBe(subject);
  });

  it('writes international domains as A-labels', () => {
    const message = compose({ to: ['ada@bücher.example'], cc: ['b@例え.example'], replyTo: 'c@Ü.example' });
    expect(message).toContain('\r\nTo: ada@xn--bcher-kva.example\r\nCc: b@xn--r8jz45g.example\r\n');
    expect(message).toContain('\r\nReply-To: c@xn--tda.example\r\n');
  });

  /** The header of a copy as octets, for a recipient with an international address or for one without. */
  function headerFor(
    changes: Partial<EmailContent>,
    isInternational: boolean,
    personal?: PersonalHeaders,
  ): Buffer {
    const compiled = compileEmail(content(changes), { personalised: false, isSigned: true });
    const filled = fillEmail(compiled, { date, values: {}, personal: personal ?? null, isInternational });
    if (typeof filled === 'string') throw new Error(filled);
    const message = Buffer.concat(listChunks(filled));
    return message.subarray(0, message.indexOf('\r\n\r\n') + 2);
  }

  it('names international addresses in UTF-8 in copies for those who have one', async () => {
    const named = { to: ['jürgen@bücher.example', 'ada@example.net'], cc: ['用户@example.net'] };
    const header = headerFor(named, true);
    expect(header.toString()).toContain(
      '\r\nTo: jürgen@xn--bcher-kva.example, ada@example.net\r\nCc: 用户@example.net\r\n',
    );
    const { to, cc } = await PostalMime.parse(header);
    expect([...to!, ...cc!].map(({ address }) => address)).toEqual([
      'jürgen@xn--bcher-kva.example',
      'ada@example.net',
      '用户@example.net',
    ]);
    expect(headerFor({}, true, { to: ['jürgen@example.net'] }).toString()).toContain(
      'To: jürgen@example.net\r\n',
    );
  });

  it('names them in ASCII, as people without an address to answer to, in all other copies', async () => {
    const message = compose({ to: ['jürgen@bücher.example', 'ada@example.net'], cc: ['用户@example.net'] });
    const { to, cc } = await parse(message);
    expect(to).toEqual([
      { name: 'jürgen@bücher.example', group: [] },
      { name: '', address: 'ada@example.net' },
    ]);
    expect(cc).toEqual([{ name: '用户@example.net', group: [] }]);
  });

  it('is the same for everyone where no international address is named', () => {
    const named = {
      to: ['ada@bücher.example'],
      replyTo: 'b@example.net',
      headers: [{ name: 'X-Ü', value: 'ü' }].slice(1),
    };
    expect(headerFor(named, true)).toEqual(headerFor(named, false));
  });

  it('folds by octets, at most 998 of them in a line', () => {
    const to = Array.from(
      { length: 50 },
      (_none, index) => `${'名'.repeat(18)}${index}@${'a'.repeat(60)}.example.net`,
    );
    const lines = headerFor({ to }, true).toString('latin1').split('\r\n');
    expect(lines.filter((line) => line.includes('@a'))).toHaveLength(50);
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThan(150);
    const short = Array.from({ length: 50 }, (_none, index) => `${'名'.repeat(5)}${index}@a.example`);
    const folded = headerFor({ to: short }, true).toString('latin1').split('\r\n');
    expect(Math.max(...folded.map((line) => line.length))).toBeLessThanOrEqual(78);
  });

  it('is never sent in the name of an international address', () => {
    const compile = (changes: Partial<EmailContent>) => () =>
      compileEmail(content(changes), { personalised: false, isSigned: false });
    expect(compile({ from: { address: 'jürgen@example.com', name: null } })).toThrow('does not come from');
    expect(compile({ from: { address: 'jürgen@example.com', name: 'Jürgen' } })).toThrow(
      'does not come from',
    );
    expect(compile({ replyTo: 'jürgen@example.com' })).toThrow('does not come from');
  });

  it.each([
    '\r\nBcc: x@example.org',
    '\nBcc: x@example.org',
    '\rBcc: x',
    '\r\n\r\n<html>',
    '\u2028Bcc: x',
    '\u0085B:',
  ])('gets no header and no body from %j in what was handed in', (evil) => {
    const message = compose(
      {
        subject: `a${evil}`,
        from: { address: 'shop@example.com', name: `b${evil}` },
        headers: [{ name: 'X-Extra', value: `c${evil}` }],
        attachments: [attachment({ filename: `d${evil}.pdf` })],
      },
      {},
    );
    const root = readPart(message);
    expect([...root.fields.keys()]).toEqual([
      'from',
      'to',
      'subject',
      'date',
      'message-id',
      'x-extra',
      'mime-version',
      'content-type',
    ]);
    expect(root.children).toHaveLength(2);
  });

  it.each<[string, Partial<EmailContent>]>([
    ['from', { from: { address: 'a@example.com\r\nX: y', name: null } }],
    ['to', { to: ['a@example.com, b@example.com'] }],
    ['reply-to', { replyTo: '' }],
    ['message id', { messageId: 'a@example.com>\r\nX: <y' }],
    ['header name', { headers: [{ name: 'X: y\r\nZ', value: 'a' }] }],
    ['bcc header', { headers: [{ name: 'bcc', value: 'a@example.com' }] }],
    ['second subject', { headers: [{ name: 'Subject', value: 'a' }] }],
    ['endless header word', { headers: [{ name: 'X-Long', value: 'a'.repeat(1000) }] }],
    ['content type', { attachments: [attachment({ contentType: 'a/b\r\nX: y' })] }],
    ['content id', { attachments: [attachment({ contentId: 'a>\r\nX: y' })] }],
  ])('is not made at all from a broken %s', (_, changes) => {
    expect(() => compileEmail(content(changes), { personalised: false, isSigned: false })).toThrow();
  });

  it('leaves out the levels that it does not need, and keeps their order', () => {
    const file = attachment();
    const image = attachment({ filename: 'a.png', contentType: 'image/png', contentId: 'logo' });
    const html = '<img src="cid:logo">';
    const tree = (changes: Partial<EmailContent>) => describeTree(readPart(compose(changes)));
    expect(tree({ html })).toEqual(['multipart/alternative', 'text/plain', 'text/html']);
    expect(tree({ text: null, html })).toBe('text/html');
    expect(tree({ text: null, html, attachments: [image] })).toEqual([
      'multipart/related',
      'text/html',
      'image/png',
    ]);
    expect(tree({ attachments: [file] })).toEqual([
      'multipart/mixed',
      'text/plain',
      'application/octet-stream',
    ]);
    expect(tree({ attachments: [image] })).toEqual(['multipart/mixed', 'text/plain', 'image/png']);
    expect(tree({ html, attachments: [file, image] })).toEqual([
      'multipart/mixed',
      ['multipart/related', ['multipart/alternative', 'text/plain', 'text/html'], 'image/png'],
      'application/octet-stream',
    ]);
    expect(tree({ text: null })).toBe('text/plain');
  });

  it('shows its inline images', async () => {
    const image = attachment({ filename: 'a.png', contentType: 'image/png', contentId: 'logo@x' });
    const parsed = await parse(
      compose({ html: '<img src="cid:logo@x">', attachments: [image, attachment()] }),
    );
    expect(parsed.attachments).toMatchObject([
      { contentId: '<logo@x>', disposition: 'inline', related: true, mimeType: 'image/png' },
      { disposition: 'attachment', filename: 'a.bin' },
    ]);
  });

  it('offers an invitation as an alternative, and attaches it', async () => {
    const calendar = Buffer.from('BEGIN:VCALENDAR\r\nMETHOD:REQUEST\r\nEND:VCALENDAR\r\n');
    const invitation = attachment({
      filename: 'invite.ics',
      contentType: 'text/calendar; method=REQUEST',
      content: calendar,
    });
    const message = compose({ html: '<p>', attachments: [invitation] });
    const root = readPart(message);
    expect(describeTree(root)).toEqual([
      'multipart/mixed',
      ['multipart/alternative', 'text/plain', 'text/html', 'text/calendar'],
      'text/calendar',
    ]);
    expect(message).toContain('Content-Type: text/calendar; method=REQUEST; charset=utf-8\r\n');
    expect(
      listLeaves(root)
        .map((leaf) => leaf.bytes.toString())
        .slice(2),
    ).toEqual([calendar.toString(), calendar.toString()]);
    const parsed = await parse(message);
    expect(parsed.attachments).toMatchObject([
      { method: 'REQUEST', filename: null },
      { method: 'REQUEST', filename: 'invite.ics', disposition: 'attachment' },
    ]);
    const plain = { ...invitation, contentType: 'text/calendar' };
    expect(describeTree(readPart(compose({ attachments: [plain] })))).toEqual([
      'multipart/mixed',
      'text/plain',
      'text/calendar',
    ]);
  });

  it('lets a file have one name only, and hides no message in it', () => {
    const message = compose({
      attachments: [
        attachment({ filename: 'a.pdf', contentType: 'application/pdf; name="b.exe"; version="1.7"' }),
        attachment({ filename: 'b.eml', contentType: 'message/rfc822' }),
        attachment({ filename: 'c', contentType: 'multipart/mixed; boundary=x' }),
      ],
    });
    expect(message).not.toContain('b.exe');
    expect(message).toContain('Content-Type: application/pdf;\r\n version="1.7";\r\n name="a.pdf"\r\n');
    expect(describeTree(readPart(message))).toEqual([
      'multipart/mixed',
      'text/plain',
      'application/pdf',
      'application/octet-stream',
      'application/octet-stream',
    ]);
  });

  it('can hold text that looks like its own boundaries', () => {
    const boundary = /boundary="([^"]+)"/.exec(compose({ html: '<p>' }))![1]!;
    const text = `--${boundary}\r\n\r\n--${boundary}--\r\n`;
    const root = readPart(compose({ text, html: '{{a}}', attachments: [attachment()] }, { a: text }));
    expect(findLeaf(root, 'text/plain').bytes.toString()).toBe(text);
    expect(findLeaf(root, 'text/html').bytes.toString()).toBe(text);
  });

  it.each([
    ['plain text', 'a\r\n.\r\nb', '7bit'],
    ['a long line', 'a'.repeat(999), 'quoted-printable'],
    ['a line that relays alter', 'a\nFrom b', 'quoted-printable'],
    ['a control character', 'one \x1b in a line', 'quoted-printable'],
    ['some umlauts', 'Grüße aus Köln, wo es heute regnet', 'quoted-printable'],
    ['another script', 'Привет, как дела?', 'base64'],
  ])('encodes %s no more than needed', (_, text, encoding) => {
    expect(readPart(compose({ text })).fields.get('content-transfer-encoding')).toBe(encoding);
  });
});

describe('a personalised message', () => {
  it('gives back any text around any value', () => {
    // Beside an equals sign or `://` a value may be a part of a link, which is written otherwise.
    const texts = fc.array(
      anyText.filter((text) => !/[{}=]|:\/\//.test(text)),
      { minLength: 1, maxLength: 5 },
    );
    fc.assert(
      fc.property(texts, anyText, (literals, value) => {
        const root = readPart(
          compose({ text: literals.join('{{a}}'), html: literals.join('{{{a}}}') }, { a: value }),
        );
        // Each part has its own line ends: a CR before a value and an LF in it are two.
        const [first = '', ...others] = literals.map(withLineEnds);
        const expected = [first, ...others.map((literal) => withLineEnds(value) + literal)].join('');
        expect(findLeaf(root, 'text/plain').bytes.toString()).toBe(expected);
        expect(findLeaf(root, 'text/html').bytes.toString()).toBe(expected);
      }),
      { numRuns: 500 },
    );
  });

  it('gives back any value in its subject', async () => {
    await fc.assert(
      fc.asyncProperty(anyText, async (value) => {
        const parsed = await parse(compose({ subject: 'a {{x}} b' }, { x: value }));
        expect(parsed.subject).toBe(asHeader(`a ${value} b`));
      }),
      { numRuns: 200 },
    );
  });

  it('escapes values in html only, and leaves unknown placeholders as they are', () => {
    const text = '{{a}} {{{a}}} {{ b }} {{constructor}}';
    const root = readPart(compose({ subject: text, text, html: text }, { a: '<ü>' }));
    expect(findLeaf(root, 'text/plain').bytes.toString()).toBe('<ü> <ü> {{ b }} {{constructor}}');
    expect(findLeaf(root, 'text/html').bytes.toString()).toBe('&lt;ü&gt; <ü> {{ b }} {{constructor}}');
  });

  it('leaves placeholders alone when it was rendered before', () => {
    const message = compose({ subject: '{{a}}', text: '{{a}}' });
    expect(message).toContain('\r\nSubject: {{a}}\r\n');
    expect(message.endsWith('\r\n\r\n{{a}}\r\n')).toBe(true);
  });

  it('fills its html alone where that is all that differs', () => {
    const text = '{{a}} {{a}}';
    const compiled = compileEmail(content({ subject: text, text, html: text }), {
      personalised: 'html',
      isSigned: false,
    });
    const filled = fillEmail(compiled, { date, values: { a: '<ü>' }, personal: null });
    const message = Buffer.concat(listChunks(filled as FilledEmail)).toString('latin1');
    const root = readPart(message);
    expect(message).toContain(`\r\nSubject: ${text}\r\n`);
    expect(findLeaf(root, 'text/plain').bytes.toString()).toBe(text);
    expect(findLeaf(root, 'text/html').bytes.toString()).toBe('&lt;ü&gt; &lt;ü&gt;');
  });

  it('can be addressed separately to everyone', () => {
    const message = compose(
      { text: 'Hello {{a}}' },
      { a: 'Ada' },
      {
        messageId: '2@example.com',
        to: ['ada@example.org'],
        headers: [{ name: 'List-Unsubscribe', value: '<https://example.com/u/1>' }],
      },
    );
    expect(message).toContain('\r\nTo: ada@example.org\r\nSubject: Your order\r\n');
    expect(message).toContain(
      '\r\nMessage-ID: <2@example.com>\r\nList-Unsubscribe: <https://example.com/u/1>\r\n',
    );
    expect(message).not.toContain('ada@example.net');
  });

  it('shares its files between the copies', () => {
    const compiled = compileEmail(
      content({ text: '{{a}}', attachments: [attachment({ content: Buffer.alloc(100_000) })] }),
      { personalised: true, isSigned: false },
    );
    const copies = [
      fillEmail(compiled, { date, values: { a: '1' }, personal: null }),
      fillEmail(compiled, { date, values: { a: '2' }, personal: null }),
    ];
    const files = copies.map((copy) =>
      (typeof copy === 'string' ? [] : copy.body).find(({ length }) => length > 100_000),
    );
    expect(files[0]).toBeDefined();
    expect(files[0]).toBe(files[1]);
  });

  it('stops before values without end fill the memory', () => {
    const compiled = compileEmail(content({ text: '{{a}}'.repeat(100_000), subject: '{{a}}'.repeat(190) }), {
      personalised: true,
      isSigned: false,
    });
    expect(fillEmail(compiled, { date, values: { a: 'x'.repeat(1_000_000) }, personal: null })).toBe(
      'too_large',
    );
    const short = compileEmail(content({ subject: '{{a}}'.repeat(190) }), {
      personalised: true,
      isSigned: false,
    });
    expect(fillEmail(short, { date, values: { a: '😀'.repeat(100_000) }, personal: null })).toBe(
      'subject_too_long',
    );
  });

  it('has a subject of 998 characters at most with its values', () => {
    const compiled = compileEmail(content({ subject: '{{a}}!' }), { personalised: true, isSigned: false });
    expect(fillEmail(compiled, { date, values: { a: '😀'.repeat(997) }, personal: null })).toMatchObject({
      header: expect.anything() as string,
    });
    expect(fillEmail(compiled, { date, values: { a: '😀'.repeat(998) }, personal: null })).toBe(
      'subject_too_long',
    );
    expect(fillEmail(compiled, { date, values: { a: 'x'.repeat(998) }, personal: null })).toBe(
      'subject_too_long',
    );
  });
});
