import { eventually } from '../support/email-journey.ts';
import { emptyQueue } from './end.ts';
import type { Installation } from './installation.ts';
import { composeEmail, type Ledger, sendUntilAccepted } from './load.ts';
import type { Server } from './servers.ts';

/**
 * A worker is killed at each step of one message's way, and it is counted how often the message arrives. The sink
 * holds the step back, or a lock in the database does, so that the kill is where it is said to be; the program
 * itself knows nothing of it.
 */
type CrashPoint = {
  name: string;
  /** How often the message arrives in all, and how many ambiguities are counted. */
  expected: Counts;
  /** Sends a message, kills the worker, releases what was held back, and resolves with the id. */
  crash: (scene: Scene) => Promise<string>;
};

type Counts = { deliveries: number; ambiguities: number };

type Scene = {
  installation: Installation;
  /** The only worker that runs. */
  worker: Server;
  send: () => Promise<string>;
};

export type CrashPointResult = { name: string; expected: Counts; found: Counts };

/** Nothing has left. */
const once: Counts = { deliveries: 1, ambiguities: 0 };
/** It cannot be known whether the message has left: here it has not, and then it has. */
const repeatedInTime: Counts = { deliveries: 1, ambiguities: 1 };
const twice: Counts = { deliveries: 2, ambiguities: 1 };

const crashPoints: readonly CrashPoint[] = [
  { name: 'before claim', expected: once, crash: crashBeforeClaim },
  { name: 'after claim', expected: once, crash: (scene) => crashBeforeMarker(scene, 'connect') },
  { name: 'before MAIL', expected: once, crash: (scene) => crashBeforeMarker(scene, 'ehlo') },
  { name: 'after RCPT', expected: once, crash: (scene) => crashBeforeMarker(scene, 'data') },
  { name: 'after the marker', expected: repeatedInTime, crash: crashAfterMarker },
  { name: 'after the dot, not taken', expected: repeatedInTime, crash: crashBeforeTaking },
  { name: 'after the dot, taken', expected: twice, crash: crashAfterTaking },
  { name: 'after 250', expected: twice, crash: crashAfterReply },
  { name: 'after the result', expected: once, crash: crashAfterResult },
];

export async function runCrashPoints(
  installation: Installation,
  ledger: Ledger,
): Promise<CrashPointResult[]> {
  const { workers, sink, senders } = installation;
  const [worker, other] = workers;
  await other.kill();
  const results: CrashPointResult[] = [];
  for (const { name, expected, crash } of crashPoints) {
    const send = composeEmail(senders[0], {
      key: `crash point ${name}`,
      recipients: [`point-${results.length}@example.com`],
      hasAttachment: true,
    });
    ledger.sends.push(send);
    const sendNow = async () => {
      await sendUntilAccepted(installation, ledger, send);
      return [...send.ids][0] ?? '';
    };
    const id = await crash({ installation, worker, send: sendNow });
    await emptyQueue(installation);
    const [recipient] = await installation.ask<{ ambiguities: number }>(
      'select ambiguities from recipients where message_id = $1',
      [id],
    );
    results.push({
      name,
      expected,
      found: {
        deliveries: (await sink.readDeliveries()).filter(({ messageId }) => messageId === id).length,
        ambiguities: recipient?.ambiguities ?? 0,
      },
    });
  }
  other.start();
  return results;
}

/** The worker dies while its claiming statement runs; the statement ends only when the worker is buried. */
async function crashBeforeClaim({ installation, worker, send }: Scene): Promise<string> {
  const { ask, connectAlone } = installation;
  await worker.kill();
  const id = await send();
  const lock = await connectAlone();
  try {
    await lock.query(
      'begin; set local idle_in_transaction_session_timeout = 0; lock table delivery_queue in share mode',
    );
    worker.start();
    await eventually(() => ask(waitersForQueue), isNotEmpty);
    const [last] = await ask<{ epoch: number }>('select max(epoch) as epoch from workers');
    await worker.kill();
    worker.start();
    await eventually(() => ask('select from workers where epoch = $1', [last?.epoch]), isEmpty);
  } finally {
    await lock.end();
  }
  return id;
}

/** Killed while the sink holds back a reply that comes before the content. */
async function crashBeforeMarker(scene: Scene, phase: 'connect' | 'ehlo' | 'data'): Promise<string> {
  const { installation, worker, send } = scene;
  // A worker that has a connection would not open another.
  if (phase !== 'data') await restart(worker);
  const held = installation.sink.hold(phase);
  const id = await send();
  await held;
  await restart(worker);
  installation.sink.release({ close: true });
  return id;
}

/** The content may leave, but the sink never reads it. */
async function crashAfterMarker({ installation, worker, send }: Scene): Promise<string> {
  const { sink, ask } = installation;
  const held = sink.hold('data');
  const id = await send();
  await held;
  sink.release({ stopReading: true });
  await eventually(() => ask('select from hand_offs where $1 = any (message_ids)', [id]), isNotEmpty);
  await restart(worker);
  return id;
}

async function crashBeforeTaking({ installation, worker, send }: Scene): Promise<string> {
  const held = installation.sink.hold('content');
  const id = await send();
  await held;
  await restart(worker);
  installation.sink.release({ close: true });
  return id;
}

async function crashAfterTaking({ installation, worker, send }: Scene): Promise<string> {
  const { sink } = installation;
  const held = sink.hold('content');
  const id = await send();
  await held;
  const taken = sink.whenTaken();
  sink.release({ stall: true, accept: true });
  await taken;
  await restart(worker);
  return id;
}

/** The worker has the reply, and waits for another session's lock to write it down. */
async function crashAfterReply({ installation, worker, send }: Scene): Promise<string> {
  const { sink, connectAlone, ask } = installation;
  const held = sink.hold('content');
  const id = await send();
  await held;
  const lock = await connectAlone();
  try {
    await lock.query('begin');
    await lock.query('select from delivery_queue where message_id = $1 for update', [id]);
    sink.release(null);
    await eventually(() => ask(waitersForRow), isNotEmpty);
    await restart(worker);
  } finally {
    await lock.end();
  }
  return id;
}

async function crashAfterResult({ installation, worker, send }: Scene): Promise<string> {
  const id = await send();
  await eventually(() => installation.ask('select from delivery_queue where message_id = $1', [id]), isEmpty);
  await restart(worker);
  return id;
}

const waitersForQueue = "select from pg_locks where not granted and relation = 'delivery_queue'::regclass";
const waitersForRow = "select from pg_locks where not granted and locktype in ('transactionid', 'tuple')";

async function restart(worker: Server): Promise<void> {
  await worker.kill();
  worker.start();
  await worker.whenReady();
}

function isEmpty(rows: readonly unknown[]): boolean {
  return rows.length === 0;
}

function isNotEmpty(rows: readonly unknown[]): boolean {
  return rows.length > 0;
}
