/** Templates of chat-app messages: what may be made, what is read back, and what becomes of it. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { replaceHolds } from '../../src/audience/audience.ts';
import { workOnTemplates } from '../../src/chat-templates/jobs.ts';
import { setAccount } from '../../src/chat-templates/chat-templates.ts';
import type { TemplateRecord } from '../../src/chat-templates/schema.ts';
import { wakeOnce } from '../../src/platform/queue/wake.ts';
import { createReviewer, type Reviewer } from '../support/chat-app-reviewer.ts';
import { authorize, type ErrorBody, eventually, rowsOf } from '../support/email-journey.ts';
import { startGraph } from '../support/graph.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: { organizationId: string; key: string };
let reviewer: Reviewer;
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

beforeAll(async () => {
  server = await startTestServer();
  other = await createSender(server.installation, 'elsewhere.example');
  reviewer = createReviewer({ needsAccount: false });
});
afterAll(() => server.stop());

type Page = { object: 'list'; has_more: boolean; data: TemplateRecord[] };

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown, headers = {}) =>
  server.request<Body>(method, `/v1/chatapp/templates${path}`, body, headers);

let made = 0;
const aName = (what = 'template') => `${what}_${(made += 1)}`;

const body = (more: object = {}) => ({
  name: aName(),
  language: 'en_US',
  category: 'utility',
  components: [
    { type: 'header', format: 'text', text: 'Order {{order_number}}' },
    { type: 'body', text: 'Hello {{first_name}}, it is on its way.' },
    { type: 'footer', text: 'Reply STOP to stop.' },
    {
      type: 'buttons',
      buttons: [
        { type: 'quick_reply', text: 'Stop' },
        { type: 'url', text: 'Track', url: 'https://shop.example/t/{{order_number}}' },
        { type: 'phone_number', text: 'Call', phone_number: '+15550051310' },
      ],
    },
  ],
  examples: { order_number: '1047', first_name: 'Ana' },
  ...more,
});

const plain = (more: object = {}) =>
  body({ components: [{ type: 'body', text: 'Hello.' }], examples: undefined, ...more });

const options = { code_expiration_minutes: 10, button: { type: 'copy_code', text: 'Copy code' } };

const code = (more: object = {}) =>
  body({
    category: 'authentication',
    components: undefined,
    examples: undefined,
    authentication: options,
    ...more,
  });

async function create(given: object = body(), headers = {}): Promise<TemplateRecord> {
  const response = await ask<TemplateRecord>('POST', '', given, headers);
  expect([response.status, response.text]).toMatchObject([201, expect.any(String)]);
  return response.body;
}

/** What a worker does, by the test's own provider. */
async function workThrough(): Promise<void> {
  const tools = { ...server.installation, provider: reviewer };
  // Ends with the work.
  for (let rounds = 0; rounds < 100; rounds += 1)
    if (!(await workOnTemplates(tools, new AbortController().signal))) return;
}

const sentNow = { status: 'approved', sendable: true, sendable_reason: null };

/** As if the time of the next look had come. */
async function lookNow(): Promise<void> {
  await rowsOf(
    server,
    `update chat_templates set due_at = now() - interval '1 second' where next_step = 'review'`,
    [],
  );
  await workThrough();
}

test('a template is made, which is pending, and read back with all that was said', async () => {
  const given = body();
  const template = await create(given);
  expect(template).toEqual({
    id: expect.any(String),
    name: given.name,
    language: 'en_US',
    category: 'utility',
    components: given.components,
    examples: given.examples,
    authentication: null,
    edit: null,
    parameters: ['order_number', 'first_name'],
    status: 'pending',
    rejection_reason: null,
    sendable: false,
    sendable_reason: 'pending',
    quality: 'unknown',
    provider_category: null,
    warnings: [],
    created_at: expect.stringMatching(/Z$/),
    updated_at: template.created_at,
    reviewed_at: null,
  });
  expect((await ask('GET', `/${template.id}`)).body).toEqual(template);
});

test('a template for codes has options, and the code as its only parameter', async () => {
  expect(await create(code())).toMatchObject({
    components: null,
    examples: null,
    authentication: {
      add_security_recommendation: false,
      code_expiration_minutes: 10,
      button: { type: 'copy_code', text: 'Copy code' },
    },
    parameters: ['code'],
  });
});

