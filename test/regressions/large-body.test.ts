/**
 * 28 MB of `{{a}}` held up all requests while they were read, filled and written as JSON. A large body is processed in
 * the thread that reads it, with the same result as a small one.
 */
import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { PreparedMessage } from '../../src/campaigns/channel.ts';
import { emailCampaigns } from '../../src/email/campaigns.ts';
import { encodeBase64LinesInSteps } from '../../src/channels/email/base64.ts';
import { digestBodyInSteps } from '../../src/channels/email/dkim-canonical.ts';
import { prepareFromTemplate, prepareLargeEmail } from '../../src/email/send.ts';
import { emailSendBody } from '../../src/email/schema.ts';
import {
  createBodyThread,
  inlineRunner,
  largeBodyBytesMin,
  type TaskRunner,
} from '../../src/platform/http/body-threads.ts';
import { silentLog } from '../../src/platform/log.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { createSecrets } from '../../src/platform/secrets.ts';
import { stepBytesMax, type Steps } from '../../src/platform/steps.ts';
import { threadEntryOf } from '../../src/roles/thread-entry.ts';
import { renderTemplate } from '../../src/templates/rendering.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer();
});

afterAll(() => server.stop());

const letter = {
  from: 'hello@postillion.test',
  from_name: 'Hello',
  to: ['ann@example.com', 'ANN@example.com', 'bob@example.com'],
  subject: 'Hello {{a}}',
  html: '<p>{{a}} {{{a}}} {{missing}}</p>',
  text: '{{a}} "quoted" é\u2028',
  variables: { a: '<Ann & "co">' },
  attachments: [{ filename: 'a.txt', content: Buffer.from('attached').toString('base64') }],
};
const padding = 'x {{a}} '.repeat(largeBodyBytesMin / 8);

type Stored = { subject: string; details: unknown; content: { html: string; text: string }; sizes: number[] };

async function send(
  body: object,
  key: string,
): Promise<{ status: number; body: { id: string; message: string } }> {
  return server.request('POST', '/v1/email/send', body, { 'idempotency-key': key });
}

async function readStored(id: string): Promise<Stored | undefined> {
  const [row] = await server.installation.database.rows(
    unpreparedStatement<Stored>(
      `select m.subject, m.details, c.content,
         array(
           select octet_length(a.sealed) from attachment_contents a where a.message_id = m.id order by a.ordinal
         ) as sizes
       from messages m
       join message_contents c on c.organization_id = m.organization_id and c.message_id = m.id
       where m.id = $1`,
    ),
    [id],
  );
  return row;
}

test('a large body is stored as a small one is, with its values, files and key', async () => {
  const [small, large] = [
    await send(letter, 'small'),
    await send({ ...letter, text: `${letter.text}${padding}` }, 'large'),
  ];
  expect([small.status, large.status]).toEqual([202, 202]);
  const [ofSmall, ofLarge] = [await readStored(small.body.id), await readStored(large.body.id)];
  expect(ofLarge).toEqual({
    ...ofSmall,
    content: {
      ...ofSmall!.content,
      text: `${ofSmall!.content.text}${padding.replaceAll('{{a}}', letter.variables.a)}`,
    },
  });
  const again = await send({ ...letter, text: `${letter.text}${padding}` }, 'large');
  expect(again.body).toEqual(large.body);
  expect((await send({ ...letter, text: `${letter.text}${padding}!` }, 'large')).status).toBe(409);
});

test('a body that is large by its files alone is stored with its short text', async () => {
  const attachments = [
    { filename: 'a.bin', content: Buffer.alloc(largeBodyBytesMin, 'postillion').toString('base64') },
  ];
  const [small, large] = [await send(letter, 'short'), await send({ ...letter, attachments }, 'files')];
  expect([small.status, large.status]).toEqual([202, 202]);
  const [ofSmall, ofLarge] = [await readStored(small.body.id), await readStored(large.body.id)];
  expect(ofLarge?.content).toEqual(ofSmall?.content);
  expect(ofLarge?.sizes).toEqual([ofSmall!.sizes[0]! - 'attached'.length + largeBodyBytesMin]);
});

