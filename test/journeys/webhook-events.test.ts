/** What happens to messages, as programs read it from the log of their organization. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { dropOldEvents } from '../../src/webhooks/webhooks.ts';
import { createEventCheck } from '../support/described-events.ts';
import {
  authorize,
  createShiftedClock,
  type ErrorBody,
  eventually,
  read,
  rowsOf,
  send,
  type Sender,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

type Event = {
  id: string;
  type: string;
  timestamp: string;
  sequence: number;
  data: { object: string; id: string; recipient: { address: string | null; status: string } };
};
type Page = { object: string; data: Event[]; next: number; caught_up: boolean; oldest: number | null };

let server: TestServer;
let other: Sender & { organizationId: string };
let clock: ShiftedClock;

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock, publicUrl: 'https://mail.postillion.test' });
  other = await createSender(server.installation, 'other.example');
});
afterAll(() => server.stop());

function subscribe(body: object, sender?: Sender) {
  return server.request<{ id: string } & ErrorBody>('POST', '/v1/webhooks', body, authorize(sender));
}

async function readPage(query: Record<string, string> = {}, sender?: Sender): Promise<Page> {
  const search = new URLSearchParams(query);
  const response = await server.request<Page>(
    'GET',
    `/v1/webhook-events?${search.toString()}`,
    undefined,
    authorize(sender),
  );
  if (response.status !== 200) throw new Error(response.text);
  return response.body;
}

/** What the log tells of a message, once there are so many events of it. */
async function eventsOf(messageId: string, count: number, sender?: Sender): Promise<Event[]> {
  return eventually(
    async () => (await readPage({ limit: '200' }, sender)).data.filter(({ data }) => data.id === messageId),
    (events) => events.length >= count,
  );
}

const simulator = (what: string) => `${what}@simulator.postillion.test`;

test('nothing is logged that nobody wants, and nothing of another organization', async () => {
  const sender = await createSender(server.installation, 'nobody.example');
  await subscribe({ kind: 'poll', events: ['*'] }, other);
  const id = await send(server, { from: 'a@nobody.example' }, sender);
  await settled(server, id, sender);
  expect(await readPage({}, sender)).toEqual({
    object: 'event_page',
    data: [],
    next: 1,
    caught_up: true,
    oldest: null,
  });
  expect(
    await rowsOf(server, 'select * from webhook_outbox where organization_id = $1', [sender.organizationId]),
  ).toEqual([]);
});

describe('an organization that wants everything', () => {
  beforeAll(async () => {
    expect((await subscribe({ kind: 'poll', events: ['*'] })).status).toBe(201);
  });

  test('hears of each recipient of an email, whichever way its outcome is written', async () => {
    const alone = await send(server);
    const shared = await send(server, {
      to: ['ann@example.com', simulator('bounced'), simulator('suppressed')],
    });
    await settled(server, alone);
    await settled(server, shared);
    expect((await eventsOf(alone, 1)).map(({ type, data }) => [type, data.recipient.status])).toEqual([
      ['email.delivered', 'delivered'],
    ]);
    const events = await eventsOf(shared, 3);
    const record = await read(server, shared);
    const told = events.map(({ type, data: { recipient } }) => [recipient.address, type]).sort();
    expect(told).toEqual(
      record.to.map(({ email, status, dropped }) => [email, `email.${dropped ? 'dropped' : status}`]).sort(),
    );
    expect(new Set(told.map(([, type]) => type))).toEqual(
      new Set(['email.bounced', 'email.delivered', 'email.dropped']),
    );
  });

  test('reads what the description says, of whatever happened', async () => {
    const isDescribed = createEventCheck();
    const { data } = await readPage({ limit: '200' });
    expect(new Set(data.map(({ type }) => type)).size).toBeGreaterThanOrEqual(3);
    expect(data.filter((event) => !isDescribed(event))).toEqual([]);
    const [first] = data;
    expect(isDescribed({ ...first, data: { ...first!.data, recipient: {} } })).toBe(false);
    // Of what was erased.
    expect(isDescribed({ ...first, data: { object: 'email', id: first!.data.id } })).toBe(true);
  });

  test('reads from now on, past all that is there', async () => {
    const id = await send(server);
    await eventsOf(id, 1);
    const now = await readPage({ from: 'now' });
    expect(now).toMatchObject({ data: [], caught_up: true });
    const later = await send(server);
    await eventsOf(later, 1);
    const page = await readPage({ from: `${now.next}` });
    expect(page.data.map(({ sequence, data }) => [sequence, data.id])).toEqual([[now.next, later]]);
    const refused = await server.request<ErrorBody>(
      'GET',
      '/v1/webhook-events?from=yesterday',
      undefined,
      authorize(undefined),
    );
    expect(refused.body.message).toContain('a position, which is a number of at most 15 digits, or now');
  });

  test('reads positions without gaps, and ids that no other event has', async () => {
    const ids = await Promise.all(Array.from({ length: 30 }, () => send(server)));
    for (const id of ids) await eventsOf(id, 1);
    const read: Event[] = [];
    let from: number | undefined;
    for (;;) {
      const page: Page = await readPage({ ...(from !== undefined && { from: `${from}` }), limit: '7' });
      read.push(...page.data);
      from = page.next;
      if (page.caught_up) break;
    }
    expect(read.map(({ sequence }) => sequence)).toEqual(read.map((_, index) => index + 1));
    expect(new Set(read.map(({ id }) => id)).size).toBe(read.length);
    expect(read.length).toBeGreaterThanOrEqual(34);
    const again = await readPage({ from: `${read[10]!.sequence}`, limit: '5' });
    expect(again.data).toEqual(read.slice(10, 15));
  });

  test('is told what happens while it waits', async () => {
    const { next } = await readPage({ limit: '200' });
    const waiting = readPage({ from: `${next}`, wait: '25' });
    const id = await send(server);
    const page = await waiting;
    expect(page.data.map(({ type, data }) => [type, data.id])).toEqual([['email.delivered', id]]);
    expect(page.data[0]!.sequence).toBe(next);
  });

  test('reads some types alone, and goes on behind all that it left out', async () => {
    const { next } = await readPage({ limit: '200' });
    const id = await send(server, { to: [simulator('bounced'), 'ann@example.com'] });
    await settled(server, id);
    await eventsOf(id, 2);
    const page = await readPage({ from: `${next}`, types: 'email.bounced,sms.*' });
    expect(page.data.map(({ type }) => type)).toEqual(['email.bounced']);
    expect(page).toMatchObject({ next: next + 2, caught_up: true });
  });

  test('a month later reads nothing of it, and what came after', async () => {
    const { next } = await readPage({ limit: '200' });
    clock.putForward(31 * 86_400_000);
    await dropOldEvents({ ...server.installation, clock });
    const id = await send(server);
    await settled(server, id);
    const page = await eventually(
      () => readPage(),
      ({ data }) => data.length > 0,
    );
    expect(page.data.map(({ sequence, data }) => [sequence, data.id])).toEqual([[next, id]]);
    expect(page.oldest).toBe(next);
  });
});
