/** What an email said is read back, and said once more: to the same people or to others. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import type { EmailContentRecord } from '../../src/email/schema.ts';
import {
  anEmail,
  authorize,
  createShiftedClock,
  type ErrorBody,
  read,
  rowsOf,
  send,
  type Sender,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

const dayMs = 86_400_000;

let server: TestServer;
let clock: ShiftedClock;
let other: { organizationId: string; key: string };

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock, keptDays: { messages: 30, content: 10 } });
  other = await createSender(server.installation, 'elsewhere.example');
});
afterAll(() => server.stop());

function content<Body = EmailContentRecord>(id: string, sender?: Sender) {
  return server.request<Body>('GET', `/v1/email/${id}/content`, undefined, authorize(sender));
}

function resend<Body = { id: string }>(
  id: string,
  body?: unknown,
  { sender, key }: { sender?: Sender; key?: string } = {},
) {
  return server.request<Body>('POST', `/v1/email/${id}/resend`, body, {
    ...authorize(sender),
    ...(key !== undefined && { 'idempotency-key': key }),
  });
}

/** Whole messages, by whom they went to. */
async function copiesOf(messageId: string): Promise<Record<string, string>> {
  await settled(server, messageId);
  const rows = await rowsOf<{ recipient: string; source: Buffer }>(
    server,
    'select recipient, source from sandbox_messages where message_id = $1',
    [messageId],
  );
  return Object.fromEntries(rows.map(({ recipient, source }) => [recipient, source.toString()]));
}

/** Without what is different in every email. */
function sameIn(source: string, id: string): string {
  return source
    .replaceAll(id, '<id>')
    .replace(/^Date: .*$/m, '')
    .replace(/^DKIM-Signature: .*\r\n([ \t].*\r\n)*/gm, '')
    .replace(/boundary="?[^"\r\n]+"?/g, '')
    .replace(/^--.*$/gm, '');
}

const pdf = { filename: 'invoice.pdf', content: Buffer.from('%PDF-1.7').toString('base64') };

describe('what an email said', () => {
  test('is read with its variables, its headers and the names of its files', async () => {
    const id = await send(server, {
      from: 'Ada <hello@postillion.test>',
      from_name: undefined,
      reply_to: 'Desk <desk@postillion.test>',
      to: ['Ann <ann@example.com>', 'bob@example.com'],
      cc: ['cara@example.com'],
      bcc: ['secret@example.com'],
      subject: 'Hello {{name}}',
      html: '<p>Hello {{name}}</p>',
      text: undefined,
      variables: { name: 'A & B' },
      headers: { 'X-Order': '42' },
      attachments: [pdf],
    });
    const { status, body } = await content(id);
    expect([status, body]).toEqual([
      200,
      {
        id,
        from: 'hello@postillion.test',
        from_name: 'Ada',
        reply_to: '"Desk" <desk@postillion.test>',
        to: ['"Ann" <ann@example.com>', 'bob@example.com'],
        cc: ['cara@example.com'],
        subject: 'Hello A & B',
        html: '<p>Hello A &amp; B</p>',
        text: 'Hello A & B',
        headers: { 'X-Order': '42' },
        attachments: [
          { filename: 'invoice.pdf', content_type: 'application/pdf', size: 8, content_id: null },
        ],
      },
    ]);
    expect(body).not.toHaveProperty('bcc');
  });

  test('of a template is what the template said then', async () => {
    const { body: template } = await server.request<{ id: string }>('POST', '/v1/templates', {
      name: 'Welcome',
      subject: 'Then',
      html: '<p>Then, {{name}}</p>',
    });
    const id = await send(server, {
      subject: undefined,
      text: undefined,
      template_id: template.id,
      variables: { name: 'Ann' },
    });
    await server.request('PATCH', `/v1/templates/${template.id}`, { subject: 'Now', html: '<p>Now</p>' });
    expect((await content(id)).body).toMatchObject({ subject: 'Then', html: '<p>Then, Ann</p>' });
    const { body } = await resend(id);
    expect((await content(body.id)).body).toMatchObject({ subject: 'Then', html: '<p>Then, Ann</p>' });
    expect(await read(server, body.id)).toMatchObject({ template_id: template.id });
  });

  test.each([1_000, 65_536, 300_000, 1_200_000])('of %i characters comes back whole', async (length) => {
    const text = 'ä"\\\n'.repeat(length / 4);
    const id = await send(server, { text });
    expect((await content(id)).body.text).toBe(text);
    const { body } = await resend(id, { to: 'other@example.com' });
    expect((await content(body.id)).body).toMatchObject({ text, to: ['other@example.com'], cc: [] });
  });

  test('is read by nobody else, and nobody else sends it', async () => {
    const id = await send(server);
    await send(server, { from: 'hello@elsewhere.example' }, other);
    for (const response of [
      await content<ErrorBody>(id, other),
      await resend<ErrorBody>(id, { to: 'x@example.com' }, { sender: other }),
      await content<ErrorBody>('01890000-0000-7000-8000-000000000000'),
    ])
      expect([response.status, response.body.name]).toEqual([404, 'not_found']);
  });

  test('is gone with a contact that it went to', async () => {
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
      email: 'leaves@example.com',
    });
    const id = await send(server, { to: ['leaves@example.com', 'stays@example.com'] });
    await settled(server, id);
    await server.request('DELETE', `/v1/contacts/${contact.id}`);
    await expect
      .poll(async () => (await content<ErrorBody>(id)).body.message, { timeout: 30_000 })
      .toMatch(/^What this email said is not kept any more/);
    expect((await resend<ErrorBody>(id)).body).toMatchObject({ status_code: 404 });
    expect(await read(server, id)).toMatchObject({ to: [{ email: null }, { email: 'stays@example.com' }] });
  });

  test('is gone when its time is over, to the day, also before it is deleted', async () => {
    const short = await createSender(server.installation, 'short.example');
    const from = { from: 'hello@short.example' };
    const id = await send(server, from, short);
    const theirs = await send(server);
    await updateOrganization(server.installation, short.organizationId, { contentKeptDays: 7 });
    clock.putForward(7 * dayMs - 60_000);
    expect((await content(id, short)).status).toBe(200);
    const key = 'as long as its content is kept';
    const first = await resend(id, undefined, { sender: short, key });
    clock.putForward(120_000);
    expect((await content(id, short)).status).toBe(404);
    expect((await content(theirs)).status).toBe(200);
    expect((await resend(id, undefined, { sender: short })).status).toBe(404);
    expect((await read(server, id, short)).subject).toBe('Hello');
    expect(first.status).toBe(202);
  });
});

