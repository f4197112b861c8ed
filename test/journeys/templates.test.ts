/** Templates: what may be saved, what is read back, and the email that comes of one. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { ListedTemplateRecord, TemplateRecord } from '../../src/templates/schema.ts';
import { anEmail, authorize, type ErrorBody, post, read, rowsOf, settled } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;
let other: { organizationId: string; key: string };
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  other = await createSender(server.installation, 'elsewhere.example');
});
afterAll(() => server.stop());

type Page<Item> = { object: 'list'; has_more: boolean; data: Item[] };
type Rendered = {
  subject: string | null;
  html: string | null;
  text: string | null;
  missing_variables: string[];
};

const ask = <Body = ErrorBody>(method: string, path: string, body?: unknown) =>
  server.request<Body>(method, `/v1${path}`, body);
let made = 0;
const unique = (what = 'Template') => `${what} ${(made += 1)}`;

async function aTemplate(more: object = {}): Promise<TemplateRecord> {
  const response = await ask<TemplateRecord>('POST', '/templates', {
    name: unique(),
    subject: 'Hello {{name}}',
    html: '<h1>Hello {{name}}</h1><p>Your code is {{code}}.</p>',
    ...more,
  });
  expect([response.status, response.text]).toMatchObject([201, expect.any(String)]);
  return response.body;
}

const templated = (template_id: string, more: object = {}) =>
  anEmail({ subject: undefined, text: undefined, template_id, ...more });

/** The email that left, as the sandbox kept it. */
async function sentSource(id: string): Promise<string> {
  await settled(server, id);
  const [row] = await rowsOf<{ source: Buffer }>(
    server,
    'select source from sandbox_messages where message_id = $1',
    [id],
  );
  // Soft line ends of quoted-printable say nothing.
  return row!.source.toString('utf8').replace(/=\r\n/g, '').replace(/=3D/g, '=');
}

test('a template is created, read, listed without its bodies, changed and deleted', async () => {
  const template = await aTemplate({ preview_text: 'Soon, {{when}}', text: 'Hello {{ other }}' });
  expect(template).toEqual({
    id: expect.any(String),
    name: template.name,
    subject: 'Hello {{name}}',
    html: '<h1>Hello {{name}}</h1><p>Your code is {{code}}.</p>',
    text: 'Hello {{ other }}',
    preview_text: 'Soon, {{when}}',
    variables: ['name', 'when', 'code', 'other'],
    warnings: [],
    source_gallery_template_id: null,
    created_at: expect.stringMatching(/Z$/),
    updated_at: template.created_at,
  });
  expect((await ask('GET', `/templates/${template.id}`)).body).toEqual(template);
  const { html: _html, text: _text, warnings: _warnings, ...listed } = template;
  const found = await ask<Page<ListedTemplateRecord>>(
    'GET',
    `/templates?search=${encodeURIComponent(template.name.toUpperCase())}`,
  );
  expect(found.body.data).toEqual([listed]);
  const patched = await ask<TemplateRecord>('PATCH', `/templates/${template.id}`, {
    name: `New ${template.name}`,
    text: null,
    preview_text: null,
    subject: 'Bye',
  });
  expect([patched.status, patched.body]).toEqual([
    200,
    {
      ...template,
      name: `New ${template.name}`,
      subject: 'Bye',
      text: null,
      preview_text: null,
      variables: ['name', 'code'],
      updated_at: patched.body.updated_at,
    },
  ]);
  expect((await ask('DELETE', `/templates/${template.id}`)).body).toEqual({
    object: 'template',
    id: template.id,
    deleted: true,
  });
  for (const method of ['GET', 'PATCH', 'DELETE']) {
    const again = await ask(method, `/templates/${template.id}`, method === 'PATCH' ? {} : undefined);
    expect([method, again.status]).toEqual([method, 404]);
  }
});