test('a template goes through its review, which its reader sees', async () => {
  const approved = await create();
  const rejected = await create();
  await workThrough();
  const account = server.organizationId;
  reviewer.put(account, `${approved.name} en_US`, { state: 'approved', quality: 'green' });
  reviewer.put(account, `${rejected.name} en_US`, { state: 'rejected', rejectionReason: 'Spam.' });
  await lookNow();
  expect((await ask('GET', `/${approved.id}`)).body).toMatchObject({
    status: 'approved',
    sendable: true,
    sendable_reason: null,
    quality: 'green',
    provider_category: 'utility',
    reviewed_at: expect.stringMatching(/Z$/) as string,
  });
  expect((await ask('GET', `/${rejected.id}`)).body).toMatchObject({
    status: 'rejected',
    sendable: false,
    sendable_reason: 'rejected',
    rejection_reason: 'Spam.',
  });
});

test('names with digits are taken, with a warning', async () => {
  const components = [{ type: 'body', text: 'See {{line_2}} there.' }];
  expect(await create(body({ components, examples: { line_2: 'x' } }))).toMatchObject({
    warnings: [expect.stringContaining('{{line_2}}')],
  });
});

describe('a name and a language', () => {
  test('name one template, whatever comes at once', async () => {
    const given = body();
    const responses = await Promise.all(Array.from({ length: 8 }, () => ask('POST', '', given)));
    expect(responses.map(({ status }) => status).sort()).toEqual([201, ...Array<number>(7).fill(409)]);
    expect(responses.find(({ status }) => status === 409)!.body).toMatchObject({ name: 'conflict' });
    await create({ ...given, language: 'de' });
    await create(given, authorize(other));
  });

  test('are free again once the template is deleted', async () => {
    const given = plain();
    const { id } = await create(given);
    expect((await ask('DELETE', `/${id}`)).body).toEqual({ object: 'chatapp_template', id, deleted: true });
    expect((await ask('GET', `/${id}`)).status).toBe(404);
    expect((await ask('DELETE', `/${id}`)).status).toBe(404);
    expect((await create(given)).id).not.toBe(id);
  });
});

describe('a list', () => {
  test('has what its filters say, and pages of it', async () => {
    const name = aName('listed');
    const ids: string[] = [];
    for (const language of ['en', 'de', 'fr']) ids.unshift((await create(plain({ name, language }))).id);
    const authentication = await create(code({ name, language: 'es' }));
    ids.unshift(authentication.id);
    const list = async (query: string) => {
      const { status, body: page } = await ask<Page>('GET', `?name=${name}${query}`);
      expect(status).toBe(200);
      return page;
    };
    expect((await list('')).data.map(({ id }) => id)).toEqual(ids);
    expect((await list('&category=authentication')).data).toEqual([authentication]);
    expect((await list('&language=de')).data.map(({ language }) => language)).toEqual(['de']);
    expect((await list('&status=approved')).data).toEqual([]);
    const [all, unnamed] = [await ask<Page>('GET', ''), await ask<Page>('GET', '?name=')];
    expect([unnamed.status, unnamed.body]).toEqual([200, all.body]);
    const first = await list('&limit=3');
    expect([first.has_more, first.data.map(({ id }) => id)]).toEqual([true, ids.slice(0, 3)]);
    const rest = await list(`&limit=3&after=${ids[2]!}`);
    expect([rest.has_more, rest.data.map(({ id }) => id)]).toEqual([false, ids.slice(3)]);
    const back = await list(`&limit=2&before=${ids[3]!}`);
    expect(back.data.map(({ id }) => id)).toEqual(ids.slice(1, 3));
  });

  test.each(['?status=paused', '?category=x', '?limit=0', '?limit=101', '?after=x'])(
    'with %s is refused',
    async (query) => {
      expect((await ask('GET', query)).status).toBe(422);
    },
  );

  test('of a name that no statement can hold is refused or empty, and no fault of the server', async () => {
    for (const name of ['%00', '%ED%A0%80', encodeURIComponent("' or true --"), encodeURIComponent('%')]) {
      const { status, body: page } = await ask<Page>('GET', `?name=${name}`);
      expect([200, 400, 422]).toContain(status);
      if (status === 200) expect(page.data).toEqual([]);
    }
  });
});

