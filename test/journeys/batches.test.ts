/** Messages that are sent many at once, on each channel, beside what each of them would come to alone. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { optOut } from '../../src/audience/audience.ts';
import { startApi } from '../../src/roles/api.ts';
import { addChatTemplate, setTemplate } from '../support/chat-app-journey.ts';
import { anEmail, authorize, type ErrorBody, read, rowsOf } from '../support/email-journey.ts';
import { androidApp, aPushContact, register, setUpPush } from '../support/push-journey.ts';
import { addApprovedSender } from '../support/sms-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
/** With the same subjects and keys, beside every test. */
let other: { organizationId: string; key: string };

beforeAll(async () => {
  server = await startTestServer();
  other = await createSender(server.installation, 'elsewhere.example');
  for (const { organizationId } of [server, other])
    await updateOrganization(server.installation, organizationId, { requestsPerWindow: 100_000 });
});
afterAll(() => server.stop());

type Result = {
  index: number;
  id?: string;
  error?: ErrorBody;
  missing_variables?: string[];
  warnings?: string[];
};
type BatchAnswer = { object: 'batch'; data: Result[] } & ErrorBody;

const ask = <Body = BatchAnswer>(path: string, body: unknown, headers = {}, sender?: { key: string }) =>
  server.request<Body>('POST', `/v1${path}`, body, { ...authorize(sender), ...headers });

const sendAll = (emails: readonly unknown[], more: object = {}, headers = {}, sender?: { key: string }) =>
  ask('/email/send/batch', { emails, ...more }, headers, sender);

let made = 0;
const unique = (what: string) => `${what} ${(made += 1)}`;

const storedWith = async (subject: string, { organizationId } = server as { organizationId: string }) => {
  const [row] = await rowsOf<{ count: number }>(
    server,
    `select count(*)::integer as count
     from messages
     where organization_id = '${organizationId}' and subject like '${subject}%'`,
  );
  return row!.count;
};

const usedQuota = async (channel: string) => {
  const [row] = await rowsOf<{ used: number }>(
    server,
    `select coalesce(sum(used), 0)::integer as used
     from quota_usage
     where organization_id = '${server.organizationId}' and channel = '${channel}'`,
  );
  return row!.used;
};

/** One fault of each class, each after a message that nothing can be said against. */
const faults: readonly [string, unknown][] = [
  ['no object', 'an email'],
  ['a field that is wrong', anEmail({ to: ['ann@'] })],
  ['a field that nobody knows', anEmail({ tos: [] })],
  ['nobody', anEmail({ to: [] })],
  ['too many recipients', anEmail({ to: Array.from({ length: 51 }, (_, index) => `a${index}@example.com`) })],
  ['no content', anEmail({ text: undefined })],
  [
    'a template that there is not',
    anEmail({ text: undefined, template_id: '01934c1e-9f3a-7cc0-8b1a-0123456789ab' }),
  ],
  [
    'a program',
    anEmail({ attachments: [{ filename: 'a.exe', content: Buffer.from('MZ').toString('base64') }] }),
  ],
  ['Base64 that is none', anEmail({ attachments: [{ filename: 'a.txt', content: '?' }] })],
  ['a domain of another organization', anEmail({ from: 'hello@elsewhere.example' })],
  [
    'a subject that is too long when it is filled',
    anEmail({ subject: '{{a}}', variables: { a: 'x'.repeat(999) } }),
  ],
  ['a key that is blank', anEmail({ idempotency_key: ' ' })],
  ['a key that is too long', anEmail({ idempotency_key: 'x'.repeat(257) })],
  ['a key that is no text', anEmail({ idempotency_key: 7 })],
];

/** What a message alone is answered with. */
async function alone(email: unknown): Promise<ErrorBody> {
  if (typeof email !== 'object' || email === null)
    return { status_code: 422, name: 'validation_error', message: 'the body must be an object' };
  const { idempotency_key: key, ...body } = email as Record<string, unknown>;
  if (typeof key === 'number')
    return { status_code: 422, name: 'validation_error', message: 'idempotency_key must be a string' };
  return (
    await ask<ErrorBody>('/email/send', body, typeof key === 'string' ? { 'idempotency-key': key } : {})
  ).body;
}

