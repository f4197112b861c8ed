import { createHash, generateKeyPairSync } from 'node:crypto';
import fc from 'fast-check';
import { dkimVerify } from 'mailauth/lib/dkim/verify.js';
import { beforeAll, describe, expect, it } from 'vitest';
import { signHere } from '../../../test/support/sign-here.ts';
import {
  type DkimKeyPair,
  type DkimSigner,
  dkimRecordName,
  dkimRecordValue,
  generateDkimKeyPair,
  openDkimSigner,
  planSignatures,
  publishesDkimKey,
  signEmail,
} from './dkim.ts';
import { canonicaliseHeader, digestBody, digestReducedBody } from './dkim-canonical.ts';
import { type EmailContent, type FilledEmail, compileEmail, fillEmail, listChunks } from './mime.ts';

const domain = 'example.com';
const selector = 'k1';
const signedAt = new Date('2026-11-21T11:41:50.700Z');

let pair: DkimKeyPair;
let signer: DkimSigner;

beforeAll(async () => {
  pair = await generateDkimKeyPair();
  signer = openDkimSigner({ domain, selector, privateKey: pair.privateKey });
});

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

function fill(changes: Partial<EmailContent>, values: Record<string, string> | null = null): FilledEmail {
  const filled = fillEmail(
    compileEmail(content(changes), { personalised: values !== null, isSigned: true }),
    { date: signedAt, values: values ?? {}, personal: null },
  );
  if (typeof filled === 'string') throw new Error(filled);
  return filled;
}

async function signMessage(changes: Partial<EmailContent>): Promise<string> {
  return write(await sign(fill(changes)));
}

function sign(filled: FilledEmail): Promise<FilledEmail> {
  return signEmail(planSignatures(signHere, signer), filled, signedAt);
}

function write(filled: FilledEmail): string {
  return Buffer.concat(listChunks(filled)).toString('latin1');
}

/** What a verifier that was written by others says about each signature, with our record in its DNS. */
async function verify(message: string): Promise<string[]> {
  const records = new Map([[dkimRecordName(domain, selector), dkimRecordValue(pair.publicKey)]]);
  const { results } = await dkimVerify(Buffer.from(message, 'latin1'), {
    resolver: async (name, type) => {
      const record = records.get(name);
      if (type !== 'TXT' || record === undefined) throw Object.assign(new Error(name), { code: 'ENOTFOUND' });
      return [record.match(/.{1,255}/g)!];
    },
  });
  return results.map(({ status }) => `${status.result} ${String(status.aligned)}`);
}

const verified = [`pass ${domain}`];

/** RFC 6376 §3.4.4 to the letter, on the whole body at once. */
function canonicaliseNaively(body: string): string {
  const lines = body.split('\r\n').map((line) => line.replace(/[ \t]+/g, ' ').replace(/ $/, ''));
  while (lines.at(-1) === '') lines.pop();
  return lines.map((line) => `${line}\r\n`).join('');
}

function digestText(canonical: string): string {
  return createHash('sha256').update(canonical, 'latin1').digest('base64');
}

/** The octets of a text, cut into chunks at these places. */
function cut(text: string, places: readonly number[]): Buffer[] {
  const bytes = Buffer.from(text, 'latin1');
  const ends = [...places.filter((place) => place <= bytes.length), bytes.length].sort((a, b) => a - b);
  return ends.map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end));
}