describe('an email that is sent once more', () => {
  test('is a new one, to the same recipients, that says the same octet by octet', async () => {
    const id = await send(server, {
      to: ['Ann <ann@example.com>', 'ANN@example.com', 'bob@example.com'],
      cc: ['cara@example.com'],
      bcc: ['secret@example.com'],
      html: '<p>Hello <a href="https://example.com/?a=1&amp;b=2">there</a></p>',
      category: 'welcome',
      metadata: { order: '42' },
      headers: { 'X-Order': '42' },
    });
    const first = await copiesOf(id);
    const { status, body } = await resend(id);
    expect(status).toBe(202);
    expect(body.id).not.toBe(id);
    const second = await copiesOf(body.id);
    expect(Object.keys(second).sort()).toEqual([
      'ann@example.com',
      'bob@example.com',
      'cara@example.com',
      'secret@example.com',
    ]);
    for (const [recipient, source] of Object.entries(first))
      expect(sameIn(second[recipient] ?? '', body.id)).toBe(sameIn(source, id));
    const [original, copy] = [await read(server, id), await read(server, body.id)];
    expect([original.resent_from, copy.resent_from]).toEqual([null, id]);
    const { id: _id, resent_from: _from, created_at: _at, updated_at: _updated, ...same } = copy;
    const withoutTimes = (recipients: typeof copy.to) =>
      recipients.map(({ status_at: _at, ...rest }) => rest);
    expect(same).toMatchObject({
      from: original.from,
      from_name: original.from_name,
      subject: original.subject,
      category: 'welcome',
      metadata: { order: '42' },
      status: original.status,
    });
    for (const field of ['to', 'cc', 'bcc'] as const)
      expect(withoutTimes(copy[field])).toEqual(withoutTimes(original[field]));
  });

  test('goes to others alone where they are named, and may be sent on from there', async () => {
    const id = await send(server, { to: ['ann@example.com'], cc: ['cara@example.com'] });
    const { body } = await resend(id, { to: ['Zoë <zoe@example.com>', 'zoe@example.com'] });
    const copies = await copiesOf(body.id);
    expect(Object.keys(copies)).toEqual(['zoe@example.com']);
    expect(copies['zoe@example.com']).not.toMatch(/ann@|cara@/);
    expect((await content(body.id)).body).toMatchObject({
      to: ['"Zoë" <zoe@example.com>', 'zoe@example.com'],
      cc: [],
    });
    const { body: third } = await resend(body.id, { to: 'last@example.com' });
    expect(await read(server, third.id)).toMatchObject({
      resent_from: body.id,
      to: [{ email: 'last@example.com' }],
      cc: [],
    });
  });

  test('is sent once for a key, and another email is another request', async () => {
    const [id, second] = [await send(server), await send(server)];
    const key = 'resend once';
    const [first, replay] = [await resend(id, {}, { key }), await resend(id, {}, { key })];
    expect([first.status, replay.status, replay.text]).toEqual([202, 202, first.text]);
    expect(replay.headers.get('idempotent-replayed')).toBe('true');
    expect((await resend<ErrorBody>(second, {}, { key })).body.name).toBe('invalid_idempotent_request');
    expect((await resend<ErrorBody>(id, { to: 'x@example.com' }, { key })).status).toBe(409);
    await rowsOf(server, 'delete from message_contents where message_id = $1', [id]);
    expect((await resend(id, {}, { key })).text).toBe(first.text);
    expect((await resend(id, {})).status).toBe(404);
  });

  test('with files is refused, since they are gone', async () => {
    const id = await send(server, { attachments: [pdf] });
    const { status, body } = await resend<ErrorBody>(id);
    expect([status, body.name, body.message]).toEqual([
      409,
      'conflict',
      expect.stringMatching(/^Files are kept only until an email is finished/),
    ]);
  });

  test.each<[string, unknown, number, RegExp]>([
    ['to nobody', { to: [] }, 400, /^At least one recipient is required in to/],
    [
      'to too many',
      { to: Array.from({ length: 51 }, (_, index) => `${index}@example.com`) },
      400,
      /^Too many recipients: 51/,
    ],
    ['to what is no address', { to: ['ann@'] }, 422, /to\[0\]/],
    ['with another subject', { subject: 'Other' }, 422, /subject/],
  ])('%s is refused', async (_case, body, status, message) => {
    const response = await resend<ErrorBody>(await send(server), body);
    expect([response.status, response.body.message]).toEqual([status, expect.stringMatching(message)]);
  });

  test('is checked and counted as any other', async () => {
    const domain = 'limited.example';
    const limited = await createSender(server.installation, domain);
    const id = await send(
      server,
      { from: `hello@${domain}`, to: ['a@example.com', 'b@example.com'] },
      limited,
    );
    const change = (plan: Parameters<typeof updateOrganization>[2]) =>
      updateOrganization(server.installation, limited.organizationId, plan);
    const again = async (body?: unknown) => {
      const response = await resend<ErrorBody>(id, body, { sender: limited });
      return [response.status, response.body.name];
    };
    await change({ quotas: { email: 3 } });
    expect(await again()).toEqual([429, 'monthly_quota_exceeded']);
    expect(await again({ to: 'c@example.com' })).toEqual([202, undefined]);
    await change({ quotas: { email: null }, suspend: ['email'] });
    expect(await again()).toEqual([403, 'sending_suspended']);
    await change({ resume: ['email'] });
    const { body } = await server.request<{ data: { id: string }[] }>(
      'GET',
      '/v1/email/domains',
      undefined,
      authorize(limited),
    );
    await server.request('DELETE', `/v1/email/domains/${body.data[0]!.id}`, undefined, authorize(limited));
    expect(await again()).toEqual([400, 'bad_request']);
  });

  test('is not written to whoever wants no more of it meanwhile', async () => {
    const to = 'complains@example.com';
    const id = await send(server, { to: [to] });
    await settled(server, id);
    const suppression = { channel: 'email', address: to, scope: 'all' };
    expect((await server.request('POST', '/v1/suppressions', suppression)).status).toBe(201);
    const { body } = await resend(id);
    expect((await settled(server, body.id)).to).toMatchObject([{ dropped: true, drop_reason: 'suppressed' }]);
  });

  test('may be asked for without a body, and keeps nothing of a bad one', async () => {
    const id = await send(server, anEmail());
    expect((await resend(id, '')).status).toBe(202);
    expect((await resend(id, '{"to":')).status).toBe(400);
    expect((await resend(id, { to: 'a\u0000@example.com' })).status).toBe(422);
  });
});
