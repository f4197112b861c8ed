/** Messages with a time of their own: until then they wait, may be moved and cancelled, and are looked at again when it comes. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { claimDueJobs } from '../../src/messages/delivery/claim-store.ts';
import { departJobs } from '../../src/messages/delivery/departure-store.ts';
import { bringForward, countWaiting } from '../../src/messages/messages.ts';
import { dateOf } from '../../src/platform/clock.ts';
import { addChatTemplate, codeTemplate } from '../support/chat-app-journey.ts';
import { messageChannels } from '../support/channels.ts';
import {
  addresses,
  anEmail,
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  post,
  queueOf,
  read,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { androidApp, aPushContact, register, setUpPush } from '../support/push-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender } from '../support/sms-journey.ts';

const hourMs = 3_600_000;
const dayMs = 24 * hourMs;

type Cancellation = { id: string; cancelled: string[]; left: string[] } & ErrorBody;

let clock: ShiftedClock;
let server: TestServer;
/** With the same addresses, beside every test. */
let other: { organizationId: string; key: string };

const inMs = (ms: number, of: ShiftedClock = clock) => new Date(of.nowMs() + ms).toISOString();
const cancel = (path: string, on: TestServer = server, key = on.key) =>
  on.request<Cancellation>('POST', `/v1${path}/cancel`, undefined, authorize({ key }));
const move = (path: string, scheduledAt: unknown, on: TestServer = server) =>
  on.request<{ id: string; scheduled_at: string } & ErrorBody>('PATCH', `/v1${path}`, {
    scheduled_at: scheduledAt,
  });
const suspend = (on: TestServer, isSuspended: boolean) =>
  updateOrganization(
    on.installation,
    on.organizationId,
    isSuspended ? { suspend: ['email'] } : { resume: ['email'] },
  );
const dueOf = async (on: TestServer, id: string) =>
  (await rowsOf<{ due_at: Date }>(on, 'select due_at from delivery_queue where message_id = $1', [id])).map(
    ({ due_at: dueAt }) => dueAt.toISOString(),
  );

async function prepare(on: TestServer): Promise<{ organizationId: string; key: string }> {
  const beside = await createSender(on.installation, 'elsewhere.example');
  for (const { organizationId } of [on, beside])
    await updateOrganization(on.installation, organizationId, { requestsPerWindow: 100_000 });
  return beside;
}

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ clock });
  other = await prepare(server);
});
afterAll(() => server.stop());