describe('the digest of a body', () => {
  it.each([
    ['', ''],
    ['\r\n', ''],
    [' \t\r\n\r\n', ''],
    ['  ', ''],
    // The example of RFC 6376 §3.4.5.
    [' C \r\nD \t E\r\n\r\n\r\n', ' C\r\nD E\r\n'],
    ['a', 'a\r\n'],
    ['a \t', 'a\r\n'],
    ['a\r\n \t', 'a\r\n'],
    ['\r\n\r\na\r\n', '\r\n\r\na\r\n'],
    ['a\r\n \r\n\t\r\nb\r\n', 'a\r\n\r\n\r\nb\r\n'],
    ['\ta\tb\r\n', ' a b\r\n'],
    ['a\rb\nc\r\n', 'a\rb\nc\r\n'],
    ['a\r', 'a\r\r\n'],
    ['a\n\r\n', 'a\n\r\n'],
    ['\r', '\r\r\n'],
    ['\n', '\n\r\n'],
    ['a \rb\r\n', 'a \rb\r\n'],
    ['a\r\r\n', 'a\r\r\n'],
  ])('of %j is that of %j, wherever it is cut', (body, canonical) => {
    for (let first = 0; first <= body.length; first += 1) {
      for (let second = first; second <= body.length; second += 1) {
        expect(digestBody(cut(body, [first, second])), `${first} ${second}`).toBe(digestText(canonical));
      }
    }
  });

  it('is the one that RFC 6376 §3.4.4 prints for an empty body', () => {
    expect(digestBody([])).toBe('47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=');
  });

  it('is that of the canonical form for any octets, wherever they are cut', () => {
    const piece = fc.oneof(
      { weight: 8, arbitrary: fc.constantFrom(' ', '\t', '\r', '\n', '\r\n', 'a', '=', '\0', '\xff') },
      {
        weight: 1,
        arbitrary: fc
          .tuple(
            fc.constantFrom('a', ' ', '\t', '\r\n', ' \r\n', 'a ', 'a  b', 'line\r\n'),
            fc.nat({ max: 20_000 }),
          )
          .map(([text, times]) => text.repeat(times)),
      },
      { weight: 1, arbitrary: fc.string({ unit: 'binary-ascii', maxLength: 2_000 }) },
    );
    fc.assert(
      fc.property(
        fc.array(piece, { maxLength: 30 }),
        fc.array(fc.nat({ max: 60_000 }), { maxLength: 30 }),
        (pieces, places) => {
          const body = pieces.join('');
          const wanted = digestText(canonicaliseNaively(body));
          expect(digestBody(cut(body, places))).toBe(wanted);
          expect(
            digestBody(
              cut(
                body,
                places.map((place) => place % (body.length + 1)),
              ),
            ),
          ).toBe(wanted);
        },
      ),
      { numRuns: 300 },
    );
  });

  it('of a copy is that of all of it, whatever white space there is in its values and around them', () => {
    const blanks = fc.string({ unit: fc.constantFrom(' ', '\t', '\n', '\r\n', '\r', 'a', 'ü', '=', '.') });
    const literal = fc.oneof(
      { weight: 9, arbitrary: blanks },
      // Large ones are shared between copies, and are chunks by themselves.
      { weight: 1, arbitrary: blanks.map((text) => text.repeat(Math.ceil(40_000 / (text.length + 1)))) },
    );
    const text = fc.array(literal, { minLength: 1, maxLength: 5 }).map((literals) => literals.join('{{a}}'));
    const file = fc.record({
      filename: fc.constant('a'),
      contentType: fc.constant('text/plain'),
      contentId: fc.constantFrom(null, 'a'),
      content: fc.uint8Array({ maxLength: 100 }),
    });
    const copy = fc.record({
      text: fc.option(text),
      html: text,
      attachments: fc.array(file, { maxLength: 2 }),
      value: fc.option(blanks),
    });
    fc.assert(
      fc.property(copy, ({ value, ...changes }) => {
        const { body, reducedBody } = fill(changes, value === null ? {} : { a: value });
        const wanted = digestText(canonicaliseNaively(Buffer.concat(body).toString('latin1')));
        expect(digestBody(body)).toBe(wanted);
        if (reducedBody !== null) expect(digestReducedBody(reducedBody)).toBe(wanted);
        expect(reducedBody === null).toBe(![changes.text, changes.html].some((part) => part?.includes('{{')));
      }),
      { numRuns: 200 },
    );
  });

  it('of a copy knows the empty lines at its end, also where there is nothing else in its last chunk', () => {
    for (const end of [
      '\n\n',
      '\n'.repeat(50_000),
      ' \n \n'.repeat(20_000),
      `${'a \n'.repeat(20_000)}\n\n`,
    ]) {
      for (const value of ['', 'a', '\n\n']) {
        const { body, reducedBody } = fill({ text: `{{a}}${end}` }, { a: value });
        const wanted = digestText(canonicaliseNaively(Buffer.concat(body).toString('latin1')));
        expect(digestReducedBody(reducedBody!), JSON.stringify([end.slice(0, 4), value])).toBe(wanted);
      }
    }
  });

  it('leaves the chunks as they are', () => {
    const chunks = cut('a  b \r\n\r\n', [2, 5]);
    const before = Buffer.concat(chunks);
    digestBody(chunks);
    expect(Buffer.concat(chunks)).toEqual(before);
  });
});

