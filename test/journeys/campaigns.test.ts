/** Campaigns as people see them: drafts, sending, scheduling, cancelling. What the workers do is another story. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { authorize, type ErrorBody, rowsOf } from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import type { MadeByHand } from '../support/sweep.ts';
import { notificationChannelOf } from '../../src/platform/queue/wake.ts';

/** By `putUnderWay`. */
const madeByHand: MadeByHand[] = [];
let server: TestServer;
let other: { organizationId: string; key: string };
const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

beforeAll(async () => {
  server = await startTestServer({ madeByHand });
  other = await createSender(server.installation, 'elsewhere.example');
  await updateOrganization(server.installation, server.organizationId, { requestsPerWindow: 10_000 });
});
afterAll(() => server.stop());

type Page<Item> = { object: 'list'; has_more: boolean; data: Item[] };
type Campaign = Record<string, unknown> & {
  id: string;
  name: string;
  status: string;
  scheduled_at: string | null;
  queued_at: string | null;
  stats: Record<string, unknown>;
};

const ask = <Body = ErrorBody>(
  method: string,
  path: string,
  body?: unknown,
  headers?: Record<string, string>,
) => server.request<Body>(method, `/v1${path}`, body, headers);

let made = 0;
const unique = (what = 'Campaign') => `${what} ${(made += 1)}`;

async function make(path: string, body: object, headers?: Record<string, string>): Promise<string> {
  const response = await ask<{ id: string }>('POST', path, body, headers);
  expect([path, response.status, response.text]).toMatchObject([path, 201, expect.any(String)]);
  return response.body.id;
}

const aList = () => make('/lists', { name: unique('List') });
const aTag = () => make('/tags', { name: unique('Tag') });
const aSegment = () =>
  make('/segments', {
    name: unique('Segment'),
    conditions: { type: 'field', field: 'email', operator: 'is_set' },
  });
const aTemplate = (more: object = {}) =>
  make('/templates', { name: unique('Template'), subject: 'Hello {{name}}', html: '<p>Hello</p>', ...more });

const aDraft = (more: object = {}) => make('/email/campaigns', { name: unique(), ...more });

/** Ready to be sent; undefined takes a field out. */
async function aReady(more: object = {}): Promise<string> {
  return aDraft({
    from: 'news@postillion.test',
    subject: 'News',
    html: '<p>News</p>',
    list_ids: [await aList()],
    ...more,
  });
}

const read = async (id: string) => (await ask<Campaign>('GET', `/email/campaigns/${id}`)).body;
const patch = (id: string, body: object) => ask('PATCH', `/email/campaigns/${id}`, body);
const send = (id: string, body: unknown = {}, headers: Record<string, string> = {}) =>
  ask<ErrorBody & { id: string }>('POST', `/email/campaigns/${id}/send`, body, headers);
const cancel = (id: string, headers: Record<string, string> = {}) =>
  ask<ErrorBody & { id: string }>('POST', `/email/campaigns/${id}/cancel`, undefined, headers);
const remove = (path: string) => ask('DELETE', path);
const inFuture = (ms = 3_600_000) => new Date(Date.now() + ms).toISOString();

async function aScheduled(more: object = {}): Promise<string> {
  const id = await aReady(more);
  expect((await send(id, { scheduled_at: inFuture() })).status).toBe(200);
  return id;
}

type Row = {
  status: string;
  message_id: string | null;
  variable_names: string[] | null;
  scheduled_at: Date | null;
};

async function rowOf(id: string): Promise<Row> {
  const [row] = await rowsOf<Row>(server, 'select * from campaigns where id = $1', [id]);
  return row!;
}

async function heldBy(id: string): Promise<string[]> {
  const rows = await rowsOf<{ held_id: string }>(server, 'select held_id from holds where holder_id = $1', [
    id,
  ]);
  return rows.map(({ held_id }) => held_id).sort();
}

/** What was frozen. */
async function messageOf(id: string) {
  const { message_id: messageId } = await rowOf(id);
  const [message] = await rowsOf<Record<string, unknown>>(
    server,
    `select m.*, c.content
     from messages m
     join message_contents c on c.organization_id = m.organization_id and c.message_id = m.id
     where m.id = $1`,
    [messageId],
  );
  return message!;
}

const noStats = {
  audience: 0,
  excluded: { unsubscribed: 0, suppressed: 0, no_address: 0, duplicate: 0 },
  pending: 0,
  sent: 0,
  delivered: 0,
  bounced: 0,
  complained: 0,
  failed: 0,
  opened: 0,
  clicked: 0,
  unsubscribed: 0,
  dropped: 0,
  uncertain: 0,
  unconfirmed: 0,
  cancelled: 0,
  conversions: 0,
  conversion_value: [],
};

