import { describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../../test/support/test-database.ts';
import { createOrganization } from '../../accounts/accounts.ts';
import { systemClock } from '../../platform/clock.ts';
import { createIds } from '../../platform/ids.ts';
import { type Database, unpreparedStatement } from '../../platform/postgres/database.ts';
import { createSecrets } from '../../platform/secrets.ts';
import { optIn } from '../consents.ts';
import { createContact } from '../contacts.ts';
import { addSuppressions, listSuppressions } from '../suppressions.ts';
import type { RowIssue } from './import-row.ts';
import { readJsonItems } from './json-items.ts';
import type { SuppressionFormat, SuppressionList } from './suppression-formats.ts';
import { importSuppressions, type SuppressionImportOptions } from './suppression-import.ts';

let database: Database;
const newId = createIds(systemClock);
const atMs = Date.parse('2026-11-21T12:00:00.000Z');
const clock = { ...systemClock, nowMs: () => atMs };
const secrets = createSecrets('a secret of the tests, and of nothing else');
const tools = () => ({ database, clock, newId, secrets });

useTestDatabase({ connectionsMax: 4 }, (opened) => {
  database = opened.database;
});

const anOrganization = async () => (await createOrganization(tools(), 'Importer')).id;

async function* inParts(text: string, partBytes: number) {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += partBytes)
    yield await Promise.resolve(bytes.subarray(at, at + partBytes));
}

type Run = Partial<Omit<SuppressionImportOptions, 'source' | 'organizationId'>> & { partBytes?: number };

async function run(
  organizationId: string,
  format: SuppressionFormat,
  text: string,
  { partBytes = 65_536, ...more }: Run = {},
) {
  const issues: RowIssue[] = [];
  const outcome = await importSuppressions(tools(), {
    organizationId,
    format,
    list: null,
    channel: 'email',
    mapped: [],
    ignored: [],
    isDryRun: false,
    onIssues: (news) => {
      issues.push(...news);
      return Promise.resolve();
    },
    ...more,
    source: inParts(text, partBytes),
  });
  return { outcome, issues };
}

/** Oldest first, as the file has them. */
async function stored(organizationId: string) {
  const rows = await listSuppressions(
    database,
    { clock, secrets },
    {
      organizationId,
      filter: {},
      page: { limit: 100, after: null, before: null },
    },
  );
  return rows
    .toReversed()
    .map(({ channel, address, reason, scope, note, source, optedOutAt, expiresAt }) => {
      expect([source, expiresAt]).toEqual([{ type: 'import', id: null }, null]);
      return [channel, address, reason, scope, note, optedOutAt?.toISOString() ?? null].join(' | ');
    })
    .sort();
}

const bounced = (address: string, note = '') => `email | ${address} | hard_bounce | all | ${note} | `;
const complained = (address: string) => `email | ${address} | complaint | all |  | `;
const unsubscribed = (address: string, at: string) =>
  `email | ${address} | unsubscribe | marketing |  | ${at}`;
const manual = (address: string) => `email | ${address} | manual | all |  | `;

