/**
 * What acceptance answers and stores, against a model that takes one request after the other; and with the connection
 * broken, or another node in between, at each statement of a transaction in turn.
 */
import { createHash } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { addApprovedSender } from '../../test/support/sms-journey.ts';
import {
  type StatementProxy,
  startStatementProxy,
  type StopKind,
} from '../../test/support/statement-proxy.ts';
import { createSender, startTestServer, type TestServer } from '../../test/support/server.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { messageChannels } from '../../test/support/channels.ts';
import { updateOrganization } from '../accounts/accounts.ts';
import type { MessageChannels } from './channel.ts';
import { PublicError, validationError } from '../platform/http/errors.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import {
  type Database,
  type DatabaseAddress,
  DatabaseUnavailableError,
  openDatabase,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { attachmentContext, type Acceptor, type Batch, createAcceptor } from './accept.ts';
import { prepareEmail } from '../email/send.ts';
import { prepareSms, type SmsRequest } from '../sms/send.ts';
import type { Submission } from './submission.ts';

let address: DatabaseAddress;
let server: TestServer;
let organizations: readonly [Organization, Organization];
let queued = 0;

type Organization = { id: string; domain: string; sender: string };

useTestDatabase({ hasNeighbour: true }, (opened) => {
  address = opened.address;
});
beforeAll(async () => {
  server = await startTestServer({ database: address });
  const [one, other] = [
    await createSender(server.installation, 'one.example'),
    await createSender(server.installation, 'other.example'),
  ];
  await addApprovedSender(server, 'One', one.organizationId);
  await addApprovedSender(server, 'Other', other.organizationId);
  organizations = [
    { id: one.organizationId, domain: 'one.example', sender: 'One' },
    { id: other.organizationId, domain: 'other.example', sender: 'Other' },
  ];
});
afterAll(() => server.stop());

const tools = () => ({ ...server.installation, channels: messageChannels, onQueued: () => (queued += 1) });

function rowsOf<Row>(text: string, values: readonly unknown[]): Promise<Row[]> {
  return server.installation.database.rows(unpreparedStatement<Row>(text), values);
}

const channels = ['email', 'sms'] as const;
type Channel = (typeof channels)[number];

/**
 * What requests ask for. `own` takes `units` of the quota and leaves `missing` unfilled; `foreign` sends in the name of
 * the other organization; `refused` breaks a rule before the account is looked at; `broken` is what PostgreSQL refuses,
 * and with it whatever shares its transaction.
 */
const bodies = ['short', 'long', 'attached', 'foreign', 'refused', 'broken'] as const;
type Body = (typeof bodies)[number];

type Request = { organization: 0 | 1; channel: Channel; body: Body; key: string | null };

const units: Readonly<Record<Channel, Readonly<Partial<Record<Body, number>>>>> = {
  email: { short: 1, long: 3, attached: 2 },
  // 153 characters a part of what does not fit into one message (3GPP TS 23.040, 9.2.3.24.1).
  sms: { short: 1, long: 3, attached: 2 },
};

const emailBase = { from_name: 'Sender', subject: 'Subject' };

function prepare(request: Request): Submission | PublicError {
  const { organization, channel, body } = request;
  const { id: organizationId } = organizations[organization];
  const from = organizations[body === 'foreign' ? ((1 - organization) as 0 | 1) : organization];
  const common = { organizationId, idempotencyKey: keyOf(request) };
  const prepared =
    channel === 'email'
      ? prepareEmail({ ...common, template: null, body: emailBodyOf(body, `hello@${from.domain}`) })
      : prepareSmsOrRefuse(body, { ...common, body: smsBodyOf(body, from.sender) });
  if (body === 'refused') {
    expect(prepared).toBeInstanceOf(PublicError);
    return prepared;
  }
  if (prepared instanceof PublicError) throw prepared;
  return body === 'broken' ? { ...prepared, content: '{' } : prepared;
}

/**
 * The rules of an SMS are those of its schema, and refuse it before there is a submission. Acceptance may be handed an
 * error of any channel.
 */
function prepareSmsOrRefuse(body: Body, request: SmsRequest): Submission | PublicError {
  return body === 'refused' ? new PublicError(validationError, 'A rule is broken.') : prepareSms(request);
}