describe('what cannot be submitted', () => {
  const withComponents = (...components: object[]) => body({ components, examples: undefined });
  test.each<[string, object, string]>([
    ['without a name', { name: undefined }, 'name is required'],
    ['with a name of capitals', { name: 'Order' }, 'name must match'],
    ['with a long name', { name: 'x'.repeat(513) }, 'name must be at most 512 characters'],
    ['with a language that is none', { language: 'english' }, 'language must match'],
    ['with a category that is none', { category: 'UTILITY' }, 'category must be one of'],
    ['with neither', plain({ components: undefined }), 'components is required where category is utility'],
    ['with both', { authentication: options }, 'authentication must be left out where category is utility'],
    [
      'for codes with components',
      code({ components: plain().components }),
      'components must be left out where category is authentication',
    ],
    [
      'for codes with examples',
      code({ examples: {} }),
      'examples must be left out where category is authentication',
    ],
    [
      'for codes without options',
      code({ authentication: undefined }),
      'authentication is required where category is authentication',
    ],
    [
      'for codes that are good for long',
      code({ authentication: { code_expiration_minutes: 91, button: { type: 'copy_code', text: 'x' } } }),
      'authentication.code_expiration_minutes must be at most 90',
    ],
    [
      'with a picture for a header',
      withComponents({ type: 'header', format: 'image', text: 'x' }, { type: 'body', text: 'x' }),
      'components[0].format',
    ],
    [
      'with a format of a body',
      withComponents({ type: 'body', format: 'text', text: 'x' }),
      'components[0].format must be left out where type is body',
    ],
    [
      'with buttons in a body',
      withComponents({ type: 'body', text: 'x', buttons: [] }),
      'components[0].buttons must be left out where type is body',
    ],
    [
      'with a body without text',
      withComponents({ type: 'body' }),
      'components[0].text is required where type is body',
    ],
    [
      'with buttons without any',
      withComponents({ type: 'body', text: 'x' }, { type: 'buttons' }),
      'components[1].buttons is required where type is buttons',
    ],
    [
      'with a link without URL',
      withComponents({ type: 'body', text: 'x' }, { type: 'buttons', buttons: [{ type: 'url', text: 'x' }] }),
      'components[1].buttons[0].url is required where type is url',
    ],
    [
      'with a URL of a reply',
      withComponents(
        { type: 'body', text: 'x' },
        { type: 'buttons', buttons: [{ type: 'quick_reply', text: 'x', url: 'https://a.example/' }] },
      ),
      'components[1].buttons[0].url must be left out where type is quick_reply',
    ],
    [
      'with a placeholder at the end',
      withComponents({ type: 'body', text: 'Hello {{a}}' }),
      'components[0].text must neither begin nor end with a placeholder',
    ],
    ['without an example', body({ examples: { order_number: '1' } }), 'examples.first_name is required'],
    ['with a field that there is not', { status: 'approved' }, 'status is not a known field'],
    ['of another organization', { organization_id: unknownId }, 'organization_id is not a known field'],
    [
      'with a component for components',
      { components: { type: 'body', text: 'x' } },
      'components must be an array',
    ],
    [
      'with a number for a text',
      withComponents({ type: 'body', text: 1 }),
      'components[0].text must be a string',
    ],
    ['with a NUL', withComponents({ type: 'body', text: 'a\0b' }), 'components[0].text'],
    ['with half a character', withComponents({ type: 'body', text: 'a\ud800b' }), 'components[0].text'],
  ])('a template %s is refused by the name of the field', async (_what, change, issue) => {
    const { status, body: error } = await ask('POST', '', { ...body(), ...change });
    expect([status, error.name]).toEqual([422, 'validation_error']);
    expect(error.message).toContain(issue);
  });

  test('is refused when it is large or deep, without being read', async () => {
    const large = await ask('POST', '', plain({ name: 'x'.repeat(2_000_000) }));
    expect(large.status).toBe(413);
    const deep = await ask('POST', '', `{"components":${'['.repeat(20_000)}${']'.repeat(20_000)}}`);
    expect([400, 422]).toContain(deep.status);
    const poisoned = await ask('POST', '', `{"__proto__":{},"name":"x"}`);
    expect([400, 422]).toContain(poisoned.status);
  });
});