describe('a message that is scheduled', () => {
  test('waits for its time, and is listed as scheduled', async () => {
    const at = inMs(30 * dayMs);
    const id = await send(server, { scheduled_at: at });
    const theirs = await send(server, { from: 'hello@elsewhere.example', scheduled_at: at }, other);
    expect(await read(server, id)).toMatchObject({ status: 'scheduled', scheduled_at: at });
    expect(await dueOf(server, id)).toEqual([at]);
    const list = await server.request<{ data: { id: string; scheduled_at: string }[] }>(
      'GET',
      '/v1/email?status=scheduled',
    );
    expect(list.body.data.find((each) => each.id === id)?.scheduled_at).toBe(at);
    expect(list.text).not.toContain(theirs);
    expect(await read(server, await send(server))).toMatchObject({ status: 'queued', scheduled_at: null });
  });

  test.each([
    ['what is no time', 'tomorrow', 400],
    ['a time without an offset', '2099-01-01T00:00:00', 400],
    ['a time that is over', () => inMs(-1_000), 400],
    ['a time that is too far ahead', () => inMs(367 * dayMs), 400],
    ['a number', 7, 422],
  ])('cannot be for %s', async (_what, given, status) => {
    const at = typeof given === 'function' ? given() : given;
    const { organizationId } = server;
    const [before] = await rowsOf<{ count: number }>(
      server,
      'select count(*)::integer as count from messages where organization_id = $1',
      [organizationId],
    );
    const alone = await post<ErrorBody>(server, anEmail({ scheduled_at: at }));
    expect([alone.status, alone.text]).toEqual([status, expect.stringContaining('scheduled_at')]);
    const id = await send(server, { scheduled_at: inMs(hourMs) });
    const moved = await move(`/email/${id}`, at);
    expect([moved.status, moved.text]).toEqual([status, expect.stringContaining('scheduled_at')]);
    const batch = await server.request('POST', '/v1/email/send/batch', {
      emails: [anEmail(), anEmail({ scheduled_at: at })],
    });
    expect([batch.status, batch.text]).toEqual([status, expect.stringContaining('emails[1]: scheduled_at')]);
    const [after] = await rowsOf<{ count: number }>(
      server,
      'select count(*)::integer as count from messages where organization_id = $1',
      [organizationId],
    );
    expect(after!.count).toBe(before!.count + 1);
  });

  test('is answered alike when its request is repeated, also when its time is over', async () => {
    const body = anEmail({ scheduled_at: inMs(hourMs) });
    const headers = { 'idempotency-key': 'once and later' };
    const first = await post(server, body, headers);
    clock.putForward(2 * hourMs);
    const second = await post(server, body, headers);
    expect([second.status, second.text]).toEqual([202, first.text]);
  });

  test('is not for longer than its messages are kept', async () => {
    const keep = (messagesKeptDays: number | null) =>
      updateOrganization(server.installation, server.organizationId, {
        messagesKeptDays,
      });
    await keep(20);
    try {
      const refused = await post<ErrorBody>(server, anEmail({ scheduled_at: inMs(20 * dayMs + hourMs) }));
      expect([refused.status, refused.body.message]).toEqual([400, expect.stringContaining('20 days')]);
      const id = await send(server, { scheduled_at: inMs(19 * dayMs) });
      expect((await move(`/email/${id}`, inMs(21 * dayMs))).status).toBe(400);
    } finally {
      await keep(null);
    }
    expect((await post(server, anEmail({ scheduled_at: inMs(21 * dayMs) }))).status).toBe(202);
  });

  test('is moved, earlier and later', async () => {
    const id = await send(server, { to: ['ann@example.com', 'ben@example.com'], scheduled_at: inMs(dayMs) });
    for (const at of [inMs(hourMs), inMs(300 * dayMs)]) {
      expect((await move(`/email/${id}`, at)).body).toEqual({ id, scheduled_at: at });
      expect(await dueOf(server, id)).toEqual([at, at]);
      expect(await read(server, id)).toMatchObject({ status: 'scheduled', scheduled_at: at });
    }
  });

  test('is cancelled, once and again with the same answer', async () => {
    const id = await send(server, {
      to: ['ann@example.com', 'Ann@example.com'],
      bcc: ['ben@example.com'],
      attachments: [{ filename: 'a.txt', content: 'aGVsbG8=' }],
      scheduled_at: inMs(dayMs),
    });
    const answer = { id, cancelled: ['ann@example.com', 'ben@example.com'], left: [] };
    for (const _time of [1, 2]) expect((await cancel(`/email/${id}`)).body).toEqual(answer);
    const record = await read(server, id);
    expect(record.status).toBe('cancelled');
    expect(addresses(record).map(({ status }) => status)).toEqual(['cancelled', 'sent', 'cancelled']);
    expect(await queueOf(server, id)).toEqual([]);
    expect(await rowsOf(server, 'select from attachment_contents where message_id = $1', [id])).toEqual([]);
    expect((await move(`/email/${id}`, inMs(dayMs))).status).toBe(409);
  });

  test('is found by its own organization alone, and what was sent at once is none', async () => {
    const id = await send(server, { scheduled_at: inMs(dayMs) });
    expect((await cancel(`/email/${id}`, server, other.key)).status).toBe(404);
    expect((await cancel(`/sms/${id}`)).status).toBe(404);
    expect(await read(server, id)).toMatchObject({ status: 'scheduled' });
    const atOnce = await send(server);
    const answers = [await cancel(`/email/${atOnce}`), await move(`/email/${atOnce}`, inMs(dayMs))];
    expect(answers.map(({ status, body }) => [status, body.name])).toEqual([
      [409, 'conflict'],
      [409, 'conflict'],
    ]);
    expect(await queueOf(server, atOnce)).toHaveLength(1);
  });

  test('is not brought forward, as what a wrong clock has dated, and counts as waiting when it is due', async () => {
    const id = await send(server, { scheduled_at: inMs(200 * dayMs) });
    const [before] = await dueOf(server, id);
    const count = async (atMs: number) => {
      const counted = await countWaiting(server.installation.database, dateOf(atMs), 1_000);
      return counted.find(({ channel, lane }) => channel === 'email' && lane === 'transactional')!;
    };
    const now = await count(clock.nowMs());
    await bringForward({ ...server.installation, channels: messageChannels });
    expect(await dueOf(server, id)).toEqual([before]);
    // A pause that was counted by a clock that was ahead.
    await rowsOf(
      server,
      "update delivery_queue set due_at = due_at + interval '9 days' where message_id = $1",
      [id],
    );
    await bringForward({ ...server.installation, channels: messageChannels });
    expect(await dueOf(server, id)).toEqual([before]);
    const due = await count(clock.nowMs() + 366 * dayMs);
    expect([now.waiting - now.due, due.due > now.due, due.waiting - due.due]).toEqual([0, true, 0]);
  });

  test('has left for whomever a worker has announced a hand-off, and is cancelled for the others, claimed or not', async () => {
    const to = ['ann@example.com', 'ben@example.com', 'cleo@example.com'];
    const id = await send(server, { to, scheduled_at: inMs(hourMs) });
    const alone = await send(server, { to: ['dora@example.com'], scheduled_at: inMs(hourMs) });
    const [worker] = await rowsOf<{ epoch: number }>(
      server,
      "insert into workers (epoch, host, pid, started_at) values (nextval('worker_epochs'), 'here', 1, now()) returning epoch",
    );
    const { epoch } = worker!;
    clock.putForward(2 * hourMs);
    const { jobs } = await claimDueJobs(server.installation.database, {
      epoch,
      claimNumber: 1,
      at: dateOf(clock.nowMs()),
      channel: messageChannels.email,
      lane: 0,
      itemsMax: 1_000,
      afterOrganizationId: '00000000-0000-0000-0000-000000000000',
    });
    const depart = (wanted: typeof jobs) =>
      server.installation.database.transaction((transaction) => departJobs(transaction, wanted, epoch));
    const ofMessage = (wanted: string) => jobs.filter(({ messageId }) => messageId === wanted);
    expect(ofMessage(id).map(({ isCancellable }) => isCancellable)).toEqual([true, true, true]);
    expect((await move(`/email/${id}`, inMs(dayMs))).status).toBe(409);
    const ben = ofMessage(id).filter(({ address }) => address === 'ben@example.com');
    expect((await depart([...ben, ...ofMessage(alone)])).size).toBe(2);
    // With another claim, or a second time, nothing departs.
    expect((await depart(ben)).size).toBe(0);
    expect((await depart(ofMessage(id).map((job) => ({ ...job, claimNumber: 2 })))).size).toBe(0);
    expect((await cancel(`/email/${id}`)).body).toEqual({
      id,
      cancelled: ['ann@example.com', 'cleo@example.com'],
      left: ['ben@example.com'],
    });
    expect((await depart(ofMessage(id))).size).toBe(0);
    expect(await queueOf(server, id)).toHaveLength(1);
    const refused = await cancel(`/email/${alone}`);
    expect([refused.status, refused.body.name, refused.body.message]).toEqual([
      409,
      'conflict',
      expect.stringContaining('dora@example.com'),
    ]);
    await rowsOf(
      server,
      'update delivery_queue set claimed_by = null, claim_number = null where claimed_by = $1',
      [epoch],
    );
    await rowsOf(server, 'delete from workers where epoch = $1', [epoch]);
  });

  test('is cancelled when the contact that it is for is deleted', async () => {
    const email = 'gone@example.com';
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', { email });
    const id = await send(server, { to: [email], scheduled_at: inMs(300 * dayMs) });
    const theirs = await send(
      server,
      { from: 'hello@elsewhere.example', to: [email], scheduled_at: inMs(300 * dayMs) },
      other,
    );
    expect((await server.request('DELETE', `/v1/contacts/${contact.id}`)).status).toBe(200);
    const { eraseNext } = await import('../../src/messages/erasure/erasure.ts');
    const tools = { ...server.installation, channels: messageChannels };
    while (await eraseNext(tools, dateOf(clock.nowMs() + 1_000)));
    expect(await read(server, id)).toMatchObject({
      status: 'cancelled',
      to: [{ email: null, status: 'cancelled' }],
    });
    expect(await read(server, theirs, other)).toMatchObject({ status: 'scheduled' });
  });
});

