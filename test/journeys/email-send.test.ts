import PostalMime from 'postal-mime';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { verifyByOperator } from '../../src/domains/domains.ts';
import {
  addresses,
  anEmail,
  authorize,
  countOf,
  type ErrorBody,
  post,
  read,
  rowsOf,
  send,
  settled,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { type SinkMessage, type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.stop());

const uuidV7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const file = (more: Record<string, unknown> = {}) => ({
  filename: 'a.txt',
  content: Buffer.from('a').toString('base64'),
  ...more,
});
const many = (count: number) => Array.from({ length: count }, (_, index) => `a${index}@example.com`);
/** One character to people and to the specification, two UTF-16 units and four octets to machines. */
const wide = '𝒳';

type Refusal = { status: number; name: string; message: string | RegExp };
const invalid = (message: string | RegExp): Refusal => ({ status: 422, name: 'validation_error', message });
const bad = (message: string | RegExp): Refusal => ({ status: 400, name: 'bad_request', message });

async function expectRefusal(
  body: unknown,
  refusal: Refusal,
  headers: Readonly<Record<string, string>> = {},
): Promise<void> {
  const before = await countOf(server, 'messages');
  const response = await post<ErrorBody>(server, body, headers);
  expect(response.body).toEqual({
    status_code: refusal.status,
    name: refusal.name,
    message: typeof refusal.message === 'string' ? refusal.message : expect.stringMatching(refusal.message),
  });
  expect(response.status).toBe(refusal.status);
  expect(await countOf(server, 'messages')).toBe(before);
}

test('an accepted email is answered with 202 and with nothing but its id, a UUIDv7', async () => {
  const response = await post(server, anEmail());
  expect(response.status).toBe(202);
  expect(Object.keys(response.body)).toEqual(['id']);
  expect(response.body.id).toMatch(uuidV7);
  expect(response.headers.get('content-type')).toMatch(/^application\/json/);
});

describe('fields are accepted up to their limits', () => {
  test.each<[string, Record<string, unknown>]>([
    ['256 characters of from_name', { from_name: wide.repeat(256) }],
    ['998 characters of subject', { subject: wide.repeat(998) }],
    ['100 characters of category', { category: wide.repeat(100) }],
    ['255 characters of a filename', { attachments: [file({ filename: `${wide.repeat(251)}.txt` })] }],
    ['10 attachments', { attachments: Array.from({ length: 10 }, () => file()) }],
    ['50 recipients', { to: many(20), cc: many(20), bcc: many(10) }],
    ['no recipients in cc and bcc', { cc: [], bcc: [] }],
    ['html without text', { text: undefined, html: '<p>Hello</p>' }],
    ['html and text', { html: '<p>Hello</p>' }],
    ['reply_to', { reply_to: 'answers@example.org' }],
    ['a content id', { attachments: [file({ content_id: '!logo#1~' })] }],
    ['variables of every kind', { variables: { a: 'text', _b: 1.5, 'c.D_9': true } }],
    ['no variables', { variables: {} }],
    ['no headers', { headers: {} }],
    ['900 characters of a header', { headers: { 'X-Long': 'x'.repeat(900) } }],
    ['content ids that differ in case', { attachments: ['a', 'A'].map((id) => file({ content_id: id })) }],
    ['a long thread', { headers: { References: '<1@example.com> '.repeat(1_000) } }],
    ['an empty attachment', { attachments: [file({ content: '' })] }],
    ['base64 without padding and with line breaks', { attachments: [file({ content: 'YW\r\nI' })] }],
  ])('%s', async (_limit, more) => {
    expect((await post(server, anEmail(more))).text).toMatch(/^\{"id":/);
  });
});

describe('a request is refused with every problem by its field, and nothing is stored', () => {
  test.each<[string, Record<string, unknown>, Refusal]>([
    ['no from', { from: undefined }, invalid('from is required')],
    ['no to', { to: undefined }, invalid('to is required')],
    ['no subject', { subject: undefined }, invalid('subject is required with html or text')],
    ['an empty subject', { subject: '' }, invalid('subject must not be empty')],
    ['from that is a number', { from: 1 }, invalid('from must be a string')],
    ['from_name that is a number', { from_name: 5 }, invalid('from_name must be a string')],
    ['to that is no list', { to: { 0: 'ann@example.com' } }, invalid('to must be an array')],
    ['to that is a malformed text', { to: 'ann@' }, invalid('to[0] must be an email address')],
    [
      'two addresses in a text',
      { to: 'a@example.com, b@example.com' },
      invalid('to[0] must be an email address'),
    ],
    ['a recipient that is no text', { to: [null] }, invalid('to[0] must be a string')],
    ['variables that are a list', { variables: [] }, invalid('variables must be an object')],
    [
      '26 headers',
      { headers: Object.fromEntries(Array.from({ length: 26 }, (_, index) => [`X-${index}`, 'y'])) },
      invalid('headers must have at most 25 fields'),
    ],
    [
      'two files with one content id',
      { attachments: [file({ content_id: 'logo' }), file(), file({ content_id: 'logo' })] },
      invalid('attachments[2].content_id must not be that of attachments[0]'),
    ],
    ['headers that are a list', { headers: [] }, invalid('headers must be an object')],
    [
      'headers of ours, and with line ends',
      { headers: { Bcc: 'eve@example.com', 'X-A': 'a\r\nBcc: eve@example.com', 'X-B': 'b' } },
      invalid(
        'headers.Bcc is not a header that can be set, headers.X-A must be a line of text that is not blank',
      ),
    ],
    [
      '257 of from_name',
      { from_name: wide.repeat(257) },
      invalid('from_name must be at most 256 characters'),
    ],
    ['999 of subject', { subject: wide.repeat(999) }, invalid('subject must be at most 998 characters')],
    ['101 of category', { category: wide.repeat(101) }, invalid('category must be at most 100 characters')],
    [
      '256 of a filename',
      { attachments: [file(), file({ filename: `${wide.repeat(252)}.txt` })] },
      invalid('attachments[1].filename must be at most 255 characters'),
    ],
    [
      '11 attachments',
      { attachments: Array.from({ length: 11 }, () => file()) },
      invalid('attachments must have at most 10 items'),
    ],
    ['no filename', { attachments: [{ content: 'YQ==' }] }, invalid('attachments[0].filename is required')],
    ['no content', { attachments: [{ filename: 'a.txt' }] }, invalid('attachments[0].content is required')],
    [
      'not Base64',
      { attachments: [file({ content: 'a*b=' })] },
      invalid('attachments[0].content must be Base64'),
    ],
    [
      'Base64 cut off',
      { attachments: [file({ content: 'YWJjZ' })] },
      invalid('attachments[0].content must be Base64'),
    ],
    [
      'a space in a content id',
      { attachments: [file({ content_id: 'a b' })] },
      invalid('attachments[0].content_id must be printable ASCII without spaces or angle brackets'),
    ],
    [
      'angle brackets around a content id',
      { attachments: [file({ content_id: '<logo>' })] },
      invalid(/^attachments\[0\]\.content_id must be printable ASCII/),
    ],
    [
      'letters beyond ASCII in a content id',
      { attachments: [file({ content_id: 'logö' })] },
      invalid(/^attachments\[0\]\.content_id must be printable ASCII/),
    ],
    [
      'a content type that is none',
      { attachments: [file({ content_type: 'text' })] },
      invalid('attachments[0].content_type must be a content type'),
    ],
    [
      'a field of an attachment that is unknown',
      { attachments: [file({ url: 'x' })] },
      invalid('attachments[0].url is not a known field'),
    ],
    [
      'an unknown field',
      { scheduled_att: 'now' },
      invalid('scheduled_att is not a known field (did you mean scheduled_at?)'),
    ],
    [
      'a field that is ours to set',
      { organization_id: 'x' },
      invalid('organization_id is not a known field'),
    ],
    ['an empty from_name', { from_name: '' }, invalid('from_name must not be empty')],
    [
      'a from_name of blanks',
      { from_name: ' \t\u00a0' },
      invalid('from_name must be a single line that is not blank'),
    ],
    ['no from_name', { from_name: undefined }, invalid('from_name is required')],
    ['malformed from', { from: 'hello' }, invalid('from must be an email address with ASCII before the @')],
    ['malformed to', { to: ['ann@example.com', 'ann@'] }, invalid('to[1] must be an email address')],
    ['malformed cc', { cc: ['Ann (home) <ann@example.com>'] }, invalid('cc[0] must be an email address')],
    ['malformed bcc', { bcc: ['a@example.com, b@example.com'] }, invalid('bcc[0] must be an email address')],
    [
      'malformed reply_to',
      { reply_to: '' },
      invalid('reply_to must be an email address with ASCII before the @'),
    ],
    ['an encoded word', { to: ['=?utf-8?q?a?=@example.com'] }, invalid('to[0] must be an email address')],
    ['a quoted local part', { to: ['"a b"@example.com'] }, invalid('to[0] must be an email address')],
    ['an address literal', { to: ['a@[127.0.0.1]'] }, invalid('to[0] must be an email address')],
    [
      'several problems',
      { to: ['ann@example.com', 'x'], subject: 'x'.repeat(999) },
      invalid('to[1] must be an email address, subject must be at most 998 characters'),
    ],
    [
      'an object as a value',
      { variables: { a: {} } },
      invalid('variables.a must be a string or a number or a boolean'),
    ],
    [
      'null as a value',
      { variables: { a: null } },
      invalid('variables.a must be a string or a number or a boolean'),
    ],
    ['a bad name', { variables: { '1a': 'x' } }, invalid(/1a/)],
    ['a name with a space', { variables: { 'a b': 'x' } }, invalid(/a b/)],
    ['no content source', { text: undefined }, invalid('one of html, text or template_id is required')],
    [
      'template_id with text',
      { template_id: '01930000-0000-7000-8000-000000000000' },
      invalid('template_id must not be combined with html or text'),
    ],
    [
      'template_id with html',
      { text: undefined, html: 'x', template_id: '01930000-0000-7000-8000-000000000000' },
      invalid('template_id must not be combined with html or text'),
    ],
    [
      'no recipient in to',
      { to: [], cc: ['ann@example.com'] },
      bad('At least one recipient is required in to.'),
    ],
    ['51 recipients', { to: many(20), cc: many(20), bcc: many(11) }, bad(/too many recipients.*maximum 50/i)],
    ['51 times the same', { to: Array.from({ length: 51 }, () => 'ann@example.com') }, bad(/maximum 50/)],
    [
      'a template that does not exist',
      { text: undefined, template_id: '01930000-0000-7000-8000-000000000000' },
      {
        status: 404,
        name: 'not_found',
        message: /^template_id is not a template of this organization: 0193/,
      },
    ],
    ['a NUL', { text: 'a\0b' }, invalid('text must not contain NUL or unpaired surrogates')],
    [
      'half a character',
      { subject: '\ud835' },
      invalid('subject must not contain NUL or unpaired surrogates'),
    ],
  ])('%s', (_problem, more, refusal) => expectRefusal(anEmail(more), refusal));

  test('a body that is no JSON, or not announced as JSON', async () => {
    await expectRefusal('{"from":', bad(/not valid JSON/));
    await expectRefusal(anEmail(), bad(/application\/json/), { 'content-type': 'text/plain' });
  });
});

describe('executables and scripts are refused by name and by content type, and the answer names the file', () => {
  test.each([
    ['evil.EXE', undefined],
    ['invoice.pdf.exe', 'application/pdf'],
    ['a.exe.', undefined],
    ['a.exe ', undefined],
    ['a.bat', undefined],
    ['a.js', 'text/plain'],
    ['a.ps1', undefined],
    ['a.pdf', 'application/x-msdownload'],
    ['a.txt', 'TEXT/JavaScript; charset=utf-8'],
  ])('%j as %s', async (filename, content_type) => {
    await expectRefusal(anEmail({ attachments: [file(), file({ filename, content_type })] }), {
      status: 400,
      name: 'attachment_rejected',
      message: `The attachment ${JSON.stringify(filename)} is of a type that is not accepted; nothing was sent.`,
    });
  });

  test('names that only look like it are accepted', async () => {
    const attachments = ['report.exe.pdf', 'exe', 'js.txt'].map((filename) => file({ filename }));
    expect((await post(server, anEmail({ attachments }))).status).toBe(202);
  });
});

describe('an invitation must be one, for everyone in to', () => {
  const calendar = (method: string, ...attendees: string[]) =>
    Buffer.from(
      [
        'BEGIN:VCALENDAR',
        ...(method === '' ? [] : [`METHOD:${method}`]),
        'BEGIN:VEVENT',
        ...attendees.map((attendee) => `ATTENDEE;CN=X:mailto:${attendee}`),
        'END:VEVENT',
        'END:VCALENDAR',
        '',
      ].join('\r\n'),
    ).toString('base64');
  const invite = (content: string, content_type: string, more: Record<string, unknown> = {}) =>
    anEmail({ attachments: [{ filename: 'invite.ics', content, content_type }], ...more });

  test('it is accepted with the same METHOD and the recipient among the attendees, whatever the case', async () => {
    for (const method of ['REQUEST', 'CANCEL']) {
      const body = invite(calendar(method, 'ANN@Example.com'), `text/calendar; method=${method}`);
      expect((await post(server, body)).status).toBe(202);
    }
  });
  test.each([
    ['another METHOD', calendar('CANCEL', 'ann@example.com'), 'must carry METHOD:REQUEST'],
    ['no METHOD', calendar('', 'ann@example.com'), 'must carry METHOD:REQUEST'],
    [
      'without its recipient',
      calendar('REQUEST', 'bob@example.com'),
      'must list ann@example.com as an attendee',
    ],
  ])('it is refused with %s', (_problem, content, message) =>
    expectRefusal(
      invite(content, 'text/calendar; method=REQUEST'),
      invalid(`attachments[0].content ${message}`),
    ),
  );
  test('a calendar without a method is a file like any other', async () => {
    expect((await post(server, invite(calendar(''), 'text/calendar'))).status).toBe(202);
  });
});

describe('the sender must be at a verified domain of the organization', () => {
  test.each(['nobody.example', 'sub.postillion.test', 'postillion.test.example'])(
    'not %s',
    async (domain) => {
      await expectRefusal(
        anEmail({ from: `hello@${domain}` }),
        bad(`The domain ${domain} of from is not a verified sending domain of this organization.`),
      );
    },
  );

  test("another organization's domain is as unknown as any", async () => {
    await createSender(server.installation, 'theirs.example');
    await expectRefusal(
      anEmail({ from: 'hello@theirs.example' }),
      bad('The domain theirs.example of from is not a verified sending domain of this organization.'),
    );
  });

  test('the domain is compared without regard to case', async () => {
    expect((await post(server, anEmail({ from: 'hello@POSTILLION.test' }))).status).toBe(202);
  });

  test('an organization may send from each of its domains, in either spelling of an international one', async () => {
    await verifyByOperator(server.installation, {
      organizationId: server.organizationId,
      name: 'bücher.example',
    });
    for (const domain of ['bücher.example', 'xn--bcher-kva.example']) {
      expect((await post(server, anEmail({ from: `hello@${domain}` }))).status).toBe(202);
    }
  });
});

describe('the account', () => {
  const monthlyQuotaExceeded = { status: 429, name: 'monthly_quota_exceeded', message: /quota/ };
  const sendingSuspended = { status: 403, name: 'sending_suspended', message: /suspended/ };
  let senders = 0;
  /** Of an organization of its own, since plans are slow to change back. */
  const createLimited = async (change: Parameters<typeof updateOrganization>[2]) => {
    senders += 1;
    const domain = `limited${senders}.example`;
    const { organizationId, key } = await createSender(server.installation, domain);
    await updateOrganization(server.installation, organizationId, change);
    return { organizationId, key, from: `hello@${domain}` };
  };

  test('a suspended organization sends nothing until it is resumed', async () => {
    const { organizationId, key, from } = await createLimited({ suspend: ['email'] });
    await expectRefusal(
      anEmail({ from }),
      { ...sendingSuspended, message: /^Sending email is suspended for this organization by the operator\./ },
      authorize({ key }),
    );
    await updateOrganization(server.installation, organizationId, { resume: ['email'] });
    expect((await post(server, anEmail({ from }), authorize({ key }))).status).toBe(202);
  });

  test('a suspension of another channel does not stop email', async () => {
    const { key, from } = await createLimited({ suspend: ['sms'] });
    expect((await post(server, anEmail({ from }), authorize({ key }))).status).toBe(202);
  });

  test('the quota counts recipients, all of a message or none, and a smaller one still fits', async () => {
    const { key, from } = await createLimited({ quotas: { email: 5 } });
    const sendTo = (count: number) => anEmail({ from, to: many(count) });
    expect((await post(server, sendTo(3), authorize({ key }))).status).toBe(202);
    const told = (words: string) => ({ ...monthlyQuotaExceeded, message: new RegExp(`^${words}`) });
    await expectRefusal(
      sendTo(3),
      told(
        'The monthly email quota does not suffice: 3 of 5 recipients are used, and this message takes 3. ' +
          'It renews on \\d{4}-\\d\\d-01 \\(UTC\\)',
      ),
      authorize({ key }),
    );
    expect((await post(server, sendTo(2), authorize({ key }))).status).toBe(202);
    await expectRefusal(
      sendTo(1),
      told('The monthly email quota is used up: 5 of 5 recipients are used, and this message takes 1\\.'),
      authorize({ key }),
    );
  });

  test('of many at once exactly as many are accepted as the quota has room for', async () => {
    const { key, from } = await createLimited({ quotas: { email: 7 } });
    const responses = await Promise.all(
      Array.from({ length: 30 }, () => post(server, anEmail({ from }), authorize({ key }))),
    );
    const statuses = responses.map(({ status }) => status).sort();
    expect(statuses).toEqual([...Array(7).fill(202), ...Array(23).fill(429)]);
  });

  test('rules are checked in their order', async () => {
    const { organizationId, key, from } = await createLimited({ suspend: ['email'], quotas: { email: 0 } });
    const tooMany = many(51);
    const unknownTemplate = { text: undefined, template_id: '01930000-0000-7000-8000-000000000000' };
    const exe = [file({ filename: 'a.exe' })];
    const ladder: [Record<string, unknown>, Refusal][] = [
      [
        { category: '', to: tooMany, html: 'x', ...unknownTemplate },
        invalid('category must not be empty, template_id must not be combined with html or text'),
      ],
      [{ to: tooMany, ...unknownTemplate, html: 'x' }, bad(/maximum 50/)],
      [{ ...unknownTemplate, html: 'x', from: 'a@nobody.example' }, invalid(/combined/)],
      [
        { ...unknownTemplate, attachments: exe },
        { status: 400, name: 'attachment_rejected', message: /a\.exe/ },
      ],
      [
        { ...unknownTemplate, from: 'a@nobody.example' },
        { status: 404, name: 'not_found', message: /./ },
      ],
      [{ from: 'a@nobody.example' }, bad(/not a verified/)],
      [{}, sendingSuspended],
    ];
    for (const [more, refusal] of ladder) {
      await expectRefusal(anEmail({ from, ...more }), refusal, authorize({ key }));
    }
    await updateOrganization(server.installation, organizationId, { resume: ['email'] });
    await expectRefusal(anEmail({ from }), monthlyQuotaExceeded, authorize({ key }));
  });
});

describe('large bodies', () => {
  const sendBytesMax = 30 * 1_048_576;
  const bodyOf = (bytes: number) => {
    const rest = JSON.stringify(anEmail({ text: '' })).length;
    return JSON.stringify(anEmail({ text: 'x'.repeat(bytes - rest) }));
  };

  test('30 MB are accepted, and one octet more is refused', async () => {
    expect((await post(server, bodyOf(sendBytesMax))).status).toBe(202);
    await expectRefusal(bodyOf(sendBytesMax + 1), {
      status: 413,
      name: 'payload_too_large',
      message: /31457280/,
    });
  });

  test('a large body is checked like a small one', async () => {
    const text = 'x'.repeat(1_000_000);
    await expectRefusal(anEmail({ text, to: ['x'] }), invalid('to[0] must be an email address'));
    await expectRefusal(anEmail({ text, oops: 1 }), invalid('oops is not a known field'));
  });

  test('variables cannot make a message grow beyond what a body may have', async () => {
    const text = '{{a}}'.repeat(40_000);
    await expectRefusal(anEmail({ text, variables: { a: 'x'.repeat(1_000) } }), invalid(/at most 30 MB/));
  });
});

describe('on the wire', () => {
  let sink: SmtpSink;
  let relayed: TestServer;

  beforeAll(async () => {
    sink = await startSmtpSink({ keepContent: true });
    relayed = await startTestServer({
      worker: true,
      smtpUrl: `smtp://127.0.0.1:${sink.port}?connections=2`,
    });
  });
  afterAll(async () => {
    await relayed.stop();
    await sink.close();
  });

  /** What the recipients of one email got, after all of them have it. */
  async function deliver(more: Record<string, unknown>): Promise<SinkMessage[]> {
    const from = sink.messages.length;
    const record = await settled(relayed, await send(relayed, more));
    expect(addresses(record).filter(({ status, dropped }) => status !== 'delivered' && !dropped)).toEqual([]);
    return sink.messages.slice(from);
  }

  const headerOf = (message: SinkMessage) => message.content.toString('latin1').split('\r\n\r\n', 1)[0]!;

  test.each<[string, Record<string, unknown>, string]>([
    ['subject', { subject: 'a\r\nBcc: eve@example.com' }, 'subject must be a single line that is not blank'],
    ['subject, LF', { subject: 'a\nb' }, 'subject must be a single line that is not blank'],
    [
      'from_name',
      { from_name: 'a\rBcc: eve@example.com' },
      'from_name must be a single line that is not blank',
    ],
    ['category', { category: 'a\r\nX: y' }, 'category must be a single line that is not blank'],
    ['subject of blanks', { subject: ' \t\u3000' }, 'subject must be a single line that is not blank'],
    ['category of blanks', { category: ' ' }, 'category must be a single line that is not blank'],
    [
      'name of a value',
      { variables: { ['a'.repeat(256)]: 'x' } },
      `variables.${'a'.repeat(60)}… is not an allowed name: names must match ^[A-Za-z_][A-Za-z0-9_.]{0,254}$`,
    ],
    [
      'reply_to',
      { reply_to: 'a@example.com\r\nBcc: eve@example.com' },
      'reply_to must be an email address with ASCII before the @',
    ],
    [
      'from',
      { from: 'hello@postillion.test\r\nX: y' },
      'from must be an email address with ASCII before the @',
    ],
    ['to', { to: ['a@example.com\r\nRCPT TO:<eve@example.com>'] }, 'to[0] must be an email address'],
    ['a name', { to: ['"A\r\nBcc: eve@example.com" <a@example.com>'] }, 'to[0] must be an email address'],
    [
      'the name of a sender',
      { from: '=?utf-8?Q?A=0D=0ABcc:_eve@example.com?= <hello@postillion.test>' },
      'from must be an email address with ASCII before the @',
    ],
    [
      'filename',
      { attachments: [file({ filename: 'a.txt\r\nX: y' })] },
      'attachments[0].filename must be a file name without control characters',
    ],
    [
      'content_id',
      { attachments: [file({ content_id: 'a\r\nX:y' })] },
      'attachments[0].content_id must be printable ASCII without spaces or angle brackets',
    ],
    [
      'content_type',
      { attachments: [file({ content_type: 'text/plain\r\nX: y' })] },
      'attachments[0].content_type must be a content type',
    ],
  ])('what must not stand in %s is refused, and nothing reaches the wire', async (_field, more, message) => {
    const before = sink.commands.length;
    const response = await post<ErrorBody>(relayed, anEmail(more));
    expect(response).toMatchObject({ status: 422, body: { name: 'validation_error', message } });
    expect(await countOf(relayed, 'delivery_queue')).toBe(0);
    expect(sink.commands.slice(before)).toEqual([]);
  });

  test('a line end in a value never reaches a header', async () => {
    const [message] = await deliver({
      subject: 'Hello {{name}}',
      variables: { name: 'Ann\r\nBcc: eve@example.com\r\n\r\nbody' },
    });
    expect(headerOf(message!)).not.toMatch(/^Bcc/im);
    const { subject, text } = await PostalMime.parse(message!.content);
    expect(subject).toBe('Hello Ann Bcc: eve@example.com body');
    expect(text?.trim()).toBe('Hello, Ann.');
  });

  test('headers of the request are in each copy, and come apart into nothing else', async () => {
    const headers = {
      'X-Order': '1234',
      'X-Customer': `Grüße an ${'Ann '.repeat(30)}`,
      'X-Token': `"${'t'.repeat(800)}"`,
      'In-Reply-To': '<first@example.com>',
      References: Array.from({ length: 12 }, (_, index) => `<number-${index}-of-them@example.com>`).join(' '),
    };
    const messages = await deliver({ to: ['ann@example.com'], cc: ['bob@example.com'], headers });
    expect(messages).toHaveLength(2);
    for (const message of messages) {
      const parsed = await PostalMime.parse(message.content);
      const valueOf = (name: string) => parsed.headers.find(({ key }) => key === name.toLowerCase())?.value;
      expect(valueOf('X-Order')).toBe(headers['X-Order']);
      expect(headerOf(message)).toContain('X-Customer: =?utf-8?Q?Gr=C3=BC=C3=9Fe_an_Ann');
      expect(valueOf('X-Token')).toBe(headers['X-Token']);
      expect(parsed.inReplyTo).toBe(headers['In-Reply-To']);
      expect(parsed.references).toBe(headers.References);
      const lines = headerOf(message).split('\r\n');
      expect(lines.filter((line) => line.length > 78)).toEqual([`X-Token: ${headers['X-Token']}`]);
    }
  });

  test('addresses with names are shown with them, and names are nobody', async () => {
    const messages = await deliver({
      from: '"Shop, The" <hello@postillion.test>',
      from_name: undefined,
      to: 'Ann Ö <Ann@example.com>',
      cc: ['"Bob \\"x\\" <eve@example.net>" <bob@example.com>'],
      bcc: ['Hidden <hidden@example.com>'],
      reply_to: 'Support <support@example.org>',
    });
    expect(
      messages
        .map(({ recipients }) => recipients)
        .flat()
        .sort(),
    ).toEqual(['Ann@example.com', 'bob@example.com', 'hidden@example.com']);
    for (const { content } of messages) {
      const { from, to, cc, replyTo } = await PostalMime.parse(content);
      expect([from, to, replyTo]).toEqual([
        { name: 'Shop, The', address: 'hello@postillion.test' },
        [{ name: 'Ann Ö', address: 'Ann@example.com' }],
        [{ name: 'Support', address: 'support@example.org' }],
      ]);
      expect(cc![0]).toEqual({ name: 'Bob "x" <eve@example.net>', address: 'bob@example.com' });
    }
  });

  test('a record shows addresses alone, and the name of the sender by itself', async () => {
    const { body } = await post<{ id: string }>(
      server,
      anEmail({
        from: 'Shop <hello@postillion.test>',
        from_name: 'Newer name',
        to: 'Ann <Ann@example.com>',
        cc: 'ANN@example.com',
        reply_to: 'Support <support@example.org>',
      }),
    );
    const { body: record } = await server.request('GET', `/v1/email/${body.id}`);
    expect(record).toMatchObject({
      from: 'hello@postillion.test',
      from_name: 'Newer name',
      reply_to: '"Support" <support@example.org>',
      to: [{ email: 'Ann@example.com', dropped: false }],
      cc: [{ email: 'ANN@example.com', drop_reason: 'duplicate' }],
    });
    const named = await post<{ id: string }>(
      server,
      anEmail({ from: 'Shop <hello@postillion.test>', from_name: null }),
    );
    const { body: shown } = await server.request('GET', `/v1/email/${named.body.id}`);
    expect(shown).toMatchObject({ from: 'hello@postillion.test', from_name: 'Shop' });
    const nobody = await server.request('GET', '/v1/email?search=Ann%20%3C');
    expect(nobody.body).toMatchObject({ data: [] });
  });

  test.each([
    ['short', 'Hello'],
    ['long', 'Hello '.repeat(20_000).trim()],
  ])('%s HTML alone has a text beside it, with the values in it', async (_length, words) => {
    const [message] = await deliver({
      text: undefined,
      html: `<h1>${words}</h1><p>{{name}}, your <a href="https://shop.example/o/1">order</a> &amp; more</p>`,
      variables: { name: '<Ann>' },
    });
    const { html, text } = await PostalMime.parse(message!.content);
    expect(html).toContain('&lt;Ann&gt;, your <a');
    expect(text!.trim().split(/\s*\n\s*/)).toEqual([
      words,
      '<Ann>, your order (https://shop.example/o/1) & more',
    ]);
  });

  test('complaints can be summed up by organization and category, of which nothing is said', async () => {
    const idOf = async (more: Record<string, unknown>) => {
      const [message] = await deliver(more);
      return /^Feedback-ID: (.*)$/m.exec(headerOf(message!).replaceAll('\r', ''))![1]!.split(':');
    };
    const [campaign, receipts, kind, organization] = await idOf({ category: 'receipts' });
    expect([campaign, kind]).toEqual(['', 'transactional']);
    expect(organization).toMatch(/^[0-9a-f]{12}$/);
    expect(receipts).toMatch(/^[0-9a-f]{12}$/);
    expect(await idOf({ category: 'receipts', subject: 'Another' })).toEqual([
      '',
      receipts,
      kind,
      organization,
    ]);
    const [, logins, , same] = await idOf({ category: 'logins' });
    expect(logins).not.toBe(receipts);
    expect(same).toBe(organization);
    expect(await idOf({})).toEqual(['', '', kind, organization]);
  });

  test('blind recipients appear in no copy, and every recipient gets one', async () => {
    const messages = await deliver({
      to: ['to@example.com'],
      cc: ['cc@example.com'],
      bcc: ['blind@example.com', 'hidden@example.com'],
    });
    expect(messages.map(({ recipients }) => recipients).sort()).toEqual(
      ['blind@example.com', 'cc@example.com', 'hidden@example.com', 'to@example.com'].map((to) => [to]),
    );
    for (const { content } of messages) {
      expect(content.toString('latin1')).not.toMatch(/blind|hidden|^bcc/im);
      const parsed = await PostalMime.parse(content);
      expect([parsed.to, parsed.cc]).toEqual([
        [{ name: '', address: 'to@example.com' }],
        [{ name: '', address: 'cc@example.com' }],
      ]);
    }
  });

  test.each([
    '\r\n.\r\nMAIL FROM:<eve@example.com>\r\n',
    '\n.\nMAIL FROM:<eve@example.com>\n',
    '\r.\rMAIL FROM:<eve@example.com>\r',
    '\r\n.\n',
    '\n.\r\nQUIT\r\n',
    '.\r\n..\r\n...',
  ])('one message goes in and one comes out, whatever its text: %j', async (smuggled) => {
    const before = sink.counts.accepted;
    const messages = await deliver({ text: `a${smuggled}b`, html: `<p>a${smuggled}b</p>` });
    expect(sink.counts.accepted - before).toBe(1);
    expect(sink.commands.filter((command) => command.includes('eve@example.com'))).toEqual([]);
    const { text } = await PostalMime.parse(messages[0]!.content);
    expect(text!.replace(/\r\n/g, '\n').trimEnd()).toBe(`a${smuggled}b`.replace(/\r\n|\r/g, '\n'));
    for (const line of messages[0]!.content.toString('latin1').split('\r\n')) {
      expect(line.length).toBeLessThanOrEqual(998);
      expect(line).not.toMatch(/[\r\n]/);
    }
  });

  test('values are escaped in HTML, literal in text and subject, and never looked at again', async () => {
    const placeholders =
      '{{name}}|{{{name}}}|{{ name }}|{{Name}}|{{missing}}|{{constructor}}|{{__proto__}}|{{n}}|{{b}}|{{again}}';
    const [message] = await deliver({
      subject: '{{name}} {{missing}} {{n}}',
      text: placeholders,
      html: `<p>${placeholders}</p>`,
      variables: { name: `<b>&"'`, n: 1.5, b: false, again: '{{name}}' },
    });
    const { subject, text, html } = await PostalMime.parse(message!.content);
    const rest = '{{Name}}|{{missing}}|{{constructor}}|{{__proto__}}|1.5|false|{{name}}';
    const [raw, escaped] = [`<b>&"'`, '&lt;b&gt;&amp;&quot;&#39;'];
    expect(subject).toBe(`${raw} {{missing}} 1.5`);
    expect(text!.trim()).toBe(`${raw}|${raw}|${raw}|${rest}`);
    expect(html!.trim()).toBe(`<p>${escaped}|${raw}|${escaped}|${rest}</p>`);
  });

  test('attachments arrive octet for octet, inline ones under their content id, 20 MB of them too', async () => {
    const large = Buffer.alloc(20 * 1_048_576, 'postillion');
    const [message] = await deliver({
      html: '<img src="cid:logo">',
      attachments: [
        { filename: 'logo.png', content: Buffer.from([0, 255]).toString('base64'), content_id: 'logo' },
        { filename: 'größe.bin', content: large.toString('base64') },
      ],
    });
    const { attachments } = await PostalMime.parse(message!.content);
    expect(
      attachments.map(({ filename, mimeType, contentId }) => ({ filename, mimeType, contentId })),
    ).toEqual([
      { filename: 'logo.png', mimeType: 'image/png', contentId: '<logo>' },
      { filename: 'größe.bin', mimeType: 'application/octet-stream', contentId: undefined },
    ]);
    const [small, big] = attachments.map(({ content }) => Buffer.from(content as ArrayBuffer));
    expect(small).toEqual(Buffer.from([0, 255]));
    expect(big!.equals(large)).toBe(true);
  });

  test('the sender, the names and the addresses are those of the request', async () => {
    const [message] = await deliver({
      from: 'Hello@postillion.test',
      from_name: 'Jörg "J" <x>',
      reply_to: 'answers@bücher.example',
      to: ['Ann.Lee+x@Example.COM'],
    });
    expect([message!.envelopeFrom, message!.recipients]).toEqual([
      'Hello@postillion.test',
      ['Ann.Lee+x@example.com'],
    ]);
    const parsed = await PostalMime.parse(message!.content);
    expect(parsed.from).toEqual({ name: 'Jörg "J" <x>', address: 'Hello@postillion.test' });
    expect(parsed.replyTo).toMatchObject([{ address: 'answers@xn--bcher-kva.example' }]);
    expect(message!.content.every((octet) => octet < 128)).toBe(true);
  });

  test('an address that is given twice is written to once', async () => {
    const messages = await deliver({
      to: ['ann@example.com'],
      cc: ['ANN@EXAMPLE.com', 'bob@example.com'],
      bcc: ['bob@example.com'],
    });
    expect(messages.flatMap(({ recipients }) => recipients).sort()).toEqual([
      'ann@example.com',
      'bob@example.com',
    ]);
  });
});

test('a subject keeps the variables that were replaced in it', async () => {
  const id = await send(server, { subject: 'Hi {{name}} {{x}}', variables: { name: 'Ann' } });
  expect((await read(server, id)).subject).toBe('Hi Ann {{x}}');
});

test('what is refused leaves nothing in any table', async () => {
  const tables = ['messages', 'message_contents', 'attachment_contents', 'recipients', 'delivery_queue'];
  const count = async () =>
    Promise.all(
      tables.map(
        async (table) => (await rowsOf<{ n: number }>(server, `select count(*) as n from ${table}`))[0],
      ),
    );
  const before = await count();
  const attachments = [file(), file({ filename: 'x.exe' })];
  await expectRefusal(anEmail({ attachments }), {
    status: 400,
    name: 'attachment_rejected',
    message: /x\.exe/,
  });
  await expectRefusal(anEmail({ from: 'a@nobody.example', attachments: [file()] }), bad(/not a verified/));
  expect(await count()).toEqual(before);
});
