/** What tests of sending and delivering email have in common: bodies, patience, and a clock that can be put forward. */
import { setTimeout as delay } from 'node:timers/promises';
import type { EmailRecipientRecord, EmailRecord } from '../../src/email/schema.ts';
import { type Clock, systemClock } from '../../src/platform/clock.ts';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { wakeOnce } from '../../src/platform/queue/wake.ts';
import { neighbourId } from './neighbour.ts';
import type { TestResponse, TestServer } from './server.ts';

export type ErrorBody = { status_code: number; name: string; message: string };

type EmailBody = Record<string, unknown>;

/** A body of `POST /v1/email/send` that is accepted; undefined takes a field out. */
export function anEmail(more: EmailBody = {}): EmailBody {
  return {
    from: 'hello@postillion.test',
    from_name: 'Postillion',
    to: ['ann@example.com'],
    subject: 'Hello',
    text: 'Hello, Ann.',
    ...more,
  };
}

export type Sender = { key: string };

export function post<Body = { id: string }>(
  server: TestServer,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): Promise<TestResponse<Body>> {
  return server.request('POST', '/v1/email/send', body, headers);
}

/** Sends and returns the id; `sender` is another organization than the server's own. */
export async function send(server: TestServer, more: EmailBody = {}, sender?: Sender): Promise<string> {
  const response = await post(server, anEmail(more), authorize(sender));
  if (response.status !== 202) throw new Error(`not accepted: ${response.text}`);
  return response.body.id;
}

export function authorize(sender: Sender | undefined): Record<string, string> {
  return sender === undefined ? {} : { authorization: `Bearer ${sender.key}` };
}

export async function read(server: TestServer, id: string, sender?: Sender): Promise<EmailRecord> {
  const response = await server.request<EmailRecord>('GET', `/v1/email/${id}`, undefined, authorize(sender));
  if (response.status !== 200) throw new Error(`not there: ${response.text}`);
  return response.body;
}

/** A minute: if it is shorter, what is slow on a busy machine looks as if it never came. */
const patience = { pauseMs: 20, triesMax: 3_000 };

/** Asks until the answer is as it should be; fails with the last one. Only where no signal can be awaited. */
export async function eventually<Value>(
  ask: () => Value | Promise<Value>,
  isAsItShouldBe: (value: Value) => boolean,
): Promise<Value> {
  for (let attempt = 1; ; attempt += 1) {
    const value = await ask();
    if (isAsItShouldBe(value)) return value;
    if (attempt === patience.triesMax) throw new Error(`still not so: ${JSON.stringify(value)}`);
    await delay(patience.pauseMs);
  }
}

/** Resolves with the record once nothing of the message is left in the queue. */
export async function settled(server: TestServer, id: string, sender?: Sender): Promise<EmailRecord> {
  await eventually(
    () => queueOf(server, id),
    (jobs) => jobs.length === 0,
  );
  return read(server, id, sender);
}

/**
 * What a dead worker was handing off would be done once more only after a minute: here at once, as soon as the worker is
 * buried. Other tests see to the minute.
 */
export async function repeatAtOnce(server: TestServer): Promise<void> {
  await rowsOf(
    server,
    'update delivery_queue set due_at = now() where organization_id <> $1 and claimed_by is null',
    [neighbourId],
  );
  await wakeOnce(server.installation.database, 'deliveries');
}

export type QueuedJob = {
  ordinal: number;
  due_at: Date;
  attempts: number;
  ambiguities: number;
  crashes: number;
  claimed_by: number | null;
  set_aside_at: Date | null;
};

export function queueOf(server: TestServer, messageId: string): Promise<QueuedJob[]> {
  return rowsOf(server, 'select * from delivery_queue where message_id = $1 order by ordinal', [messageId]);
}

/** Of all organizations, as the owner of the tables sees them. */
export function rowsOf<Row>(
  server: TestServer,
  text: string,
  values: readonly unknown[] = [],
): Promise<Row[]> {
  return server.installation.database.rows(unpreparedStatement<Row>(text), values);
}

/** Of all organizations but the neighbour. */
export async function countOf(server: TestServer, table: 'messages' | 'recipients' | 'delivery_queue') {
  const [row] = await rowsOf<{ count: number }>(
    server,
    `select count(*) from ${table} where organization_id <> $1`,
    [neighbourId],
  );
  return row!.count;
}

export function addresses(record: Pick<EmailRecord, 'to' | 'cc' | 'bcc'>): EmailRecipientRecord[] {
  return [...record.to, ...record.cc, ...record.bcc];
}

export type ShiftedClock = Clock & { putForward: (byMs: number) => void };

/** Runs like any clock, and jumps on demand: what falls due by the jump is called at once. */
export function createShiftedClock(): ShiftedClock {
  let offsetMs = 0;
  const alarms = new Set<{ atMs: number; ring: () => void }>();
  const monotonicMs = () => systemClock.monotonicMs() + offsetMs;
  return {
    nowMs: () => systemClock.nowMs() + offsetMs,
    monotonicMs,
    after: (delayMs, callback) => {
      const alarm = {
        atMs: monotonicMs() + delayMs,
        ring: () => {
          take();
          callback();
        },
      };
      const cancel = systemClock.after(delayMs, alarm.ring);
      const take = () => {
        alarms.delete(alarm);
        cancel();
      };
      alarms.add(alarm);
      return take;
    },
    putForward: (byMs) => {
      offsetMs += byMs;
      const due = [...alarms].filter(({ atMs }) => atMs <= monotonicMs());
      for (const alarm of due.sort((first, second) => first.atMs - second.atMs)) alarm.ring();
    },
  };
}