describe('the canonical form of a header', () => {
  it('is the one of RFC 6376 §3.4.5', () => {
    expect(canonicaliseHeader('A: X \r\nB : Y\t\r\n\tZ  \r\n')).toEqual([
      { name: 'a', text: 'a:X' },
      { name: 'b', text: 'b:Y Z' },
    ]);
  });

  it('takes no octet of UTF-8 for white space', () => {
    const [field] = canonicaliseHeader(`To: ${Buffer.from(' à  ą\u2000 ').toString('latin1')}\r\n`);
    expect(Buffer.from(field!.text, 'latin1').toString()).toBe('to:à ą\u2000');
  });

  it('knows fields without a value', () => {
    expect(canonicaliseHeader('Subject:\r\nX: \r\n \r\n')).toEqual([
      { name: 'subject', text: 'subject:' },
      { name: 'x', text: 'x:' },
    ]);
  });
});

const unsubscribe = [
  {
    name: 'List-Unsubscribe',
    value: `<https://example.com/u/${'a'.repeat(200)}>, <mailto:leave@example.com>`,
  },
  { name: 'List-Unsubscribe-Post', value: 'List-Unsubscribe=One-Click' },
];

const file = { filename: 'a.bin', contentType: 'application/octet-stream', contentId: null };

describe('a signed message', () => {
  it('has the signature in front, and all else unchanged', async () => {
    const filled = fill({ headers: unsubscribe, cc: ['bob@example.org'] });
    const signed = await sign(filled);
    expect(signed.body).toBe(filled.body);
    const [signature = '', ...others] = write(signed).split(/(?=From: )/);
    expect(others.join('')).toBe(write(filled));
    expect(signature.replace(/b=[A-Za-z0-9+/=\r\n ]+\r\n$/, 'b=')).toBe(
      [
        'DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d=example.com; s=k1;',
        ' t=1795261310;',
        ' h=from:to:cc:subject:date:message-id:list-unsubscribe:list-unsubscribe-post:',
        ' mime-version:content-type:content-transfer-encoding:from:to:cc:subject:date:',
        ' message-id:reply-to:mime-version:content-type:content-transfer-encoding:',
        ' list-unsubscribe:list-unsubscribe-post;',
        ` bh=${digestText('Thank you.\r\n')};`,
        ' b=',
      ].join('\r\n'),
    );
  });

  it('has no line of more than 78 octets in its signature', async () => {
    const long = openDkimSigner({
      domain: `${'a'.repeat(60)}.${domain}`,
      selector: 's'.repeat(60),
      privateKey: pair.privateKey,
    });
    const filled = fill({
      from: { address: `shop@${long.domain}`, name: null },
      headers: Array.from({ length: 30 }, (_none, index) => ({
        name: `X-${index}-${'x'.repeat(index)}`,
        value: 'y',
      })),
    });
    const { header } = await signEmail(planSignatures(signHere, long), filled, signedAt);
    const signature = header.split('\r\nFrom:')[0]!;
    expect(signature.split('\r\n').filter((line) => line.length > 78)).toEqual([]);
  });

  it.each<[string, Partial<EmailContent>]>([
    ['text', {}],
    ['nothing in it', { text: null, subject: null }],
    ['an empty text', { text: '' }],
    ['an empty subject', { subject: '' }],
    ['blank lines at the end', { text: 'a\n\n \n\t\n\n' }],
    ['blank lines only', { text: '\n\n \n' }],
    ['tabs and spaces', { text: '\t a  \t b \t\n  \tc\t\t\nd ' }],
    ['long lines', { text: `${'long '.repeat(5_000)}\n${'x'.repeat(5_000)}` }],
    [
      'another alphabet',
      { text: 'Спасибо. '.repeat(300), html: '<p>ありがとう 😀</p>', subject: 'Ваш заказ 😀' },
    ],
    ['a name in quotes', { from: { address: 'shop@example.com', name: 'The "Shop", Inc.  Ltd' } }],
    ['a name in words', { from: { address: 'shop@example.com', name: 'Öl & Söhne '.repeat(20) } }],
    [
      'a list of recipients',
      { to: Array.from({ length: 50 }, (_none, index) => `reader-${index}@example.net`) },
    ],
    ['a subject of spaces', { subject: `a   b \t c${' '.repeat(300)}d ` }],
    ['a way to unsubscribe', { headers: unsubscribe, replyTo: 'help@example.org', cc: ['c@example.net'] }],
    ['a field twice', { headers: ['1', '2', '3'].map((value) => ({ name: 'X-Tag', value })) }],
    ['a field that h= cannot name', { headers: [{ name: 'X;b=', value: 'y' }] }],
    [
      'files',
      {
        html: '<img src="cid:logo">',
        attachments: [
          { ...file, filename: 'Überweisung 😀  für März.pdf', content: Buffer.from('pdf') },
          { ...file, contentId: 'logo', contentType: 'image/png', content: Buffer.alloc(300_000, 'png') },
          { ...file, filename: 'empty', content: Buffer.alloc(0) },
        ],
      },
    ],
  ])('is verified with %s', async (_what, changes) => {
    expect(await verify(await signMessage(changes))).toEqual(verified);
  });

  it('is verified with addresses in UTF-8', async () => {
    // Without the octet 0xa0, which this verifier takes for a space. dkimpy is asked about one that has it.
    const to = ['jürgen@example.net', 'Å.Å@example.net', '用户@bücher.example', 'ada@example.net'];
    const compiled = compileEmail(content({ to, cc: ['юрий@example.net'] }), {
      personalised: false,
      isSigned: true,
    });
    const filled = fillEmail(compiled, {
      date: signedAt,
      values: {},
      personal: null,
      isInternational: true,
    });
    if (typeof filled === 'string') throw new Error(filled);
    const message = write(await sign(filled));
    expect(Buffer.from(message, 'latin1').toString()).toContain('To: jürgen@example.net, Å.Å@example.net,');
    expect(await verify(message)).toEqual(verified);
    expect(await verify(message.replace('To: j', 'To: k'))).not.toEqual(verified);
  });

  it('is verified with any content', async () => {
    const anyText = fc
      .oneof(
        fc.string({ unit: 'binary', maxLength: 300 }),
        fc.string({ unit: 'grapheme', maxLength: 300 }),
        fc.string({
          unit: fc.constantFrom('\r\n', '\n', ' ', '\t', '.', '=', 'a', 'ü', '--'),
          maxLength: 300,
        }),
        fc.string({ unit: 'grapheme-ascii', maxLength: 1_500 }),
      )
      .map((text) => text.replaceAll('\0', ''));
    const anyFile = fc.record({
      filename: anyText,
      contentType: fc.constantFrom('application/pdf', 'text/plain; charset=utf-16'),
      contentId: fc.constantFrom(null, 'a'),
      content: fc.uint8Array({ maxLength: 500 }),
    });
    const optional = fc.option(anyText);
    await fc.assert(
      fc.asyncProperty(
        fc.record({
          subject: optional,
          html: optional,
          text: optional,
          attachments: fc.array(anyFile, { maxLength: 2 }),
        }),
        anyText,
        fc.dictionary(fc.constantFrom('name', 'city'), anyText),
        async (changes, name, values) => {
          const from = { address: 'shop@example.com', name };
          const text = `{{name}} ${changes.text ?? ''} {{ city }}`;
          for (const filled of [fill({ ...changes, from }), fill({ ...changes, from, text }, values)]) {
            expect(await verify(write(await sign(filled)))).toEqual(verified);
          }
        },
      ),
      { numRuns: 50 },
    );
  });

  it('is verified without any body, and with a body of many chunks', async () => {
    const { header } = fill({});
    const chunks = cut(
      'a  \tb \r\n\r\nc\r\n \r\n'.repeat(3_000),
      Array.from({ length: 999 }, (_none, n) => n * 47),
    );
    for (const body of [[], chunks]) {
      expect(await verify(write(await sign({ header, body, reducedBody: null })))).toEqual(verified);
    }
  });

  it('is the same to the octet when it is tried again in the same second, and another in another one', async () => {
    const again = async (at: string) =>
      write(await signEmail(planSignatures(signHere, signer), fill({}), new Date(at)));
    expect(await again('2026-11-21T11:41:50.999Z')).toBe(await signMessage({}));
    expect(await again('2026-11-21T11:41:51.000Z')).not.toBe(await signMessage({}));
  });

  it('takes a digest that was made before, and is the same with it', async () => {
    const filled = fill({});
    const bodyDigest = digestBody(filled.body);
    const plan = planSignatures(signHere, signer);
    expect(await signEmail(plan, filled, signedAt, bodyDigest)).toEqual(await sign(filled));
    const wrong = await signEmail(plan, filled, signedAt, digestBody([]));
    expect(await verify(write(wrong))).toEqual([`neutral ${domain}`]);
  });

  it('is the same whichever was signed before it: with other fields, or the same in another order', async () => {
    const tags = ['X-A', 'x-b', 'X-A', 'X-C'].map((name, index) => ({ name, value: `${index}` }));
    const headers = [[], tags, [...tags].reverse(), unsubscribe, tags, tags.slice(1)];
    const plan = planSignatures(signHere, signer);
    for (const filled of headers.map((list) => fill({ headers: list }))) {
      const message = write(await signEmail(plan, filled, signedAt));
      expect(message).toBe(write(await sign(filled)));
      expect(await verify(message)).toEqual(verified);
    }
  });

  it('has the time at which it was signed, whenever the one before it was', async () => {
    const plan = planSignatures(signHere, signer);
    for (const at of [0, 4 * 3_600, 0, 1].map((seconds) => new Date(signedAt.getTime() + seconds * 1_000))) {
      const message = write(await signEmail(plan, fill({}), at));
      expect(message).toContain(`\r\n t=${Math.floor(at.getTime() / 1_000)};`);
      expect(await verify(message)).toEqual(verified);
    }
  });

  it('is verified when many are signed at once', async () => {
    const messages = await Promise.all(
      Array.from({ length: 40 }, (_none, index) => signMessage({ subject: `Number ${index}` })),
    );
    for (const [index, message] of messages.entries()) {
      expect(message).toContain(`Subject: Number ${index}\r\n`);
      expect(await verify(message)).toEqual(verified);
    }
  });

  it('is not signed for another domain than that of its From', async () => {
    for (const address of ['shop@example.org', 'shop@sub.example.com', 'shop@notexample.com']) {
      const filled = fill({ from: { address, name: 'shop@example.com' } });
      await expect(sign(filled)).rejects.toThrow('another domain');
    }
  });
});