function emailBodyOf(body: Body, from: string) {
  const base = { ...emailBase, from, text: `This is ${body}.` };
  switch (body) {
    case 'refused':
      return { ...base, to: [] };
    case 'long':
      return {
        ...base,
        text: '{{first}} and {{second}}',
        to: ['ann@example.com', 'bob@example.com'],
        bcc: ['Ann@Example.com'],
      };
    case 'attached':
      return {
        ...base,
        to: ['ann@example.com', 'bob@example.com'],
        text: 'x'.repeat(70_000),
        attachments: [{ filename: 'a.txt', content: new TextEncoder().encode(`Attached for ${from}`) }],
      };
    case 'short':
    case 'foreign':
    case 'broken':
      return { ...base, to: ['ann@example.com'] };
  }
}

function smsBodyOf(body: Body, from: string) {
  const base = { from, to: '+4915112345678' };
  if (body === 'long') return { ...base, body: `${'x'.repeat(2 * 153)}{{first}} and {{second}}` };
  return { ...base, body: body === 'attached' ? 'x'.repeat(161) : `This is ${body}.` };
}

function keyOf({ organization, channel, body, key }: Request): ScopedKey | null {
  if (key === null) return null;
  return {
    organizationId: organizations[organization].id,
    endpoint: `POST /${channel}/send`,
    key,
    fingerprint: createHash('sha256').update(body).digest(),
  };
}

/** What a request is answered, in words that model and acceptor have in common; ids are told apart by the caller. */
type Answer =
  | { kind: 'accepted'; headers: Record<string, string> }
  | { kind: 'replay'; of: number }
  | { kind: 'error'; status: number; name: string }
  | { kind: 'failed' };

/** One after the other: what a client that is alone would see. `at` numbers the requests. */
type Model = {
  quotas: Record<Channel, number | null>[];
  suspended: Set<Channel>[];
  used: Record<Channel, number>[];
  kept: Map<string, { body: Body; at: number }>;
  stored: Map<number, Request>;
};

function answerByModel(model: Model, request: Request, at: number, underWay: Set<string>): Answer {
  const { organization, channel, body, key } = request;
  const error = (status: number, name: string): Answer => ({ kind: 'error', status, name });
  const refused = channel === 'email' ? error(400, 'bad_request') : error(422, 'validation_error');
  const scope = `${organization} ${channel} ${key}`;
  if (key !== null) {
    if (underWay.has(scope)) return error(503, 'concurrent_idempotent_requests');
    underWay.add(scope);
    const kept = model.kept.get(scope);
    if (kept !== undefined) {
      return kept.body === body ? { kind: 'replay', of: kept.at } : error(409, 'invalid_idempotent_request');
    }
  }
  if (body === 'refused') return refused;
  if (body === 'foreign') return error(400, 'bad_request');
  if (model.suspended[organization]!.has(channel)) return error(403, 'sending_suspended');
  const quota = model.quotas[organization]![channel];
  const needed = units[channel][body] ?? 1;
  const used = model.used[organization]!;
  if (quota !== null && used[channel] + needed > quota) return error(429, 'monthly_quota_exceeded');
  if (body === 'broken') return { kind: 'failed' };
  used[channel] += needed;
  if (key !== null) model.kept.set(scope, { body, at });
  model.stored.set(at, request);
  return { kind: 'accepted', headers: headersOf(body) };
}

function headersOf(body: Body): Record<string, string> {
  return body === 'long' ? { 'postillion-missing-variables': 'first, second' } : {};
}

type Told = { answer: Answer; text: string | null };

async function answerOf(
  acceptor: Acceptor,
  request: Request,
  texts: ReadonlyMap<string, number>,
): Promise<Told> {
  let outcome;
  try {
    outcome = await acceptor.accept(prepare(request), keyOf(request));
  } catch {
    return { answer: { kind: 'failed' }, text: null };
  }
  if (outcome.kind === 'refused') {
    const { definition } = outcome.error;
    return { answer: { kind: 'error', status: definition.statusCode, name: definition.name }, text: null };
  }
  const { text, headers, statusCode } = outcome.response;
  expect(statusCode).toBe(202);
  if (!outcome.isReplay) return { answer: { kind: 'accepted', headers: { ...headers } }, text };
  expect(headers).toEqual(headersOf(request.body));
  return { answer: { kind: 'replay', of: texts.get(text) ?? -1 }, text };
}