describe('a file of', () => {
  test.each<[string, SuppressionFormat, SuppressionList | null, string, string[]]>([
    [
      'SendGrid, bounces as CSV',
      'sendgrid',
      'bounces',
      'status,reason,email,created\r\n5.1.1,"550 5.1.1 No ""such"" user,\r\nsorry",Ann@Example.com,1443651125\r\n4.0.0,timeout,bob@example.com,1443651125\r\n',
      [
        bounced('ann@example.com', '550 5.1.1 No "such" user, sorry'),
        'email | bob@example.com | soft_bounces | all | timeout | ',
      ],
    ],
    [
      'SendGrid, invalid addresses as JSON',
      'sendgrid',
      'invalid',
      '[{"created":1449953655,"email":"ann@example.com","reason":"Mail domain mentioned in email address is unknown"}]',
      [bounced('ann@example.com', 'Mail domain mentioned in email address is unknown')],
    ],
    [
      'SendGrid, spam reports as JSON',
      'sendgrid',
      'complaints',
      '[\n {"created": 1443651141, "email": "ann@example.com", "ip": "10.63.202.100"}\n]',
      [complained('ann@example.com')],
    ],
    [
      'SendGrid, unsubscribes as CSV',
      'sendgrid',
      'unsubscribes',
      'email,created\nann@example.com,1443651125\nbob@example.com,\n',
      [
        unsubscribed('ann@example.com', '2015-09-30T22:12:05.000Z'),
        unsubscribed('bob@example.com', '2026-11-21T12:00:00.000Z'),
      ],
    ],
    [
      'Postmark',
      'postmark',
      null,
      JSON.stringify({
        Suppressions: [
          ['ann', 'HardBounce', 'Recipient'],
          ['bob', 'SpamComplaint', 'Recipient'],
          ['cay', 'ManualSuppression', 'Recipient'],
          ['dee', 'ManualSuppression', 'Customer'],
        ].map(([name, reason, origin]) => ({
          EmailAddress: `${name}@example.com`,
          SuppressionReason: reason,
          Origin: origin,
          CreatedAt: '2019-12-10T08:58:33-05:00',
        })),
      }),
      [
        bounced('ann@example.com'),
        complained('bob@example.com'),
        unsubscribed('cay@example.com', '2019-12-10T13:58:33.000Z'),
        manual('dee@example.com'),
      ],
    ],
    [
      'Mailgun, pages of bounces after each other, the last without any',
      'mailgun',
      'bounces',
      '{"items":[{"address":"ann@example.com","code":"550","error":"No such mailbox","created_at":"Fri, 21 Oct 2011 11:02:55 UTC"}],"paging":{"next":"https://api.mailgun.net/?page=next"}}\n{"items":[],"paging":{"first":"https://api.mailgun.net/"}}\n',
      [bounced('ann@example.com', 'No such mailbox')],
    ],
    [
      'Mailgun, unsubscribes of one tag and of all',
      'mailgun',
      'unsubscribes',
      '{"items":[{"address":"ann@example.com","tags":["*"],"created_at":"Fri, 21 Oct 2011 11:02:55 UTC"},{"address":"bob@example.com","tags":["news"],"created_at":"Fri, 21 Oct 2011 13:02:55 +0200"}]}',
      [
        unsubscribed('ann@example.com', '2011-10-21T11:02:55.000Z'),
        unsubscribed('bob@example.com', '2011-10-21T11:02:55.000Z'),
      ],
    ],
    [
      'Mailgun, complaints as CSV',
      'mailgun',
      'complaints',
      'address,created_at\nann@example.com,"Fri, 21 Oct 2011 11:02:55 UTC"\n',
      [complained('ann@example.com')],
    ],
    [
      'Resend',
      'resend',
      null,
      '{"object":"list","has_more":false,"data":[{"object":"suppression","id":"e169aa45","email":"ann@example.com","origin":"manual","source_id":null,"created_at":"2026-10-06T23:47:56.678Z"},{"email":"bob@example.com","origin":"bounce"},{"email":"cay@example.com","origin":"complaint"}]}',
      [manual('ann@example.com'), bounced('bob@example.com'), complained('cay@example.com')],
    ],
    [
      'SES, of the API and of its command',
      'ses',
      null,
      '{"SuppressedDestinationSummaries":[{"EmailAddress":"ann@example.com","Reason":"BOUNCE","LastUpdateTime":1586548985.481}],"NextToken":"x"}{"SuppressedDestinationSummaries":[{"EmailAddress":"bob@example.com","Reason":"COMPLAINT","LastUpdateTime":"2020-04-10T21:03:05-07:00"}]}',
      [bounced('ann@example.com'), complained('bob@example.com')],
    ],
    [
      'one’s own',
      'csv',
      null,
      'channel;address;reason;scope;note\nsms;+4915112345678;unsubscribe;all;STOP\n;ann@example.com;;;\nemail;bob@example.com;manual;marketing;=1\nchatapp;+4915112345678;complaint;;\n',
      [
        'sms | +4915112345678 | unsubscribe | all | STOP | 2026-11-21T12:00:00.000Z',
        manual('ann@example.com'),
        'email | bob@example.com | manual | marketing | =1 | ',
        'chatapp | +4915112345678 | complaint | all |  | ',
      ],
    ],
  ])('%s is read as it means it, in one part and in many', async (_name, format, list, text, wanted) => {
    for (const partBytes of [65_536, 1]) {
      const [own, other] = [await anOrganization(), await anOrganization()];
      const { outcome, issues } = await run(own, format, text, { list, partBytes });
      expect(issues).toEqual([]);
      expect(outcome).toMatchObject({
        kind: 'ended',
        stop: null,
        counts: { rows: wanted.length, created: wanted.length, unchanged: 0, bad: 0 },
      });
      expect(await stored(own)).toEqual(wanted.toSorted());
      expect(await stored(other)).toEqual([]);
      const again = await run(own, format, text, { list });
      expect(again.outcome).toMatchObject({ counts: { created: 0, unchanged: wanted.length } });
      expect(await stored(own)).toEqual(wanted.toSorted());
    }
  });

  test.each<[SuppressionFormat, SuppressionList | null, string, string]>([
    ['sendgrid', null, 'email\n', 'Say with --list which list'],
    ['sendgrid', 'blocks', 'email\n', 'there is nothing to import'],
    ['mailgun', 'invalid', 'address\n', 'has no such list'],
    ['postmark', 'bounces', '{}', 'leave --list out'],
    ['csv', null, 'mail,why\nann@example.com,no\n', 'No column has the addresses'],
    ['csv', null, '', 'The file is empty.'],
  ])('%s with the list %s is refused where it would be guessed at', async (format, list, text, problem) => {
    const own = await anOrganization();
    expect((await run(own, format, text, { list })).outcome).toMatchObject({
      kind: 'refused',
      problem: expect.stringContaining(problem) as string,
    });
    expect(await stored(own)).toEqual([]);
  });
});

