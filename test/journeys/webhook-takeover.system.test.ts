/**
 * Endpoints that are told by another worker after the one that told them has died, or has lost the connection by which it
 * held them: the events that were under way arrive once more, under the same ids, and no other.
 */
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { authorize, eventually, rowsOf, send, type Sender } from '../support/email-journey.ts';
import { type Program, usePrograms } from '../support/programs.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';
import { startWebhookReceiver, type WebhookReceiver, writeAnswer } from '../support/webhook-receiver.ts';

let address: DatabaseAddress;
let server: TestServer;
let other: Sender & { organizationId: string };
let receiver: WebhookReceiver;
let theirs: WebhookReceiver;

useTestDatabase({ hasNeighbour: true, isForEachTest: true }, (opened) => {
  address = opened.address;
});
const { start } = usePrograms();
beforeEach(async () => {
  server = await startTestServer({
    database: address,
    webhookAllowedHosts: ['127.0.0.1'],
    madeByHand: ['leases'],
  });
  other = await createSender(server.installation, 'other.test');
  receiver = await startWebhookReceiver();
  theirs = await startWebhookReceiver();
});
afterEach(async () => {
  await Promise.all([receiver.stop(), theirs.stop()]);
  await server.stop();
});

const eventsCount = 40;
const concurrency = 4;

async function startWorker(): Promise<Program> {
  const worker = start(
    {
      DATABASE_URL: databaseUrlOf(address),
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
      POSTILLION_WEBHOOK_ALLOW_HOSTS: '127.0.0.1',
      POSTILLION_ADDRESS_CHECKS: 'off',
      POSTILLION_PROCESSES: '1',
      LOG_LEVEL: 'info',
    },
    ['serve', '--role', 'worker'],
  );
  expect(await worker.untilSaid('errors', /"msg":"ready"/)).not.toBeNull();
  return worker;
}

async function createEndpoint({ port }: WebhookReceiver, sender?: Sender): Promise<string> {
  const { status, body, text } = await server.request<{ id: string }>(
    'POST',
    '/v1/webhooks',
    { kind: 'url', url: `http://127.0.0.1:${port}/`, events: ['*'], concurrency },
    authorize(sender),
  );
  expect([status, text]).toEqual([201, text]);
  return body.id;
}

const backlogOf = async (id: string, sender?: Sender) =>
  (await server.request<{ backlog: number }>('GET', `/v1/webhooks/${id}`, undefined, authorize(sender))).body
    .backlog;

const idOf = ({ headers }: WebhookReceiver['requests'][number]) => headers['webhook-id'] ?? '';

/** All requests that come are held open; the result answers none of these, and all that come later. */
function hold(): { sockets: Socket[]; letGo: () => void } {
  const sockets: Socket[] = [];
  receiver.answerBy((socket) => sockets.push(socket));
  return {
    sockets,
    letGo: () => {
      receiver.answerBy((socket) => socket.write(writeAnswer(200, 'ok')));
    },
  };
}

/** The connections by which workers hold endpoints. */
const listHolders = () =>
  rowsOf<{ pid: number }>(
    server,
    `select pid from pg_stat_activity
     where datname = current_database() and application_name = 'postillion-webhooks'`,
  );

/** The one that holds this endpoint. */
const findHolder = (webhookId: string) =>
  rowsOf<{ pid: number }>(
    server,
    `select pid from pg_locks
     where locktype = 'advisory' and granted
       and classid::bigint << 32 | objid::bigint = hashtextextended('webhook ' || $1, 0)`,
    [webhookId],
  );

const sendTheirs = () => send(server, { from: 'hello@other.test' }, other);

/** Two workers, of which one tells the endpoint of many events; the first of these are held open. */
async function arrange(): Promise<{
  id: string;
  /** The one that tells, and its connection. */
  telling: { worker: Program; pid: number };
  waiting: Program;
  held: ReturnType<typeof hold>;
}> {
  const id = await createEndpoint(receiver);
  const theirId = await createEndpoint(theirs, other);
  await server.request('POST', `/v1/webhooks/${id}/pause`);
  for (let number = 0; number < eventsCount; number += 1) await send(server);
  const first = await startWorker();
  // Both have told something by then, so that it is known whose each connection is.
  await sendTheirs();
  const [{ pid: ofFirst }] = (await eventually(listHolders, (holders) => holders.length === 1)) as [
    { pid: number },
  ];
  const second = await startWorker();
  await eventually(
    async () => {
      await sendTheirs();
      return listHolders();
    },
    (holders) => holders.length === 2,
  );
  await eventually(
    async () => [await backlogOf(id), await backlogOf(theirId, other)],
    ([own, ofOther]) => own === eventsCount && ofOther === 0,
  );
  const held = hold();
  await server.request('POST', `/v1/webhooks/${id}/enable`);
  await receiver.whenReceived(concurrency);
  const [{ pid }] = (await findHolder(id)) as [{ pid: number }];
  const [worker, waiting] = pid === ofFirst ? [first, second] : [second, first];
  return { id, telling: { worker, pid }, waiting, held };
}

/** How often each event came: those of the first requests twice, and the others once. */
async function expectRepeatsOfFirst(id: string): Promise<void> {
  await eventually(
    () => backlogOf(id),
    (backlog) => backlog === 0,
  );
  const ids = receiver.requests.map(idOf);
  const underWay = ids.slice(0, concurrency);
  expect(new Set(underWay).size).toBe(concurrency);
  expect(new Set(ids).size).toBe(eventsCount);
  expect(ids.length).toBe(eventsCount + concurrency);
  for (const each of underWay) {
    const bodies = receiver.requests.filter((request) => idOf(request) === each).map(({ body }) => body);
    expect(bodies.length).toBe(2);
    expect(bodies[1]).toEqual(bodies[0]);
  }
  const ofTheirs = theirs.requests.map(idOf);
  expect(new Set(ofTheirs).size).toBe(ofTheirs.length);
  expect(ids.filter((each) => ofTheirs.includes(each))).toEqual([]);
}

/** What became of the endpoint's attempts: failures would be those of a worker that was not to write any. */
const failuresOf = async (id: string) => [
  ...(await rowsOf(
    server,
    "select event_id from webhook_deliveries where webhook_id = $1 and status <> 'delivered'",
    [id],
  )),
  ...(await rowsOf(server, 'select failures from webhook_cursors where webhook_id = $1 and failures > 0', [
    id,
  ])),
];

test('the events of a worker that is killed are told by another one, those under way once more', async () => {
  const { id, telling, held } = await arrange();
  held.letGo();
  const gone = once(telling.worker.child, 'exit');
  telling.worker.child.kill('SIGKILL');
  await gone;
  await expectRepeatsOfFirst(id);
  expect(await failuresOf(id)).toEqual([]);
});

test('a worker that has lost its lock begins nothing more, and writes nothing of what was under way', async () => {
  const { id, telling, waiting, held } = await arrange();
  held.letGo();
  await rowsOf(server, 'select pg_terminate_backend($1)', [telling.pid]);
  await expectRepeatsOfFirst(id);
  // It hears now that they failed, long after the other has told of them.
  for (const socket of held.sockets) socket.end(writeAnswer(500, 'late'));
  waiting.child.kill('SIGKILL');
  await waiting.ended;
  await send(server);
  // By then its round is over.
  await receiver.whenReceived(eventsCount + concurrency + 1);
  expect(await failuresOf(id)).toEqual([]);
});