test.each([
  [{ name: undefined }, 'name is required'],
  [{ name: '' }, 'name must not be empty'],
  [{ name: ' ' }, 'name must be a text that is not blank'],
  [{ name: 'x'.repeat(101) }, 'name must be at most 100 characters'],
  [{ subject: 'x'.repeat(999) }, 'subject must be at most 998 characters'],
  [{ subject: 'a\r\nBcc: x' }, 'subject must be a single line that is not blank'],
  [{ subject: '  ' }, 'subject must be a single line that is not blank'],
  [{ preview_text: '\t' }, 'preview_text must be a single line that is not blank'],
  [{ html: '' }, 'html must not be empty'],
  [{ html: null }, 'one of html and text is required'],
  [{ html: undefined }, 'one of html and text is required'],
  [{ html: 'ä'.repeat(1_048_577) }, 'html must be at most 2 MB'],
  [{ text: 7 }, 'text must be a string or a null'],
  [{ preview_text: 'x'.repeat(501) }, 'preview_text must be at most 500 characters'],
  [{ html: 'a\0b' }, 'malformed'],
  [
    { html: Array.from({ length: 1_001 }, (_, n) => `{{v${n}}}`).join('') },
    'a template must have at most 1000 different placeholders',
  ],
  [
    { text: `{{${'n'.repeat(32_768)}}} {{n}}` },
    "the names of a template's placeholders must be at most 32768 characters altogether",
  ],
  [{ variables: [] }, 'variables is not a known field'],
])('is refused, case %#', async (wrong, message) => {
  const response = await ask('POST', '/templates', { name: 'Fine', html: '<p>x</p>', ...wrong });
  expect([response.status, response.body.message]).toEqual([
    message === 'malformed' ? response.status : 422,
    expect.stringContaining(message === 'malformed' ? '' : message),
  ]);
  expect(response.status).toBeGreaterThanOrEqual(400);
  expect(response.status).toBeLessThan(500);
});

test('two megabytes fit, and three do not', async () => {
  await aTemplate({ html: 'x'.repeat(2 * 1_048_576) });
  const { status, body } = await ask('POST', '/templates', {
    name: 'Large',
    html: 'x'.repeat(3 * 1_048_576),
  });
  expect([status, body.name]).toEqual([413, 'payload_too_large']);
});

test('a patch may not take the last body away', async () => {
  const { id } = await aTemplate();
  expect((await ask('PATCH', `/templates/${id}`, { html: null })).status).toBe(422);
  expect((await ask('PATCH', `/templates/${id}`, { html: null, text: 'x' })).status).toBe(200);
  expect((await ask('PATCH', `/templates/${id}`, { name: null })).status).toBe(422);
});

test('pages come newest first', async () => {
  const names = [unique('Paged'), unique('Paged'), unique('Paged')];
  const ids: string[] = [];
  for (const name of names) ids.unshift((await aTemplate({ name })).id);
  const page = await ask<Page<{ id: string }>>('GET', '/templates?search=PAGED&limit=2');
  expect([page.body.has_more, page.body.data.map(({ id }) => id)]).toEqual([true, ids.slice(0, 2)]);
  const rest = await ask<Page<{ id: string }>>('GET', `/templates?search=paged&after=${ids[1]}`);
  expect(rest.body.data.map(({ id }) => id)).toEqual(ids.slice(2));
});

describe('a preview', () => {
  const render = async (id: string, variables?: object) =>
    (await ask<Rendered>('POST', `/templates/${id}/render`, variables === undefined ? {} : { variables }))
      .body;

  test('says what an email would say, and what it would leave open', async () => {
    const { id } = await aTemplate({ preview_text: 'For {{name}}' });
    const rendered = await render(id, { name: 'Ann & Bo <3', nobody: 1 });
    expect(rendered.subject).toBe('Hello Ann & Bo <3');
    expect(rendered.html).toContain('<h1>Hello Ann &amp; Bo &lt;3</h1><p>Your code is {{code}}.</p>');
    expect(rendered.html).toContain('>For Ann &amp; Bo &lt;3&#8203;');
    expect(rendered.text).toBe('Hello Ann & Bo <3\n\nYour code is {{code}}.');
    expect(rendered.missing_variables).toEqual(['code']);
    expect((await render(id)).missing_variables).toEqual(['name', 'code']);
  });

  test('fills in each value once, own values only, and no line end into the subject', async () => {
    const { id } = await aTemplate({
      subject: '{{a}}{{constructor}}',
      html: '{{a}} {{{a}}} {{toString}}',
      text: '{{a}}',
    });
    const rendered = await render(id, { a: '{{b}}\r\n<i>', b: 'never' });
    expect(rendered.subject).toBe('{{b}} <i>{{constructor}}');
    expect(rendered.html).toBe('{{b}}\r\n&lt;i&gt; {{b}}\r\n<i> {{toString}}');
    expect(rendered.text).toBe('{{b}}\r\n<i>');
  });

  test('is refused where it would grow without bounds, or values are none', async () => {
    const { id } = await aTemplate({ html: '{{a}}'.repeat(100_000) });
    for (const variables of [
      { a: 'x'.repeat(1_000) },
      { a: null },
      { a: {} },
      { 'a b': 1 },
      { ['a'.repeat(256)]: 1 },
      [],
    ]) {
      expect((await ask('POST', `/templates/${id}/render`, { variables })).status).toBe(422);
    }
    expect((await ask('POST', `/templates/${unknownId}/render`, {})).status).toBe(404);
  });
});

