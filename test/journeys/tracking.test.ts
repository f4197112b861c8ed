/** Opens, clicks and one-click unsubscribing, over HTTP and as mail clients, scanners and attackers go about them. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { writeContactToken } from '../../src/messages/messages.ts';
import { insertSentCampaign, queueCampaign } from '../support/campaign-fixture.ts';
import {
  createShiftedClock,
  eventually,
  queueOf,
  read,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

const browser = 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0';

let server: TestServer;
let clock: ShiftedClock;

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock, publicUrl: 'https://mail.postillion.test' });
  await rowsOf(server, 'update domains set click_tracking = true, open_tracking = true');
});
afterAll(() => server.stop());

function visit(path: string, init: RequestInit & { headers?: Record<string, string> } = {}) {
  const headers = { 'user-agent': browser, ...init.headers };
  return fetch(`${server.url}${path}`, { redirect: 'manual', ...init, headers });
}

type RecipientRow = {
  status: string;
  opened_at: Date | null;
  clicked_at: Date | null;
  machine_engaged_at: Date | null;
};

async function recipientOf(messageId: string, ordinal = 0): Promise<RecipientRow> {
  const [row] = await rowsOf<RecipientRow>(
    server,
    'select * from recipients where message_id = $1 and ordinal = $2',
    [messageId, ordinal],
  );
  return row!;
}

/** As it left, in the order of its copies. */
async function sourcesOf(messageId: string): Promise<string[]> {
  const rows = await rowsOf<{ source: Buffer }>(
    server,
    'select source from sandbox_messages where message_id = $1 order by recipient',
    [messageId],
  );
  return rows.map(({ source }) => source.toString().replaceAll('=\r\n', '').replaceAll('=3D', '='));
}

async function createContact(email: string, more: Record<string, unknown> = {}) {
  const { body } = await server.request<{ id: string }>('POST', '/v1/contacts', { email, ...more });
  return { id: body.id, email };
}