describe('a signed message that was changed', () => {
  const changes = { headers: unsubscribe, text: 'Pay 10 to Ada.\n', replyTo: 'help@example.com' };

  it.each([
    ['From', /^From: .*/m, 'From: Eve <shop@example.com>'],
    ['To', /^To: .*/m, 'To: eve@example.net'],
    ['Subject', /^Subject: .*/m, 'Subject: Your debt'],
    ['Date', /^Date: .*/m, 'Date: Sun, 22 Nov 2026 11:41:50 +0000'],
    ['Message-ID', /^Message-ID: .*/m, 'Message-ID: <1@example.com>'],
    ['Reply-To', /^Reply-To: .*/m, 'Reply-To: eve@example.net'],
    ['List-Unsubscribe', 'example.com/u/', 'example.net/u/'],
    ['List-Unsubscribe-Post', '=One-Click', '=Two-Clicks'],
    ['Content-Type', 'text/plain', 'text/html'],
    ['Content-Transfer-Encoding', '7bit', 'base64'],
    ['the Reply-To, which is gone', 'Reply-To: help@example.com\r\n', ''],
    ['the time of signing', / t=\d+/, ' t=1'],
    ['the list of names', ':reply-to:', ':'],
    ['the body', 'Ada', 'Eve'],
    ['the end of the body', /$/, 'P.S. Pay more.\r\n'],
    ['white space in words', 'Pay 10', 'Pay1 0'],
  ])('is not verified: %s', async (_what, before, after) => {
    const message = await signMessage(changes);
    const changed = message.replace(before, after);
    expect(changed).not.toBe(message);
    expect(await verify(message)).toEqual(verified);
    expect(await verify(changed)).not.toEqual(verified);
  });

  it.each([
    ['From', 'Eve <eve@example.net>'],
    ['To', 'eve@example.net'],
    ['Cc', 'eve@example.net'],
    ['Subject', 'Your debt'],
    ['Date', 'Sun, 22 Nov 2026 11:41:50 +0000'],
    ['Reply-To', 'eve@example.net'],
    ['Message-ID', '<1@example.com>'],
    ['MIME-Version', '1.0'],
    ['Content-Type', 'text/html'],
    ['Content-Transfer-Encoding', 'base64'],
    ['List-Unsubscribe', '<https://example.net/u>'],
    ['List-Unsubscribe-Post', 'List-Unsubscribe=One-Click'],
  ])('is not verified: another %s above or below the others', async (name, value) => {
    for (const headers of [unsubscribe, []]) {
      const message = await signMessage({ headers });
      const isOpen = name.startsWith('List-') && headers.length === 0;
      const wanted = isOpen ? verified : [`fail ${domain}`];
      const below = await verify(message.replace('\r\n\r\n', `\r\n${name}: ${value}\r\n\r\n`));
      const above = await verify(`${name}: ${value}\r\n${message}`);
      expect(below).toEqual(wanted);
      expect(above.map((result) => result.split(' ')[0])).toEqual(
        wanted.map((result) => result.split(' ')[0]),
      );
    }
  });

  it('is verified after what relays may do: trace fields, other folding, other white space', async () => {
    const message = await signMessage({ ...changes, text: 'a b\nc\n\n' });
    const relayed =
      `Return-Path: <bounce@example.com>\r\nReceived: from a by b\r\nAuthentication-Results: b; spf=pass\r\n${message}`
        .replace('Subject: Your order', 'SUBJECT:  Your\r\n\torder ')
        .replace('a b\r\nc\r\n', 'a \t b  \r\nc\r\n\r\n');
    expect(await verify(relayed)).toEqual(verified);
  });
});