test('bad rows are named, and keep no other out', async () => {
  const own = await anOrganization();
  const lines = [
    '{"email":"ann@example.com","origin":"bounce"}',
    '{"email":"nobody","origin":"bounce"}',
    '{"email":"bob@example.com","origin":"mood"}',
    '{"email":"cay@example.com" "origin":"bounce"}',
    '{"origin":"bounce"}',
    '{"email":"d\\u0000ee@example.com","origin":"bounce"}',
    '{"email":"eve@example.com","origin":"bounce","constructor":1}',
  ];
  const { outcome, issues } = await run(own, 'resend', lines.join('\n'));
  expect(outcome).toMatchObject({ kind: 'ended', counts: { rows: 7, created: 2, bad: 5 }, stop: null });
  expect(issues).toEqual([
    { line: 2, column: 'email', reason: 'email must be an email address' },
    { line: 3, column: 'origin', reason: 'origin must be one of bounce, complaint, manual' },
    { line: 4, column: null, reason: 'the object is not JSON' },
    { line: 5, column: null, reason: 'address must be an email address' },
    { line: 6, column: 'email', reason: 'email must be an email address' },
  ]);
  expect(await stored(own)).toEqual([bounced('ann@example.com'), bounced('eve@example.com')]);
});

test('notes of any length and kind are kept as far as they can be', async () => {
  const own = await anOrganization();
  const note = `${'😀'.repeat(300)}`;
  const items = [
    { email: 'ann@example.com', reason: note },
    { email: 'bob@example.com', reason: 'a\0b\ud800c\r\nd' },
  ];
  const { outcome } = await run(own, 'sendgrid', JSON.stringify(items), { list: 'bounces' });
  expect(outcome).toMatchObject({ counts: { created: 2, bad: 0 } });
  expect(await stored(own)).toEqual([
    bounced('ann@example.com', '😀'.repeat(255)),
    bounced('bob@example.com', 'a b\ufffdc d'),
  ]);
});

test('what cannot be read any further ends it, and what was read until then is kept', async () => {
  for (const [text, problem] of [
    ['[{"email":"ann@example.com","origin":"bounce"},{"email":', 'ends before its last bracket'],
    ['[{"email":"ann@example.com","origin":"bounce"}}', 'closes none'],
    [`[{"email":"ann@example.com","origin":"bounce"},{"a":"${'x'.repeat(70_000)}`, 'longer than'],
    [`[{"email":"ann@example.com","origin":"bounce"},${'['.repeat(40)}`, 'nested too deeply'],
  ] as const) {
    const own = await anOrganization();
    const { outcome } = await run(own, 'resend', text, { partBytes: 48 });
    expect(outcome).toMatchObject({
      kind: 'ended',
      counts: { created: 1 },
      stop: { kind: 'unreadable', problem: expect.stringContaining(problem) as string },
    });
    expect(await stored(own)).toEqual([bounced('ann@example.com')]);
  }
});

test('more than one batch is written, of which contacts that are there are unsubscribed, and no others', async () => {
  const [own, other] = [await anOrganization(), await anOrganization()];
  const addresses = Array.from({ length: 1_203 }, (_none, index) => `person-${index}@example.com`);
  const held = [0, 499, 500, 1_202].map((index) => addresses[index]!);
  const contacts = { database, clock, newId, secrets };
  for (const organizationId of [own, other])
    for (const email of [...held, 'stranger@example.com'])
      await createContact(contacts, organizationId, { email });
  let changes = 0;
  const text = ['email,created', ...addresses.map((address) => `${address},1443651125`)].join('\n');
  const { outcome } = await run(own, 'sendgrid', text, {
    list: 'unsubscribes',
    onChanged: () => {
      changes += 1;
    },
  });
  expect(outcome).toMatchObject({ counts: { rows: 1_203, created: 1_203 }, lastLine: 1_204 });
  expect(changes).toBe(3);
  const rows = await database.rows(
    unpreparedStatement<{ organization_id: string; email: string }>(
      `select organization_id, email from contacts where 'email' = any (unsubscribed_channels) order by id`,
    ),
  );
  expect(rows).toEqual(held.map((email) => ({ organization_id: own, email })));
});