describe('many at once', () => {
  const request = fc.record({
    organization: fc.constantFrom(0 as const, 1 as const),
    channel: fc.constantFrom(...channels),
    body: fc.constantFrom(...bodies),
    key: fc.option(fc.constantFrom('a', 'b', 'c'), { freq: 3 }),
  });
  const wave = fc.array(request, { minLength: 1, maxLength: 14 }).map((requests) =>
    // What takes longer to prepare comes last: so all are added in the order in which the model takes them.
    requests.toSorted((first, second) => weightOf(first) - weightOf(second)),
  );
  const weightOf = ({ channel, body }: Request) => (channel === 'email' && body === 'attached' ? 1 : 0);
  const account = fc.record({
    email: fc.option(fc.nat(8), { freq: 2 }),
    sms: fc.option(fc.nat(8), { freq: 2 }),
  });
  const suspensions = fc.tuple(fc.subarray([...channels]), fc.subarray([...channels]));

  const free = { email: null, sms: null };
  const everybody: [Channel[], Channel[]] = [[], []];
  const keys = (...given: ('a' | 'b' | null)[]) =>
    given.map((key) => ({ organization: 0, channel: 'email', body: 'short', key }) as const);

  test('each gets the answer, and leaves the rows, that it would alone and in its turn', async () => {
    // The organizations stay the same: what a run stored must not disturb the next.
    const model: Model = {
      quotas: [],
      suspended: [],
      used: organizations.map(() => ({ email: 0, sms: 0 })),
      kept: new Map(),
      stored: new Map(),
    };
    let requests = 0;
    let runs = 0;
    /** By the number of the request that was accepted. */
    const ids = new Map<number, string>();
    await fc.assert(
      fc.asyncProperty(
        fc.tuple(account, account),
        fc.array(fc.tuple(suspensions, wave), { minLength: 1, maxLength: 3 }),
        fc.constantFrom(3, 5, 20),
        async (rests, waves, batchItemsMax) => {
          runs += 1;
          const acceptor = createAcceptor(tools(), { batchItemsMax, flushersMax: 1 });
          model.quotas = rests.map((rest, index) => {
            const { email, sms } = model.used[index]!;
            return { email: rest.email && rest.email + email, sms: rest.sms && rest.sms + sms };
          });
          const texts = new Map<string, number>();
          for (const [suspended, ofWave] of waves) {
            model.suspended = suspended.map((given) => new Set(given));
            for (const [index, { id }] of organizations.entries()) {
              await updateOrganization(server.installation, id, {
                quotas: model.quotas[index]!,
                suspend: [...model.suspended[index]!],
                resume: channels.filter((channel) => !model.suspended[index]!.has(channel)),
              });
            }
            // Under the same keys in both organizations, and in no other run.
            const keyed = ofWave.map((given) => ({ ...given, key: given.key && `${given.key} ${runs}` }));
            const underWay = new Set<string>();
            const expected = keyed.map((given, index) =>
              answerByModel(model, given, requests + index, underWay),
            );
            const queuedBefore = queued;
            const told = await Promise.all(keyed.map((given) => answerOf(acceptor, given, texts)));
            expect(told.map(({ answer }) => answer)).toEqual(expected);
            for (const [index, { answer, text }] of told.entries()) {
              if (answer.kind !== 'accepted' || text === null) continue;
              const { id } = JSON.parse(text) as { id: string };
              expect([...ids.values()]).not.toContain(id);
              ids.set(requests + index, id);
              texts.set(text, requests + index);
            }
            expect(queued > queuedBefore).toBe(expected.some(({ kind }) => kind === 'accepted'));
            requests += keyed.length;
          }
          await compareRows(model, ids, requests);
        },
      ),
      {
        numRuns: 30,
        // Requests with keys and without, of which the last one is a repetition.
        examples: [
          [
            [free, free],
            [
              [everybody, keys('a')],
              [everybody, keys(null, null, 'b', null, 'a')],
            ],
            20,
          ],
        ],
      },
    );
    expect(model.stored.size).toBeGreaterThan(10);
  });

  let comparedFrom = 0;

  /** Of the requests since the last comparison what they left, and of all of them how much. */
  async function compareRows(model: Model, ids: ReadonlyMap<number, string>, requests: number) {
    const fresh = [...ids].filter(([at]) => at >= comparedFrom);
    comparedFrom = requests;
    const rows = await rowsOf<{ id: string }>(
      `select m.id, m.organization_id, m.channel, m.class, m.sender, m.subject, m.recipient_count,
         (select content from message_contents c where (c.organization_id, c.message_id) = (m.organization_id, m.id)) as content,
         (select json_agg(sealed order by ordinal) from attachment_contents a
          where (a.organization_id, a.message_id) = (m.organization_id, m.id)) as attachments,
         (select json_agg(json_build_array(r.field, r.address, r.drop_reason,
            (select q.channel from delivery_queue q
             where (q.organization_id, q.message_id, q.ordinal) = (r.organization_id, r.message_id, r.ordinal)))
            order by r.ordinal)
          from recipients r where (r.organization_id, r.message_id) = (m.organization_id, m.id)) as recipients
       from messages m
       where m.id = any ($1::uuid[]) and m.organization_id = any ($2::uuid[])`,
      [fresh.map(([, id]) => id), organizations.map(({ id }) => id)],
    );
    const found = new Map(rows.map((row) => [row.id, row]));
    for (const [at, id] of fresh) {
      const row = { attachments: null, ...found.get(id) };
      expect({ ...row, attachments: openAttachments(id, row.attachments) }).toEqual({
        id,
        ...rowByModel(model.stored.get(at)!),
      });
    }
    const [totals] = await rowsOf(
      `select
         (select array_agg(o.messages order by position)
          from unnest($1::uuid[]) with ordinality as given (id, position)
          cross join lateral (select count(*)::integer as messages from messages where organization_id = given.id) o
         ) as messages,
         (select count(*)::integer from idempotency_keys where organization_id = any ($1::uuid[])) as kept,
         (select count(*)::integer
          from (
            select organization_id, message_id from message_contents
            union all
            select organization_id, message_id from attachment_contents
          ) part
          where organization_id = any ($1::uuid[])
            and (organization_id, message_id) not in (select organization_id, id from messages)) as parts_without_message,
         (select coalesce(json_object_agg(usage, used), '{}')
          from (
            select array_position($1::uuid[], organization_id) - 1 || ' ' || channel as usage, sum(used) as used
            from quota_usage where organization_id = any ($1::uuid[]) group by 1
          ) used) as used`,
      [organizations.map(({ id }) => id)],
    );
    expect(totals).toMatchObject({
      messages: [0, 1].map(
        (index) => [...model.stored.values()].filter(({ organization }) => organization === index).length,
      ),
      kept: model.kept.size,
      parts_without_message: 0,
    });
    expect({
      '0 email': 0,
      '0 sms': 0,
      '1 email': 0,
      '1 sms': 0,
      ...(totals as { used: object }).used,
    }).toEqual({
      '0 email': model.used[0]!.email,
      '0 sms': model.used[0]!.sms,
      '1 email': model.used[1]!.email,
      '1 sms': model.used[1]!.sms,
    });
  }

  function openAttachments(id: string, sealed: readonly string[] | null): string[] {
    // As `json_agg` writes them: \x and hexadecimal digits.
    return (sealed ?? []).map((text, ordinal) =>
      server.installation.secrets
        .decrypt(Buffer.from(text.slice(2), 'hex'), attachmentContext(id, ordinal))
        .toString(),
    );
  }

  function rowByModel({ organization, channel, body }: Request) {
    const { id, domain, sender } = organizations[organization];
    const common = { organization_id: id, channel, class: 'transactional' };
    if (channel === 'sms') {
      const texts: Partial<Record<Body, string>> = {
        long: `${'x'.repeat(306)}{{first}} and {{second}}`,
        attached: 'x'.repeat(161),
      };
      return {
        ...common,
        sender,
        subject: null,
        recipient_count: 1,
        content: { text: texts[body] ?? `This is ${body}.` },
        attachments: [],
        recipients: [['to', '+4915112345678', null, 'sms']],
      };
    }
    const ann = ['to', 'ann@example.com', null, 'email'];
    const bob = ['to', 'bob@example.com', null, 'email'];
    const duplicate = ['bcc', 'Ann@Example.com', 'duplicate', null];
    const recipients = { short: [ann], long: [ann, bob, duplicate], attached: [ann, bob] }[body as 'short'];
    const text = { long: '{{first}} and {{second}}', attached: 'x'.repeat(70_000) }[body as 'long'];
    return {
      ...common,
      sender: `hello@${domain}`,
      subject: 'Subject',
      recipient_count: recipients.length,
      content: {
        to: recipients.filter(([field]) => field === 'to').map(([, address]) => address),
        cc: [],
        html: null,
        text: text ?? `This is ${body}.`,
      },
      attachments: body === 'attached' ? [`Attached for hello@${domain}`] : [],
      recipients,
    };
  }
});

