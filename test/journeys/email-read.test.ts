import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Horizon, noHorizon } from '../../src/messages/kept.ts';
import type { SendingChannel } from '../../src/channels/channel.ts';
import { listMessages, listRecipients, type MessageFilter } from '../../src/messages/store.ts';
import type { EmailRecord } from '../../src/email/schema.ts';
import { lowestIdAt } from '../../src/platform/ids.ts';
import type { Page } from '../../src/platform/http/pagination.ts';
import type { Connection, Statement } from '../../src/platform/postgres/database.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import {
  authorize,
  eventually,
  type ErrorBody,
  read,
  rowsOf,
  send,
  type Sender,
  settled,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ worker: true });
});
afterAll(() => server.stop());

type List = { object: string; has_more: boolean; data: EmailRecord[] };

const recordKeys = [
  'id',
  'from',
  'from_name',
  'reply_to',
  'subject',
  'template_id',
  'category',
  'metadata',
  'tags',
  'resent_from',
  'to',
  'cc',
  'bcc',
  'attachments',
  'status',
  'scheduled_at',
  'created_at',
  'updated_at',
];
const recipientKeys = [
  'email',
  'status',
  'status_at',
  'dropped',
  'drop_reason',
  'uncertain',
  'bounce',
  'opened_at',
  'clicked_at',
];
const timestamp = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

function list(query: Record<string, string>, sender?: Sender) {
  return server.request<List>(
    'GET',
    `/v1/email?${new URLSearchParams(query).toString()}`,
    undefined,
    authorize(sender),
  );
}

async function idsOf(query: Record<string, string>, sender?: Sender): Promise<string[]> {
  const { status, body } = await list(query, sender);
  expect(status).toBe(200);
  return body.data.map(({ id }) => id);
}

describe('one email', () => {
  test('has exactly the fields of the record, every submitted address with its status, and no content', async () => {
    const id = await send(server, {
      to: ['Ann@Example.com', 'ann@example.com'],
      cc: ['bounced@simulator.postillion.test'],
      bcc: ['bob@example.com'],
      reply_to: 'answers@example.org',
      subject: 'Hi {{name}}',
      variables: { name: 'Ann' },
      category: 'greeting',
      attachments: [
        { filename: 'a.pdf', content: 'c2VjcmV0', content_id: 'a1' },
        { filename: 'b', content: 'YWI=', content_type: 'application/octet-stream' },
      ],
    });
    const record = await settled(server, id);
    expect(Object.keys(record)).toEqual(recordKeys);
    for (const recipient of [...record.to, ...record.cc, ...record.bcc]) {
      expect(Object.keys(recipient)).toEqual(recipientKeys);
      expect(recipient.status_at).toMatch(timestamp);
    }
    const instant = expect.stringMatching(timestamp);
    const kept = { dropped: false, drop_reason: null, uncertain: false, opened_at: null, clicked_at: null };
    expect(record).toEqual({
      id,
      metadata: {},
      tags: [],
      resent_from: null,
      scheduled_at: null,
      from: 'hello@postillion.test',
      from_name: 'Postillion',
      reply_to: 'answers@example.org',
      subject: 'Hi Ann',
      template_id: null,
      category: 'greeting',
      to: [
        { ...kept, email: 'Ann@Example.com', status: 'delivered', status_at: instant, bounce: null },
        {
          ...kept,
          email: 'ann@example.com',
          status: 'sent',
          status_at: instant,
          bounce: null,
          dropped: true,
          drop_reason: 'duplicate',
        },
      ],
      cc: [
        {
          ...kept,
          email: 'bounced@simulator.postillion.test',
          status: 'bounced',
          status_at: instant,
          bounce: {
            type: 'hard',
            class: 'mailbox_not_found',
            smtp_code: 550,
            enhanced_code: '5.1.1',
            diagnostic: expect.any(String),
            remote_mta: 'simulator.postillion.test',
          },
        },
      ],
      bcc: [{ ...kept, email: 'bob@example.com', status: 'delivered', status_at: instant, bounce: null }],
      attachments: [
        { filename: 'a.pdf', content_type: 'application/pdf', size: 6, content_id: 'a1' },
        { filename: 'b', content_type: 'application/octet-stream', size: 2, content_id: null },
      ],
      status: 'partially_delivered',
      created_at: instant,
      updated_at: instant,
    });
  });

  test('is as unknown to another organization as an id that does not exist or is malformed', async () => {
    const id = await send(server);
    const other = await createSender(server.installation, 'reader.example');
    const ask = (path: string, sender?: Sender) =>
      server.request<ErrorBody>('GET', `/v1/email/${path}`, undefined, authorize(sender));
    const answers = [
      await ask(id, other),
      await ask('01930000-0000-7000-8000-000000000000'),
      await ask('nonsense'),
      await ask('%00'),
    ];
    expect(answers.map(({ status, body }) => [status, body.name])).toEqual(
      answers.map(() => [404, 'not_found']),
    );
    expect(new Set(answers.map(({ text }) => text)).size).toBe(1);
    expect((await ask(id)).status).toBe(200);
  });

  test('of a campaign is neither read nor listed as an email that was sent', async () => {
    const sender = await createSender(server.installation, 'campaigns.example');
    const id = await send(
      server,
      { from: 'a@campaigns.example', category: 'promo', subject: 'Sale' },
      sender,
    );
    await settled(server, id, sender);
    await rowsOf(server, "update messages set class = 'campaign' where id = $1", [id]);
    for (const query of [
      {},
      { search: 'sale' },
      { search: 'ann@' },
      { category: 'promo' },
      { status: 'delivered' },
    ]) {
      expect(await idsOf(query, sender)).toEqual([]);
    }
    const { status } = await server.request('GET', `/v1/email/${id}`, undefined, authorize(sender));
    expect(status).toBe(404);
  });
});