test('whoever has subscribed here since they unsubscribed there stays subscribed, and nobody else', async () => {
  const own = await anOrganization();
  const grantAt = new Date('2020-01-01T00:00:00Z');
  await database.asOrganizations([own], async (transaction) => {
    for (const name of ['before', 'after', 'unknown'])
      await optIn(
        transaction,
        tools(),
        'email',
        { organizationId: own, address: `${name}@example.com` },
        { saidUntil: grantAt },
      );
  });
  const text =
    'email,created\nbefore@example.com,2019-12-31T00:00:00Z\nafter@example.com,2020-01-02T00:00:00Z\nunknown@example.com,yesterday\nahead@example.com,2999-01-01T00:00:00Z\n';
  const { outcome } = await run(own, 'sendgrid', text, { list: 'unsubscribes' });
  expect(outcome).toMatchObject({ counts: { rows: 4, created: 3, subscribedSince: 1 } });
  expect(await stored(own)).toEqual([
    unsubscribed('after@example.com', '2020-01-02T00:00:00.000Z'),
    unsubscribed('ahead@example.com', '2026-11-21T12:00:00.000Z'),
    unsubscribed('unknown@example.com', '2026-11-21T12:00:00.000Z'),
  ]);
});

test('a dry run writes nothing, and an interrupted one ends after a batch', async () => {
  const own = await anOrganization();
  const text = ['address', ...Array.from({ length: 1_200 }, (_none, at) => `p${at}@example.com`)].join('\n');
  expect((await run(own, 'csv', text, { isDryRun: true })).outcome).toMatchObject({
    counts: { rows: 1_200, created: 0, unchanged: 0, bad: 0 },
  });
  expect(await stored(own)).toEqual([]);
  const stopping = new AbortController();
  const { outcome } = await run(own, 'csv', text, {
    signal: stopping.signal,
    onProgress: () => {
      stopping.abort();
    },
  });
  expect(outcome).toMatchObject({ counts: { created: 500 }, stop: { kind: 'interrupted' } });
  expect((await run(own, 'csv', text)).outcome).toMatchObject({ counts: { created: 700, unchanged: 500 } });
});

test('two of the same file at once, in opposite orders, suppress everybody once', async () => {
  const own = await anOrganization();
  const addresses = Array.from({ length: 900 }, (_none, at) => `twice-${at}@example.com`);
  for (const email of addresses.slice(0, 50)) await createContact(tools(), own, { email });
  const fileOf = (of: readonly string[]) => ['email', ...of].join('\n');
  const outcomes = await Promise.all([
    run(own, 'sendgrid', fileOf(addresses), { list: 'unsubscribes' }),
    run(own, 'sendgrid', fileOf(addresses.toReversed()), { list: 'unsubscribes' }),
  ]);
  const created = outcomes.map(({ outcome }) => (outcome.kind === 'ended' ? outcome.counts.created : 0));
  expect(created[0]! + created[1]!).toBe(900);
});

test('what is suppressed here for another reason is so for both', async () => {
  const own = await anOrganization();
  await addSuppressions(database, tools(), 'email', [
    { organizationId: own, address: 'ann@example.com', reason: 'operator' },
  ]);
  await run(own, 'csv', 'address,reason\nann@example.com,complaint\n');
  const [count] = await database.rows(
    unpreparedStatement<{ reasons: string[] }>(
      'select array_agg(reason order by reason) as reasons from suppressions where organization_id = $1',
    ),
    [own],
  );
  expect(count!.reasons).toEqual(['complaint', 'operator']);
});

test('objects of JSON are found whatever their texts have', async () => {
  const items = [{ a: '}{][",\\' }, { b: { c: [{ d: 1 }] } }, { e: 'ü€😀\u2028' }];
  const read = async (text: string, partBytes: number) => {
    const found = [];
    for await (const some of readJsonItems(inParts(text, partBytes))) found.push(...some);
    return found.map(({ value }) => value);
  };
  for (const partBytes of [1, 2, 3, 7, 1_000]) {
    expect(await read(JSON.stringify(items), partBytes)).toEqual(items);
    expect(await read(JSON.stringify({ first: 1, data: items, last: {} }, null, 2), partBytes)).toEqual(
      items,
    );
    expect(
      await read(
        items
          .slice(0, 1)
          .concat(items.slice(2))
          .map((item) => JSON.stringify(item))
          .join('\n'),
        partBytes,
      ),
    ).toEqual([items[0], items[2]]);
  }
});