describe('a large request', () => {
  const refusal = { kind: 'refused', error: { definition: { name: 'monthly_quota_exceeded' } } };

  async function limitTo(email: number): Promise<void> {
    for (const { id } of organizations) {
      const [used] = await rowsOf<{ sum: number }>(
        `select coalesce(sum(used), 0) as sum from quota_usage where organization_id = $1 and channel = 'email'`,
        [id],
      );
      const quotas = { email: Number(used?.sum) + email };
      await updateOrganization(server.installation, id, { quotas, resume: ['email'] });
    }
  }

  function prepareLarge(): Submission {
    const request = { organization: 0, channel: 'email', body: 'attached', key: null } as const;
    return { ...(prepare(request) as Submission), attachments: [new Uint8Array(262_145)] };
  }

  /** Of all that take part in this file no other attachment is as large. */
  const countLarge = () =>
    rowsOf<{ count: number }>(
      `select count(*)::int as count from attachment_contents
       where organization_id = $1 and octet_length(sealed) > 262145`,
      [organizations[0].id],
    );

  /** Runs while nothing can be stored among the attachments. */
  async function whileStoringWaits<Result>(run: () => Promise<Result>): Promise<Result> {
    return server.installation.database.transaction(async (transaction) => {
      await transaction.rows(unpreparedStatement('lock table attachment_contents in exclusive mode'), []);
      return run();
    });
  }

  test('is stored beside small ones that are answered, in an organization with a quota as well', async () => {
    await limitTo(10_000);
    const acceptor = createAcceptor(tools(), { flushersMax: 1 });
    const { accepting } = await whileStoringWaits(async () => {
      const accepting = acceptor.accept(prepareLarge(), null);
      await waitUntilLocked(server.installation.database);
      for (const organization of [0, 1] as const) {
        const small: Request = {
          organization,
          channel: 'email',
          body: 'short',
          key: `small ${organization}`,
        };
        expect(await acceptor.accept(prepare(small), keyOf(small))).toMatchObject({ kind: 'response' });
      }
      return { accepting };
    });
    expect(await accepting).toMatchObject({ kind: 'response', isReplay: false });
  });

  test('that does not fit into the quota writes nothing of what it holds', async () => {
    await limitTo(1);
    const acceptor = createAcceptor(tools());
    const outcome = await whileStoringWaits(async () => {
      const answered = new AbortController();
      const answering = acceptor.accept(prepareLarge(), null).finally(() => {
        answered.abort();
      });
      await waitUntilLocked(server.installation.database, answered.signal);
      return answered.signal.aborted ? answering : 'waits to be stored';
    });
    expect(outcome).toMatchObject(refusal);
  });

  test('leaves nothing behind when a small one took its share of the quota meanwhile', async () => {
    await limitTo(2);
    const before = await countLarge();
    const acceptor = createAcceptor(tools());
    const { accepting } = await whileStoringWaits(async () => {
      const accepting = acceptor.accept(prepareLarge(), null);
      await waitUntilLocked(server.installation.database);
      const small: Request = { organization: 0, channel: 'email', body: 'short', key: null };
      expect(await acceptor.accept(prepare(small), null)).toMatchObject({ kind: 'response' });
      return { accepting };
    });
    expect(await accepting).toMatchObject(refusal);
    expect(await countLarge()).toEqual(before);
  });
});