describe('an email from a template', () => {
  test('says what the template says, with its own subject, a text part and the preview text', async () => {
    const template = await aTemplate({ preview_text: 'A code for {{name}}' });
    const response = await post(server, templated(template.id, { variables: { name: 'Ann', code: 4711 } }));
    expect(response.status).toBe(202);
    const source = await sentSource(response.body.id);
    expect(source).toContain('Subject: Hello Ann');
    expect(source).toContain('<h1>Hello Ann</h1><p>Your code is 4711.</p>');
    expect(source).toContain('A code for Ann');
    expect(source).toMatch(/Content-Type: text\/plain[^]*Hello Ann\r\n\r\nYour code is 4711\./);
    expect(await read(server, response.body.id)).toMatchObject({
      template_id: template.id,
      subject: 'Hello Ann',
    });
  });

  test('may have a subject of its own, and a text that the author wrote', async () => {
    const template = await aTemplate({ text: 'By hand, {{name}}' });
    const response = await post(
      server,
      templated(template.id, { subject: 'Mine, {{name}}', variables: { name: 'Bo' } }),
    );
    const source = await sentSource(response.body.id);
    expect(source).toContain('Subject: Mine, Bo');
    expect(source).toContain('By hand, Bo');
    expect(source).not.toContain('Your code is {{code}}.\r\n\r\n');
  });

  test('goes on as it was accepted when the template changes or goes', async () => {
    const template = await aTemplate({ html: '<p>Before</p>', subject: 'Before' });
    const response = await post(server, templated(template.id, { to: ['ann@example.com'] }));
    await ask('PATCH', `/templates/${template.id}`, { html: '<p>After</p>', subject: 'After' });
    await ask('DELETE', `/templates/${template.id}`);
    expect(await sentSource(response.body.id)).toContain('<p>Before</p>');
    expect((await post(server, templated(template.id))).status).toBe(404);
  });

  test('is refused without a subject in either, with another content, or with an unknown template', async () => {
    const { id } = await aTemplate({ subject: null });
    const attempts: [object, number, string][] = [
      [templated(id), 422, 'subject is required with a template that has none'],
      [templated(id, { subject: 'x', html: '<p>x</p>' }), 422, 'template_id must not be combined'],
      [templated(unknownId), 404, `template_id is not a template of this organization: ${unknownId}`],
      [templated('nonsense'), 404, 'template_id is not a template of this organization: nonsense'],
      [templated(unknownId, { from: 'a@nobody.example' }), 404, 'template_id is not a template'],
      [templated(id, { subject: 'x', from: 'a@nobody.example' }), 400, 'nobody.example'],
    ];
    for (const [body, status, message] of attempts) {
      const response = await post<ErrorBody>(server, body);
      expect([response.status, response.body.message]).toEqual([status, expect.stringContaining(message)]);
    }
    const theirs = await server.request<ErrorBody>(
      'POST',
      '/v1/email/send',
      templated(id, { subject: 'x', from: 'a@elsewhere.example' }),
      authorize(other),
    );
    expect([theirs.status, theirs.body.message]).toEqual([
      404,
      `template_id is not a template of this organization: ${id}`,
    ]);
  });

  test('is sent once for one idempotency key, also after the template was deleted', async () => {
    const { id } = await aTemplate();
    const headers = { 'idempotency-key': `template-${id}` };
    const first = await post(server, templated(id), headers);
    await ask('DELETE', `/templates/${id}`);
    const second = await post(server, templated(id), headers);
    expect([second.status, second.text]).toEqual([first.status, first.text]);
    expect(second.headers.get('idempotent-replayed')).toBe('true');
    expect(second.headers.get('postillion-missing-variables')).toBe('name, code');
  });

  test('names the variables without a value in a header, and sends no such header where all have one', async () => {
    const { id } = await aTemplate({ preview_text: 'Soon, {{when}}' });
    const told = async (body: object) => {
      const response = await post(server, body);
      expect([response.status, Object.keys(response.body)]).toEqual([202, ['id']]);
      return response.headers.get('postillion-missing-variables');
    };
    // The preview text stands at the beginning of the HTML.
    expect(await told(templated(id))).toBe('name, when, code');
    expect(await told(templated(id, { variables: { name: '{{more}}', constructor: 'x' } }))).toBe(
      'when, code',
    );
    expect(await told(templated(id, { variables: { name: '', when: 0, code: false } }))).toBeNull();
    expect(await told(anEmail({ subject: '{{ a.b }}', text: '{{a.b}} {{{c}}} {{unsubscribe_url}}' }))).toBe(
      'a.b, c, unsubscribe_url',
    );
    expect(await told(anEmail({ text: '{{not a name}} {{}} {single}' }))).toBeNull();
  });
});
