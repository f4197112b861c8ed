/**
 * Workers that lost their lease and live on: their connection was severed while a hand-off was under way, or their
 * process stood still until others had buried it. They may hand nothing off, and write nothing.
 */
import type { ChildProcess } from 'node:child_process';
import { afterEach, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { startWorker } from '../../src/roles/worker.ts';
import { eventually, queueOf, read, rowsOf, send, settled } from '../support/email-journey.ts';
import { usePrograms } from '../support/programs.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { type SinkStep, type SmtpSink, startSmtpSink } from '../support/smtp-sink.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
const ends: (() => Promise<unknown> | void)[] = [];

useTestDatabase({ hasNeighbour: true, isForEachTest: true }, (opened) => {
  address = opened.address;
});
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});
const { start } = usePrograms();

/** A relay that holds back its reply to the first transaction's recipient until the test lets it go on. */
async function startHoldingSink(): Promise<{ sink: SmtpSink; held: Promise<SinkStep>; goOn: () => void }> {
  let goOn: () => void = () => undefined;
  const gate = new Promise<void>((resolve) => {
    goOn = resolve;
  });
  let hold: (step: SinkStep) => void = () => undefined;
  const held = new Promise<SinkStep>((resolve) => {
    hold = resolve;
  });
  let isFirst = true;
  const sink = await startSmtpSink({
    script: async (step) => {
      if (step.phase !== 'rcpt' || !isFirst) return undefined;
      isFirst = false;
      hold(step);
      await gate;
      return undefined;
    },
  });
  ends.push(sink.close);
  ends.push(goOn);
  return { sink, held, goOn };
}

function smtpUrlOf(sink: SmtpSink): string {
  return `smtp://127.0.0.1:${sink.port}?connections=2`;
}

async function startServer(sink: SmtpSink): Promise<TestServer> {
  // No worker is left to remove the row of the last one that is buried.
  const server = await startTestServer({
    smtpUrl: smtpUrlOf(sink),
    database: address,
    madeByHand: ['leases'],
  });
  ends.push(server.stop);
  return server;
}

async function startWorkerOf(server: TestServer): Promise<void> {
  const worker = await startWorker(server.installation);
  ends.push(worker.stop);
}

type WorkerRow = { epoch: number; pid: number };

const listWorkers = (server: TestServer) =>
  rowsOf<WorkerRow>(server, 'select epoch, pid from workers order by epoch');

/** Ends sessions from another one, as a failing network between would; resolves once they are gone. */
async function sever(server: TestServer, ...names: string[]): Promise<void> {
  const severed = await rowsOf(
    server,
    `select pg_terminate_backend(pid, 10000)
     from pg_stat_activity
     where datname = current_database() and application_name = any ($1)`,
    [names],
  );
  expect(severed.length).toBeGreaterThan(0);
}

/** One copy has left and is not uncertain, and no row carries the epoch of a worker that is gone. */
async function expectOneCopy(server: TestServer, sink: SmtpSink, id: string, epoch: number): Promise<void> {
  expect((await settled(server, id)).to).toMatchObject([{ status: 'delivered', uncertain: false }]);
  expect(sink.messages).toHaveLength(1);
  const [recipient] = await rowsOf<{ ambiguities: number }>(
    server,
    'select ambiguities from recipients where message_id = $1',
    [id],
  );
  expect(recipient).toEqual({ ambiguities: 0 });
  expect(await rowsOf(server, 'select from hand_offs where epoch = $1', [epoch])).toEqual([]);
  expect(await rowsOf(server, 'select from delivery_queue where claimed_by = $1', [epoch])).toEqual([]);
}

test('a worker whose lease is severed hands nothing more off under it, and begins anew', async () => {
  const { sink, held, goOn } = await startHoldingSink();
  const server = await startServer(sink);
  await startWorkerOf(server);
  const id = await send(server);
  const { connection } = await held;
  const [worker] = await listWorkers(server);
  await sever(server, 'postillion-worker');
  // Under a new epoch; the old one is buried, by the same process or another.
  await eventually(
    () => listWorkers(server),
    (workers) => workers.length > 0 && workers.every(({ epoch }) => epoch > worker!.epoch),
  );
  goOn();
  await expectOneCopy(server, sink, id, worker!.epoch);
  // What was under way was broken off before it was about to leave.
  expect(sink.messages[0]!.connection).not.toBe(connection);
  expect(await read(server, id)).toMatchObject({ status: 'delivered' });
});

test('what a worker had claimed when its lease was severed is left by others until it is given back, and claimed anew', async () => {
  const { sink, held, goOn } = await startHoldingSink();
  const server = await startServer(sink);
  await startWorkerOf(server);
  const id = await send(server, { to: ['ann@example.com'] });
  await held;
  const [worker] = await listWorkers(server);
  const [claimed] = await queueOf(server, id);
  expect(claimed).toMatchObject({ claimed_by: worker!.epoch, crashes: 0 });
  await sever(server, 'postillion-worker');
  const later = await send(server, { to: ['bob@example.com'] });
  await settled(server, later);
  // By a claim of the worker's next life, which buries the one before.
  await eventually(
    () => listWorkers(server),
    (workers) => workers.every(({ epoch }) => epoch > worker!.epoch),
  );
  goOn();
  await settled(server, id);
  expect(sink.messages.map(({ recipients }) => recipients[0]).sort()).toEqual([
    'ann@example.com',
    'bob@example.com',
  ]);
});

/** A worker in a process of its own. */
function startProcess(sink: SmtpSink): ChildProcess {
  const settings = {
    LOG_LEVEL: 'silent',
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
    POSTILLION_SMTP_URL: smtpUrlOf(sink),
    POSTILLION_ADDRESS_CHECKS: 'off',
    POSTILLION_PROCESSES: '1',
  };
  return start(settings, ['serve', '--role', 'worker']).child;
}

test('a process that stood still until it was buried hands nothing off, and writes nothing, when it goes on', async () => {
  const { sink, held, goOn } = await startHoldingSink();
  const server = await startServer(sink);
  const zombie = startProcess(sink);
  const id = await send(server);
  await held;
  const [worker] = await listWorkers(server);
  expect(worker!.pid).toBe(zombie.pid);
  zombie.kill('SIGSTOP');
  await sever(server, 'postillion-worker', 'postillion-guardian');
  await startWorkerOf(server);
  await expectOneCopy(server, sink, id, worker!.epoch);
  const [before] = await rowsOf(server, 'select * from recipients where message_id = $1', [id]);
  // Its transaction goes on where it stopped, and it does not know that it was buried.
  goOn();
  zombie.kill('SIGCONT');
  await eventually(
    () => listWorkers(server),
    (workers) => workers.some(({ pid, epoch }) => pid === zombie.pid && epoch > worker!.epoch),
  );
  await expectOneCopy(server, sink, id, worker!.epoch);
  expect(await rowsOf(server, 'select * from recipients where message_id = $1', [id])).toEqual([before]);
  expect(await rowsOf(server, 'select from workers where epoch = $1', [worker!.epoch])).toEqual([]);
});