/** Ends as soon as a statement waits for the attachments' table, or at the signal. */
async function waitUntilLocked({ rows }: Database, signal?: AbortSignal): Promise<void> {
  const waits = unpreparedStatement<{ waits: boolean }>(
    `select exists (select from pg_locks where not granted and relation = 'attachment_contents'::regclass) as waits`,
  );
  while (signal?.aborted !== true && (await rows(waits, []))[0]?.waits !== true) await setImmediate();
}

/** More than a transaction of acceptance has; the loops below end where none is reached any more. */
const statementsMax = 40;

/** An acceptor whose statements go through the proxy, one transaction at a time. */
type ProxiedNode = {
  proxy: StatementProxy;
  acceptor: Acceptor;
  clock: ManualClock;
  stop: () => Promise<void>;
};

/** Accepts step by step what it could accept at once. */
const slowChannels: MessageChannels = {
  ...messageChannels,
  email: { ...messageChannels.email, acceptance: null },
  sms: { ...messageChannels.sms, acceptance: null },
};

async function startProxiedNode(ofChannels: MessageChannels): Promise<ProxiedNode> {
  const proxy = await startStatementProxy(address);
  const database: Database = openDatabase({ address: proxy.address, connectionsMax: 1 });
  const clock = createManualClock(server.installation.clock.nowMs());
  // A quota has more statements. As many at once as there are, and in one transaction.
  for (const { id } of organizations)
    await updateOrganization(server.installation, id, {
      quotas: { email: 1_000, sms: null },
      resume: [...channels],
    });
  return {
    proxy,
    clock,
    acceptor: createAcceptor({ ...tools(), database, clock, channels: ofChannels }, { flushersMax: 1 }),
    stop: async () => {
      await database.close();
      await proxy.stop();
    },
  };
}

