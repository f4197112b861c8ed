/**
 * What the intake of events answers and stores, against a model that takes one event after the other; and with the
 * connection broken, or another node in between, at each statement of a transaction in turn.
 */
import { createHash } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { createSender, startTestServer, type TestServer } from '../../test/support/server.ts';
import { refuseInserts } from '../../test/support/refused-inserts.ts';
import {
  type StatementProxy,
  startStatementProxy,
  type StopKind,
} from '../../test/support/statement-proxy.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import type { ContactReference } from '../audience/audience.ts';
import { createContact, deleteContacts } from '../audience/contacts.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import {
  type Database,
  type DatabaseAddress,
  DatabaseUnavailableError,
  openDatabase,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { createDefinition } from './definitions.ts';
import { readEvents } from './event-body.ts';
import { createEventIntake, type EventIntake, type EventRequest } from './intake.ts';
import type { BatchRecord } from './schema.ts';

let address: DatabaseAddress;
let database: Database;
let server: TestServer;
/** Both have the event `order`, of different schemas. */
let organizationIds: readonly [string, string];

useTestDatabase({ hasNeighbour: true }, (opened) => {
  ({ address, database } = opened);
});
beforeAll(async () => {
  // Of the connections that are made from now on, so that those who wait for each other do so for no second.
  await database.rows(
    unpreparedStatement(
      `do $$ begin execute format('alter database %I set deadlock_timeout = ''20ms''', current_database()); end $$`,
    ),
  );
  server = await startTestServer({ database: address });
  const one = await createSender(server.installation, 'one.example');
  const other = await createSender(server.installation, 'other.example');
  organizationIds = [one.organizationId, other.organizationId];
  for (const [index, organizationId] of organizationIds.entries()) {
    const type = index === 0 ? 'number' : 'string';
    const created = await createDefinition(
      { ...server.installation, findReadFields: () => Promise.resolve([]) },
      organizationId,
      { name: 'order', schema: { fields: [{ name: 'total', type }] } },
    );
    expect(created.kind).toBe('done');
  }
});
afterAll(() => server.stop());

const wakes = { ofContacts: 0, ofConversions: 0 };
const tools = () => ({
  ...server.installation,
  onContactsChanged: () => (wakes.ofContacts += 1),
  onConverted: () => (wakes.ofConversions += 1),
});

function rowsOf<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return server.installation.database.rows(unpreparedStatement<Row>(text), values);
}

type Organization = 0 | 1;

/**
 * - `fits`: is stored.
 * - `mismatch`, `undefined`, `unknown_id`: refused by itself.
 * - `broken`: what PostgreSQL refuses, and with it whatever shares its transaction.
 */
const eventKinds = ['fits', 'mismatch', 'undefined', 'unknown_id', 'broken'] as const;
type GivenEvent = { kind: (typeof eventKinds)[number]; reference: ContactReference; text?: string };

type Given = {
  organization: Organization;
  form: EventRequest['form'];
  events: readonly GivenEvent[];
  key: string | null;
};

const unknownId = '01934c1e-9f3a-7cc0-8b1a-0123456789ab';

/** `mark` tells the event from all others. */
function bodyOf({
  organization,
  event,
  mark,
}: {
  organization: Organization;
  event: GivenEvent;
  mark: string;
}) {
  const { kind, reference, text } = event;
  const [fitting, other] = organization === 0 ? [7, '7'] : ['7', 7];
  return {
    event: kind === 'undefined' ? 'nothing' : 'order',
    ...(kind === 'unknown_id' ? { contact_id: unknownId } : reference),
    payload: {
      mark,
      total: kind === 'mismatch' ? other : fitting,
      ...(text !== undefined && { text }),
      // The server refuses it before; the type jsonb has no room for it.
      ...(kind === 'broken' && { text: '\0' }),
    },
  };
}

type Marked = Given & { marks: readonly string[] };

let marked = 0;

function mark(given: Given): Marked {
  return { ...given, marks: given.events.map(() => `event ${(marked += 1)}`) };
}