describe('a template that its values make large', () => {
  const html = '<p>{{a}}</p>{{missing}}'.repeat(1_000);
  const wide = '<'.repeat(largeBodyBytesMin / 1_000);
  const filled = (value: string) => html.replaceAll('{{a}}', value.replaceAll('<', '&lt;'));
  let templateId: string;

  beforeAll(async () => {
    const made = await server.request('POST', '/v1/templates', {
      name: 'Large',
      subject: 'Hello {{a}}',
      html,
      text: 'Hello',
    });
    templateId = (made.body as { id: string }).id;
  });

  test('is stored as one that stays small is, with its files and key', async () => {
    const { from, from_name, to, attachments } = letter;
    const body = { from, from_name, to, attachments, template_id: templateId, subject: 'Hello' };
    const [small, large] = [
      await send({ ...body, variables: { a: '<' } }, 'narrow'),
      await send({ ...body, variables: { a: wide } }, 'wide'),
    ];
    expect([small.status, large.status]).toEqual([202, 202]);
    const [ofSmall, ofLarge] = [await readStored(small.body.id), await readStored(large.body.id)];
    expect(ofSmall?.content).toMatchObject({ html: filled('<'), text: 'Hello' });
    expect(ofLarge).toEqual({ ...ofSmall, content: { ...ofSmall!.content, html: filled(wide) } });
    expect((await send({ ...body, variables: { a: wide } }, 'wide')).body).toEqual(large.body);
  });

  test('is refused as one that stays small is', async () => {
    const body = { from: letter.from, from_name: 'Hello', to: ['ann@example.com'], template_id: templateId };
    const subject = '{{a}}'.repeat(4);
    const long = await send({ ...body, subject, variables: { a: wide } }, 'long subject');
    expect([long.status, long.body.message]).toEqual([
      422,
      expect.stringMatching(/subject must be at most 998/),
    ]);
    const other = { ...body, from: 'hello@other.test', subject: 'Hello' };
    expect((await send({ ...other, variables: { a: wide } }, 'other sender')).status).toBe(400);
  });

  test('is shown as one that stays small is', async () => {
    for (const a of ['<', wide.slice(0, 900)]) {
      const shown = await server.request('POST', `/v1/templates/${templateId}/render`, { variables: { a } });
      expect(shown.status).toBe(200);
      expect(shown.body).toEqual({
        subject: `Hello ${a}`,
        html: filled(a),
        text: 'Hello',
        missing_variables: ['missing'],
        warnings: [],
      });
    }
  });

  test('stands in the preview and the test of a campaign as one that stays small does', async () => {
    const list = await server.request('POST', '/v1/lists', { name: 'Everybody' });
    const listIds = [(list.body as { id: string }).id];
    const draft = {
      name: 'Large',
      from: letter.from,
      template_id: templateId,
      subject: 'Hello',
      list_ids: listIds,
    };
    const longest = 'x'.repeat(255);
    for (const value of ['y', longest]) {
      const made = await server.request('POST', '/v1/email/campaigns', {
        ...draft,
        variables: { a: value, missing: longest },
      });
      const path = `/v1/email/campaigns/${(made.body as { id: string }).id}`;
      const preview = await server.request('POST', `${path}/preview`, {});
      const expected = html.replaceAll('{{a}}', value).replaceAll('{{missing}}', longest);
      const shown = preview.body as { issues: string[]; html: string };
      expect([preview.status, shown.issues, shown.html === expected]).toEqual([200, [], true]);
      const tested = await server.request('POST', `${path}/test`, { to: ['ann@example.com'] });
      const [id] = (tested.body as { ids: string[] }).ids;
      expect((await readStored(id!))?.content.html === expected).toBe(true);
    }
  });

  test('is filled in the thread, and one that stays small is not', async () => {
    const names: string[] = [];
    const runner: TaskRunner = {
      run: (task, input) => {
        names.push(task.name);
        return inlineRunner.run(task, input);
      },
    };
    const template = { subject: null, html, text: null };
    const content = { ...template, previewText: null };
    const copy = { publicUrl: 'https://example.com', at: new Date(0) };
    const message = { ...aMessage, content: JSON.stringify({ to: [], cc: [], html, text: null }) };
    const { html: _html, text: _text, attachments: _attachments, ...rest } = letter;
    const body = { ...rest, template_id: 'x' };
    for (const a of ['<', wide]) {
      const values = { a };
      const request = {
        organizationId: 'x',
        idempotencyKey: null,
        template,
        body: { ...body, variables: values },
      };
      await prepareFromTemplate(runner, request);
      await renderTemplate(runner, { content, values });
      await emailCampaigns.renderSample(runner, message, { ...copy, values });
      await emailCampaigns.submitTest({ runner, database: server.installation.database }, message, {
        ...copy,
        values,
        organizationId: 'x',
        to: 'ann@example.com',
      });
    }
    expect(names).toEqual(['prepare email', 'render template', 'render email sample', 'submit email test']);
  });
});