let texts = 0;
/** Requests whose messages can be told apart by their subject or sender's text. */
function anEmailOf(
  organization: 0 | 1,
  key: string | null,
): { subject: string; submission: Submission; key: ScopedKey | null } {
  texts += 1;
  const subject = `Subject ${texts}`;
  const request: Request = { organization, channel: 'email', body: 'short', key };
  const prepared = prepare(request);
  if (prepared instanceof PublicError) throw prepared;
  return { subject, submission: { ...prepared, subject }, key: keyOf(request) };
}

function storedWith(subject: string): Promise<{ id: string }[]> {
  return rowsOf<{ id: string }>(
    'select id from messages where subject = $1 and organization_id = any ($2::uuid[])',
    [subject, organizations.map(({ id }) => id)],
  );
}

/** The id that was told, or null if it was said that nothing is known. */
async function idTold(acceptor: Acceptor, { submission, key }: ReturnType<typeof anEmailOf>) {
  try {
    const outcome = await acceptor.accept(submission, key);
    if (outcome.kind === 'refused') return { error: outcome.error.definition.name };
    return { id: (JSON.parse(outcome.response.text) as { id: string }).id, isReplay: outcome.isReplay };
  } catch (cause) {
    expect(cause).toBeInstanceOf(DatabaseUnavailableError);
    return null;
  }
}

/** As a client repeats it: PostgreSQL may hold the key until it has seen that the connection is gone. */
async function idToldInTheEnd(acceptor: Acceptor, request: ReturnType<typeof anEmailOf>) {
  for (let tries = 1; ; tries += 1) {
    const told = await idTold(acceptor, request);
    if (told?.error !== 'concurrent_idempotent_requests' || tries === repetitionsMax) return told;
  }
}

const repetitionsMax = 1_000;