describe('the list', () => {
  let sender: Sender;
  /** Newest first, as lists are. */
  const sent: Record<string, string> = {};

  beforeAll(async () => {
    sender = await createSender(server.installation, 'lists.example');
    const emails: [string, Record<string, unknown>][] = [
      ['plain', { subject: 'Invoice 1', to: ['ann@example.com', 'to@example.net'], category: 'bills' }],
      ['percent', { subject: '100% off', to: ['under_score@example.com', '+49151@example.net'] }],
      ['bounced', { subject: 'Later', to: ['bounced+list@simulator.postillion.test'] }],
      ['capital', { subject: 'INVOICE 2', cc: ['Zoe@Example.com'], category: 'bills' }],
      ['umlaut', { subject: 'Übersicht', bcc: ['hidden@example.com'], category: 'Bills' }],
    ];
    for (const [name, more] of emails) {
      const id = await send(server, { from: 'a@lists.example', to: ['to@example.net'], ...more }, sender);
      await settled(server, id, sender);
      sent[name] = id;
    }
  });

  const names = async (query: Record<string, string>) => {
    const ids = await idsOf(query, sender);
    return ids.map((id) => Object.keys(sent).find((name) => sent[name] === id));
  };

  test('is an envelope of whole records, newest first', async () => {
    const { status, body } = await list({}, sender);
    expect([status, Object.keys(body)]).toEqual([200, ['object', 'has_more', 'data']]);
    expect([body.object, body.has_more]).toEqual(['list', false]);
    expect(body.data.map(({ id }) => id)).toEqual(Object.values(sent).reverse());
    for (const record of body.data) expect(record).toEqual(await read(server, record.id, sender));
  });

  test.each<[Record<string, string>, string[]]>([
    [{ search: 'invoice' }, ['capital', 'plain']],
    [{ search: 'INVOICE 1' }, ['plain']],
    [{ search: 'nvoice' }, []],
    [{ search: '100%' }, ['percent']],
    [{ search: '%' }, []],
    [{ search: '_' }, []],
    [{ search: 'under_' }, ['percent']],
    [{ search: 'underXscore' }, []],
    [{ search: 'übersicht' }, ['umlaut']],
    [{ search: 'ANN@example' }, ['plain']],
    [{ search: 'zoe@example.com' }, ['capital']],
    [{ search: 'hidden@' }, ['umlaut']],
    [{ search: '+49' }, ['percent']],
    [{ search: 'example.com' }, []],
    [{ search: "'; drop table messages; --" }, []],
    [{ search: '\\' }, []],
    [{ status: 'failed' }, ['bounced']],
    [{ status: 'delivered' }, ['umlaut', 'capital', 'percent', 'plain']],
    [{ status: 'queued' }, []],
    [{ category: 'bills' }, ['capital', 'plain']],
    [{ category: 'Bills' }, ['umlaut']],
    [{ category: 'bill' }, []],
    [{ category: 'bills', search: 'invoice 2', status: 'delivered' }, ['capital']],
    [{ category: 'bills', status: 'failed' }, []],
  ])('with %j holds %j', async (query, expected) => {
    expect(await names(query)).toEqual(expected);
  });

  test.each<[Record<string, string>]>([[{}], [{ search: 'to@' }], [{ status: 'delivered' }]])(
    'with %j is read to its end and back, each email once',
    async (filter) => {
      const all = await idsOf(filter, sender);
      expect(all.length).toBeGreaterThan(2);
      const down: string[] = [];
      let page = (await list({ ...filter, limit: '2' }, sender)).body;
      down.push(...page.data.map(({ id }) => id));
      while (page.has_more) {
        page = (await list({ ...filter, limit: '2', after: down.at(-1)! }, sender)).body;
        down.push(...page.data.map(({ id }) => id));
      }
      expect(down).toEqual(all);

      const up = [all.at(-1)!];
      do {
        page = (await list({ ...filter, limit: '2', before: up[0]! }, sender)).body;
        up.unshift(...page.data.map(({ id }) => id));
      } while (page.has_more);
      expect(up).toEqual(all);
    },
  );

  test('says what lies beyond its ends, and only compares cursors', async () => {
    const all = Object.values(sent).reverse();
    const [newest, oldest] = [all[0]!, all.at(-1)!];
    expect((await list({ after: oldest }, sender)).body).toEqual({
      object: 'list',
      has_more: false,
      data: [],
    });
    expect((await list({ before: newest }, sender)).body).toEqual({
      object: 'list',
      has_more: false,
      data: [],
    });
    expect(await idsOf({ after: 'ffffffff-ffff-7fff-bfff-ffffffffffff' }, sender)).toEqual(all);
    expect(await idsOf({ before: '00000000-0000-7000-8000-000000000000' }, sender)).toEqual(all);
  });

  test('shows nothing of another organization', async () => {
    const other = await createSender(server.installation, 'strangers.example');
    for (const query of [
      {},
      { search: 'invoice' },
      { search: 'ann@' },
      { status: 'delivered' },
      { category: 'bills' },
    ]) {
      expect(await idsOf(query, other)).toEqual([]);
    }
  });

  test('holds 20 by default, and 100 at most', async () => {
    const busy = await createSender(server.installation, 'busy.example');
    for (let sending = 1; sending <= 21; sending += 1) await send(server, { from: 'a@busy.example' }, busy);
    const { body } = await list({}, busy);
    expect([body.data.length, body.has_more]).toEqual([20, true]);
    expect((await list({ limit: '21' }, busy)).body).toMatchObject({ has_more: false });
    expect((await list({ limit: '100' }, busy)).status).toBe(200);
  });

  test.each<[Record<string, string>, number, string]>([
    [{ limit: '0' }, 422, 'limit must be a number from 1 to 100'],
    [{ limit: '101' }, 422, 'limit must be a number from 1 to 100'],
    [{ limit: 'abc' }, 422, 'limit must be a number from 1 to 100'],
    [{ limit: '1.5' }, 422, 'limit must be a number from 1 to 100'],
    [{ limit: '' }, 422, 'limit must be a number from 1 to 100'],
    [{ after: 'x' }, 422, 'after must be a UUID'],
    [{ before: '1' }, 422, 'before must be a UUID'],
    [
      { status: 'bounced' },
      422,
      'status must be one of scheduled, queued, sent, partially_delivered, delivered, failed, cancelled',
    ],
    [{ search: 'x'.repeat(201) }, 422, 'search must be at most 200 characters'],
    [{ category: 'x'.repeat(101) }, 422, 'category must be at most 100 characters'],
    [{ page: '2' }, 422, 'page is not a known field'],
    [{ search: 'a\0' }, 422, 'search must not contain NUL or unpaired surrogates'],
    [
      { after: '01930000-0000-7000-8000-000000000000', before: '01930000-0000-7000-8000-000000000000' },
      400,
      'Give either after or before, not both.',
    ],
  ])('refuses %j with %i', async (query, status, message) => {
    const response = await server.request<ErrorBody>(
      'GET',
      `/v1/email?${new URLSearchParams(query).toString()}`,
    );
    const name = status === 422 ? 'validation_error' : 'bad_request';
    expect([response.status, response.body]).toEqual([status, { status_code: status, name, message }]);
  });

  test('refuses a parameter that is given twice', async () => {
    const response = await server.request<ErrorBody>('GET', '/v1/email?limit=1&limit=2');
    expect([response.status, response.body.message]).toEqual([422, 'limit must be given once']);
  });
});