describe('a batch of emails', () => {
  test.each([
    ['250', 250, ''],
    ['500, as large as makes a thread read them,', 500, 'x'.repeat(2_000)],
  ])('of %s is stored as a whole, each in its place', async (_what, count, more) => {
    const subject = unique('Whole');
    const template = await server.request<{ id: string }>('POST', '/v1/templates', {
      name: unique('template'),
      subject: `${subject} {{n}}`,
      text: 'Hello {{name}}',
    });
    const emails = Array.from({ length: count }, (_, index) =>
      index % 10 === 0
        ? anEmail({
            text: undefined,
            subject: undefined,
            template_id: template.body.id,
            variables: { n: `${index}` },
            category: more.slice(0, 100) || undefined,
          })
        : anEmail({
            subject: `${subject} ${index}`,
            to: [`a${index}@example.com`, `b${index}@example.com`],
            text: `Text ${index} {{#if x}}${more}`,
            ...(index % 50 === 1 && {
              attachments: [{ filename: 'a.txt', content: Buffer.from(`${index}`).toString('base64') }],
            }),
          }),
    );
    await sendAll([anEmail({ from: 'hello@elsewhere.example', subject })], {}, {}, other);
    const used = await usedQuota('email');
    const { status, body } = await sendAll(emails);
    expect([status, body.object]).toEqual([202, 'batch']);
    expect(body.data.map(({ index }) => index)).toEqual(emails.map((_, index) => index));
    expect(new Set(body.data.map(({ id }) => id)).size).toBe(count);
    expect(body.data[0]).toEqual({ index: 0, id: body.data[0]!.id, missing_variables: ['name'] });
    expect(body.data[1]).toEqual({ index: 1, id: body.data[1]!.id, warnings: ['foreign_block'] });
    for (const place of [0, 1, 51, 199, count - 1]) {
      expect(await read(server, body.data[place]!.id!)).toMatchObject({
        subject: `${subject} ${place}`,
        attachments: place % 50 === 1 ? [{ filename: 'a.txt' }] : [],
      });
    }
    expect([await storedWith(subject), await storedWith(subject, other)]).toEqual([count, 1]);
    // An email counts as its recipients: two each, and one of those of the template.
    expect((await usedQuota('email')) - used).toBe(count * 2 - count / 10);
    const [queued] = await rowsOf<{ jobs: number }>(
      server,
      `select count(*)::integer as jobs
       from delivery_queue q
       join messages m on m.organization_id = q.organization_id and m.id = q.message_id
       where m.organization_id = '${server.organizationId}' and m.subject like '${subject}%'`,
    );
    expect(queued!.jobs).toBe(count * 2 - count / 10);
  });

  test.each(faults)('is refused as a whole for %s in it, and stores nothing', async (_fault, email) => {
    const subject = unique('Refused');
    const [used, key] = [await usedQuota('email'), unique('key')];
    const emails = [anEmail({ subject, idempotency_key: key }), email, 'another one that is wrong'];
    const { status, body } = await sendAll(emails, {}, { 'idempotency-key': key });
    const expected = await alone(email);
    expect([status, body]).toEqual([
      expected.status_code,
      { ...expected, message: `emails[1]: ${expected.message}` },
    ]);
    expect([await storedWith(subject), await usedQuota('email')]).toEqual([0, used]);
    // Both keys are free.
    const again = await sendAll([emails[0]], { on_error: 'refuse_all' }, { 'idempotency-key': key });
    expect([again.status, await storedWith(subject)]).toEqual([202, 1]);
  });

  test.each([
    ['in a small body', ''],
    ['in a large one', 'x'.repeat(262_144)],
  ])(
    'skips what is wrong, %s, and each of these has the error that it would have alone',
    async (_size, more) => {
      const subject = unique('Skipped');
      const emails = faults.flatMap(([, email], index) => [
        anEmail({
          subject: `${subject} ${index}`,
          text: `Hello ${more.slice(0, index === 0 ? undefined : 0)}`,
        }),
        email,
      ]);
      const { status, body } = await sendAll(emails, { on_error: 'skip' });
      expect(status).toBe(202);
      for (const [index, { error, id }] of body.data.entries()) {
        if (index % 2 === 0) expect([index, error, id]).toEqual([index, undefined, expect.any(String)]);
        else expect([index, error]).toEqual([index, await alone(emails[index])]);
      }
      expect(await storedWith(subject)).toBe(faults.length);
    },
  );

  test('of nothing but what is wrong is answered, and kept for its key', async () => {
    const headers = { 'idempotency-key': unique('key') };
    const emails = [anEmail({ to: [] }), anEmail({ from: 'hello@elsewhere.example' })];
    const first = await sendAll(emails, { on_error: 'skip' }, headers);
    expect(first.body.data.map(({ error }) => error?.name)).toEqual(['bad_request', 'bad_request']);
    const again = await sendAll(emails, { on_error: 'skip' }, headers);
    expect([again.text, again.headers.get('idempotent-replayed')]).toEqual([first.text, 'true']);
  });

  test('is answered once for its key, and that of another organization is another', async () => {
    const subject = unique('Once');
    const headers = { 'idempotency-key': unique('key') };
    const emails = [anEmail({ subject }), anEmail({ subject })];
    const first = await sendAll(emails, {}, headers);
    const again = await sendAll(emails, {}, headers);
    expect([again.status, again.text, again.headers.get('idempotent-replayed')]).toEqual([
      202,
      first.text,
      'true',
    ]);
    expect(await storedWith(subject)).toBe(2);
    expect(await sendAll([...emails].slice(1), {}, headers)).toMatchObject({
      status: 409,
      body: { name: 'invalid_idempotent_request', message: expect.not.stringContaining('emails[') },
    });
    const theirs = emails.map((email) => ({ ...email, from: 'hello@elsewhere.example' }));
    expect((await sendAll(theirs, {}, headers, other)).status).toBe(202);
    expect(await storedWith(subject, other)).toBe(2);
  });

  test('has keys for its emails, which are those of single ones', async () => {
    const subject = unique('Keyed');
    const [before, after] = [unique('key'), unique('key')];
    const [one, two] = [anEmail({ subject }), anEmail({ subject, cc: 'ann@example.com' })];
    const single = await ask<{ id: string }>('/email/send', one, { 'idempotency-key': before });
    const { status, body } = await sendAll([
      { ...one, idempotency_key: before },
      { ...two, idempotency_key: after },
    ]);
    expect([status, body.data[0]]).toEqual([202, { index: 0, id: single.body.id }]);
    const repeated = await ask<{ id: string }>('/email/send', two, { 'idempotency-key': after });
    expect([repeated.body.id, repeated.headers.get('idempotent-replayed')]).toEqual([
      body.data[1]!.id,
      'true',
    ]);
    expect(await storedWith(subject)).toBe(2);
    // With another email a key is taken, and within one batch too.
    const conflicting = await sendAll(
      [
        { ...two, idempotency_key: before },
        { ...one, idempotency_key: 'twice' },
        { ...one, idempotency_key: 'twice' },
      ],
      { on_error: 'skip' },
    );
    expect(conflicting.body.data.map(({ error }) => [error?.name, error?.message])).toEqual([
      ['invalid_idempotent_request', expect.any(String)],
      [undefined, undefined],
      ['validation_error', 'idempotency_key must not be that of emails[1]'],
    ]);
    expect(await storedWith(subject)).toBe(3);
  });

  test('twice at once, on two nodes, is stored once', async () => {
    const node = await startApi(server.installation, { drainMs: 0 });
    try {
      const subject = unique('Raced');
      const key = unique('key');
      const emails = Array.from({ length: 100 }, (_, index) =>
        anEmail({ subject, idempotency_key: `${key} ${index}` }),
      );
      const answers = await Promise.all(
        [server.url, node.url, server.url, node.url].map(async (url) => {
          const response = await fetch(`${url}/v1/email/send/batch`, {
            method: 'POST',
            headers: {
              authorization: `Bearer ${server.key}`,
              'content-type': 'application/json',
              'idempotency-key': key,
            },
            body: JSON.stringify({ emails }),
          });
          return { status: response.status, text: await response.text() };
        }),
      );
      const stored = answers.filter(({ status }) => status === 202);
      expect(stored.length).toBeGreaterThan(0);
      expect(new Set(stored.map(({ text }) => text)).size).toBe(1);
      for (const { status, text } of answers)
        if (status !== 202)
          expect([status, text]).toEqual([503, expect.stringContaining('concurrent_idempotent')]);
      expect(await storedWith(subject)).toBe(100);
    } finally {
      await node.stop();
    }
  });

  test('takes of the quota what it stores, and as far as it goes', async () => {
    const limited = await createSender(server.installation, 'limited.example');
    await updateOrganization(server.installation, limited.organizationId, { quotas: { email: 5 } });
    const subject = unique('Limited');
    const emails = Array.from({ length: 4 }, () =>
      anEmail({ from: 'hello@limited.example', subject, cc: ['ann@example.com'] }),
    );
    const refused = await sendAll(emails, {}, {}, limited);
    expect([refused.status, refused.body.name, refused.body.message]).toEqual([
      429,
      'monthly_quota_exceeded',
      expect.stringMatching(/^emails\[2\]: /),
    ]);
    expect(await storedWith(subject, limited)).toBe(0);
    const { body } = await sendAll(emails, { on_error: 'skip' }, {}, limited);
    expect(body.data.map(({ error }) => error?.name)).toEqual([
      undefined,
      undefined,
      'monthly_quota_exceeded',
      'monthly_quota_exceeded',
    ]);
    expect(await storedWith(subject, limited)).toBe(2);
    await updateOrganization(server.installation, limited.organizationId, { suspend: ['email'] });
    const suspended = await sendAll(emails, {}, {}, limited);
    expect([suspended.status, suspended.body.name]).toEqual([403, 'sending_suspended']);
  });

  test('may be as large as it is sent, also when a template of it is filled in', async () => {
    const template = await server.request<{ id: string }>('POST', '/v1/templates', {
      name: unique('template'),
      subject: 'Large',
      text: 'x'.repeat(2_000_000),
    });
    const emails = Array.from({ length: 20 }, () =>
      anEmail({ text: undefined, subject: undefined, template_id: template.body.id }),
    );
    const refused = await sendAll(emails);
    expect([refused.status, refused.body.name]).toEqual([413, 'payload_too_large']);
    expect(await storedWith('Large')).toBe(0);
    expect((await sendAll(emails.slice(0, 2))).status).toBe(202);
  });

  test('counts as one request for ten of them, or is refused as a whole', async () => {
    const counted = await createSender(server.installation, 'counted.example');
    await updateOrganization(server.installation, counted.organizationId, { requestsPerWindow: 6 });
    const batch = (count: number) =>
      sendAll(
        Array.from({ length: count }, () => anEmail({ from: 'hello@counted.example' })),
        {},
        {},
        counted,
      );
    const remaining = async (count: number) => {
      const { status, headers } = await batch(count);
      return [status, headers.get('ratelimit-remaining')];
    };
    expect(await remaining(10)).toEqual([202, '5']);
    expect(await remaining(11)).toEqual([202, '3']);
    const excess = await batch(40);
    expect([excess.status, excess.body.name, excess.headers.get('retry-after')]).toEqual([
      429,
      'rate_limit_exceeded',
      expect.stringMatching(/^\d+$/),
    ]);
  });

  test('has one email at least and 500 at most, and no other fields', async () => {
    expect((await sendAll([])).body.message).toBe('emails must have at least 1 item');
    const many = Array.from({ length: 501 }, () => ({}));
    expect((await sendAll(many)).body.message).toBe('emails must have at most 500 items');
    expect((await sendAll([anEmail()], { on_error: 'stop' })).body.message).toBe(
      'on_error must be one of refuse_all, skip',
    );
    expect((await ask('/email/send/batch', { messages: [anEmail()] })).status).toBe(422);
  });
});