describe('a message with trace fields', () => {
  it('is verified without them and with others: they are not signed', async () => {
    const filled = fill({});
    const list = (names: readonly string[]) => names.map((name) => `${name}: x\r\n`).join('');
    const trace = list(['Return-Path', 'Received', 'Authentication-Results', 'ARC-Seal', 'DKIM-Signature']);
    const traced = { ...filled, header: trace + filled.header };
    const message = Buffer.concat(listChunks(await sign(traced))).toString();
    expect(message).toContain(trace);
    expect(await verify(message.replace(trace, 'Received: y\r\n'))).toEqual(verified);
  });
});

describe('a key pair', () => {
  it('is RSA-2048, and another one each time', async () => {
    const other = await generateDkimKeyPair();
    expect(other.publicKey).not.toBe(pair.publicKey);
    expect(signer.key.asymmetricKeyType).toBe('rsa');
    expect(signer.key.asymmetricKeyDetails?.modulusLength).toBe(2_048);
    expect(pair.publicKey).toMatch(/^MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A[A-Za-z0-9+/]+$/);
  });

  it.each([
    ['a shorter one', () => generateKeyPairSync('rsa', { modulusLength: 1_024 })],
    ['one for padding that DKIM has not', () => generateKeyPairSync('rsa-pss', { modulusLength: 2_048 })],
    ['another algorithm', () => generateKeyPairSync('ec', { namedCurve: 'P-256' })],
  ])('is refused as a signer: %s', (_what, generate) => {
    const privateKey = generate().privateKey.export({ format: 'der', type: 'pkcs8' });
    expect(() => openDkimSigner({ domain, selector, privateKey })).toThrow('not an RSA-2048 key');
  });

  it.each([
    ['Example.com', 'k1'],
    ['example.com;', 'k1'],
    ['bücher.example', 'k1'],
    ['example.com', ''],
    ['example.com', 'k 1'],
    ['example.com', 'k1; l=0'],
    ['example.com', 'k1.'],
    ['example.com', '-k1'],
  ])('signs nothing under the names %j and %j', (wrongDomain, wrongSelector) => {
    const { privateKey } = pair;
    expect(() => openDkimSigner({ domain: wrongDomain, selector: wrongSelector, privateKey })).toThrow(
      'not a',
    );
  });
});