const aMessage: PreparedMessage = {
  sender: letter.from,
  subject: 'Hello',
  category: null,
  templateId: null,
  details: JSON.stringify({ fromName: null, replyTo: null, attachments: [] }),
  content: '',
  variableNames: ['a'],
};

test.each([
  ['a rule that it breaks', { to: [] }, 400, /At least one recipient/],
  ['a field that is wrong', { subject: 5 }, 422, /subject must be a string/],
  [
    'a file that is refused',
    { attachments: [{ filename: 'a.exe', content: 'YQ==' }] },
    400,
    /nothing was sent/,
  ],
  ['values that make it too long', { variables: { a: 'x'.repeat(1_000) } }, 422, /at most 30 MB/],
])('a large body with %s is refused as a small one is', async (_name, change, status, message) => {
  const refused = await send({ ...letter, subject: 'Hello', text: padding, ...change }, 'refused');
  expect([refused.status, refused.body.message]).toEqual([status, expect.stringMatching(message)]);
});

test('nothing of a large body comes to the main thread as text: bytes alone, that are handed over', async () => {
  const thread = createBodyThread({
    entry: threadEntryOf('body-thread'),
    schemas: () => ({ 'POST /email/send': emailSendBody }),
    log: silentLog,
  });
  const body = Buffer.from(JSON.stringify({ ...letter, text: padding, html: padding }));
  const reading = await thread.read([body], {
    schemaKey: 'POST /email/send',
    wantsCanonical: true,
    facts: { at: new Date(0), settings: {} },
    translation: null,
  });
  await thread.stop();
  if (reading.kind !== 'valid') throw new Error('it is valid');
  expect(reading.value).toBeNull();
  expect(longestText(reading)).toBeLessThan(1_000);
});

test('a large file is sealed, opened, encoded and digested in steps, between which others take their turns', async () => {
  const content = Buffer.alloc(6 * stepBytesMax + 1, 'postillion');
  const secrets = createSecrets('a secret of the tests, which nobody has to guess');
  const [sealed, turnsOfSealing] = await countTurns(secrets.encryptInSteps(content, 'file'));
  const [opened, turnsOfOpening] = await countTurns(secrets.decryptInSteps(sealed, 'file'));
  expect([opened.equals(content), secrets.decrypt(sealed, 'file').equals(content)]).toEqual([true, true]);
  const encoding = countSteps(encodeBase64LinesInSteps(content));
  expect(Buffer.from(Buffer.concat(encoding.result).toString('latin1'), 'base64').equals(content)).toBe(true);
  const digesting = countSteps(digestBodyInSteps([content]));
  expect(digesting.result).toBe(createHash('sha256').update(content).update('\r\n').digest('base64'));
  for (const turns of [turnsOfSealing, turnsOfOpening, encoding.steps, digesting.steps]) {
    expect(turns).toBeGreaterThanOrEqual(5);
  }
});

/** How many turns of the event loop others had until it was done. */
async function countTurns<Result>(work: Promise<Result>): Promise<[Result, number]> {
  let turns = 0;
  let isDone = false;
  const settled = work.finally(() => {
    isDone = true;
  });
  while (!isDone) {
    await new Promise((resolve) => setImmediate(resolve));
    turns += 1;
  }
  return [await settled, turns];
}

function countSteps<Result>(work: Steps<Result>): { result: Result; steps: number } {
  for (let steps = 0; ; steps += 1) {
    const step = work.next();
    if (step.done === true) return { result: step.value, steps };
  }
}

function longestText(value: unknown): number {
  if (typeof value === 'string') return value.length;
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return 0;
  return Math.max(0, ...Object.values(value).map(longestText));
}

test('a body that names a template, which the thread does not have, comes as it is', () => {
  const { html: _html, text: _text, attachments: _attachments, ...rest } = letter;
  expect(prepareLargeEmail({ ...rest, template_id: 'x' })).toBeNull();
});