/** Messages of a channel, sent by a batch to one organization and one by one to nobody else. */
async function compare(path: string, messages: readonly object[], faulty: number): Promise<Result[]> {
  const together = await ask(`${path}/batch`, { messages, on_error: 'skip' });
  expect(together.status).toBe(202);
  let wrong = 0;
  for (const [index, message] of messages.entries()) {
    const one = await ask<ErrorBody>(path, message);
    if (one.status === 202) {
      expect([index, together.body.data[index]]).toMatchObject([index, { id: expect.any(String) }]);
      continue;
    }
    wrong += 1;
    expect([index, together.body.data[index]]).toEqual([index, { index, error: one.body }]);
  }
  expect(wrong).toBe(faulty);
  const first = together.body.data.find(({ error }) => error !== undefined)!;
  const whole = await ask(`${path}/batch`, { messages });
  expect([whole.status, whole.body.name, whole.body.message]).toEqual([
    first.error!.status_code,
    first.error!.name,
    `messages[${first.index}]: ${first.error!.message}`,
  ]);
  return together.body.data;
}

test('a batch of texts is what each of them is', async () => {
  await addApprovedSender(server, 'Batcher');
  const good = Array.from({ length: 220 }, (_, index) => ({
    from: 'Batcher',
    to: `+1415555${String(1_000 + index)}`,
    body: `Text {{n}} ${index}`,
    variables: { n: index },
  }));
  const used = await usedQuota('sms');
  const data = await compare(
    '/sms/send',
    [
      ...good,
      { from: 'Nobody', to: '+14155550123', body: 'Hello' },
      { from: 'Batcher', to: '0770', body: 'Hello' },
      { from: 'Batcher', to: '+14155550123', body: '{{a}}', variables: { a: 'x'.repeat(1_601) } },
    ],
    3,
  );
  const { body } = await server.request<{ to: string; body: string }>('GET', `/v1/sms/${data[137]!.id}`);
  expect(body).toMatchObject({ to: '+14155551137', body: 'Text 137 137' });
  expect((await usedQuota('sms')) - used).toBe(2 * good.length);
});