function toRequest({ organization, form, events, key, marks }: Marked): EventRequest {
  const organizationId = organizationIds[organization];
  const idempotencyKey: ScopedKey | null =
    key === null
      ? null
      : {
          organizationId,
          endpoint: form === 'single' ? 'POST /events/send' : 'POST /events/send/batch',
          key,
          fingerprint: createHash('sha256').update(JSON.stringify(events)).digest(),
        };
  const bodies = events.map((event, index) => bodyOf({ organization, event, mark: marks[index]! }));
  return {
    organizationId,
    form,
    events: readEvents(bodies, { at: new Date(0), settings: {} }),
    idempotencyKey,
  };
}

/** What became of an event, or of a request as a whole. */
type Result = { id: string } | { error: string };
type Told =
  | { kind: 'told'; results: Result[]; isReplay: boolean }
  | { kind: 'refused'; error: string }
  | { kind: 'failed'; isUnavailable: boolean };

async function send(intake: EventIntake, given: Marked): Promise<Told> {
  let outcome;
  try {
    outcome = await intake.send(toRequest(given));
  } catch (cause) {
    return { kind: 'failed', isUnavailable: cause instanceof DatabaseUnavailableError };
  }
  if (outcome.kind === 'refused') return { kind: 'refused', error: outcome.error.definition.name };
  const { text, statusCode } = outcome.response;
  expect(statusCode).toBe(202);
  const { isReplay } = outcome;
  if (given.form === 'single')
    return { kind: 'told', results: [JSON.parse(text) as { id: string }], isReplay };
  const { data } = JSON.parse(text) as BatchRecord;
  expect(data.map(({ index }) => index)).toEqual([...data.keys()]);
  const results = data.map((one) => ('id' in one ? { id: one.id } : { error: one.error.name }));
  return { kind: 'told', results, isReplay };
}

/** As a client repeats it: PostgreSQL may hold the key until it has seen that the connection is gone. */
async function sendInTheEnd(intake: EventIntake, given: Marked): Promise<Told> {
  for (let tries = 1; ; tries += 1) {
    const told = await send(intake, given);
    const isHeld = told.kind === 'refused' && told.error === 'concurrent_idempotent_requests';
    if (!isHeld || tries === repetitionsMax) return told;
  }
}

const repetitionsMax = 1_000;

type StoredEvent = { id: string; contact_id: string; transaction: string };

/** The events of a mark: one, if all is well. */
function storedUnder(organization: Organization, text: string): Promise<StoredEvent[]> {
  return rowsOf<StoredEvent>(
    `select id, contact_id, xmin::text as transaction from events where organization_id = $1 and payload ->> 'mark' = $2`,
    [organizationIds[organization], text],
  );
}