describe('a template that is edited', () => {
  const otherText = { components: [{ type: 'body', text: 'Good day.' }] };

  test('shows the edit until it is taken, and its review then', async () => {
    const template = await create(plain());
    expect((await ask('PATCH', `/${template.id}`, otherText)).body).toMatchObject({ name: 'conflict' });
    await workThrough();
    reviewer.put(server.organizationId, `${template.name} en_US`, { state: 'approved' });
    await lookNow();
    const edited = await ask<TemplateRecord>('PATCH', `/${template.id}`, otherText);
    expect([edited.status, edited.body]).toMatchObject([
      200,
      {
        ...sentNow,
        components: template.components,
        edit: { ...otherText, examples: {}, authentication: null },
      },
    ]);
    await workThrough();
    const { body: taken } = await ask<TemplateRecord>('GET', `/${template.id}`);
    expect(taken).toMatchObject({ ...otherText, status: 'pending', sendable: false, edit: null });
    expect((await ask('PATCH', `/${template.id}`, plain())).status).toBe(422);
  });

  test.each<[string, unknown, number]>([
    ['of another name', { name: 'other' }, 422],
    ['of another category', { category: 'marketing' }, 422],
    ['with no text', { components: [] }, 422],
    ['with a NUL', { components: [{ type: 'body', text: 'a\u0000b' }] }, 422],
    ['with half a character', { components: [{ type: 'body', text: '\ud800' }] }, 422],
    ['with a placeholder at its end', { components: [{ type: 'body', text: 'Hello {{a}}' }] }, 422],
    ['that is no object', [], 422],
    ['that is too large', { examples: { a: 'x'.repeat(2_000_000) } }, 413],
  ])('%s is refused', async (_what, patch, status) => {
    const { id } = await create(plain());
    expect((await ask('PATCH', `/${id}`, patch)).status).toBe(status);
  });
});

test('a deleted template cannot be edited', async () => {
  const { id } = await create(plain());
  await ask('DELETE', `/${id}`);
  expect((await ask('PATCH', `/${id}`, { components: [{ type: 'body', text: 'Good day.' }] })).status).toBe(
    404,
  );
});

describe('a template that a campaign holds', () => {
  test('cannot be deleted, and can be afterwards', async () => {
    const { id } = await create();
    const campaignId = server.installation.newId();
    const holder = { organizationId: server.organizationId, kind: 'campaign', id: campaignId } as const;
    const hold = (held: Parameters<typeof replaceHolds>[2]) =>
      server.installation.database.asOrganizations([server.organizationId], (transaction) =>
        replaceHolds(transaction, holder, held),
      );
    await hold([{ kind: 'chat_template', id }]);
    const refused = await ask('DELETE', `/${id}`);
    expect([refused.status, refused.body.name]).toEqual([409, 'conflict']);
    expect(refused.body.message).toContain(campaignId);
    await hold([]);
    expect((await ask('DELETE', `/${id}`)).status).toBe(200);
  });
});

test("another organization's template is unknown, and stays", async () => {
  const { id } = await create(plain(), authorize(other));
  for (const [method, given] of [['GET'], ['DELETE'], ['PATCH', {}]] as const) {
    const [foreign, unknown] = [
      await ask(method, `/${id}`, given),
      await ask(method, `/${unknownId}`, given),
    ];
    expect([foreign.status, foreign.text]).toEqual([404, unknown.text]);
  }
  expect((await ask('GET', `/${id}`, undefined, authorize(other))).status).toBe(200);
});