test('a batch of pushes is what each of them is', async () => {
  await setUpPush(server);
  const [reached, silent, unwilling] = [
    await aPushContact(server),
    await aPushContact(server),
    await aPushContact(server),
  ];
  await setUpPush(server, other.organizationId);
  const foreign = await aPushContact(server, other);
  await register(server, { ...androidApp('of-batch'), contact_id: reached });
  await register(server, { ...androidApp('of-batch-2'), contact_id: reached });
  await server.request('PATCH', `/v1/contacts/${unwilling}`, { consent: { push: 'unsubscribed' } });
  const push = (contactId: string, title = 'Hello') => ({ contact_id: contactId, title, body: 'There' });
  const data = await compare(
    '/push/send',
    [
      ...Array.from({ length: 110 }, (_, index) => [push(reached, `Title ${index}`), push(silent)]).flat(),
      push(foreign),
      push(unwilling),
      { title: 'Hello', body: 'There' },
      { ...push(reached), external_id: 'both' },
      push(reached, ''),
    ],
    5,
  );
  const { body } = await server.request<{ title: string; devices: unknown[] }>(
    'GET',
    `/v1/push/${data[88]!.id}`,
  );
  expect(body).toMatchObject({ title: 'Title 44', devices: [{}, {}] });
  const skipped = await server.request<{ status: string }>('GET', `/v1/push/${data[89]!.id}`);
  for (let device = 3; device <= 60; device += 1)
    await register(server, { ...androidApp(`of-batch-${device}`), contact_id: reached });
  const tooMany = await ask('/push/send/batch', {
    messages: Array.from({ length: 500 }, () => push(reached)),
  });
  expect([tooMany.status, tooMany.body.message]).toEqual([
    400,
    'The messages of a batch may have 25000 recipients or devices together, and these have 30000. Send fewer at once.',
  ]);
  expect(skipped.body.status).toBe('skipped');
});