describe('with many emails', () => {
  /** Half of them are more than a search takes for rare. */
  const emails = 20_100;
  let organizationId: string;

  beforeAll(async () => {
    ({ organizationId } = await createSender(server.installation, 'many.example'));
    // In all four partitions, since an empty table is read from one end to the other whatever its indexes. Half of
    // them are the organization's own; one in ten has a category, one in a hundred has failed.
    await rowsOf(
      server,
      `with seeded as (
         insert into messages
           (organization_id, id, channel, class, status, sender, subject, subject_key, category, details,
            recipient_count, created_at, updated_at)
         select case when n % 2 = 0 then $1::uuid else gen_random_uuid() end, gen_id, 'email', 'transactional',
           case when n % 100 = 0 then 'failed' else 'delivered' end, 'a@many.example', 'Subject ' || n,
           'subject ' || n, case when n % 10 = 0 then 'bills' end,
           '{"fromName":null,"replyTo":null,"attachments":[]}', 1, now(), now()
         from generate_series(1, $2) as n
         cross join lateral (
           select (left(lowest_id_at(date_trunc('month', now()) + n * interval '510 seconds')::text, 14)
             || '7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid as gen_id
         ) made
         returning organization_id, id, subject_key, category, status
       ), tagged as (
         insert into message_tags (organization_id, channel, tag, message_id)
         select organization_id, 'email', tag, id
         from seeded
         cross join lateral (
           values ('all'), (case when category is not null then 'bills' end), (case when status = 'failed' then 'few' end)
         ) as given (tag)
         where tag is not null
       )
       insert into recipients
         (organization_id, message_id, ordinal, field, address, address_key, status, status_at)
       select organization_id, id, 0, 'to', address, address, 'delivered', now()
       from seeded
       cross join lateral (select replace(subject_key, 'subject ', 'user') || '@example.com' as address) made`,
      [organizationId, emails],
    );
    await rowsOf(server, 'analyze messages, recipients, message_tags');
  });

  type Plan = { 'Node Type': string; 'Relation Name'?: string; 'Index Name'?: string; Plans?: Plan[] };

  /** Runs what the work runs, under row-level security, with `explain` before each statement. */
  async function explain(work: (connection: Connection) => Promise<unknown>): Promise<Plan[]> {
    const plans: Plan[] = [];
    await server.installation.database.asOrganizations([organizationId], async (transaction) => {
      const connection: Connection = {
        rows: async <Row>(statement: Statement<Row>, values: readonly unknown[] = []) => {
          const [row] = await transaction.rows(
            unpreparedStatement<{ 'QUERY PLAN': { Plan: Plan }[] }>(
              `explain (format json, costs off) ${statement.text}`,
            ),
            values,
          );
          plans.push(row!['QUERY PLAN'][0]!.Plan);
          return transaction.rows(statement, values);
        },
      };
      await work(connection);
    });
    return plans;
  }

  function nodesOf(plan: Plan): Plan[] {
    return [plan, ...(plan.Plans ?? []).flatMap(nodesOf)];
  }

  const middle = lowestIdAt(Date.now() + 45 * 86_400_000);
  const pages: Page[] = [
    { limit: 20, after: null, before: null },
    { limit: 100, after: middle, before: null },
    { limit: 100, after: null, before: middle },
  ];
  const searchFor = (text: string) => ({ text, address: text });
  const filters: MessageFilter[] = [
    {},
    { status: 'failed' },
    { status: 'delivered' },
    { status: 'queued' },
    { category: 'bills' },
    { category: 'none' },
    { search: searchFor('subject 1999') },
    { search: searchFor('user1999') },
    { search: searchFor('nothing') },
    { search: searchFor('subject'), status: 'failed', category: 'bills' },
    { tag: 'all' },
    { tag: 'few' },
    { tag: 'none' },
    { tag: 'few', status: 'failed', category: 'bills' },
    { search: searchFor('subject'), tag: 'bills' },
    { search: searchFor('user1999'), tag: 'all' },
  ];

  test.each(filters.flatMap((filter) => pages.map((page) => [filter, page] as const)))(
    'the page %j %j is read off indexes',
    async (filter, page) => {
      const plans = await explain(async (connection) => {
        const found = await listMessages(connection, {
          organizationId,
          channel: 'email',
          filter,
          page,
          horizon: noHorizon,
        });
        await listRecipients(
          connection,
          organizationId,
          found.map(({ id }) => id),
        );
      });
      const scans = plans.flatMap(nodesOf).filter((node) => node['Relation Name'] !== undefined);
      expect(scans.map((node) => node['Node Type'])).not.toHaveLength(0);
      const sequential = scans.filter((node) => node['Node Type'] === 'Seq Scan');
      expect(
        sequential.filter((node) => /^(messages|recipients|message_tags)/.test(node['Relation Name']!)),
      ).toEqual([]);
      // Of a tag that all have, no more than the page is read.
      const sorts = plans.flatMap(nodesOf).filter((node) => node['Node Type'] === 'Sort');
      if (filter.tag === 'all' && filter.search === undefined) expect(sorts).toEqual([]);
    },
  );

  test.each(filters)(
    'the pages of %j are the same, wherever they are looked for first, and end at the horizon',
    async (filter) => {
      const list = (page: Page, horizon: Horizon) =>
        server.installation.database.asOrganizations([organizationId], (connection) =>
          listMessages(connection, { organizationId, channel: 'email', filter, page, horizon }),
        );
      const idsOf = (rows: { id: string }[]) => rows.map(({ id }) => id);
      const dayMs = 86_400_000;
      for (const [days, id] of [
        [118, middle],
        [60, lowestIdAt(Date.now() + 20 * dayMs)],
        [30, 'ffffffff-ffff-7fff-bfff-ffffffffffff'],
      ] as const) {
        const horizon = { ...noHorizon, atMs: Date.now() + days * dayMs };
        const cut = { ...horizon, days: 40, messagesFrom: lowestIdAt(horizon.atMs - 40 * dayMs) };
        for (const cursors of [
          { after: null, before: null },
          { after: id, before: null },
          { after: null, before: id },
        ]) {
          const page = { limit: 100, ...cursors };
          const all = idsOf(await list(page, noHorizon));
          expect(idsOf(await list(page, horizon))).toEqual(all);
          const kept = idsOf(await list(page, cut));
          if (page.before === null) expect(kept).toEqual(all.filter((found) => found >= cut.messagesFrom));
          else {
            const from = page.before < cut.messagesFrom ? cut.messagesFrom : page.before;
            expect(kept).toEqual(idsOf(await list({ ...page, before: from }, noHorizon)));
          }
        }
      }
    },
  );

  test('where all messages of a channel were looked through, none is looked up by addresses of others', async () => {
    const ask = async (channel: SendingChannel, text: string) => {
      const asked: string[] = [];
      await server.installation.database.asOrganizations([organizationId], (transaction) => {
        const connection: Connection = {
          rows: (statement, values) => {
            asked.push(statement.text);
            return transaction.rows(statement, values);
          },
        };
        const page = { limit: 20, after: null, before: null };
        const filter = { search: searchFor(text), status: 'failed', category: 'none' };
        return listMessages(connection, { organizationId, channel, filter, page, horizon: noHorizon });
      });
      return asked;
    };
    const byIndex = expect.stringContaining('union') as string;
    // What more than 10,000 have, and what few have.
    expect(await ask('chatapp', 'user')).not.toContainEqual(byIndex);
    expect(await ask('email', 'user1999')).toContainEqual(byIndex);
  });

  test.each<[MessageFilter, RegExp[]]>([
    [{ status: 'failed' }, [/^messages_.*_status_/]],
    [{ status: 'queued' }, [/^messages_.*_status_/]],
    [{ category: 'none' }, [/^messages_.*_category_/]],
    [{ search: searchFor('subject 1999') }, [/^messages_.*_subject_key_/, /^recipients_.*_address_key_/]],
    [{ search: searchFor('user1999') }, [/^messages_.*_subject_key_/, /^recipients_.*_address_key_/]],
    [{ search: searchFor('nothing') }, [/^messages_.*_subject_key_/, /^recipients_.*_address_key_/]],
  ])('%j is found by the indexes that were made for it: %j', async (filter, indexes) => {
    const plans = await explain((connection) =>
      listMessages(connection, {
        organizationId,
        channel: 'email',
        filter,
        page: pages[0]!,
        horizon: noHorizon,
      }),
    );
    const used = plans.flatMap(nodesOf).flatMap((node) => node['Index Name'] ?? []);
    for (const index of indexes) expect(used).toContainEqual(expect.stringMatching(index));
  });

  test.each<MessageFilter>([
    { search: searchFor('subject'), status: 'failed' },
    { search: searchFor('subject 1'), category: 'bills' },
    { search: searchFor('user19'), status: 'failed', category: 'bills' },
    { search: searchFor('subject 1998'), status: 'delivered' },
    { search: { text: 'subject 4', address: null }, status: 'failed' },
    { search: { text: 'subject', address: 'user' } },
  ])('what %j finds is all that has it, and nothing else', async (filter) => {
    const prefixes = [filter.search?.text, filter.search?.address].filter(
      (prefix) => typeof prefix === 'string',
    );
    // Another way to the same rows: the whole list, looked through for the words as they stand.
    const all = await rowsOf<{ id: string; words: string[]; status: string; category: string | null }>(
      server,
      `select m.id, array[m.subject_key, r.address_key] as words, m.status, m.category
       from messages m
       join recipients r on r.organization_id = m.organization_id and r.message_id = m.id
       where m.organization_id = $1
       order by m.id desc`,
      [organizationId],
    );
    const wanted = all.filter(
      ({ words, status, category }) =>
        prefixes.some((prefix) => words.some((word) => word.startsWith(prefix))) &&
        (filter.status === undefined || status === filter.status) &&
        (filter.category === undefined || category === filter.category),
    );
    const found: string[] = [];
    for (let after: string | null = null; ; after = found.at(-1) ?? null) {
      const page = { limit: 100, after, before: null };
      const rows = await server.installation.database.asOrganizations([organizationId], (connection) =>
        listMessages(connection, { organizationId, channel: 'email', filter, page, horizon: noHorizon }),
      );
      found.push(...rows.slice(0, 100).map(({ id }) => id));
      if (rows.length <= 100 || found.length >= 1_000) break;
    }
    expect(found.length).toBeGreaterThan(0);
    expect(found).toEqual(wanted.slice(0, found.length).map(({ id }) => id));
    if (found.length < 1_000) expect(found).toHaveLength(wanted.length);
  });

  test('the pages are under row-level security', async () => {
    const rows = await server.installation.database.asOrganizations([organizationId], (transaction) =>
      transaction.rows(unpreparedStatement<{ count: number }>('select count(*) from messages')),
    );
    expect(rows).toEqual([{ count: emails / 2 }]);
  });
});

test('an email is read in the status that it has at that moment', async () => {
  const id = await send(server, { to: ['deferred@simulator.postillion.test'] });
  const record = await eventually(
    () => read(server, id),
    ({ to }) => to[0]!.status === 'delayed',
  );
  expect(record.status).toBe('queued');
});