describe('a draft', () => {
  test('needs a name alone, and shows every input that it does not have', async () => {
    const name = unique();
    const created = await ask<{ id: string }>('POST', '/email/campaigns', { name });
    expect([created.status, created.body]).toEqual([201, { id: expect.any(String) }]);
    const campaign = await read(created.body.id);
    expect(campaign).toEqual({
      id: created.body.id,
      name,
      status: 'draft',
      subject: null,
      preview_text: null,
      from: null,
      from_name: null,
      reply_to: null,
      template_id: null,
      html: null,
      text: null,
      track_opens: null,
      track_clicks: null,
      uncertain: null,
      category: null,
      variables: null,
      list_ids: [],
      tag_ids: [],
      segment_ids: [],
      exclude_list_ids: [],
      exclude_tag_ids: [],
      exclude_segment_ids: [],
      scheduled_at: null,
      queued_at: null,
      started_at: null,
      completed_at: null,
      cancelled_at: null,
      pause_reason: null,
      failure_reason: null,
      created_at: expect.stringMatching(/Z$/),
      updated_at: campaign.created_at,
      stats: noStats,
    });
  });

  test('keeps all that is given, changes what is given again, and takes back what is null', async () => {
    const [list, tag, segment] = [await aList(), await aTag(), await aSegment()];
    const inputs = {
      subject: 'Hello {{first_name}}',
      preview_text: 'Soon',
      from: 'News@Postillion.test',
      from_name: 'News',
      reply_to: 'help@example.com',
      html: '<p>Hi</p>',
      text: 'Hi',
      track_opens: false,
      track_clicks: true,
      category: 'news',
      variables: { first_name: 'friend', year: 2026, pro: true },
      list_ids: [list],
      tag_ids: [tag],
      segment_ids: [segment],
      exclude_list_ids: [list],
      exclude_tag_ids: [tag],
      exclude_segment_ids: [segment],
    };
    const id = await aDraft(inputs);
    expect(await read(id)).toMatchObject(inputs);
    const changed = await patch(id, { subject: 'Other', preview_text: null, list_ids: null, tag_ids: [] });
    expect([changed.status, changed.body]).toEqual([200, { id }]);
    expect(await read(id)).toMatchObject({
      ...inputs,
      subject: 'Other',
      preview_text: null,
      list_ids: [],
      tag_ids: [],
    });
    const all = Object.fromEntries(Object.keys(inputs).map((field) => [field, null]));
    expect((await patch(id, { ...all, name: 'Renamed' })).status).toBe(200);
    const { variables, html, segment_ids: segmentIds, name } = await read(id);
    expect([variables, html, segmentIds, name]).toEqual([null, null, [], 'Renamed']);
  });

  test.each([
    [{ name: undefined }, 'name is required'],
    [{ name: '' }, 'name must not be empty'],
    [{ name: '  ' }, 'name must be a text that is not blank'],
    [{ name: 'x'.repeat(256) }, 'name must be at most 255 characters'],
    [{ name: null }, 'name must be a string'],
    [{ subject: 'x'.repeat(999) }, 'subject must be at most 998 characters'],
    [{ subject: 'a\r\nBcc: x' }, 'subject must be a single line that is not blank'],
    [{ subject: ' \t ' }, 'subject must be a single line that is not blank'],
    [{ preview_text: ' ' }, 'preview_text must be a single line that is not blank'],
    [{ category: '\u3000' }, 'category must be a single line that is not blank'],
    [
      { variables: { ['a'.repeat(256)]: 1 } },
      `variables.${'a'.repeat(60)}… is not an allowed name: names must match`,
    ],
    [{ from: 'nobody' }, 'from must be an email address with ASCII before the @'],
    [{ from_name: 'x'.repeat(257) }, 'from_name must be at most 256 characters'],
    [{ from_name: ' ' }, 'from_name must be a single line that is not blank'],
    [{ from_name: '' }, 'from_name must not be empty'],
    [{ reply_to: 7 }, 'reply_to must be a string or a null'],
    [{ template_id: 'x' }, 'template_id must be a UUID'],
    [{ html: '' }, 'html must not be empty'],
    [{ track_opens: 'yes' }, 'track_opens must be a boolean or a null'],
    [{ category: 'x'.repeat(101) }, 'category must be at most 100 characters'],
    [{ variables: { 'a b': 1 } }, 'variables.a b is not an allowed name'],
    [{ variables: { a: null } }, 'variables.a must be a string or a number or a boolean'],
    [{ list_ids: 'x' }, 'list_ids must be an array or a null'],
    [{ tag_ids: ['x'] }, 'tag_ids[0] must be a UUID'],
    [{ exclude_segment_ids: Array(101).fill(unknownId) }, 'exclude_segment_ids must have at most 100 items'],
    [{ scheduled_at: inFuture() }, 'scheduled_at is not a known field'],
    [{ status: 'sent' }, 'status is not a known field'],
    [
      { template_id: unknownId, text: 'x' },
      'template_id must not be combined with html or text, template_id is not a template',
    ],
  ])('is refused, case %#', async (wrong, message) => {
    const created = await ask('POST', '/email/campaigns', { name: 'Fine', ...wrong });
    expect([created.status, created.body.message]).toEqual([422, expect.stringContaining(message)]);
    if ('name' in wrong && wrong.name === undefined) return;
    const changed = await patch(await aDraft(), wrong);
    expect([changed.status, changed.body.message]).toEqual([422, expect.stringContaining(message)]);
  });

  test('names lists, tags and segments of its organization alone, each in its place', async () => {
    const [list, tag, segment] = [await aList(), await aTag(), await aSegment()];
    const foreign = await make('/lists', { name: 'Theirs' }, authorize(other));
    const attempts: [object, string][] = [
      [{ list_ids: [list, unknownId] }, `list_ids[1] is not a list of this organization: ${unknownId}`],
      [{ list_ids: [foreign] }, `list_ids[0] is not a list of this organization: ${foreign}`],
      [{ tag_ids: [list] }, `tag_ids[0] is not a tag of this organization: ${list}`],
      [
        { segment_ids: [segment, tag], exclude_list_ids: [segment] },
        `segment_ids[1] is not a segment of this organization: ${tag}, exclude_list_ids[0] is not a list of this organization: ${segment}`,
      ],
      [{ exclude_tag_ids: [segment] }, `exclude_tag_ids[0] is not a tag of this organization: ${segment}`],
      [
        { exclude_segment_ids: [list] },
        `exclude_segment_ids[0] is not a segment of this organization: ${list}`,
      ],
      [{ template_id: unknownId }, `template_id is not a template of this organization: ${unknownId}`],
    ];
    const draft = await aDraft();
    for (const [wrong, message] of attempts) {
      for (const response of [
        await ask('POST', '/email/campaigns', { name: 'x', ...wrong }),
        await patch(draft, wrong),
      ]) {
        expect([response.status, response.body.message]).toEqual([422, message]);
      }
    }
    const id = await aDraft({ list_ids: [list.toUpperCase(), list] });
    expect((await read(id)).list_ids).toEqual([list]);
  });

  test('may not get bodies beside its template, whichever comes first', async () => {
    const template = await aTemplate();
    const [templated, written] = [await aDraft({ template_id: template }), await aDraft({ text: 'x' })];
    expect((await patch(templated, { html: 'x' })).status).toBe(422);
    expect((await patch(written, { template_id: template })).status).toBe(422);
    expect((await patch(written, { template_id: template, text: null })).status).toBe(200);
  });

  test('holds nothing: what it names may go, and is missed when it is sent', async () => {
    const [list, template] = [await aList(), await aTemplate()];
    const id = await aReady({ html: undefined, template_id: template, list_ids: [list] });
    expect((await remove(`/lists/${list}`)).status).toBe(200);
    expect((await remove(`/templates/${template}`)).status).toBe(200);
    expect((await patch(id, { name: 'Still a draft' })).status).toBe(200);
    const response = await send(id);
    expect([response.status, response.body.message]).toEqual([
      400,
      `The campaign is not ready to be sent: template_id is not a template of this organization: ${template}, list_ids[0] is not a list of this organization: ${list}.`,
    ]);
  });
});

