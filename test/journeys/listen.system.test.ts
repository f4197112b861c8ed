/** `listen`: events brought to a program on the machine of whoever develops it, by the program as it is installed. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import os from 'node:os';
import { Webhook } from 'standardwebhooks';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { createApiKey } from '../../src/accounts/accounts.ts';
import { authorize, send, type Sender } from '../support/email-journey.ts';
import { type Program, usePrograms } from '../support/programs.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { startWebhookReceiver, type WebhookReceiver, writeAnswer } from '../support/webhook-receiver.ts';

type Line = {
  listening?: true;
  secret: string;
  next: number;
  type?: string;
  id: string;
  status: number | null;
  ms: number;
  problem?: string;
};
type Webhooks = { data: { id: string; kind: string; description: string | null }[] };

let server: TestServer;
let other: Sender & { organizationId: string };
let receiver: WebhookReceiver;

beforeAll(async () => {
  server = await startTestServer({ worker: true });
  other = await createSender(server.installation, 'other.example');
});
afterAll(() => server.stop());
beforeEach(async () => {
  receiver = await startWebhookReceiver();
});
afterEach(() => receiver.stop());
const { start, run } = usePrograms();

function listen(key: string, ...words: string[]): Program {
  const forward = `http://127.0.0.1:${receiver.port}/hooks`;
  return start({ POSTILLION_KEY: key, POSTILLION_URL: server.url }, [
    ...['listen', '--json', '--forward', forward],
    ...words,
  ]);
}

const linesOf = ({ said }: Program) =>
  said.output
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Line);

/** The first line, once it listens. */
async function untilListening(program: Program): Promise<Line> {
  const found = await program.untilSaid('output', /^\{"listening":true.*$/m);
  if (found === null) throw new Error(program.said.output + program.said.errors);
  return JSON.parse(found[0]) as Line;
}

async function end(program: Program, signal: NodeJS.Signals = 'SIGINT') {
  program.child.kill(signal);
  return program.ended;
}

const webhooksOf = async (sender?: Sender) =>
  (await server.request<Webhooks>('GET', '/v1/webhooks', undefined, authorize(sender))).body.data;

test('each event comes signed, is told in a line, and nothing is left of the command at its end', async () => {
  const program = listen(server.key, '--events', 'email.*');
  const { secret } = await untilListening(program);
  const beside = listen(other.key, '--events', '*');
  const { secret: foreign } = await untilListening(beside);
  expect(foreign).not.toBe(secret);
  const [webhook] = await webhooksOf();
  expect(webhook).toMatchObject({
    kind: 'poll',
    description: `postillion listen, process ${program.child.pid} on ${os.hostname()}`,
  });

  const ids: string[] = [];
  for (const count of [1, 2]) {
    ids.push(await send(server));
    await receiver.whenReceived(count);
  }
  const events = receiver.requests.map(({ method, path, headers, body }) => {
    expect([method, path, headers['content-type']]).toEqual(['POST', '/hooks', 'application/json']);
    expect(() => new Webhook(foreign).verify(body, headers)).toThrow();
    return new Webhook(secret).verify(body, headers) as { id: string; type: string; data: { id: string } };
  });
  expect(events.map(({ type, data }) => [type, data.id])).toEqual(ids.map((id) => ['email.delivered', id]));
  await program.untilSaid('output', new RegExp(`${events[1]!.id}.*\n`));

  const ended = await end(program);
  expect(ended).toMatchObject({ exitCode: 0, errors: '' });
  const [, ...told] = linesOf(program);
  expect(told).toEqual([
    ...events.map(({ type, id }) => ({ type, id, status: 200, ms: expect.any(Number) as number })),
    { ended: true, next: expect.any(Number) as number },
  ]);
  expect(await webhooksOf()).toEqual([]);
  expect((await webhooksOf(other)).length).toBe(1);
  await end(beside, 'SIGTERM');
  expect(linesOf(beside).some(({ type }) => type !== undefined)).toBe(false);
});

test('what a program did not take is posted until it does, and what comes after it waits', async () => {
  const program = listen(server.key);
  await untilListening(program);
  receiver.answerBy((socket) => socket.destroy());
  const first = await send(server);
  await receiver.whenReceived(1);
  const second = await send(server);
  receiver.answerBy((socket) => socket.write(writeAnswer(500)));
  await receiver.whenReceived(3);
  receiver.answerBy((socket) => socket.write(writeAnswer(204)));
  await program.untilSaid('output', /(?:"status":204.*\n.*){2}/);
  const bodies = receiver.requests.map(
    ({ body }) => JSON.parse(body.toString()) as { id: string; data: { id: string } },
  );
  expect(bodies.at(-1)!.data.id).toBe(second);
  expect(bodies.slice(0, -1).every(({ id, data }) => id === bodies[0]!.id && data.id === first)).toBe(true);
  const told = linesOf(program).filter(({ type }) => type !== undefined);
  // A connection may break off in several ways, each of which is told.
  const statuses = told
    .map(({ status }) => status)
    .filter((status, at, all) => status !== null || at === 0 || all[at - 1] !== null);
  expect(statuses).toEqual([null, 500, 204, 204]);
  expect(told[0]!.problem).toEqual(expect.any(String));
  await end(program);
});

test('from a position on, what happened before is brought again, of the types asked for', async () => {
  const before = listen(server.key);
  await untilListening(before);
  const id = await send(server);
  await receiver.whenReceived(1);
  await end(before);
  const { sequence } = JSON.parse(receiver.requests[0]!.body.toString()) as { sequence: number };

  const others = listen(server.key, '--from', `${sequence}`, '--events', 'sms.*');
  await untilListening(others);
  const again = listen(server.key, '--from', `${sequence}`);
  await receiver.whenReceived(2);
  expect(JSON.parse(receiver.requests[1]!.body.toString())).toMatchObject({ sequence, data: { id } });
  await end(again);
  await end(others);
  expect(linesOf(others).some(({ type }) => type !== undefined)).toBe(false);
});

test('while the server is away the place is kept, and it goes on when the server is there again', async () => {
  const sockets = new Set<Socket>();
  const way = createServer((client) => {
    const upstream = connect(Number(new URL(server.url).port), '127.0.0.1');
    for (const [one, another] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(one);
      one.on('error', () => another.destroy());
      one.once('close', () => sockets.delete(one));
      one.pipe(another);
    }
  });
  way.listen(0, '127.0.0.1');
  await once(way, 'listening');
  const { port } = way.address() as AddressInfo; // It listens on a port, not on a path.
  const program = listen(server.key, '--url', `http://127.0.0.1:${port}`);
  await untilListening(program);

  const closed = once(way, 'close');
  way.close();
  for (const socket of sockets) socket.destroy();
  await closed;
  await program.untilSaid('output', /"server":"away"/);
  const id = await send(server);
  way.listen(port, '127.0.0.1');
  await receiver.whenReceived(1);
  expect(JSON.parse(receiver.requests[0]!.body.toString())).toMatchObject({ data: { id } });
  expect(program.said.output).toContain('"server":"there"');
  await end(program);
  way.close();
});

test('what a process that was killed has left behind is removed by the next, and not that of one that runs', async () => {
  const killed = listen(server.key);
  const running = listen(server.key);
  await untilListening(killed);
  await untilListening(running);
  await end(killed, 'SIGKILL');
  expect((await webhooksOf()).length).toBe(2);
  const next = listen(server.key);
  await untilListening(next);
  const pids = (await webhooksOf()).map(({ description }) => /process (\d+)/.exec(description ?? '')?.[1]);
  expect(pids.sort()).toEqual([`${running.child.pid}`, `${next.child.pid}`].sort());
  await end(next);
  await end(running);
});

test('it ends at once, and says why, where it cannot listen', async () => {
  const forward = ['--forward', 'http://localhost:3000/hooks'];
  const { key } = await createApiKey(server.installation, {
    organizationId: server.organizationId,
    name: 'No webhooks',
    scopes: ['email:send'],
    expiresAt: null,
  });
  const refused: [string[], RegExp][] = [
    [['--forward', 'localhost:3000'], /^--forward must be a URL such as/],
    [[...forward, '--url', 'ftp://post.example.com'], /^--url must be a URL/],
    [[...forward, '--url', server.url], /^Give an API key .* POSTILLION_KEY/],
    [[...forward, '--url', server.url, '--key', 'pst_none'], /key/i],
    [[...forward, '--url', server.url, '--key', key], /scope/],
    [[...forward, '--url', server.url, '--key', server.key, '--secret', 'whsec_short'], /^--secret must be/],
    [[...forward, '--url', server.url, '--key', server.key, '--events', 'mail.*'], /events/],
    [[...forward, '--url', server.url, '--key', server.key, '--from', 'yesterday'], /position/],
    [[...forward, '--url', 'http://127.0.0.1:9', '--key', server.key], /^Nothing answers at http:..127/],
  ];
  for (const [words, sentence] of refused) {
    const { exitCode, output, errors } = await run({}, 'listen', ...words);
    expect([exitCode, output]).toEqual([1, '']);
    expect(errors).toMatch(sentence);
  }
  expect(await webhooksOf()).toEqual([]);
});
