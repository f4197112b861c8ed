/** Copies of campaigns whose hand-off was cut off after the message had left: repeated once, or not, as the campaign says. */
import { afterEach, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { startWorker } from '../../src/roles/worker.ts';
import {
  authorize,
  createShiftedClock,
  eventually,
  rowsOf,
  type Sender,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { type SinkAction, type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';

const minuteMs = 60_000;

const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

type World = { server: TestServer; sink: SmtpSink; clock: ShiftedClock; startWorker: () => Promise<void> };

/** A relay that takes copies to readers, and of the first to each does `then` in place of its answer. */
async function arrange(then: () => SinkAction, { closings = 1 } = {}): Promise<World> {
  const seen = new Map<string, number>();
  const sink = await startSmtpSink({
    keepContent: true,
    // Or what has been announced on two connections that close is put off for a minute, without having left.
    pipelining: false,
    script: ({ phase, recipient }) => {
      if (phase !== 'content' || !recipient.startsWith('reader')) return undefined;
      const count = (seen.get(recipient) ?? 0) + 1;
      seen.set(recipient, count);
      return count <= closings ? then() : undefined;
    },
  });
  open.push(sink.close);
  const clock = createShiftedClock();
  const smtpUrl = `smtp://127.0.0.1:${sink.port}?connections=4`;
  // The last worker that is buried has nobody to remove its row.
  const server = await startTestServer({ clock, smtpUrl, madeByHand: ['leases'] });
  open.push(server.stop);
  await allowLooks(server, server.organizationId);
  return {
    server,
    sink,
    clock,
    startWorker: async () => {
      const worker = await startWorker(server.installation);
      open.push(worker.stop);
    },
  };
}

/** As often as somebody looks who waits. */
async function allowLooks({ installation }: TestServer, organizationId: string): Promise<void> {
  await updateOrganization(installation, organizationId, { requestsPerWindow: 100_000 });
}

async function create(server: TestServer, path: string, body: object, sender?: Sender): Promise<string> {
  const response = await server.request<{ id: string }>('POST', path, body, authorize(sender));
  if (response.status !== 201) throw new Error(response.text);
  return response.body.id;
}

type Campaign = { uncertain: string | null };

const readCampaign = async (server: TestServer, id: string, sender?: Sender) =>
  (await server.request<Campaign>('GET', `/v1/email/campaigns/${id}`, undefined, authorize(sender))).body;

/** To three readers, on their way. */
async function sendCampaign(
  server: TestServer,
  domain: string,
  choice: object,
  sender?: Sender,
): Promise<string> {
  const listId = await create(server, '/v1/lists', { name: 'Readers' }, sender);
  for (const number of [1, 2, 3]) {
    const email = `reader${number}@${domain.replace('test', 'example')}`;
    await create(server, '/v1/contacts', { email, list_ids: [listId] }, sender);
  }
  const campaign = {
    name: 'News',
    from: `hello@${domain}`,
    subject: 'News',
    text: 'Hello',
    list_ids: [listId],
    ...choice,
  };
  const id = await create(server, '/v1/email/campaigns', campaign, sender);
  const sent = await server.request('POST', `/v1/email/campaigns/${id}/send`, {}, authorize(sender));
  expect(sent.status).toBe(200);
  return id;
}

/** Resolves when of so many recipients, of all campaigns, it is not known whether they have it. */
const whenUncertain = (server: TestServer, recipients: number) =>
  eventually(
    () => rowsOf(server, 'select from recipients where uncertain'),
    ({ length }) => length === recipients,
  );

function copiesAt(sink: SmtpSink, domain: string): string[] {
  return sink.messages.map(({ recipients }) => recipients[0]!).filter((to) => to.endsWith(`@${domain}`));
}

const closing = () => ({ close: true, accept: true }) as const;

const twice = (addresses: string[]) => [...addresses, ...addresses].sort();
const readersOf = (domain: string) => [1, 2, 3].map((number) => `reader${number}@${domain}`);

test('of two organizations the one that wants it has its copies repeated once, with the same octets', async () => {
  const { server, sink, clock, startWorker } = await arrange(closing);
  const other = await createSender(server.installation, 'other.test');
  await allowLooks(server, other.organizationId);
  const repeated = await sendCampaign(server, 'postillion.test', { uncertain: 'repeat' });
  const skipped = await sendCampaign(server, 'other.test', {}, other);
  await startWorker();
  await whenUncertain(server, 6);
  clock.putForward(minuteMs);
  await whenUncertain(server, 3);
  // Whatever else were due would have left before.
  await settled(server, await send(server, { to: ['witness@example.com'] }));
  expect(copiesAt(sink, 'postillion.example').sort()).toEqual(twice(readersOf('postillion.example')));
  expect(copiesAt(sink, 'other.example').sort()).toEqual(readersOf('other.example'));
  for (const to of readersOf('postillion.example')) {
    const [first, second] = sink.messages.filter(({ recipients }) => recipients[0] === to);
    expect(first!.content.equals(second!.content)).toBe(true);
  }
  expect(await readCampaign(server, repeated)).toMatchObject({ uncertain: 'repeat' });
  expect(await readCampaign(server, skipped, other)).toMatchObject({ uncertain: null });
});

test('a copy whose second hand-off is cut off too stays uncertain, and is not sent a third time', async () => {
  const { server, sink, clock, startWorker } = await arrange(closing, { closings: 2 });
  await sendCampaign(server, 'postillion.test', { uncertain: 'repeat' });
  await startWorker();
  await whenUncertain(server, 3);
  clock.putForward(minuteMs);
  await eventually(
    () => sink.messages.length,
    (length) => length === 6,
  );
  await eventually(
    () => rowsOf(server, 'select from delivery_queue'),
    (jobs) => jobs.length === 0,
  );
  clock.putForward(10 * minuteMs);
  await settled(server, await send(server, { to: ['witness@example.com'] }));
  expect(copiesAt(sink, 'postillion.example').sort()).toEqual(twice(readersOf('postillion.example')));
  await whenUncertain(server, 3);
});

test('the choice is one of two, of campaigns by email alone, and frozen with the audience', async () => {
  const { server } = await arrange(closing);
  const path = '/v1/email/campaigns';
  const refused = await server.request('POST', path, { name: 'News', uncertain: 'twice' });
  expect(refused.status).toBe(422);
  const text = await server.request('POST', '/v1/sms/campaigns', { name: 'News', uncertain: 'repeat' });
  expect(text.status).toBe(422);
  const push = await server.request('POST', '/v1/push/campaigns', { name: 'News', uncertain: 'skip' });
  expect(push.status).toBe(422);
  const id = await create(server, path, { name: 'News', uncertain: 'repeat' });
  expect(await readCampaign(server, id)).toMatchObject({ uncertain: 'repeat' });
  await server.request('PATCH', `${path}/${id}`, { uncertain: null });
  expect(await readCampaign(server, id)).toMatchObject({ uncertain: null });
  const queued = await sendCampaign(server, 'postillion.test', { uncertain: 'skip' });
  const late = await server.request('PATCH', `${path}/${queued}`, { uncertain: 'repeat' });
  expect([late.status, (await readCampaign(server, queued)).uncertain]).toEqual([400, 'skip']);
});
