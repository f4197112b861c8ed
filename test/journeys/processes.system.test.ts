/** A role in several processes: one supervisor, one greeting, one end, and deaths that nobody else notices. */
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { type ClientRequest, type IncomingMessage, request } from 'node:http';
import { type AddressInfo, createServer } from 'node:net';
import path from 'node:path';
import { afterEach, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { startWorker } from '../../src/roles/worker.ts';
import {
  anEmail,
  eventually,
  queueOf,
  repeatAtOnce,
  rowsOf,
  send,
  settled,
} from '../support/email-journey.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender, sendSms } from '../support/sms-journey.ts';
import { type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

/** Of what is started with it, standard output is a terminal as far as the program can tell. */
const asTerminal = ['--import', 'data:text/javascript,process.stdout.isTTY=true'];

let address: DatabaseAddress;
const ends: (() => Promise<unknown> | void)[] = [];

useTestDatabase({ hasNeighbour: true, isForEachTest: true }, (opened) => {
  address = opened.address;
});
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});
const programs = usePrograms();

function start(settings: Settings = {}, nodeOptions: readonly string[] = []): Program {
  return programs.start(
    {
      PORT: '0',
      LOG_LEVEL: 'info',
      DATABASE_URL: databaseUrlOf(address),
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
      POSTILLION_ADDRESS_CHECKS: 'off',
      POSTILLION_PROCESSES: '2',
      ...settings,
    },
    ['serve'],
    { nodeOptions },
  );
}

async function urlOf({ untilSaid }: Program): Promise<string> {
  return (await untilSaid('output', servedUrl))![1]!;
}

/** It must end as one that was asked to: with 0. */
async function stop({ child, ended }: Program): Promise<void> {
  child.kill('SIGTERM');
  expect((await ended).exitCode).toBe(0);
}

async function startServer(sink?: SmtpSink): Promise<TestServer> {
  const server = await startTestServer({
    database: address,
    madeByHand: ['leases'],
    ...(sink && { smtpUrl: smtpUrlOf(sink) }),
  });
  ends.push(server.stop);
  return server;
}

async function startSink(): Promise<SmtpSink> {
  const sink = await startSmtpSink();
  ends.push(sink.close);
  return sink;
}

function smtpUrlOf(sink: SmtpSink, connections = 4): string {
  return `smtp://127.0.0.1:${sink.port}?connections=${connections}`;
}

const listPids = async (server: TestServer) =>
  (await rowsOf<{ pid: number }>(server, 'select pid from workers order by pid')).map(({ pid }) => pid);

/** A worker registers in the background. */
const whenTwoWork = (server: TestServer) =>
  eventually(
    () => listPids(server),
    (pids) => pids.length === 2,
  );

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

function linesOf({ said }: Program): Record<string, unknown>[] {
  const whole = said.errors.slice(0, said.errors.lastIndexOf('\n') + 1);
  return whole
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

const processesThat = (program: Program, msg: string) =>
  linesOf(program)
    .filter((line) => line.msg === msg)
    .map((line) => line.process);

test('a start that fails is one sentence, whatever the number of processes', async () => {
  const listener = createServer().listen(0, '127.0.0.1');
  ends.push(() => {
    listener.close();
  });
  await once(listener, 'listening');
  const { port } = listener.address() as AddressInfo;
  const program = start({ PORT: `${port}` }, asTerminal);
  const { exitCode, output, errors } = await program.ended;
  expect({ exitCode, output }).toEqual({ exitCode: 1, output: '' });
  const sentences = errors.split('\n').filter((line) => line !== '' && !line.startsWith('{'));
  expect(sentences).toEqual([
    `Port ${port} on 127.0.0.1 is in use by another process: stop that one, or set PORT to another port.`,
  ]);
  // Nobody sent a signal.
  expect(errors).not.toContain('SIGTERM');
  expect(linesOf(program)).toContainEqual(
    expect.objectContaining({ msg: 'stopping all processes', reason: 'failed_start' }),
  );
});

/** Repeats what a dying process has left unanswered, under the same key. */
async function sendThrough(url: string, server: TestServer, number: number): Promise<string> {
  for (;;) {
    const response = await fetch(`${url}/v1/email/send`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${server.key}`,
        'content-type': 'application/json',
        'idempotency-key': `message ${number}`,
        connection: 'close',
      },
      body: JSON.stringify(anEmail({ to: [`reader${number}@example.com`] })),
    }).catch(() => null);
    if (response === null) continue;
    expect(response.status).toBe(202);
    return ((await response.json()) as { id: string }).id;
  }
}

test('a process that is killed under load is back, loses nothing, and leaves the other alone', async () => {
  const sink = await startSink();
  const server = await startServer(sink);
  const program = start({ POSTILLION_SMTP_URL: smtpUrlOf(sink) });
  const url = await urlOf(program);
  const [killed = 0, other = 0] = await whenTwoWork(server);
  const ids: string[] = [];
  for (let number = 0; number < 60; number += 1) {
    if (number === 30) process.kill(killed, 'SIGKILL');
    ids.push(await sendThrough(url, server, number));
  }
  const after = await eventually(
    () => listPids(server),
    (pids) => pids.length === 2 && !pids.includes(killed),
  );
  expect(after).toContain(other);
  await repeatAtOnce(server);
  for (const id of ids) await settled(server, id);
  expect(new Set(ids).size).toBe(60);
  const rows = await rowsOf<{ address: string; status: string; ambiguities: number }>(
    server,
    'select address, status, ambiguities from recipients where organization_id = $1',
    [server.organizationId],
  );
  expect(rows).toHaveLength(60);
  for (const { address: to, status, ambiguities } of rows) {
    expect(status).toBe('delivered');
    const copies = sink.messages.filter(({ recipients }) => recipients[0] === to).length;
    expect(copies).toBeGreaterThanOrEqual(1);
    expect(copies).toBeLessThanOrEqual(1 + ambiguities);
  }
  expect(processesThat(program, 'a process has ended, and is started again')).toHaveLength(1);
  await stop(program);
  expect(program.said.output.match(/Postillion serves/g)).toHaveLength(1);
});

/** Once the server has taken its head. The body is still to come. */
async function beginRequest(url: string, { key }: TestServer): Promise<ClientRequest> {
  const begun = request(`${url}/v1/email/send`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${key}`,
      'content-type': 'application/json',
      expect: '100-continue',
    },
  });
  const isTaken = once(begun, 'continue');
  begun.flushHeaders();
  await isTaken;
  return begun;
}