describe('the list', () => {
  test('comes newest first, without bodies, by part of the name and by status', async () => {
    const ids: string[] = [];
    for (let count = 1; count <= 3; count += 1) ids.unshift(await aReady({ name: unique('Paged') }));
    const page = await ask<Page<Campaign>>('GET', '/email/campaigns?search=PAGED&limit=2');
    expect([page.body.has_more, page.body.data.map(({ id }) => id)]).toEqual([true, ids.slice(0, 2)]);
    const { html, text, variables, ...listed } = await read(ids[0]!);
    expect([html, text, variables]).toEqual(['<p>News</p>', null, null]);
    expect(page.body.data[0]).toEqual(listed);
    const older = await ask<Page<Campaign>>('GET', `/email/campaigns?search=aged&after=${ids[1]}`);
    expect(older.body.data.map(({ id }) => id)).toEqual(ids.slice(2));
    const newer = await ask<Page<Campaign>>('GET', `/email/campaigns?search=aged&before=${ids[1]}`);
    expect(newer.body.data.map(({ id }) => id)).toEqual(ids.slice(0, 1));

    await send(ids[1]!, { scheduled_at: inFuture() });
    await remove(`/email/campaigns/${ids[2]}`);
    const of = async (status: string) =>
      (await ask<Page<Campaign>>('GET', `/email/campaigns?search=paged&status=${status}`)).body.data.map(
        ({ id }) => id,
      );
    expect([await of('scheduled'), await of('draft'), await of('sent')]).toEqual([[ids[1]], [ids[0]], []]);
  });

  test.each(['status=gone', 'limit=0', 'limit=101', 'after=x', 'after=', 'sort=name'])(
    'is refused with %s',
    async (query) => {
      expect((await ask('GET', `/email/campaigns?${query}`)).status).toBe(422);
    },
  );
});