test('the sandbox reviews a template by itself, and rejects what is called so', async () => {
  const sandbox = await startTestServer({
    worker: true,
    providerSettings: { POSTILLION_SANDBOX_REVIEW_MS: '0' },
  });
  try {
    const make = async (name: string) => {
      const created = await sandbox.request<TemplateRecord>('POST', '/v1/chatapp/templates', plain({ name }));
      return eventually(
        async () =>
          (await sandbox.request<TemplateRecord>('GET', `/v1/chatapp/templates/${created.body.id}`)).body,
        ({ status }) => status !== 'pending',
      );
    };
    expect(await make('order_shipped')).toMatchObject({ status: 'approved', sendable: true });
    const rejected = await make('please_reject');
    expect(rejected).toMatchObject({ status: 'rejected', rejection_reason: expect.any(String) as string });
    const { status } = await sandbox.request('DELETE', `/v1/chatapp/templates/${rejected.id}`);
    expect(status).toBe(200);
    await eventually(
      () => rowsOf(sandbox, 'select from chat_templates where id = $1 and next_step is null', [rejected.id]),
      (rows) => rows.length === 1,
    );
  } finally {
    await sandbox.stop();
  }
});

test('with a provider that needs accounts, an organization without one is told what to do', async () => {
  const strict = await startTestServer({ chatAppProvider: 'whatsapp' });
  try {
    const { status, body: error } = await strict.request<ErrorBody>('POST', '/v1/chatapp/templates', plain());
    expect([status, error.name]).toEqual([400, 'bad_request']);
    expect(error.message).toContain('bin/postillion chatapp credentials');
  } finally {
    await strict.stop();
  }
});

test('WhatsApp gets each template as it is, and its review and its end are followed', async () => {
  const graph = await startGraph();
  const whatsapp = await startTestServer({
    worker: true,
    chatAppProvider: 'whatsapp',
    publicUrl: 'https://postillion.example',
    providerSettings: { POSTILLION_WHATSAPP_URL: `http://127.0.0.1:${graph.port}` },
  });
  const { installation, organizationId } = whatsapp;
  const request = <Body>(method: string, path: string, given?: object) =>
    whatsapp.request<Body>(method, `/v1/chatapp/templates${path}`, given);
  const present = async (id: string) => (await request<TemplateRecord>('GET', `/${id}`)).body;
  const atGraph = (name: string) => [...graph.templates.values()].find((template) => template.name === name);
  const lookNow = async () => {
    await rowsOf(
      whatsapp,
      `update chat_templates set due_at = now() - interval '1 second' where due_at is not null`,
      [],
    );
    await wakeOnce(installation.database, 'chat_templates');
  };
  try {
    await setAccount(installation, organizationId, {
      businessAccountId: '102290129340398',
      phoneNumberIds: ['106540352242922'],
      accessToken: 'EAAJB',
      ownApp: null,
    });
    const made = [];
    for (const given of [body(), code(), plain({ category: 'marketing' })])
      made.push((await request<TemplateRecord>('POST', '', given)).body);
    const [shipped, signIn, news] = made as [TemplateRecord, TemplateRecord, TemplateRecord];
    await eventually(
      () => graph.templates.size,
      (size) => size === 3,
    );
    expect(graph.faults).toEqual([]);

    await eventually(
      () => present(news.id),
      ({ provider_category: category }) => category !== null,
    );
    atGraph(shipped.name)!.status = 'APPROVED';
    Object.assign(atGraph(signIn.name)!, { status: 'REJECTED', rejected_reason: 'SCAM' });
    await lookNow();
    expect(
      await eventually(
        () => present(shipped.id),
        ({ status }) => status !== 'pending',
      ),
    ).toMatchObject({
      status: 'approved',
      sendable: true,
    });
    expect(
      await eventually(
        () => present(signIn.id),
        ({ status }) => status !== 'pending',
      ),
    ).toMatchObject({
      status: 'rejected',
      rejection_reason: expect.stringMatching(/scam/i) as string,
    });
    atGraph(shipped.name)!.status = 'PAUSED';
    await lookNow();
    await eventually(
      () => present(shipped.id),
      ({ sendable_reason: reason }) => reason === 'paused',
    );

    await request('DELETE', `/${news.id}`);
    await eventually(
      () => atGraph(news.name) === undefined,
      (isGone) => isGone,
    );
    expect(graph.templates.size).toBe(2);
  } finally {
    await whatsapp.stop();
    await graph.close();
  }
});