describe('many at once', () => {
  /** One after the other: what a client that is alone would see. */
  type Model = {
    contacts: (ContactReference & { organization: Organization })[];
    /** By organization, endpoint and key. */
    kept: Map<string, { events: string; results: readonly ModelResult[] }>;
    /** By mark, the index of its contact. */
    stored: Map<string, number>;
  };
  type ModelResult = { mark: string } | { error: string };
  type ModelAnswer =
    | { kind: 'told'; results: readonly ModelResult[]; isReplay: boolean }
    | { kind: 'refused'; error: string }
    | { kind: 'failed'; isUnavailable: false };

  function answerByModel(model: Model, given: Marked, underWay: Set<string>): ModelAnswer {
    const { organization, form, events, key, marks } = given;
    const scope = `${organization} ${form} ${key}`;
    const fingerprint = JSON.stringify(events);
    if (key !== null) {
      if (underWay.has(scope)) return { kind: 'refused', error: 'concurrent_idempotent_requests' };
      underWay.add(scope);
      const kept = model.kept.get(scope);
      if (kept !== undefined) {
        return kept.events === fingerprint
          ? { kind: 'told', results: kept.results, isReplay: true }
          : { kind: 'refused', error: 'invalid_idempotent_request' };
      }
    }
    if (events.some(({ kind }) => kind === 'broken')) return { kind: 'failed', isUnavailable: false };
    const results = events.map((event, index): ModelResult => {
      if (event.kind === 'undefined') return { error: 'event_not_found' };
      if (event.kind === 'unknown_id') return { error: 'contact_not_found' };
      if (event.kind === 'mismatch') return { error: 'schema_mismatch' };
      const text = marks[index]!;
      model.stored.set(text, findOrMakeContact(model, organization, event.reference));
      return { mark: text };
    });
    const [first] = results;
    if (form === 'single' && first !== undefined && 'error' in first)
      return { kind: 'refused', error: first.error };
    if (key !== null) model.kept.set(scope, { events: fingerprint, results });
    return { kind: 'told', results, isReplay: false };
  }

  function findOrMakeContact(model: Model, organization: Organization, reference: ContactReference): number {
    const fields = ['external_id', 'email', 'phone_number'] as const;
    const ownerOf = (field: (typeof fields)[number]) =>
      model.contacts.findIndex(
        (contact) =>
          contact.organization === organization &&
          reference[field] !== undefined &&
          contact[field] === reference[field],
      );
    const owners = fields.map(ownerOf);
    const found = owners.find((index) => index !== -1);
    if (found === undefined) return model.contacts.push({ organization, ...reference }) - 1;
    for (const [rank, field] of fields.entries()) {
      const given = reference[field];
      if (given !== undefined && owners[rank] === -1) model.contacts[found]![field] ??= given;
    }
    return found;
  }

  const reference = fc
    .record(
      {
        external_id: fc.constantFrom('x1', 'x2', 'x3'),
        email: fc.constantFrom('e1@example.com', 'e2@example.com', 'e3@example.com'),
        phone_number: fc.constantFrom('+4915112345671', '+4915112345672'),
      },
      { requiredKeys: [] },
    )
    .filter((given) => Object.keys(given).length > 0);
  const event = fc.record({
    kind: fc.oneof({ weight: 8, arbitrary: fc.constant('fits' as const) }, fc.constantFrom(...eventKinds)),
    reference,
  });
  const organization = fc.constantFrom<Organization>(0, 1);
  const key = fc.option(fc.constantFrom('a', 'b', 'c'), { freq: 3 });
  const given: fc.Arbitrary<Given> = fc.oneof(
    fc.record({ organization, key, form: fc.constant('single' as const), events: fc.tuple(event) }),
    fc.record({
      organization,
      key,
      form: fc.constant('batch' as const),
      events: fc.array(event, { minLength: 1, maxLength: 5 }),
    }),
  );

  test('each gets the answer, and leaves the rows, that it would alone and in its turn', async () => {
    let runs = 0;
    let storedCount = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(given, { minLength: 1, maxLength: 10 }), { minLength: 1, maxLength: 3 }),
        fc.constantFrom(3, 20),
        async (waves, batchItemsMax) => {
          runs += 1;
          await forgetEvents();
          const intake = createEventIntake(tools(), { batchItemsMax, flushersMax: 1 });
          const model: Model = { contacts: [], kept: new Map(), stored: new Map() };
          const ids = new Map<string, string>();
          for (const wave of waves) {
            // Kept responses stay from run to run.
            const requests = wave.map((one) => mark({ ...one, key: one.key && `${one.key} ${runs}` }));
            const underWay = new Set<string>();
            const expected = requests.map((one) => answerByModel(model, one, underWay));
            const told = await Promise.all(requests.map((one) => send(intake, one)));
            for (const [index, answer] of told.entries()) noteIds(ids, expected[index]!, answer);
            expect(told).toEqual(expected.map((answer) => withIds(answer, ids)));
          }
          await compareRows(model, ids);
          storedCount += ids.size;
        },
      ),
      { numRuns: 60 },
    );
    expect(storedCount).toBeGreaterThan(100);
  });

  function noteIds(ids: Map<string, string>, expected: ModelAnswer, told: Told): void {
    if (expected.kind !== 'told' || told.kind !== 'told' || told.isReplay) return;
    for (const [index, result] of expected.results.entries()) {
      const found = told.results[index];
      if (!('mark' in result) || found === undefined || !('id' in found)) continue;
      expect([...ids.values()]).not.toContain(found.id);
      ids.set(result.mark, found.id);
    }
  }

  function withIds(answer: ModelAnswer, ids: ReadonlyMap<string, string>): Told {
    if (answer.kind !== 'told') return answer;
    const results = answer.results.map((one) => ('mark' in one ? { id: ids.get(one.mark) ?? 'none' } : one));
    return { ...answer, results };
  }

  async function forgetEvents(): Promise<void> {
    await rowsOf('delete from events where organization_id = any ($1)', [organizationIds]);
    await rowsOf('delete from contacts where organization_id = any ($1)', [organizationIds]);
  }

  /** Every event with the contact that it belongs to, and every contact with what identifies it. */
  async function compareRows(model: Model, ids: ReadonlyMap<string, string>): Promise<void> {
    const rows = await rowsOf<{ mark: string; id: string; contact: object }>(
      `select e.payload ->> 'mark' as mark, e.id,
         json_strip_nulls(json_build_object(
           'organization', array_position($1::uuid[], c.organization_id) - 1,
           'external_id', c.external_id, 'email', c.email, 'phone_number', c.phone_number
         )) as contact
       from events e
       join event_definitions d on d.organization_id = e.organization_id and d.number = e.definition_number
       join contacts c on c.organization_id = e.organization_id and c.id = e.contact_id
       where e.organization_id = any ($1) and d.name = 'order'`,
      [organizationIds],
    );
    const byMark = (first: { mark: string }, second: { mark: string }) => (first.mark < second.mark ? -1 : 1);
    expect(rows.sort(byMark)).toEqual(
      [...model.stored]
        .map(([text, contact]) => ({ mark: text, id: ids.get(text), contact: model.contacts[contact] }))
        .sort(byMark),
    );
    const [count] = await rowsOf(
      'select count(*)::integer as contacts from contacts where organization_id = any ($1)',
      [organizationIds],
    );
    expect(count).toEqual({ contacts: model.contacts.length });
  }
});