describe('sending', () => {
  test('queues a campaign, and freezes what it says', async () => {
    const list = await aList();
    const id = await aReady({
      from: 'News@postillion.test',
      from_name: 'The news',
      reply_to: 'help@example.com',
      subject: 'Hello {{first_name}}',
      preview_text: 'For {{company}}',
      html: '<body><p>Hello {{ first_name }}, {{{city}}}</p><a href="{{unsubscribe_url}}">No more</a></body>',
      category: 'news',
      track_clicks: true,
      variables: { city: 'Bonn' },
      list_ids: [list],
    });
    const response = await send(id);
    expect([response.status, response.text]).toEqual([200, JSON.stringify({ id })]);
    expect(await read(id)).toMatchObject({
      status: 'queued',
      queued_at: expect.stringMatching(/Z$/),
      scheduled_at: null,
    });
    expect((await rowOf(id)).variable_names).toEqual(['first_name', 'company', 'city']);
    const message = await messageOf(id);
    expect(message).toMatchObject({
      organization_id: server.organizationId,
      channel: 'email',
      class: 'campaign',
      status: 'queued',
      sender: 'News@postillion.test',
      subject: 'Hello {{first_name}}',
      category: 'news',
      template_id: null,
      recipient_count: 0,
      is_stopped: false,
      details: {
        fromName: 'The news',
        replyTo: 'help@example.com',
        attachments: [],
        tracking: { opens: false, clicks: true },
        listIds: [list],
      },
      content: {
        to: [],
        cc: [],
        html: expect.stringMatching(
          /^<body><div [^>]*>For {{company}}[^<]*<\/div><p>Hello {{ first_name }}, {{{city}}}<\/p>/,
        ),
        text: 'Hello {{ first_name }}, {{{city}}}\n\nNo more ({{unsubscribe_url}})',
        defaults: { city: 'Bonn' },
      },
    });
    expect((await ask('GET', `/email/${String(message.id)}`)).status).toBe(404);
  });

  test('takes from a template what the campaign does not say itself', async () => {
    const template = await aTemplate({ text: 'Hi {{name}}', preview_text: 'Theirs' });
    const [plain, own] = [
      await aReady({ subject: undefined, html: undefined, template_id: template.toUpperCase() }),
      await aReady({ subject: 'Mine', preview_text: 'Mine too', html: undefined, template_id: template }),
    ];
    expect([(await send(plain)).status, (await send(own)).status]).toEqual([200, 200]);
    expect((await remove(`/templates/${template}`)).status).toBe(409);
    await ask('PATCH', `/templates/${template}`, { subject: 'Too late', html: '<p>Too late</p>' });
    expect(await messageOf(plain)).toMatchObject({
      subject: 'Hello {{name}}',
      template_id: template,
      content: { html: expect.stringMatching(/Theirs.*<p>Hello<\/p>/), text: 'Hi {{name}}' },
    });
    expect(await messageOf(own)).toMatchObject({
      subject: 'Mine',
      content: { html: expect.stringContaining('>Mine too&') },
    });
  });

  test('tracks as the domain says, where the campaign says nothing', async () => {
    await rowsOf(server, "update domains set open_tracking = true where name = 'postillion.test'");
    const [silent, refusing] = [await aReady(), await aReady({ track_opens: false })];
    await Promise.all([send(silent), send(refusing)]);
    await rowsOf(server, "update domains set open_tracking = false where name = 'postillion.test'");
    expect(await messageOf(silent)).toMatchObject({ details: { tracking: { opens: true, clicks: false } } });
    expect(await messageOf(refusing)).toMatchObject({
      details: { tracking: { opens: false, clicks: false } },
    });
  });

  test.each([
    [
      {},
      'subject is required, html, text or template_id is required, from is required, list_ids, tag_ids or segment_ids is required',
    ],
    [
      { from: 'a@nobody.example', subject: 'x', text: 'x' },
      'the domain nobody.example of from is not a verified sending domain of this organization, list_ids, tag_ids or segment_ids is required',
    ],
    [
      { from: 'a@elsewhere.example', subject: 'x', text: 'x' },
      'the domain elsewhere.example of from is not a verified sending domain of this organization, list_ids, tag_ids or segment_ids is required',
    ],
    [
      {
        from: 'a@postillion.test',
        subject: 'x',
        html: Array.from({ length: 1_001 }, (_, n) => `{{v${n}}}`).join(''),
      },
      'the content must have at most 1000 different placeholders, list_ids, tag_ids or segment_ids is required',
    ],
  ])('is refused with all that is missing, case %#', async (inputs, issues) => {
    const id = await aDraft(inputs);
    for (const body of [{}, { scheduled_at: inFuture() }]) {
      const response = await send(id, body);
      expect([response.status, response.body.name, response.body.message]).toEqual([
        400,
        'bad_request',
        `The campaign is not ready to be sent: ${issues}.`,
      ]);
    }
    expect((await read(id)).status).toBe('draft');
    expect(await heldBy(id)).toEqual([]);
  });

  test('excluding alone is no audience, and a template without a subject is no subject', async () => {
    const id = await aReady({
      list_ids: [],
      exclude_list_ids: [await aList()],
      subject: undefined,
      html: undefined,
      template_id: await aTemplate({ subject: null }),
    });
    expect((await send(id)).body.message).toBe(
      'The campaign is not ready to be sent: subject is required, list_ids, tag_ids or segment_ids is required.',
    );
    await patch(id, { subject: 'x', tag_ids: [await aTag()] });
    expect((await send(id)).status).toBe(200);
  });

  test.each([
    ['2126-01-01T00:00:00Z', 400, 'scheduled_at must be at most a year ahead.'],
    ['2020-01-01T00:00:00Z', 400, 'scheduled_at must be in the future.'],
    ['2027-01-01T00:00:00', 400, 'scheduled_at must be an ISO 8601 time with an offset or Z.'],
    ['tomorrow', 400, 'scheduled_at must be an ISO 8601 time with an offset or Z.'],
    ['', 400, 'scheduled_at must be an ISO 8601 time with an offset or Z.'],
    [1_900_000_000, 422, 'scheduled_at must be a string'],
    [null, 422, 'scheduled_at must be a string'],
  ])('at %j is refused with %i', async (scheduledAt, status, message) => {
    const id = await aReady();
    const response = await send(id, { scheduled_at: scheduledAt });
    expect([response.status, response.body.message]).toEqual([status, message]);
    expect((await read(id)).status).toBe('draft');
  });

  test('needs a body, and never takes a typo for "at once"', async () => {
    const id = await aReady();
    expect((await ask('POST', `/email/campaigns/${id}/send`)).status).toBe(400);
    const typo = await send(id, { schedule_at: inFuture() });
    expect([typo.status, typo.body.message]).toEqual([
      422,
      'schedule_at is not a known field (did you mean scheduled_at?)',
    ]);
    expect((await read(id)).status).toBe('draft');
  });

  test('is refused while the organization is suspended for the channel', async () => {
    const [draft, missed, scheduled] = [await aReady(), await aReady(), await aScheduled()];
    await rowsOf(
      server,
      `update campaigns
       set status = 'paused', pause_reason = 'schedule_missed', scheduled_at = now()
       where id = $1`,
      [missed],
    );
    await updateOrganization(server.installation, server.organizationId, { suspend: ['email'] });
    try {
      for (const response of [
        await send(draft),
        await send(draft, { scheduled_at: inFuture() }),
        await ask('POST', `/email/campaigns/${missed}/resume`),
      ]) {
        expect([response.status, response.body.name]).toEqual([403, 'sending_suspended']);
      }
      expect((await patch(scheduled, { name: 'Meanwhile' })).status).toBe(200);
      expect((await cancel(scheduled)).status).toBe(200);
    } finally {
      await updateOrganization(server.installation, server.organizationId, { resume: ['email'] });
    }
    expect((await send(draft)).status).toBe(200);
  });

  test('of ten at once queues one campaign once', async () => {
    const list = await aList();
    const id = await aReady({ list_ids: [list] });
    const responses = await Promise.all(Array.from({ length: 10 }, () => send(id)));
    expect(responses.map(({ status }) => status).sort()).toEqual([200, ...Array<number>(9).fill(400)]);
    const messages = await rowsOf(
      server,
      "select from messages where organization_id = $2 and class = 'campaign' and details::text like $1",
      [`%${list}%`, server.organizationId],
    );
    expect(messages).toHaveLength(1);
  });

  test('and cancelling, at once, leave nothing in between', async () => {
    const id = await aScheduled();
    await Promise.all([send(id), cancel(id)]);
    const row = await rowOf(id);
    expect(row.status).toBe('cancelled');
    expect(await heldBy(id)).toEqual([]);
    if (row.message_id !== null) expect((await messageOf(id)).is_stopped).toBe(true);
  });

  test('and scheduling, cancelling and deleting wake the workers', async () => {
    const listener = await server.installation.database.connectAlone('test-listener');
    let woken: () => void = () => undefined;
    listener.on('notification', () => {
      woken();
    });
    await listener.query(`listen ${notificationChannelOf('campaigns')}`);
    const wakes = async (work: () => Promise<unknown>) => {
      const wake = new Promise<void>((resolve) => {
        woken = resolve;
      });
      await Promise.all([wake, work()]);
    };
    try {
      const id = await aReady();
      await wakes(() => send(id, { scheduled_at: inFuture() }));
      await wakes(() => send(id));
      await wakes(() => cancel(id));
      await wakes(() => remove(`/email/campaigns/${id}`));
    } finally {
      await listener.end();
    }
  });
});