describe('a TXT record', () => {
  it('stands under the selector and says what verifiers want to know', () => {
    expect(dkimRecordName('example.com', 'k1')).toBe('k1._domainkey.example.com');
    expect(dkimRecordValue(pair.publicKey)).toBe(`v=DKIM1; k=rsa; p=${pair.publicKey}`);
    expect(publishesDkimKey(dkimRecordValue(pair.publicKey), pair.publicKey)).toBe(true);
  });

  it.each([
    ['v=DKIM1; k=rsa; p=KEY', true],
    ['p=KEY', true],
    ['v=DKIM1;k=rsa;p=KEY;', true],
    [' v = DKIM1 ; k = rsa ; p = KEY ; ', true],
    ['v=DKIM1;\tk=rsa;\r\n\tp=KEY', true],
    ['v=DKIM1; k=rsa; p=K E\tY', true],
    ['p=KEY; k=rsa; v=DKIM1', true],
    ['v=DKIM1; h=sha256; p=KEY', true],
    ['v=DKIM1; h=sha1 : sha256; p=KEY', true],
    ['v=DKIM1; s=email; p=KEY', true],
    ['v=DKIM1; s=*; p=KEY', true],
    ['v=DKIM1; s=tlsrpt:email; p=KEY', true],
    ['v=DKIM1; t=y:s; n=a note = with signs; x_1=?; p=KEY', true],
    // Revoked, absent, another key, part of the key.
    ['v=DKIM1; k=rsa; p=', false],
    ['v=DKIM1; k=rsa', false],
    ['v=DKIM1; k=rsa; p=OTHER', false],
    ['v=DKIM1; k=rsa; p=KEYS', false],
    ['v=DKIM1; k=rsa; p=KE', false],
    ['v=DKIM1; k=rsa; p=key', false],
    // What a verifier would not take.
    ['v=DKIM2; k=rsa; p=KEY', false],
    ['v=dkim1; k=rsa; p=KEY', false],
    ['v=; p=KEY', false],
    ['v=DKIM1; k=ed25519; p=KEY', false],
    ['v=DKIM1; h=sha1; p=KEY', false],
    ['v=DKIM1; h=; p=KEY', false],
    ['v=DKIM1; s=tlsrpt; p=KEY', false],
    ['v=DKIM1; p=KEY; p=KEY', false],
    ['v=DKIM1; p=OTHER; p=KEY', false],
    ['v=DKIM1 k=rsa p=KEY', false],
    ['v=DKIM1\\; k=rsa\\; p=KEY', false],
    ['"v=DKIM1; k=rsa; p=KEY"', false],
    ['v=DKIM1; rsa; p=KEY', false],
    ['v=DKIM1;; p=KEY', false],
    ['V=DKIM1; P=KEY', false],
    ['KEY', false],
    ['', false],
    ['v=spf1 -all', false],
  ])('%j publishes KEY: %s', (txt, expected) => {
    expect(publishesDkimKey(txt, 'KEY')).toBe(expected);
  });

  it('publishes no empty key', () => {
    expect(publishesDkimKey('v=DKIM1; k=rsa; p=', '')).toBe(false);
  });
});