describe('when its time comes', () => {
  let working: TestServer;
  let time: ShiftedClock;

  beforeAll(async () => {
    time = createShiftedClock();
    working = await startTestServer({ worker: true, clock: time });
    await prepare(working);
  });
  afterAll(() => working.stop());

  const later = (ms: number) => inMs(ms, time);

  test('an email is sent then, and not before', async () => {
    const id = await send(working, { scheduled_at: later(3 * dayMs) });
    time.putForward(2 * dayMs);
    await settled(working, await send(working));
    expect(await read(working, id)).toMatchObject({ status: 'scheduled' });
    time.putForward(dayMs + 1_000);
    expect(await settled(working, id)).toMatchObject({ status: 'delivered' });
    expect((await cancel(`/email/${id}`, working)).body).toMatchObject({
      name: 'conflict',
      message: expect.stringContaining('ann@example.com'),
    });
  });

  test('what was moved to an earlier time is sent at that', async () => {
    const id = await send(working, { scheduled_at: later(100 * dayMs) });
    await move(`/email/${id}`, later(hourMs), working);
    time.putForward(hourMs + 1_000);
    expect(await settled(working, id)).toMatchObject({ status: 'delivered' });
  });

  test('nobody is written to who was suppressed meanwhile, from a domain that is gone, or by a suspended organization', async () => {
    const suppressed = await send(working, { to: ['stopped@example.com'], scheduled_at: later(dayMs) });
    await working.request('POST', '/v1/suppressions', {
      channel: 'email',
      address: 'stopped@example.com',
      reason: 'manual',
    });
    time.putForward(dayMs + 1_000);
    expect((await settled(working, suppressed)).to).toMatchObject([
      { dropped: true, drop_reason: 'suppressed' },
    ]);

    const suspended = await send(working, { scheduled_at: later(dayMs) });
    await suspend(working, true);
    time.putForward(dayMs + 1_000);
    expect(await settled(working, suspended)).toMatchObject({
      status: 'failed',
      to: [{ status: 'failed', bounce: { diagnostic: expect.stringContaining('suspended') } }],
    });
    await suspend(working, false);
    expect((await cancel(`/email/${suspended}`, working)).status).toBe(409);

    const withoutDomain = await send(working, { scheduled_at: later(dayMs) });
    await rowsOf(working, 'update domains set verified_at = null, status = $2 where organization_id = $1', [
      working.organizationId,
      'pending',
    ]);
    time.putForward(dayMs + 1_000);
    expect(await settled(working, withoutDomain)).toMatchObject({ status: 'failed' });
    await rowsOf(working, 'update domains set verified_at = now(), status = $2 where organization_id = $1', [
      working.organizationId,
      'verified',
    ]);
  });

  test('texts, pushes and codes go out as well, and live from then on', async () => {
    await addApprovedSender(working, 'Acme');
    await setUpPush(working);
    const contact = await aPushContact(working);
    await register(working, { ...androidApp('phone'), contact_id: contact });
    const template = await addChatTemplate(working, { category: 'authentication', content: codeTemplate });
    const bodies: [string, object][] = [
      ['/sms', { from: 'Acme', to: '+4915112345678', body: 'Hello' }],
      // Its life is over long before its time, if it were counted from its acceptance.
      ['/push', { contact_id: contact, title: 'Hello', body: 'You', ttl_seconds: 60 }],
      ['/chatapp', { to: '+4915112345679', template_id: template.id, parameters: { code: '123456' } }],
    ];
    const scheduled_at = later(dayMs);
    const kept: string[] = [];
    for (const [path, body] of bodies) {
      const batch = await working.request<{ data: { id: string }[] }>('POST', `/v1${path}/send/batch`, {
        messages: [
          { ...body, scheduled_at },
          { ...body, scheduled_at },
        ],
      });
      const [one, two] = batch.body.data;
      expect((await working.request('GET', `/v1${path}/${one!.id}`)).body).toMatchObject({
        status: 'scheduled',
        scheduled_at,
      });
      const { body: cancelled } = await cancel(`${path}/${two!.id}`, working);
      expect([cancelled.cancelled.length, cancelled.left]).toEqual([1, []]);
      expect((await working.request('GET', `/v1${path}/${two!.id}`)).body).toMatchObject({
        status: 'cancelled',
      });
      expect(
        (await working.request<{ data: object[] }>('GET', `/v1${path}?status=cancelled`)).body.data,
      ).toHaveLength(1);
      kept.push(`/v1${path}/${one!.id}`);
    }
    time.putForward(dayMs + 1_000);
    for (const path of kept) {
      const { status } = await eventually(
        async () => (await working.request<{ status: string }>('GET', path)).body,
        (record) => !['scheduled', 'queued', 'sending'].includes(record.status),
      );
      expect([path, ['sent', 'delivered', 'read'].includes(status)]).toEqual([path, true]);
    }
  });

  test('what is cancelled while it falls due is cancelled or sent, and says which', async () => {
    const scheduledAt = later(dayMs);
    const ids: string[] = [];
    for (let part = 0; part < 3; part += 1) {
      const { body } = await working.request<{ data: { id: string }[] }>('POST', '/v1/email/send/batch', {
        emails: Array.from({ length: 100 }, (_, index) =>
          anEmail({ to: [`race${part}-${index}@example.com`], subject: 'Race', scheduled_at: scheduledAt }),
        ),
      });
      ids.push(...body.data.map(({ id }) => id));
    }
    time.putForward(dayMs + 1_000);
    const answers = new Map<string, number>();
    for (let begin = 0; begin < ids.length; begin += 20) {
      await Promise.all(
        ids.slice(begin, begin + 20).map(async (id) => {
          answers.set(id, (await cancel(`/email/${id}`, working)).status);
        }),
      );
    }
    await eventually(
      () => rowsOf(working, 'select from delivery_queue'),
      (rows) => rows.length === 0,
    );
    const ends = await rowsOf<{ id: string; status: string; is_sent: boolean }>(
      working,
      `select m.id, m.status, exists (select from sandbox_messages s where s.message_id = m.id) as is_sent
       from messages m
       where m.subject = 'Race' and m.organization_id = $1`,
      [working.organizationId],
    );
    expect(ends).toHaveLength(ids.length);
    for (const { id, status, is_sent: isSent } of ends) {
      const isCancelled = answers.get(id) === 200;
      expect([id, status, isSent]).toEqual([id, isCancelled ? 'cancelled' : 'delivered', !isCancelled]);
    }
  });
});