describe('a scheduled campaign', () => {
  test('has its time, gets another, and is sent at once when it is told to', async () => {
    const id = await aReady();
    const [first, second] = [inFuture(60_000), inFuture(120_000)];
    expect((await send(id, { scheduled_at: first })).body).toEqual({ id });
    expect(await read(id)).toMatchObject({ status: 'scheduled', scheduled_at: first, queued_at: null });
    expect((await rowOf(id)).message_id).toBeNull();
    await send(id, { scheduled_at: second.replace('Z', '+00:00') });
    expect(await read(id)).toMatchObject({ status: 'scheduled', scheduled_at: second });
    await send(id);
    expect(await read(id)).toMatchObject({ status: 'queued', scheduled_at: null });
  });

  test('may be a year ahead, and no more', async () => {
    const id = await aReady();
    const dayMs = 24 * 3_600_000;
    expect((await send(id, { scheduled_at: inFuture(365 * dayMs) })).status).toBe(200);
    expect((await send(id, { scheduled_at: inFuture(367 * dayMs) })).status).toBe(400);
  });

  test('cannot be changed into one that cannot be sent', async () => {
    const template = await aTemplate({ subject: null });
    const id = await aScheduled({ html: undefined, template_id: template });
    const [before, held] = [await read(id), await heldBy(id)];
    for (const wrong of [
      { subject: null },
      { from: null },
      { from: 'a@nobody.example' },
      { list_ids: [] },
      { template_id: null },
      { name: 'Changed', template_id: null, list_ids: null },
    ]) {
      const response = await patch(id, wrong);
      expect([response.status, response.body.message]).toEqual([
        400,
        expect.stringContaining('The campaign is not ready to be sent: '),
      ]);
    }
    expect((await patch(id, { tag_ids: [unknownId] })).status).toBe(422);
    expect([await read(id), await heldBy(id)]).toEqual([before, held]);
  });

  test('holds what it uses, and lets go of what it does not use any more', async () => {
    const [list, tag, segment, template] = [await aList(), await aTag(), await aSegment(), await aTemplate()];
    const id = await aScheduled({
      html: undefined,
      template_id: template,
      list_ids: [list],
      exclude_list_ids: [list],
      tag_ids: [tag],
      exclude_segment_ids: [segment],
    });
    expect(await heldBy(id)).toEqual([list, tag, segment, template].sort());
    for (const [path, name] of [
      [`/lists/${list}`, 'conflict'],
      [`/tags/${tag}`, 'conflict'],
      [`/segments/${segment}`, 'segment_in_use'],
      [`/templates/${template}`, 'conflict'],
    ] as const) {
      const response = await remove(path);
      expect([path, response.status, response.body.name, response.body.message]).toEqual([
        path,
        409,
        name,
        expect.stringContaining(`is used by the campaign ${id}`),
      ]);
    }
    await patch(id, { tag_ids: null, template_id: null, text: 'Instead' });
    expect(await heldBy(id)).toEqual([list, segment].sort());
    expect((await remove(`/tags/${tag}`)).status).toBe(200);
    expect((await remove(`/templates/${template}`)).status).toBe(200);
    await cancel(id);
    expect((await remove(`/lists/${list}`)).status).toBe(200);
    expect((await remove(`/segments/${segment}`)).status).toBe(200);
  });

  test('never meets the deletion of what it uses half-way', async () => {
    for (let round = 1; round <= 5; round += 1) {
      const template = await aTemplate();
      const id = await aReady({ html: undefined, template_id: template });
      const [sent, removed] = await Promise.all([send(id), remove(`/templates/${template}`)]);
      expect([
        [200, 409],
        [400, 200],
      ]).toContainEqual([sent.status, removed.status]);
    }
  });
});