describe('a transactional email of a tracked domain', () => {
  let messageId: string;
  let links: string[];

  beforeAll(async () => {
    messageId = await send(server, {
      to: ['ann@example.com'],
      cc: ['ben@example.com'],
      subject: 'Your order',
      html: '<body><a href="https://shop.example/?a=1&amp;b={{code}}">Order</a> <a href="mailto:x@shop.example">Mail</a></body>',
      variables: { code: 'x y' },
    });
    await settled(server, messageId);
    clock.putForward(2_000);
    const [source = ''] = await sourcesOf(messageId);
    links = [...source.matchAll(/https:\/\/mail\.postillion\.test(\/[^"]+)"/g)].map(([, path]) => path!);
  });

  test('has links of its own for each recipient, and none to unsubscribe by', async () => {
    const sources = await sourcesOf(messageId);
    expect(links).toEqual([
      expect.stringMatching(/^\/c\/[\w-]{64}\/0$/),
      expect.stringMatching(/^\/o\/[\w-]{64}$/),
    ]);
    expect(sources).toHaveLength(2);
    expect(sources[1]).not.toContain(links[0]);
    for (const source of sources) {
      expect(source).toContain('href="mailto:x@shop.example"');
      expect(source).not.toMatch(/^List-Unsubscribe/m);
    }
  });

  test('tells machines apart, then notes who opened it and who clicked', async () => {
    expect((await visit(links[1]!, { headers: { 'user-agent': 'Mozilla/5.0' } })).status).toBe(200);
    expect((await visit(links[0]!, { method: 'HEAD' })).status).toBe(302);
    await eventually(
      () => recipientOf(messageId),
      ({ machine_engaged_at }) => machine_engaged_at !== null,
    );
    expect(await recipientOf(messageId)).toMatchObject({
      status: 'delivered',
      opened_at: null,
      clicked_at: null,
    });

    const image = await visit(links[1]!);
    expect(image.headers.get('content-type')).toBe('image/gif');
    expect(image.headers.get('cache-control')).toBe('no-store');
    expect(image.headers.get('cross-origin-resource-policy')).toBe('cross-origin');
    expect(Buffer.from(await image.arrayBuffer()).toString('latin1')).toMatch(/^GIF89a\x01\0\x01\0/);
    const opened = await eventually(
      () => recipientOf(messageId),
      ({ opened_at }) => opened_at !== null,
    );
    expect(opened).toMatchObject({ status: 'opened', clicked_at: null });

    const click = await visit(links[0]!);
    expect([click.status, click.headers.get('location')]).toEqual([302, 'https://shop.example/?a=1&b=x%20y']);
    expect(click.headers.get('referrer-policy')).toBe('no-referrer');
    expect(click.headers.get('cache-control')).toBe('no-store');
    const clicked = await eventually(
      () => recipientOf(messageId),
      ({ clicked_at }) => clicked_at !== null,
    );
    expect(clicked).toMatchObject({ status: 'clicked', opened_at: opened.opened_at });
    expect((await recipientOf(messageId, 1)).opened_at).toBeNull();
    expect(await read(server, messageId)).toMatchObject({
      to: [{ status: 'clicked', clicked_at: clicked.clicked_at!.toISOString() }],
      cc: [{ status: 'delivered' }],
    });
  });

  test('leads nowhere by a token or a number that is not its own', async () => {
    const [token, other] = [links[0]!.split('/')[2]!, 'A'.repeat(64)];
    const noLinks = [
      `/c/${token}/1`,
      `/c/${token}/00`,
      `/c/${token}/-1`,
      `/c/${token}/https:%2F%2Fevil.example`,
      `/c/${token}/${'9'.repeat(400)}`,
      `/c/${other}/0`,
      `/c/${token.slice(0, -1)}${token.endsWith('A') ? 'B' : 'A'}/0`,
      `/c/${token}%00/0`,
      `/c/${'x'.repeat(10_000)}/0`,
      `/c/%F0%9F%98%80/0`,
    ];
    for (const path of noLinks) {
      const response = await visit(path);
      expect([path, response.status, response.headers.get('location')]).toEqual([path, 404, null]);
    }
    expect((await visit(`/u/${token}`)).status).toBe(404);
    for (const path of [`/o/${other}`, '/o/x', `/o/${token}%00`, `/o/${'x'.repeat(10_000)}`])
      expect((await visit(path)).headers.get('content-type')).toBe('image/gif');
  });

  test('is passed on while the database is away, as far as the link was followed before', async () => {
    expect((await visit(links[0]!)).status).toBe(302);
    const database = server.databaseOfRequests;
    const asOrganizations = database.asOrganizations;
    const { DatabaseUnavailableError } = await import('../../src/platform/postgres/database.ts');
    database.asOrganizations = () => Promise.reject(new DatabaseUnavailableError('away'));
    try {
      expect((await visit(links[0]!)).status).toBe(302);
      const campaign = await insertSentCampaign(server.installation, {
        organizationId: server.organizationId,
        contacts: [{ id: server.installation.newId(), email: 'a@example.com' }],
        html: '<a href="https://a.example">x</a>',
      });
      const unknown = await visit(`/c/${campaign.tokens[0]!.tracking}/0`);
      expect([unknown.status, unknown.headers.get('retry-after')]).toEqual([503, '5']);
      const page = await visit(`/u/${campaign.tokens[0]!.unsubscribe}`, { method: 'POST' });
      expect([page.status, page.headers.get('retry-after')]).toEqual([503, '60']);
      expect(await page.text()).toContain('Nothing was changed');
    } finally {
      database.asOrganizations = asOrganizations;
    }
  });
});

test("a campaign's links lead where each recipient's own values say, and nowhere but to the web", async () => {
  const contacts = [
    {
      ...(await createContact('values1@example.com')),
      variables: { cta_url: 'https://one.example/a b', q: 'ö&1' },
    },
    { ...(await createContact('values2@example.com')), variables: { cta_url: 'javascript:alert(1)' } },
    {
      ...(await createContact('values3@example.com')),
      variables: { cta_url: 'https://x.example/\r\nset-cookie: a=b' },
    },
  ];
  const { tokens } = await insertSentCampaign(server.installation, {
    organizationId: server.organizationId,
    contacts,
    html: '<a href="{{cta_url}}">1</a><a href="https://shop.example/{{q}}">2</a>',
    defaults: { q: 'everybody' },
  });
  const locationOf = async (index: number, number: number) =>
    (await visit(`/c/${tokens[index]!.tracking}/${number}`)).headers.get('location');
  expect(await locationOf(0, 0)).toBe('https://one.example/a%20b');
  expect(await locationOf(0, 1)).toBe('https://shop.example/%C3%B6&1');
  expect(await locationOf(1, 0)).toBeNull();
  expect(await locationOf(1, 1)).toBe('https://shop.example/everybody');
  expect(await locationOf(2, 0)).toBe('https://x.example/set-cookie:%20a=b');
});

test('a link that shows an address is sent as it is, and one that was sent before still leads to its target', async () => {
  const contact = await createContact('shown@example.com');
  const { messageId, tokens } = await insertSentCampaign(server.installation, {
    organizationId: server.organizationId,
    contacts: [contact],
    html: '<a href="https://shop.example/1">www.shop.com</a><a href="https://shop.example/2">Shop</a>',
    tracking: { opens: false, clicks: true },
  });
  await queueCampaign(server.installation, messageId);
  await eventually(
    () => queueOf(server, messageId),
    (jobs) => jobs.length === 0,
  );
  const [source = ''] = await sourcesOf(messageId);
  expect(source).toContain('<a href="https://shop.example/1">www.shop.com</a>');
  expect(source).toContain(`<a href="https://mail.postillion.test/c/${tokens[0]!.tracking}/1">Shop</a>`);
  for (const number of [0, 1]) {
    const { status, headers } = await visit(`/c/${tokens[0]!.tracking}/${number}`);
    expect([status, headers.get('location')]).toEqual([302, `https://shop.example/${number + 1}`]);
  }
});

test('a campaign goes to each by name, with a link and a button of their own', async () => {
  const contact = await createContact('copy@example.com');
  const { messageId, tokens } = await insertSentCampaign(server.installation, {
    organizationId: server.organizationId,
    contacts: [{ ...contact, variables: { name: 'Ann' } }],
    html: '<p>{{name}} {{city}}</p><a href="{{unsubscribe_url}}">Unsubscribe</a>',
    defaults: { name: 'friend', city: 'Bern' },
  });
  await queueCampaign(server.installation, messageId);
  await eventually(
    () => queueOf(server, messageId),
    (jobs) => jobs.length === 0,
  );
  const [source = ''] = await sourcesOf(messageId);
  const { organizationId } = server;
  const { secrets } = server.installation;
  const contactToken = writeContactToken(secrets, { organizationId, messageId, ordinal: 0 }, contact.id);
  const url = `https://mail.postillion.test/u/${tokens[0]!.unsubscribe}?c=${contactToken}`;
  const header = source.slice(0, source.indexOf('\r\n\r\n')).replaceAll(/\r\n\s+/g, ' ');
  expect(header).toContain('\r\nTo: copy@example.com\r\n');
  expect(header).toContain(`\r\nMessage-ID: <${messageId}.0@postillion.test>\r\n`);
  expect(header).toContain(`\r\nList-Unsubscribe: <${url}>\r\n`);
  expect(header).toContain('\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n');
  expect(source).toContain('<p>Ann=20Bern</p>');
  expect(source).toContain(`<a href="${url}">Unsubscribe</a>`);
});

describe('one click', () => {
  const oneClick = 'List-Unsubscribe=One-Click';
  const form = { 'content-type': 'application/x-www-form-urlencoded' };
  const multipart = { 'content-type': 'multipart/form-data; boundary=b' };

  test.each<[string, RequestInit & { headers?: Record<string, string> }]>([
    ['a form', { body: oneClick, headers: form }],
    [
      'a form of the other kind',
      {
        body: `--b\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--b--\r\n`,
        headers: multipart,
      },
    ],
    ['no content type', { body: Buffer.from(oneClick) }],
    ['an empty content type', { body: oneClick, headers: { 'content-type': '' } }],
    ['a content type that is none', { body: oneClick, headers: { 'content-type': 'form;;=' } }],
    ['plain text', { body: oneClick, headers: { 'content-type': 'text/plain' } }],
    ['no body', {}],
    ['JSON', { body: '{}', headers: { 'content-type': 'application/json' } }],
  ])('by %s unsubscribes, once and for all', async (what, init) => {
    const contact = await createContact(`${what.replaceAll(' ', '-')}@example.com`);
    const { messageId, tokens } = await insertSentCampaign(server.installation, {
      organizationId: server.organizationId,
      contacts: [contact],
    });
    for (let time = 1; time <= 2; time += 1) {
      const response = await visit(`/u/${tokens[0]!.unsubscribe}`, { method: 'POST', ...init });
      expect(response.status).toBe(200);
      expect(response.headers.get('set-cookie')).toBeNull();
      expect(await response.text()).toContain('You are unsubscribed');
    }
    const { body } = await server.request<{ consent: { email: string } }>(
      'GET',
      `/v1/contacts/${contact.id}`,
    );
    expect(body.consent.email).toBe('unsubscribed');
    expect((await recipientOf(messageId)).status).toBe('unsubscribed');
    const counts = await eventually(
      () =>
        rowsOf<{ unsubscribed: number }>(
          server,
          'select unsubscribed from recipient_counts where message_id = $1',
          [messageId],
        ),
      (rows) => rows.length > 0,
    );
    expect(counts).toEqual([{ unsubscribed: 1 }]);
  });

  test('of a contact that was erased meanwhile suppresses the address, and can be taken back', async () => {
    const contact = await createContact('erased@example.com');
    const { tokens } = await insertSentCampaign(server.installation, {
      organizationId: server.organizationId,
      contacts: [contact],
    });
    await server.request('DELETE', `/v1/contacts/${contact.id}`);
    const path = `/u/${tokens[0]!.unsubscribe}`;
    // The cases above have left theirs.
    await rowsOf(server, 'delete from suppressions where organization_id = $1', [server.organizationId]);
    const suppressions = () =>
      rowsOf<{ reason: string }>(server, 'select reason from suppressions where organization_id = $1', [
        server.organizationId,
      ]);
    await visit(path, { method: 'POST', body: oneClick, headers: form });
    expect(await suppressions()).toEqual([{ reason: 'unsubscribe' }]);
    expect(await (await visit(path)).text()).toContain('You are unsubscribed');
    await visit(path, { method: 'POST', body: 'action=resubscribe', headers: form });
    expect(await suppressions()).toEqual([]);
  });

  test('is refused with a large body, or under a token that is not for unsubscribing', async () => {
    const { tokens } = await insertSentCampaign(server.installation, {
      organizationId: server.organizationId,
      contacts: [await createContact('large@example.com')],
    });
    const post = (token: string, body: string) =>
      visit(`/u/${token}`, { method: 'POST', body, headers: form });
    expect((await post(tokens[0]!.unsubscribe, 'x'.repeat(5_000))).status).toBe(413);
    expect((await post(tokens[0]!.tracking, oneClick)).status).toBe(404);
    expect((await post('x', oneClick)).status).toBe(404);
  });
});