test('a signal ends all of them with 0, and requests under way are answered before', async () => {
  const server = await startServer();
  const program = start();
  const url = await urlOf(program);
  const pids = await whenTwoWork(server);
  const begun = [await beginRequest(url, server), await beginRequest(url, server)];
  program.child.kill('SIGTERM');
  await eventually(
    () => processesThat(program, 'stopping'),
    (stopping) => stopping.length === 2,
  );
  for (const each of begun) {
    const answered = once(each, 'response') as Promise<[IncomingMessage]>;
    each.end(JSON.stringify(anEmail()));
    const [response] = await answered;
    expect(response.statusCode).toBe(202);
    response.resume();
  }
  expect((await program.ended).exitCode).toBe(0);
  expect(pids.filter(isAlive)).toEqual([]);
  expect(await listPids(server)).toEqual([]);
});

test('no process outlives a killed supervisor, and another may start at once, with other settings', async () => {
  const server = await startServer();
  const program = start();
  const url = await urlOf(program);
  const orphans = await whenTwoWork(server);
  program.child.kill('SIGKILL');
  await once(program.child, 'exit');
  const next = start({ PORT: new URL(url).port, POSTILLION_PROCESSES: '1' });
  expect(await urlOf(next)).toBe(url);
  await eventually(
    () => orphans.filter(isAlive),
    (alive) => alive.length === 0,
  );
  // They gave back what they had, as at any other end.
  await eventually(
    () => listPids(server),
    ([pid, ...others]) => pid === next.child.pid && others.length === 0,
  );
  expect(await (await fetch(`${url}/readyz`)).text()).toContain('ready');
  await stop(next);
});

test('two processes on one embedded PostgreSQL greet once, when both are ready, and both take requests', async () => {
  const directory = await mkdtemp(path.join(databasesDirectory(), 'postillion-processes-'));
  // As root, PostgreSQL runs as another user, who has to pass here.
  await chmod(directory, 0o711);
  ends.push(() => rm(directory, { recursive: true, force: true }));
  const program = start({ DATABASE_URL: '', POSTILLION_SECRET: '', POSTILLION_DATA_DIR: directory });
  const url = await urlOf(program);
  expect(processesThat(program, 'ready').sort()).toEqual([1, 2]);
  const key = /API key: +(\S+)/.exec(program.said.output)![1]!;
  const headers = { authorization: `Bearer ${key}`, connection: 'close' };
  const served = await eventually(
    async () => {
      const answers = await Promise.all(
        Array.from({ length: 16 }, () => fetch(`${url}/v1/contacts`, { headers })),
      );
      expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
      return new Set(processesThat(program, 'request'));
    },
    (numbers) => numbers.size === 2,
  );
  expect(served).toEqual(new Set([1, 2]));
  const pidFile = path.join(directory, 'postgres', 'cluster', 'postmaster.pid');
  expect(existsSync(pidFile)).toBe(true);
  await stop(program);
  expect(existsSync(pidFile)).toBe(false);
  // By the supervisor, which is none of the processes.
  expect(processesThat(program, 'starting the embedded PostgreSQL')).toEqual([undefined]);
  expect(program.said.output.match(/Postillion serves/g)).toHaveLength(1);
  expect(program.said.output.match(/API key: /g)).toHaveLength(1);
});

test('a relay that allows one connection gets one, from the first process alone', async () => {
  const sink = await startSink();
  const server = await startServer(sink);
  const { installation } = server;
  const providerSettings = {
    ...installation.config.providerSettings,
    POSTILLION_SMTP_URL: smtpUrlOf(sink, 1),
  };
  const sharing = { ...installation, config: { ...installation.config, providerSettings } };
  const second = await startWorker(sharing, { number: 2, of: 2 });
  ends.push(second.stop);
  const id = await send(server);
  await addApprovedSender(server, 'Acme');
  const text = await sendSms(server);
  // It delivers what is not limited, and so has looked for work.
  await eventually(
    () => queueOf(server, text),
    (jobs) => jobs.length === 0,
  );
  expect(await queueOf(server, id)).toMatchObject([{ attempts: 0 }]);
  const first = await startWorker(sharing, { number: 1, of: 2 });
  ends.push(first.stop);
  expect((await settled(server, id)).status).toBe('delivered');
  expect(sink.messages).toHaveLength(1);
});