/** As a worker leaves it half-way: one recipient handed off, one claimed, one waiting, the rest still a slice. */
async function putUnderWay(id: string): Promise<string> {
  expect((await send(id)).status).toBe(200);
  const { message_id: messageId } = await rowOf(id);
  madeByHand.push({ violation: 'claims', id: messageId! }, { violation: 'recipientCounts', id: messageId! });
  await rowsOf(
    server,
    `with slice as (
       insert into campaign_slices (organization_id, campaign_id, number, contact_ids)
       values ($1, $2, 3, array[gen_random_uuid()])
     ), counted as (
       insert into recipient_counts
         (organization_id, message_id, slice, handed_off, delivered, bounced, opened, clicked, dropped, uncertain)
       values ($1, $3, 0, 6, 3, 1, 2, 1, 1, 2), ($1, $3, 1, 1, 1, 0, 1, 0, 0, 0)
     ), frozen as (
       update campaigns
       set status = 'sending', audience = 20, frozen_at = now(), started_at = now(), excluded_unsubscribed = 1,
         excluded_suppressed = 2, excluded_no_address = 3, excluded_duplicate = 4
       where id = $2
     )
     insert into delivery_queue
       (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes, claimed_by,
       claim_number)
     values ($1, $3, 1, 'email', 1, now(), now(), 1, 7, 1), ($1, $3, 2, 'email', 1, now(), now(), 1, null, null)`,
    [server.organizationId, id, messageId],
  );
  return messageId!;
}

async function leftOf(id: string, messageId: string) {
  const [slices, queued] = await Promise.all([
    rowsOf(server, 'select from campaign_slices where campaign_id = $1', [id]),
    rowsOf<{ ordinal: number }>(server, 'select ordinal from delivery_queue where message_id = $1', [
      messageId,
    ]),
  ]);
  return {
    slices: slices.length,
    ordinals: queued.map(({ ordinal }) => ordinal),
    held: await heldBy(id),
    isStopped: (await messageOf(id)).is_stopped,
  };
}