describe.each([
  ['at once', messageChannels],
  ['step by step', slowChannels],
])('while requests are accepted %s the connection breaks', (form, ofChannels) => {
  let node: ProxiedNode;
  beforeAll(async () => {
    node = await startProxiedNode(ofChannels);
  });
  afterAll(() => node.stop());

  test.each<[string, StopKind]>([
    ['before', 'cut_before'],
    ['after', 'cut_after'],
  ])(
    '%s any statement: what is told is what is stored, and a repeated key makes exactly one message of it',
    async (_when, kind) => {
      let stored = 0;
      for (let number = 1; ; number += 1) {
        expect(number).toBeLessThan(statementsMax);
        const requests = [
          anEmailOf(0, `cut ${form} ${kind} ${number}`),
          anEmailOf(1, null),
          anEmailOf(1, `cut ${form} ${kind} ${number}`),
        ];
        const queuedBefore = queued;
        const stop = node.proxy.stopAt(number, kind);
        const told = await Promise.all(requests.map((request) => idTold(node.acceptor, request)));
        stop.release();
        for (const [index, request] of requests.entries()) {
          const rows = await storedWith(request.subject);
          expect([number, rows.map(({ id }) => id)]).toEqual([
            number,
            told[index] === null ? [] : [told[index]!.id],
          ]);
          stored += rows.length;
        }
        expect(queued > queuedBefore).toBe(told.some((one) => one !== null));
        for (const [index, request] of requests.entries()) {
          if (request.key === null) continue;
          const again = await idToldInTheEnd(node.acceptor, request);
          expect(await storedWith(request.subject)).toEqual([{ id: again!.id }]);
          expect(again).toMatchObject({ isReplay: told[index] !== null, id: told[index]?.id ?? again!.id });
        }
        if (!stop.isReached()) break;
      }
      // Without a break, and where the answer to the commit was the one that was lost.
      expect(stored).toBe(kind === 'cut_after' ? 6 : 3);
    },
  );

  test.each<[string, StopKind]>([
    ['before', 'cut_before'],
    ['after', 'cut_after'],
  ])(
    '%s any statement of a batch: all of it is stored or nothing, and a repeated key makes exactly one of it',
    async (_when, kind) => {
      let wholes = 0;
      for (let number = 1; ; number += 1) {
        expect(number).toBeLessThan(statementsMax);
        const name = `batch ${form} ${kind} ${number}`;
        const items = [anEmailOf(0, null), anEmailOf(0, null), anEmailOf(0, null)];
        const refused = new PublicError(validationError, 'A rule is broken.');
        const batch: Batch = {
          organizationId: organizations[0].id,
          endpoint: 'POST /email/send',
          field: 'emails',
          onError: 'skip',
          items: [
            ...items.map(({ submission }, index) => ({
              prepared: submission,
              key: index === 1 ? { key: `${name}, one`, bodyDigest: new Uint8Array(32) } : null,
            })),
            { prepared: refused, key: null },
          ],
          idempotencyKey: keyOf({ organization: 0, channel: 'email', body: 'short', key: name }),
          traceId: null,
        };
        const send = async () => {
          try {
            const outcome = await node.acceptor.acceptBatch(batch);
            return outcome.kind === 'response' ? outcome : { error: outcome.error.definition.name };
          } catch (cause) {
            expect(cause).toBeInstanceOf(DatabaseUnavailableError);
            return null;
          }
        };
        const storedIds = async () =>
          (await Promise.all(items.map(({ subject }) => storedWith(subject)))).flat().map(({ id }) => id);
        const idsOf = ({ response }: { response: { text: string } }) =>
          (JSON.parse(response.text) as { data: { id?: string }[] }).data.flatMap(({ id }) => id ?? []);
        const stop = node.proxy.stopAt(number, kind);
        const told = await send();
        stop.release();
        if (told !== null && 'error' in told) throw new Error(told.error);
        expect([number, await storedIds()]).toEqual([number, told === null ? [] : idsOf(told)]);
        if (told !== null) wholes += 1;
        let again = await send();
        for (let tries = 1; again !== null && 'error' in again && tries < repetitionsMax; tries += 1)
          again = await send();
        if (again === null || 'error' in again) throw new Error('a repeated batch was not answered');
        expect([again.isReplay, await storedIds()]).toEqual([told !== null, idsOf(again)]);
        if (told !== null) expect(again.response.text).toBe(told.response.text);
        if (!stop.isReached()) break;
      }
      // Without a break, and where the answer to the commit was the one that was lost.
      expect(wholes).toBe(kind === 'cut_after' ? 2 : 1);
    },
  );

  test('after any statement of what shares a transaction with what is refused: only that is told which is stored', async () => {
    await updateOrganization(server.installation, organizations[0].id, { suspend: ['email'] });
    const verdicts = new Set<string>();
    for (let number = 1; ; number += 1) {
      expect(number).toBeLessThan(statementsMax);
      const [refused, fine] = [anEmailOf(0, null), anEmailOf(1, null)];
      const stop = node.proxy.stopAt(number, 'cut_after');
      const [told, other] = await Promise.all(
        [refused, fine].map((request) => idTold(node.acceptor, request)),
      );
      stop.release();
      expect([null, { error: 'sending_suspended' }]).toContainEqual(told);
      expect(await storedWith(refused.subject)).toEqual([]);
      expect((await storedWith(fine.subject)).map(({ id }) => id)).toEqual(other === null ? [] : [other!.id]);
      verdicts.add(
        `${told === null ? 'unknown' : 'refused'} beside ${other === null ? 'unknown' : 'stored'}`,
      );
      if (!stop.isReached()) break;
    }
    // The second is the commit whose answer was lost.
    expect([...verdicts].sort()).toEqual([
      'refused beside stored',
      'unknown beside stored',
      'unknown beside unknown',
    ]);
    await updateOrganization(server.installation, organizations[0].id, { resume: ['email'] });
  });

  test('with the commit, and PostgreSQL is away for some seconds: it is told once it is known', async () => {
    const first = anEmailOf(0, null);
    const statements = await countStatements(node, anEmailOf(0, null));
    const stop = node.proxy.stopAt(statements, 'cut_after');
    // One more than look-ups: whether the session is over is asked first.
    node.proxy.refuse(4);
    const telling = idTold(node.acceptor, first);
    await stop.reached;
    for (let refused = 1; refused <= 3; refused += 1) {
      await node.clock.whenWaiting(1);
      node.clock.advance(1_000);
    }
    expect(await telling).toMatchObject({ isReplay: false });
    expect(await storedWith(first.subject)).toHaveLength(1);
  });
});

