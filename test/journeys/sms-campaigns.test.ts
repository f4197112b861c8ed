/** SMS campaigns as people see them, as far as they differ from those by email. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { startWorker } from '../../src/roles/worker.ts';
import { rejectSender } from '../../src/senders/senders.ts';
import { eventually, type ErrorBody, rowsOf } from '../support/email-journey.ts';
import { addApprovedSender } from '../support/sms-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
  await addApprovedSender(server, 'Postillion');
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 10_000 });
});
afterAll(() => server.stop());

type Campaign = Record<string, unknown> & {
  id: string;
  status: string;
  stats: { audience: number; pending: number; sent: number; unconfirmed: number };
};
type Page = { data: Campaign[] };
type Preview = {
  ready: boolean;
  issues: string[];
  audience: number;
  excluded: Record<string, number>;
  missing_variables: { name: string; contacts: number }[];
  sample_contact_id: string | null;
  from: string | null;
  body: string | null;
  encoding: string | null;
  segments: number | null;
  warnings: string[];
};

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown) =>
  server.request<Body>(method, `/v1${path}`, body);

let made = 0;
const unique = (what: string) => `${what} ${(made += 1)}`;

async function make(path: string, body: object): Promise<string> {
  const response = await ask<{ id: string }>('POST', path, body);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

const aList = () => make('/lists', { name: unique('List') });
const aContact = (list: string, more: object = {}) =>
  make('/contacts', { external_id: unique('contact'), list_ids: [list], ...more });
const aPhone = () => `+1415555${String((made += 1)).padStart(4, '0')}`;
const aDraft = (more: object = {}) => make('/sms/campaigns', { name: unique('Campaign'), ...more });
const aReady = async (more: object = {}) =>
  aDraft({ from: 'Postillion', body: 'Hello', list_ids: [await aList()], ...more });

const read = async (id: string) => (await ask<Campaign>('GET', `/sms/campaigns/${id}`)).body;
const patch = (id: string, body: object) => ask('PATCH', `/sms/campaigns/${id}`, body);
const send = (id: string, body: object = {}) => ask('POST', `/sms/campaigns/${id}/send`, body);
const preview = async (id: string, body: object = {}) =>
  (await ask<Preview>('POST', `/sms/campaigns/${id}/preview`, body)).body;
const inFuture = () => new Date(Date.now() + 3_600_000).toISOString();

async function messageOf(id: string) {
  const [message] = await rowsOf<Record<string, unknown>>(
    server,
    `select m.channel, m.class, m.sender, m.subject, m.category, m.details, c.content, k.variable_names
     from campaigns k
     join messages m on m.organization_id = k.organization_id and m.id = k.message_id
     join message_contents c on c.organization_id = m.organization_id and c.message_id = m.id
     where k.id = $1`,
    [id],
  );
  return message;
}

describe('a draft', () => {
  test('needs a name alone, and shows the inputs of a text', async () => {
    const id = await aDraft({ name: 'March' });
    expect(await read(id)).toMatchObject({
      id,
      name: 'March',
      status: 'draft',
      from: null,
      body: null,
      category: null,
      variables: null,
      list_ids: [],
      stats: { audience: 0 },
    });
    expect(Object.keys(await read(id))).not.toContain('subject');
  });

  test('takes its inputs, changes and gives them back, and is listed without its body', async () => {
    const id = await aDraft({ from: '+14155550123', body: 'Hello {{first_name}}', category: 'sale' });
    expect((await patch(id, { variables: { first_name: 'you' }, category: null })).status).toBe(200);
    expect(await read(id)).toMatchObject({
      from: '+14155550123',
      body: 'Hello {{first_name}}',
      category: null,
      variables: { first_name: 'you' },
    });
    const { data } = (await ask<Page>('GET', '/sms/campaigns?limit=100')).body;
    const listed = data.find((campaign) => campaign.id === id);
    expect(listed).toMatchObject({ from: '+14155550123', category: null });
    expect(Object.keys(listed ?? {})).not.toContain('body');
  });

  test('is not shown as an email campaign, nor an email campaign as one of SMS', async () => {
    const [text, email] = [await aDraft(), await make('/email/campaigns', { name: 'Email' })];
    expect((await ask('GET', `/email/campaigns/${text}`)).status).toBe(404);
    expect((await ask('GET', `/sms/campaigns/${email}`)).status).toBe(404);
    expect((await ask('GET', '/sms/campaigns?limit=100')).text).not.toContain(email);
    expect((await ask('DELETE', `/sms/campaigns/${text}`)).body).toEqual({
      object: 'sms_campaign',
      id: text,
      deleted: true,
    });
  });

  test.each([
    ['body must not be empty', { body: '' }],
    ['body must be at most 1600 characters', { body: 'x'.repeat(1_601) }],
    ['body must be at most 1600 characters', { body: '😀'.repeat(1_601) }],
    ['from must be a single line that is not blank', { from: 'A\nB' }],
    ['subject is not a known field', { subject: 'x' }],
    ['variables.name must be a string or a number or a boolean', { variables: { name: null } }],
  ])('is refused where %s', async (message, input) => {
    const response = await ask('POST', '/sms/campaigns', { name: 'x', ...input });
    expect([response.status, response.body.message]).toEqual([422, expect.stringContaining(message)]);
  });

  test('may have a body of 1,600 characters', async () => {
    await aDraft({ body: '😀'.repeat(1_600) });
  });
});

describe('sending', () => {
  test('says all at once what is missing', async () => {
    const id = await aDraft();
    const response = await send(id);
    expect([response.status, response.body.message]).toEqual([
      400,
      'The campaign is not ready to be sent: from is required, body is required, list_ids, tag_ids or segment_ids is required.',
    ]);
  });

  test('needs an approved sender of the organization, by its exact name', async () => {
    for (const from of ['Nobody', 'postillion', '14155550199']) {
      const response = await send(await aReady({ from }));
      expect([response.status, response.body.message]).toEqual([
        400,
        `The campaign is not ready to be sent: from is not an approved sender of this organization: ${from}.`,
      ]);
    }
  });

  test('fixes what it says, and a number is found with its plus', async () => {
    await addApprovedSender(server, '14155550142');
    const id = await aReady({
      from: '+14155550142',
      body: '{{ first_name }}, {{code}} {{first_name}}',
      category: 'sale',
      variables: { code: 7, unused: 'x' },
    });
    expect((await send(id)).status).toBe(200);
    expect(await read(id)).toMatchObject({ status: 'queued', from: '+14155550142' });
    expect(await messageOf(id)).toEqual({
      channel: 'sms',
      class: 'campaign',
      sender: '14155550142',
      subject: null,
      category: 'sale',
      details: {},
      content: { text: '{{ first_name }}, {{code}} {{first_name}}', defaults: { code: 7 } },
      variable_names: ['first_name', 'code'],
    });
  });

  test('is refused while the organization is suspended for SMS, and not while it is for email', async () => {
    const [first, second] = [await aReady(), await aReady()];
    const { installation, organizationId } = server;
    await updateOrganization(installation, organizationId, { suspend: ['sms'] });
    expect((await send(first)).body.name).toBe('sending_suspended');
    await updateOrganization(installation, organizationId, { suspend: ['email'], resume: ['sms'] });
    expect((await send(second)).status).toBe(200);
    await updateOrganization(installation, organizationId, { resume: ['email'] });
  });

  test('later keeps it fit to be sent', async () => {
    const id = await aReady();
    expect((await send(id, { scheduled_at: inFuture() })).status).toBe(200);
    expect((await patch(id, { from: 'Nobody' })).status).toBe(400);
    expect((await patch(id, { body: null })).status).toBe(400);
    expect((await patch(id, { body: 'Hello again' })).status).toBe(200);
    expect((await ask('POST', `/sms/campaigns/${id}/cancel`)).status).toBe(200);
  });
});

describe('a preview', () => {
  test('counts by phone number and consent to SMS, and shows a copy and what it takes', async () => {
    const list = await aList();
    const first = await aContact(list, { phone_number: aPhone(), first_name: 'Ann' });
    await aContact(list, { phone_number: aPhone() });
    await aContact(list, { phone_number: aPhone(), consent: { sms: 'unsubscribed' } });
    await aContact(list, { phone_number: aPhone(), consent: { email: 'unsubscribed' } });
    await aContact(list, { email: 'ann@example.com' });
    const id = await aReady({ list_ids: [list], body: 'Hello {{first_name}}' });
    expect(await preview(id)).toMatchObject({
      ready: true,
      issues: [],
      audience: 3,
      excluded: { unsubscribed: 1, suppressed: 0, no_address: 1, duplicate: 0 },
      missing_variables: [{ name: 'first_name', contacts: 2 }],
      sample_contact_id: first,
      from: 'Postillion',
      body: 'Hello Ann',
      encoding: 'gsm7',
      segments: 1,
      warnings: [],
    });
  });

  test('warns of what is dear, and of what cannot be sent', async () => {
    const id = await aReady({ body: `${'x'.repeat(70)}ш` });
    expect(await preview(id)).toMatchObject({
      encoding: 'ucs2',
      segments: 2,
      warnings: [expect.stringContaining('2 segments'), expect.stringContaining('“ш” (U+0448)')],
    });
    await patch(id, { body: '{{text}}', variables: { text: 'x'.repeat(1_601) } });
    expect(await preview(id)).toMatchObject({
      ready: true,
      body: null,
      segments: null,
      warnings: ['This copy cannot be sent: it has no text, or more than 1,600 characters.'],
    });
    const test = await ask('POST', `/sms/campaigns/${id}/test`, { to: ['+14155550123'] });
    expect([test.status, test.body.message]).toEqual([
      400,
      'The campaign has no text, or more than 1,600 characters with these values.',
    ]);
  });

  test('of what is not ready says why', async () => {
    expect(await preview(await aDraft({ from: 'Nobody' }))).toMatchObject({
      ready: false,
      issues: [
        'from is not an approved sender of this organization: Nobody',
        'body is required',
        'list_ids, tag_ids or segment_ids is required',
      ],
      from: null,
      body: null,
    });
  });
});

describe('a test', () => {
  test('is a text of its own for each number', async () => {
    const id = await aReady({ body: 'Hello {{first_name}}', variables: { first_name: 'you' } });
    const response = await ask<{ ids: string[] }>('POST', `/sms/campaigns/${id}/test`, {
      to: ['+14155550123', '+14155550124'],
    });
    expect(response.status).toBe(202);
    expect(response.body.ids).toHaveLength(2);
    const text = await ask('GET', `/sms/${response.body.ids[1]}`);
    expect(text.body).toMatchObject({ from: 'Postillion', to: '+14155550124', body: 'Hello you' });
  });

  test('goes to phone numbers alone', async () => {
    const id = await aReady();
    for (const to of ['ann@example.com', '14155550123', '+0123'])
      expect((await ask('POST', `/sms/campaigns/${id}/test`, { to: [to] })).status).toBe(422);
  });
});

describe('a campaign that is sent', () => {
  let worker: Awaited<ReturnType<typeof startWorker>>;
  beforeAll(async () => {
    worker = await startWorker(server.installation);
  });
  afterAll(() => worker.stop());

  test('goes to the phone numbers of its audience, each with its own values, and says why not to others', async () => {
    const list = await aList();
    const numbers = [aPhone(), aPhone()];
    const ann = await aContact(list, { phone_number: numbers[0], first_name: 'Ann' });
    await aContact(list, { phone_number: numbers[1] });
    const [reluctant, mute] = [
      await aContact(list, { phone_number: aPhone(), consent: { sms: 'unsubscribed' } }),
      await aContact(list),
    ];
    const id = await aReady({ list_ids: [list], body: 'Hello {{first_name}}' });
    expect((await send(id)).status).toBe(200);
    type Recipients = { data: { contact_id: string; phone_number: string }[] };
    const { data } = await eventually(
      async () => (await ask<Recipients>('GET', `/sms/campaigns/${id}/recipients`)).body,
      (page) => page.data.length > 0,
    );
    expect(data.map(({ phone_number: number }) => number)).toEqual([...numbers].reverse());
    // The list has them as soon as the audience is frozen, their rows a moment later.
    const [row] = await eventually(
      () =>
        rowsOf<{ variables: unknown }>(server, 'select variables from recipients where contact_id = $1', [
          ann,
        ]),
      (rows) => rows.length > 0,
    );
    expect(row).toEqual({ variables: { first_name: 'Ann' } });
    const explain = async (contact: string) =>
      (await ask<{ reason: string }>('GET', `/sms/campaigns/${id}/recipients/${contact}`)).body;
    expect((await explain(reluctant)).reason).toContain('unsubscribed from SMS');
    expect(await explain(mute)).toMatchObject({
      phone_number: null,
      reason: expect.stringContaining('has no phone number') as string,
    });
  });

  test('arrives with the values of each, and is told apart from what did not', async () => {
    const list = await aList();
    const number = aPhone();
    const ann = await aContact(list, { phone_number: number, first_name: 'Ann' });
    const nobody = await aContact(list, { phone_number: '+15005550001' });
    const id = await aReady({
      list_ids: [list],
      body: 'Hello {{first_name}}',
      variables: { first_name: 'you' },
    });
    expect((await send(id)).status).toBe(200);
    const campaign = await eventually(
      () => read(id),
      ({ status, stats }) => status === 'sent' && stats.pending + stats.unconfirmed === 0,
    );
    expect(campaign.stats).toMatchObject({ audience: 2, sent: 2, delivered: 1, failed: 1, pending: 0 });
    const inbox = await server.request<{ data: unknown[] }>(
      'GET',
      `/sandbox/messages?channel=sms&to=${encodeURIComponent(number)}`,
    );
    expect(inbox.body.data).toMatchObject([{ from: 'Postillion', text: 'Hello Ann' }]);
    const reasonFor = async (contact: string) =>
      (await ask<{ reason: string }>('GET', `/sms/campaigns/${id}/recipients/${contact}`)).body.reason;
    expect(await reasonFor(ann)).toContain('and it arrived on the phone.');
    expect(await reasonFor(nobody)).toContain('after the carrier (hard, unknown_subscriber)');
  });

  test('that is cancelled before a receipt comes was sent all the same, and not cancelled', async () => {
    const list = await aList();
    // Its receipt comes late.
    const contact = await aContact(list, { phone_number: '+15005550012' });
    const id = await aReady({ list_ids: [list] });
    await send(id);
    await eventually(
      () => read(id),
      ({ status, stats }) => status === 'sent' && stats.sent === 1,
    );
    // As if others were still to be written to.
    await worker.stop();
    await rowsOf(server, `update campaigns set status = 'sending', completed_at = null where id = $1`, [id]);
    expect((await ask('POST', `/sms/campaigns/${id}/cancel`)).status).toBe(200);
    expect((await read(id)).stats).toMatchObject({
      audience: 1,
      sent: 1,
      pending: 0,
      unconfirmed: 1,
      cancelled: 0,
    });
    const explained = (
      await ask<{ outcome: string; reason: string }>('GET', `/sms/campaigns/${id}/recipients/${contact}`)
    ).body;
    expect(explained).toMatchObject({
      outcome: 'sent',
      reason: expect.stringContaining('the carrier took it; whether it arrived is not known yet') as string,
    });
    const listed = async (status: string) =>
      (await ask<Page>('GET', `/sms/campaigns/${id}/recipients?status=${status}`)).body.data.length;
    expect([await listed('sent'), await listed('cancelled'), await listed('pending')]).toEqual([1, 0, 0]);
    worker = await startWorker(server.installation);
  });

  test('fails with a reason when its sender is rejected before anything has left', async () => {
    const { installation } = server;
    const list = await aList();
    await aContact(list, { phone_number: aPhone() });
    const sender = await addApprovedSender(server, 'Shortlived');
    const id = await aReady({ from: 'Shortlived', list_ids: [list] });
    await worker.stop();
    expect((await send(id)).status).toBe(200);
    await rejectSender(installation, sender);
    worker = await startWorker(installation);
    const campaign = await eventually(
      () => read(id),
      ({ status }) => status === 'failed',
    );
    expect(campaign.failure_reason).toBe('The sender Shortlived is not approved any more.');
  });
});