/** More than a transaction of the intake has; the loops below end where none is reached any more. */
const statementsMax = 40;

/** An intake whose statements go through the proxy, one transaction at a time. */
type ProxiedNode = { proxy: StatementProxy; intake: EventIntake; stop: () => Promise<void> };

async function startProxiedNode(): Promise<ProxiedNode> {
  const proxy = await startStatementProxy(address);
  const proxied = openDatabase({ address: proxy.address, connectionsMax: 1 });
  const clock = createManualClock(server.installation.clock.nowMs());
  return {
    proxy,
    intake: createEventIntake({ ...tools(), database: proxied, clock }, { flushersMax: 1 }),
    stop: async () => {
      await proxied.close();
      await proxy.stop();
    },
  };
}

let people = 0;
/** Of somebody whom nobody knows yet. */
const ofSomebodyNew = () =>
  ({ kind: 'fits', reference: { email: `new-${(people += 1)}@example.com` } }) satisfies GivenEvent;

async function contactsOf(reference: ContactReference): Promise<{ id: string; organization_id: string }[]> {
  return rowsOf('select id, organization_id from contacts where organization_id = any ($1) and email = $2', [
    organizationIds,
    reference.email,
  ]);
}

function idsOf(told: Told): string[] {
  return told.kind === 'told' ? told.results.flatMap((one) => ('id' in one ? [one.id] : [])) : [];
}

/** The ids under which the events of a request are stored, each found by its mark. */
async function storedIdsOf({ organization, marks }: Marked): Promise<string[]> {
  const stored = await Promise.all(marks.map((text) => storedUnder(organization, text)));
  return stored.flat().map(({ id }) => id);
}