test('a batch of chat-app messages is what each of them is', async () => {
  const [utility, marketing, moved] = [
    await addChatTemplate(server),
    await addChatTemplate(server, { category: 'marketing' }),
    await addChatTemplate(server),
  ];
  await setTemplate(
    server.installation,
    moved.id,
    "marketing_from = '2100-01-01', provider_category = 'marketing'",
  );
  const code = await addChatTemplate(server, { category: 'authentication' });
  const foreign = await addChatTemplate(server, { organizationId: other.organizationId });
  const person = async (more: object) =>
    (await server.request<{ id: string }>('POST', '/v1/contacts', { external_id: unique('person'), ...more }))
      .body.id;
  const [known, nameless, refusing] = [
    await person({ phone_number: '+14155552001' }),
    await person({}),
    await person({ phone_number: '+14155552002', consent: { chatapp: 'unsubscribed' } }),
  ];
  const parameters = { first_name: 'Ann' };
  const stopped = '+14155552009';
  const { organizationId } = server;
  await server.installation.database.asOrganizations([organizationId], (transaction) =>
    optOut(
      transaction,
      server.installation,
      'chatapp',
      { organizationId, address: stopped },
      { scope: 'all', source: { type: 'reply', id: null } },
    ),
  );
  const of = (template: { id: string }, more: object) => ({ template_id: template.id, parameters, ...more });
  const data = await compare(
    '/chatapp/send',
    [
      ...Array.from({ length: 105 }, (_, index) => [
        of(utility, { to: `+1415555${3_000 + index}` }),
        of(utility, { contact_id: known }),
      ]).flat(),
      { template_id: code.id, parameters: { code: '123456' }, to: '+14155552002' },
      { template_id: code.id, parameters: { code: '123456' }, to: stopped },
      of(utility, { to: stopped }),
      of(utility, { contact_id: refusing }),
      of(moved, { contact_id: refusing }),
      of(moved, { to: '+14155552002' }),
      of(marketing, { contact_id: known }),
      of(foreign, { contact_id: known }),
      of(utility, { contact_id: nameless }),
      of(utility, { contact_id: '01934c1e-9f3a-7cc0-8b1a-0123456789ab' }),
      of(utility, { contact_id: known, to: '+14155552001' }),
      of(utility, {}),
      of(utility, { to: '+14155552001', parameters: {} }),
      { template_id: utility.id, template: utility.name, to: '+14155552001', parameters },
    ],
    11,
  );
  const { body } = await server.request('GET', `/v1/chatapp/${data[105]!.id}`);
  expect(body).toMatchObject({ to: '+14155552001', contact_id: known, template_id: utility.id });
});