/** How many statements it takes to accept it; the last is the commit. */
async function countStatements(node: ProxiedNode, request: ReturnType<typeof anEmailOf>): Promise<number> {
  const counting = node.proxy.stopAt(Infinity, 'hold_before');
  await idTold(node.acceptor, request);
  counting.release();
  return counting.statements();
}

test('what nothing can be said against is one exchange with PostgreSQL, with a key and a quota as well', async () => {
  const node = await startProxiedNode(messageChannels);
  // It is not known yet which of them have a quota.
  for (const organization of [0, 1] as const) await idTold(node.acceptor, anEmailOf(organization, null));
  expect(await countStatements(node, anEmailOf(0, null))).toBe(1);
  expect(await countStatements(node, anEmailOf(0, 'exchange'))).toBe(1);
  await updateOrganization(server.installation, organizations[1].id, { quotas: { email: null } });
  expect(await countStatements(node, anEmailOf(1, 'exchange'))).toBe(1);
  await node.stop();
});

test.each([
  ['at once', messageChannels],
  ['step by step', slowChannels],
])(
  'a request accepted %s is repeated as one that was carried out, and only then',
  async (form, ofChannels) => {
    const node = await startProxiedNode(ofChannels);
    const request = anEmailOf(0, `repeated ${form}`);
    await updateOrganization(server.installation, organizations[0].id, { suspend: ['email'] });
    for (let round = 1; round <= 2; round += 1)
      expect(await idTold(node.acceptor, request)).toEqual({ error: 'sending_suspended' });
    await updateOrganization(server.installation, organizations[0].id, { resume: ['email'] });
    const first = await idTold(node.acceptor, request);
    expect(first).toMatchObject({ isReplay: false });
    for (let round = 1; round <= 2; round += 1)
      expect(await idTold(node.acceptor, request)).toEqual({ ...first, isReplay: true });
    expect(await storedWith(request.subject)).toHaveLength(1);
    await node.stop();
  },
);

describe.each([
  ['at once', messageChannels, []],
  ['step by step', slowChannels, ['original,concurrent']],
])('two nodes with one key, of which one accepts %s', (form, ofChannels, between) => {
  let node: ProxiedNode;
  beforeAll(async () => {
    node = await startProxiedNode(ofChannels);
  });
  afterAll(() => node.stop());

  test('make one message of it, at whatever statement of the one the other comes in between', async () => {
    const other = createAcceptor(tools());
    const told = new Set<string>();
    for (let number = 1; ; number += 1) {
      expect(number).toBeLessThan(statementsMax);
      const request = anEmailOf(0, `between ${form} ${number}`);
      const stop = node.proxy.stopAt(number, 'hold_before');
      const slow = idTold(node.acceptor, request);
      await Promise.race([stop.reached, slow]);
      const quick = await idTold(other, request);
      stop.release();
      const answers = [await slow, quick];
      const rows = await storedWith(request.subject);
      expect(rows).toHaveLength(1);
      for (const answer of answers) {
        if (answer !== null && 'error' in answer) expect(answer.error).toBe('concurrent_idempotent_requests');
        else expect(answer).toMatchObject({ id: rows[0]!.id });
      }
      expect(answers.filter((answer) => answer !== null && 'id' in answer && !answer.isReplay)).toHaveLength(
        1,
      );
      told.add(
        answers
          .map((answer) =>
            answer && 'error' in answer ? 'concurrent' : answer?.isReplay ? 'replay' : 'original',
          )
          .join(),
      );
      if (!stop.isReached()) break;
    }
    expect([...told].sort()).toEqual([...between, 'original,replay', 'replay,original']);
  });
});

test('what waits has a limit, and is given up when it has been answered', async () => {
  const acceptor = createAcceptor(tools(), { batchItemsMax: 2, flushersMax: 1, waitingMax: 5 });
  for (let round = 1; round <= 2; round += 1) {
    const requests = Array.from({ length: 11 }, () => anEmailOf(0, null));
    const told = await Promise.all(requests.map((request) => idTold(acceptor, request)));
    const errors = told.filter((one) => one !== null && 'error' in one);
    expect(errors).toEqual(Array.from({ length: 6 }, () => ({ error: 'service_unavailable' })));
    for (const { subject } of requests.slice(0, 5)) expect(await storedWith(subject)).toHaveLength(1);
  }
});