describe('a transaction', () => {
  const single = { form: 'single', key: null } as const;
  const batch = { form: 'batch', key: null } as const;
  const someEvents = (count: number, text?: string) =>
    Array.from({ length: count }, () => ({ ...ofSomebodyNew(), ...(text !== undefined && { text }) }));
  /** Sends requests at once, and returns the transactions in which each was stored. */
  async function transactionsOf(requests: readonly Marked[]): Promise<string[][]> {
    const intake = createEventIntake(tools(), { flushersMax: 1 });
    const told = await Promise.all(requests.map((request) => send(intake, request)));
    expect(told.map(({ kind }) => kind)).toEqual(requests.map(() => 'told'));
    const stored = requests.map(({ organization, marks }) =>
      Promise.all(marks.map((text) => storedUnder(organization, text))),
    );
    return (await Promise.all(stored)).map((events) => [
      ...new Set(events.flat().map(({ transaction }) => transaction)),
    ]);
  }

  test('is shared by requests of fifty events and 256 kB, and larger ones have their own', async () => {
    const text = 'x'.repeat(30_000);
    const sent = [1, 50, 51, 1, 8, 9].map((count, index) => {
      const events = someEvents(count, index > 3 ? text : undefined);
      return mark({ ...(count === 1 ? single : batch), organization: 0, events });
    });
    const [one, fifty, more, last, fits, large] = await transactionsOf(sent);
    expect([fifty, last, fits]).toEqual([one, one, one]);
    expect(new Set([one, more, large].flat()).size).toBe(3);
  });

  test('that is shared by two organizations is told of, whichever of them has a contact that is new', async () => {
    const known = [ofSomebodyNew(), ofSomebodyNew()] as const;
    for (const organization of [0, 1] as const)
      await transactionsOf([mark({ ...single, organization, events: [known[organization]] })]);
    for (const organization of [0, 1] as const) {
      const before = wakes.ofContacts;
      const events = ([0, 1] as const).map((each) => (each === organization ? ofSomebodyNew() : known[each]));
      const [first, second] = await transactionsOf(
        ([0, 1] as const).map((each) => mark({ ...single, organization: each, events: [events[each]!] })),
      );
      expect(first).toEqual(second);
      expect([organization, wakes.ofContacts - before]).toEqual([organization, 1]);
    }
  });

  test('that is ended for the sake of others is tried three times more, and no more', async () => {
    for (const [times, kind] of [
      [3, 'told'],
      [4, 'failed'],
    ] as const) {
      const request = mark({ ...single, organization: 0, events: [ofSomebodyNew()] });
      const condition = 'deadlock_detected';
      const allow = await refuseInserts(database, { table: 'events', times, condition });
      const told = await send(createEventIntake(tools()), request);
      await allow();
      expect([times, told.kind]).toEqual([times, kind]);
      expect(await storedIdsOf(request)).toEqual(idsOf(told));
    }
  });
});

describe('the connection breaks', () => {
  let node: ProxiedNode;
  beforeAll(async () => {
    node = await startProxiedNode();
  });
  afterAll(() => node.stop());

  test.each<[string, StopKind]>([
    ['before', 'cut_before'],
    ['after', 'cut_after'],
  ])(
    '%s any statement: what is told is what is stored, and a repeated key stores each event exactly once',
    async (_when, kind) => {
      const single = { form: 'single', key: null } as const;
      const batch = { form: 'batch', key: null } as const;
      let completeRounds = 0;
      for (let number = 1; ; number += 1) {
        expect(number).toBeLessThan(statementsMax);
        const key = `cut ${kind} ${number}`;
        const somebody = ofSomebodyNew();
        const requests = [
          mark({ ...single, organization: 0, events: [somebody], key }),
          mark({ ...single, organization: 1, events: [somebody] }),
          mark({ ...batch, organization: 1, events: [somebody, ofSomebodyNew(), somebody], key }),
          mark({ ...batch, organization: 0, events: [ofSomebodyNew(), somebody] }),
        ];
        const before = { ...wakes };
        const stop = node.proxy.stopAt(number, kind);
        const told = await Promise.all(requests.map((request) => send(node.intake, request)));
        stop.release();
        const woken = { ...wakes };
        for (const [index, request] of requests.entries())
          expect([number, await storedIdsOf(request)]).toEqual([number, idsOf(told[index]!)]);
        // All of them shared the transaction.
        const isStored = told.every((one) => one.kind === 'told');
        if (!isStored) expect(told).toEqual(told.map(() => ({ kind: 'failed', isUnavailable: true })));
        else completeRounds += 1;
        // What was looked up after the break may hold conversions, which wait to be credited.
        expect([
          number,
          woken.ofContacts > before.ofContacts,
          woken.ofConversions > before.ofConversions,
        ]).toEqual([number, isStored, isStored && stop.isReached()]);
        for (const [index, request] of requests.entries()) {
          if (request.key === null) continue;
          const again = await sendInTheEnd(node.intake, request);
          expect(again).toMatchObject({ kind: 'told', isReplay: isStored });
          expect(idsOf(again)).toHaveLength(request.events.length);
          expect(await storedIdsOf(request)).toEqual(idsOf(again));
          if (isStored) expect(idsOf(again)).toEqual(idsOf(told[index]!));
        }
        expect(await contactsOf(somebody.reference)).toHaveLength(2);
        if (!stop.isReached()) break;
      }
      // Without a break, and where the answer to the commit was the one that was lost.
      expect(completeRounds).toBe(kind === 'cut_after' ? 2 : 1);
    },
  );
});