describe('under way', () => {
  test('a campaign shows what became of its audience, and once cancelled whom it did not reach', async () => {
    const id = await aReady();
    await putUnderWay(id);
    const stats = {
      audience: 20,
      excluded: { unsubscribed: 1, suppressed: 2, no_address: 3, duplicate: 4 },
      pending: 12,
      sent: 7,
      delivered: 4,
      bounced: 1,
      complained: 0,
      failed: 0,
      opened: 3,
      clicked: 1,
      unsubscribed: 0,
      dropped: 1,
      uncertain: 2,
      unconfirmed: 0,
      cancelled: 0,
      conversions: 0,
      conversion_value: [],
    };
    const campaign = await read(id);
    expect(campaign.stats).toEqual(stats);
    const listed = await ask<Page<Campaign>>('GET', `/email/campaigns?status=sending`);
    expect(listed.body.data[0]).toMatchObject({ id, stats });
    await cancel(id);
    expect(await read(id)).toMatchObject({
      status: 'cancelled',
      cancelled_at: expect.stringMatching(/Z$/),
      stats: { ...stats, pending: 0, cancelled: 12 },
    });
  });

  test('cancelling takes back all that no worker has', async () => {
    const id = await aReady();
    const messageId = await putUnderWay(id);
    expect((await cancel(id)).body).toEqual({ id });
    expect(await leftOf(id, messageId)).toEqual({ slices: 0, ordinals: [1], held: [], isStopped: true });
  });

  test('so does deleting a paused one', async () => {
    const id = await aReady();
    const messageId = await putUnderWay(id);
    await rowsOf(
      server,
      "update campaigns set status = 'paused', pause_reason = 'quota_exceeded' where id = $1",
      [id],
    );
    expect((await remove(`/email/campaigns/${id}`)).status).toBe(200);
    expect(await leftOf(id, messageId)).toEqual({ slices: 0, ordinals: [1], held: [], isStopped: true });
  });

  test('a campaign cannot be deleted before it is cancelled', async () => {
    const id = await aReady();
    await send(id);
    const response = await remove(`/email/campaigns/${id}`);
    expect([response.status, response.body]).toEqual([
      409,
      {
        status_code: 409,
        name: 'conflict',
        message: 'A campaign that is queued cannot be deleted. Cancel it first.',
      },
    ]);
  });
});

describe('an idempotency key', () => {
  const newKey = () => ({ 'idempotency-key': unique('key') });

  test('sends and cancels once, and gets the same octets again whatever became of the campaign', async () => {
    const id = await aScheduled();
    const keys = { send: newKey(), cancel: newKey() };
    const first = { sent: await send(id, {}, keys.send), cancelled: await cancel(id, keys.cancel) };
    await remove(`/email/campaigns/${id}`);
    const again = { sent: await send(id, {}, keys.send), cancelled: await cancel(id, keys.cancel) };
    for (const move of ['sent', 'cancelled'] as const) {
      expect([first[move].status, first[move].headers.get('idempotent-replayed')]).toEqual([200, null]);
      expect([again[move].status, again[move].text]).toEqual([200, first[move].text]);
      expect(again[move].headers.get('idempotent-replayed')).toBe('true');
    }
    expect((await send(id)).status).toBe(404);
  });

  test('is of one campaign and one body, and of sending or of cancelling', async () => {
    const [id, another] = [await aReady(), await aReady()];
    const key = newKey();
    expect((await send(id, {}, key)).status).toBe(200);
    for (const response of [
      await send(another, {}, key),
      await send(unknownId, {}, key),
      await send(id, { scheduled_at: inFuture() }, key),
    ]) {
      expect([response.status, response.body.name]).toEqual([409, 'invalid_idempotent_request']);
    }
    expect((await cancel(id, key)).status).toBe(200);
    expect((await cancel(another, key)).body.name).toBe('invalid_idempotent_request');
    expect((await read(another)).status).toBe('draft');
  });

  test('is free again after a refusal', async () => {
    const key = newKey();
    const id = await aDraft();
    expect((await send(unknownId, {}, key)).status).toBe(404);
    expect((await send(id, {}, key)).status).toBe(400);
    expect((await cancel(id, key)).status).toBe(400);
    await patch(id, {
      from: 'a@postillion.test',
      subject: 'x',
      text: 'x',
      list_ids: [await aList()],
    });
    const sent = await send(id, {}, key);
    expect([sent.status, sent.headers.get('idempotent-replayed')]).toEqual([200, null]);
    expect((await cancel(id, key)).status).toBe(200);
  });

  test('of ten requests at once carries out one, and the others come back or get its answer', async () => {
    const id = await aReady();
    const key = newKey();
    const responses = await Promise.all(Array.from({ length: 10 }, () => send(id, {}, key)));
    const statuses = responses.map(({ status }) => status);
    expect(
      responses.filter(({ status, headers }) => status === 200 && !headers.has('idempotent-replayed')),
    ).toHaveLength(1);
    expect(statuses.filter((status) => status !== 200 && status !== 503)).toEqual([]);
    expect((await send(id, {}, key)).headers.get('idempotent-replayed')).toBe('true');
  });

  test.each([
    ['empty', ''],
    ['longer than 256 characters', 'k'.repeat(257)],
  ])('is refused when it is %s', async (_what, key) => {
    const id = await aReady();
    expect((await send(id, {}, { 'idempotency-key': key })).body.name).toBe('invalid_idempotency_key');
    expect((await cancel(id, { 'idempotency-key': key })).body.name).toBe('invalid_idempotency_key');
  });
});

