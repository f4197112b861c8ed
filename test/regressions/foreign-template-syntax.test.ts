/** Placeholders of other template languages go out as they are written: records, previews and responses name them. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sendTest } from '../../src/campaigns/test-sending.ts';
import { emailCampaigns } from '../../src/email/email.ts';
import type { Acceptor } from '../../src/messages/messages.ts';
import { inlineRunner } from '../../src/platform/http/body-threads.ts';
import { addChatTemplate, postChatApp, written } from '../support/chat-app-journey.ts';
import { anEmail } from '../support/email-journey.ts';
import { aPushContact } from '../support/push-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender, anSms } from '../support/sms-journey.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer();
  await addApprovedSender(server, 'Acme');
});
afterAll(() => server.stop());

const ask = <Body = { id: string; warnings: string[] }>(
  method: string,
  path: string,
  body?: unknown,
  headers = {},
) => server.request<Body>(method, `/v1${path}`, body, headers);

const inWords = [
  expect.stringMatching(/^\{\{#if plan\}\} is of another template language, and stays as written\.$/),
  expect.stringMatching(/^\{\{name\|there\}\} is of another template language, and stays as written\.$/),
  expect.stringMatching(/^\*\|FNAME\|\* /),
];

const foreign = '{{#if plan}}Hello {{name|there}}, {{name}}{{/if}} *|FNAME|*';
const counted = 'foreign_block, foreign_expression, foreign_merge_tag';

async function toldBy(path: string, body: unknown, status = 202): Promise<string | null> {
  const response = await ask('POST', path, body);
  expect([response.status, response.text]).toEqual([status, expect.any(String)]);
  return response.headers.get('postillion-warnings');
}

describe('a send', () => {
  test('of an email names what is foreign in its subject and bodies, and not in its values', async () => {
    const variables = { name: '{% a %}' };
    const email = (more: object) => anEmail({ text: 'Hello {{name}}', variables, ...more });
    expect(await toldBy('/email/send', email({ text: foreign }))).toBe(counted);
    expect(await toldBy('/email/send', email({ subject: '%%name%%', html: '<p>{% if a %}</p>' }))).toBe(
      'foreign_tag, foreign_percent_tag',
    );
    expect(await toldBy('/email/send', email({ subject: '100%%' }))).toBeNull();
  });

  test('of an email of more than a megabyte does the same', async () => {
    const text = `${'x'.repeat(1_500_000)}${foreign}`;
    expect(await toldBy('/email/send', anEmail({ text }))).toBe(counted);
  });

  test('of a template names what the template has, each time, and the subject that is sent', async () => {
    const template = { name: 'Foreign', subject: '{% a %}', html: `<p>${foreign}</p>`, text: 'Hello' };
    const { body } = await ask('POST', '/templates', template);
    const email = anEmail({ template_id: body.id, text: undefined, subject: undefined });
    const whole = counted.replace('foreign_merge', 'foreign_tag, foreign_merge');
    for (let sent = 0; sent < 2; sent += 1) expect(await toldBy('/email/send', email)).toBe(whole);
    for (let sent = 0; sent < 2; sent += 1)
      expect(await toldBy('/email/send', { ...email, subject: '%%a%%' })).toBe(
        `${counted}, foreign_percent_tag`,
      );
    await ask('PATCH', `/templates/${body.id}`, { html: '<p>Hello {{name}}</p>', subject: 'Hello' });
    expect(await toldBy('/email/send', email)).toBeNull();
  });

  test('that repeats an idempotency key has the same header', async () => {
    const headers = { 'idempotency-key': 'foreign' };
    for (let sent = 0; sent < 2; sent += 1) {
      const response = await ask('POST', '/email/send', anEmail({ text: foreign }), headers);
      expect(response.headers.get('postillion-warnings')).toBe(counted);
    }
  });

  test('of a text, a push and a chat-app message does the same', async () => {
    expect(await toldBy('/sms/send', anSms({ body: foreign, variables: { name: '%%a%%' } }))).toBe(counted);
    const push = { contact_id: await aPushContact(server), title: 'Hello', body: 'Hello' };
    expect(await toldBy('/push/send', { ...push, body: foreign })).toBe(counted);
    expect(await toldBy('/push/send', { ...push, data_payload: { a: '{% a %}' } })).toBe('foreign_tag');
    expect(await toldBy('/push/send', push)).toBeNull();
    const { id } = await addChatTemplate(server, { content: written('Hello %%a%% {{first_name}}') });
    const message = { to: '+4915112345678', template_id: id, parameters: { first_name: '{% a %}' } };
    const sent = await postChatApp(server, message);
    expect([sent.status, sent.headers.get('postillion-warnings')]).toEqual([202, 'foreign_percent_tag']);
  });
});

describe('a template', () => {
  test('of an email says so where it is made, read, changed and rendered, wherever it stands', async () => {
    for (const field of ['subject', 'preview_text', 'text']) {
      const body = { name: `In ${field}`, html: '<p>Hello</p>', [field]: foreign };
      const made = await ask('POST', '/templates', body);
      expect([made.status, made.body.warnings]).toEqual([201, inWords]);
      const path = `/templates/${made.body.id}`;
      expect((await ask('GET', path)).body.warnings).toEqual(inWords);
      expect((await ask('POST', `${path}/render`, {})).body.warnings).toEqual(inWords);
      expect((await ask('PATCH', path, { [field]: 'Hello' })).body.warnings).toEqual([]);
    }
  });

  test('of a chat app says so', async () => {
    const { id } = await addChatTemplate(server, { content: written(foreign) });
    expect((await ask('GET', `/chatapp/templates/${id}`)).body.warnings).toEqual(inWords);
  });
});

const leave = '<a href="{{unsubscribe_url}}">Leave</a>';

describe('a campaign', () => {
  test.each([
    ['/email/campaigns', { html: `<p>${foreign}</p>${leave}` }],
    ['/email/campaigns', { html: leave, subject: foreign }],
    ['/email/campaigns', { html: leave, preview_text: foreign }],
    ['/sms/campaigns', { body: foreign }],
    ['/push/campaigns', { body: foreign }],
    ['/push/campaigns', { title: foreign }],
  ])('at %s with %o names it when it is made, and stops when it is changed', async (path, content) => {
    const response = await ask('POST', path, { name: 'Foreign', ...content });
    expect(response.status).toBe(201);
    expect(response.headers.get('postillion-warnings')).toBe(counted);
    const own = Object.fromEntries(Object.keys(content).map((field) => [field, leave]));
    const changed = await ask('PATCH', `${path}/${response.body.id}`, own);
    expect(changed.headers.get('postillion-warnings')).toBeNull();
  });

  test('of a chat app names what its template and its parameters have', async () => {
    const { id } = await addChatTemplate(server, { content: written('Hello %%a%% {{first_name}}') });
    const campaign = { name: 'Foreign', template_id: id, parameters: { first_name: '{{name|there}}' } };
    expect(await toldBy('/chatapp/campaigns', campaign, 201)).toBe('foreign_expression, foreign_percent_tag');
  });

  test('says so in words in its preview, and when it is tested', async () => {
    const list = await ask('POST', '/lists', { name: 'Shown' });
    const more = { name: 'Shown', list_ids: [list.body.id] };
    for (const [path, content] of [
      ['/sms/campaigns', { from: 'Acme', body: foreign }],
      ['/push/campaigns', { title: 'Hello', body: foreign }],
      ['/email/campaigns', { from: 'hello@postillion.test', subject: foreign, html: leave, text: leave }],
    ] as const) {
      const { body } = await ask('POST', path, { ...more, ...content });
      const shown = await ask('POST', `${path}/${body.id}/preview`, {});
      expect(shown.body).toMatchObject({ issues: [], warnings: expect.arrayContaining([inWords[1]]) });
      const to = { sms: '+4915112345678', push: await aPushContact(server), email: 'ann@example.com' };
      const tested = to[path.split('/')[1] as keyof typeof to];
      expect(await toldBy(`${path}/${body.id}/test`, { to: [tested] })).toBe(counted);
    }
  });
});

test('a test of a campaign whose mistakes cannot be looked for sends nothing, and is told so', async () => {
  const list = await ask('POST', '/lists', { name: 'Readers of a test' });
  const campaign = { name: 'News', from: 'news@postillion.test', subject: 'News', text: foreign };
  const { id } = (await ask('POST', '/email/campaigns', { ...campaign, list_ids: [list.body.id] })).body;
  const accepted: unknown[] = [];
  const acceptor: Acceptor = {
    accept: (prepared) => {
      accepted.push(prepared);
      return Promise.resolve({
        kind: 'response',
        response: { statusCode: 202, text: JSON.stringify({ id }), headers: {} },
        isReplay: false,
      });
    },
    acceptBatch: () => Promise.reject(new Error('a test of a campaign is no batch')),
  };
  const { installation, organizationId } = server;
  const test = (findOversights: typeof emailCampaigns.findOversights) =>
    sendTest(
      { ...installation, acceptor, runner: inlineRunner, publicUrl: () => server.url },
      { organizationId, channel: { ...emailCampaigns, findOversights }, id },
      { to: ['ann@example.com'], contactId: null },
    );
  await expect(test(() => Promise.reject(new Error('no connection')))).rejects.toThrow('no connection');
  expect(accepted).toEqual([]);
  expect(await test(emailCampaigns.findOversights)).toMatchObject({ ids: [id] });
  expect(accepted).toHaveLength(1);
});