describe('two nodes', () => {
  let node: ProxiedNode;
  let other: EventIntake;
  const aSingle = (organization: Organization, event: GivenEvent) =>
    mark({ organization, form: 'single', events: [event], key: null });

  /**
   * The one is held at each of its statements in turn, until the other has done what it can meanwhile. Returns how often
   * that had to wait.
   */
  async function atEachStatement(prepare: (number: number) => Meeting | Promise<Meeting>): Promise<number> {
    let waits = 0;
    for (let number = 1; ; number += 1) {
      expect(number).toBeLessThan(statementsMax);
      const meeting = await prepare(number);
      const stop = node.proxy.stopAt(number, 'hold_before');
      const slow = meeting.slow();
      await Promise.race([stop.reached, slow]);
      const answered = new AbortController();
      const quick = meeting.quick().finally(() => {
        answered.abort();
      });
      if (await isWaitingUnless(answered.signal)) waits += 1;
      stop.release();
      await meeting.check([...(await slow), ...(await quick)]);
      if (!stop.isReached()) return waits;
    }
  }

  beforeAll(async () => {
    node = await startProxiedNode();
    other = createEventIntake(tools(), { flushersMax: 1 });
  });
  afterAll(() => node.stop());

  test('with one key store the event once, at whatever statement of the one the other comes in between', async () => {
    const told = new Set<string>();
    for (let number = 1; ; number += 1) {
      expect(number).toBeLessThan(statementsMax);
      const request = mark({
        organization: 0,
        form: 'single',
        events: [ofSomebodyNew()],
        key: `between ${number}`,
      });
      const stop = node.proxy.stopAt(number, 'hold_before');
      const slow = send(node.intake, request);
      await Promise.race([stop.reached, slow]);
      const quick = await send(other, request);
      stop.release();
      const answers = [await slow, quick];
      const [id, ...more] = await storedIdsOf(request);
      expect(more).toEqual([]);
      for (const answer of answers) {
        if (answer.kind === 'refused') expect(answer.error).toBe('concurrent_idempotent_requests');
        else expect(idsOf(answer)).toEqual([id]);
      }
      told.add(
        answers.map((answer) => (answer.kind === 'told' && answer.isReplay ? 'replay' : answer.kind)).join(),
      );
      if (!stop.isReached()) break;
    }
    expect([...told].sort()).toEqual(['replay,told', 'told,refused', 'told,replay']);
  });

  test('that both make the same contacts make them once, at whatever statement they meet', async () => {
    const waits = await atEachStatement((number) => {
      const somebody = ofSomebodyNew();
      const forward = ([0, 1] as const).map((organization) => aSingle(organization, somebody));
      // In the opposite order, so that each node may have what the other waits for.
      const backward = ([1, 0] as const).map((organization) => aSingle(organization, somebody));
      return {
        slow: () => Promise.all(forward.map((one) => send(node.intake, one))),
        quick: () => Promise.all(backward.map((one) => send(other, one))),
        check: async (told) => {
          for (const [index, request] of [...forward, ...backward].entries()) {
            expect([number, told[index]!.kind]).toEqual([number, 'told']);
            expect(await storedIdsOf(request)).toEqual(idsOf(told[index]!));
          }
          const contacts = await contactsOf(somebody.reference);
          expect(new Set(contacts.map((contact) => contact.organization_id))).toEqual(
            new Set(organizationIds),
          );
          expect(contacts).toHaveLength(2);
        },
      };
    });
    expect(waits).toBeGreaterThan(0);
  });

  test('that both learn one address, of two people, note it of one of them, at whatever statement they meet', async () => {
    await atEachStatement(async (number) => {
      const { email } = ofSomebodyNew().reference;
      const [one, another] = [{ external_id: `one of ${email}` }, { external_id: `another of ${email}` }];
      for (const person of [one, another]) await makeContact(person);
      const learnBy = async (intake: EventIntake, person: ContactReference) => [
        await send(intake, aSingle(0, { kind: 'fits', reference: { ...person, email } })),
      ];
      return {
        slow: () => learnBy(node.intake, one),
        quick: () => learnBy(other, another),
        check: async (told) => {
          expect([number, ...told.map(({ kind }) => kind)]).toEqual([number, 'told', 'told']);
          expect(await contactsOf({ email })).toHaveLength(1);
        },
      };
    });
  });

  test('of which one deletes the contact that the other fills leave it deleted, at whatever statement they meet', async () => {
    await atEachStatement(async (number) => {
      const { email } = ofSomebodyNew().reference;
      const person = { external_id: `gone of ${email}` };
      const id = await makeContact(person);
      const request = aSingle(0, { kind: 'fits', reference: { ...person, email } });
      return {
        slow: async () => [await send(node.intake, request)],
        quick: async () => {
          await deleteContacts(server.installation, organizationIds[0], [id]);
          return [];
        },
        check: async ([told]) => {
          expect([number, told?.kind]).toEqual([number, 'told']);
          expect(await rowsOf('select from contacts where id = $1', [id])).toEqual([]);
        },
      };
    });
  });

  test('that wait for each other store the events of both, though one of them is ended for it', async () => {
    const [first, second] = [ofSomebodyNew(), ofSomebodyNew()];
    const makeContact = unpreparedStatement(
      `insert into contacts (organization_id, id, email, email_key, created_at, updated_at)
       values ($1, gen_random_uuid(), $2, $2, now(), now())`,
    );
    const request = mark({ organization: 0, form: 'batch', events: [first, second], key: null });
    const told = await server.installation.database.transaction(async (transaction) => {
      // The other is ended, whoever waits for longer.
      await transaction.rows(unpreparedStatement("set local deadlock_timeout = '1min'"));
      await transaction.rows(makeContact, [organizationIds[0], second.reference.email]);
      const sent = send(other, request);
      expect(await isWaitingUnless(new AbortController().signal)).toBe(true);
      await transaction.rows(makeContact, [organizationIds[0], first.reference.email]);
      return { sent };
    });
    const answer = await told.sent;
    expect(answer.kind).toBe('told');
    expect(await storedIdsOf(request)).toEqual(idsOf(answer));
    for (const { reference } of [first, second]) expect(await contactsOf(reference)).toHaveLength(1);
  });
});

/** What the one node and the other do at once, and what is true afterwards. */
type Meeting = {
  slow: () => Promise<Told[]>;
  quick: () => Promise<Told[]>;
  /** Has what both were told, that of the slow one first. */
  check: (told: readonly Told[]) => Promise<void>;
};

async function makeContact(reference: ContactReference): Promise<string> {
  const created = await createContact(server.installation, organizationIds[0], reference);
  if (created.kind !== 'created') throw new Error(created.kind);
  return created.contact.id;
}

/** Whether a statement waits for another transaction; false as soon as the signal says that none will. */
async function isWaitingUnless(answered: AbortSignal): Promise<boolean> {
  while (!answered.aborted) {
    const [found] = await rowsOf<{ waits: boolean }>(
      `select exists (
         select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
       ) as waits`,
    );
    if (found?.waits === true) return true;
    await setImmediate();
  }
  return false;
}