describe('an email campaign without a link to unsubscribe by', () => {
  const warningsOf = ({ status, headers }: { status: number; headers: Headers }) => [
    status,
    headers.get('postillion-warnings'),
  ];
  const link = '<a href="{{unsubscribe_url}}">No more</a>';
  const bare = 'no_unsubscribe_link';

  test('says so when it is created, changed, scheduled and sent, and is sent all the same', async () => {
    const content = {
      name: unique(),
      from: 'news@postillion.test',
      subject: 'News',
      list_ids: [await aList()],
    };
    const created = await ask<{ id: string }>('POST', '/email/campaigns', {
      ...content,
      html: '<p>News</p>',
    });
    expect(warningsOf(created)).toEqual([201, bare]);
    const { id } = created.body;
    expect(warningsOf(await patch(id, { html: `<p>{{unsubscribe_url</p>` }))).toEqual([200, bare]);
    expect(warningsOf(await patch(id, { html: link }))).toEqual([200, null]);
    expect(
      warningsOf(await patch(id, { html: '<p>News</p>', text: 'Leave: {{ unsubscribe_url }}' })),
    ).toEqual([200, null]);
    expect(warningsOf(await patch(id, { text: null }))).toEqual([200, bare]);
    expect(warningsOf(await send(id, { scheduled_at: inFuture() }))).toEqual([200, bare]);
    const key = { 'idempotency-key': unique('key') };
    expect(warningsOf(await send(id, {}, key))).toEqual([200, bare]);
    expect(warningsOf(await send(id, {}, key))).toEqual([200, bare]);
    expect((await read(id)).status).toBe('queued');
  });

  test('is judged by its template, and not before there is any content', async () => {
    expect(warningsOf(await ask('POST', '/email/campaigns', { name: unique() }))).toEqual([201, null]);
    for (const [html, warning] of [
      ['<p>Hello</p>', bare],
      [link, null],
    ]) {
      const body = { name: unique(), template_id: await aTemplate({ html }) };
      expect(warningsOf(await ask('POST', '/email/campaigns', body))).toEqual([201, warning]);
    }
    const text = { name: unique(), body: 'News' };
    expect(warningsOf(await ask('POST', '/sms/campaigns', text))).toEqual([201, null]);
  });
});

describe('the body of a request that has no fields', () => {
  const pullCancel = (id: string, body: unknown, headers: Record<string, string> = {}) =>
    ask<ErrorBody>('POST', `/email/campaigns/${id}/cancel`, body, headers);

  test.each([
    ['[]', 422, 'the body must be an object'],
    ['null', 422, 'the body must be an object'],
    ['1', 422, 'the body must be an object'],
    ['{"a":1}', 422, 'a is not a known field'],
    ['{"a":', 400, 'The request is malformed: the body is not valid JSON.'],
  ])('of cancel and resume is checked: %s', async (body, status, message) => {
    const id = await aScheduled();
    for (const move of ['cancel', 'resume']) {
      const response = await ask<ErrorBody>('POST', `/email/campaigns/${id}/${move}`, body);
      expect([move, response.status, response.body.message]).toEqual([move, status, message]);
    }
    expect((await read(id)).status).toBe('scheduled');
  });

  test('may be missing, whatever its content type, and is then that of {}', async () => {
    const id = await aScheduled();
    const key = { 'idempotency-key': unique() };
    expect((await pullCancel(id, undefined, { ...key, 'content-type': 'text/plain' })).status).toBe(200);
    const replay = await pullCancel(id, {}, key);
    expect([replay.status, replay.headers.get('idempotent-replayed')]).toEqual([200, 'true']);
    expect((await pullCancel(id, 'a=b', { 'content-type': 'text/plain' })).status).toBe(400);
  });

  test('with anything in it is another request than the one that its key was used with', async () => {
    const id = await aScheduled();
    const key = { 'idempotency-key': unique() };
    expect((await pullCancel(id, { a: 1 }, key)).status, 'a free key').toBe(422);
    expect((await cancel(id, key)).status).toBe(200);
    for (const body of [{ a: 1 }, [], 'null']) {
      const { status, body: answer } = await pullCancel(id, body, key);
      expect([status, answer.name]).toEqual([409, 'invalid_idempotent_request']);
    }
    expect((await pullCancel(id, '{', key)).status, 'malformed').toBe(400);
    expect((await send(id, { a: 1 }, key)).status, 'another endpoint').toBe(422);
  });
});
