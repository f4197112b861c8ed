import { setTimeout as delay } from 'node:timers/promises';
import { updateOrganization } from '../src/accounts/accounts.ts';
import { systemClock } from '../src/platform/clock.ts';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { type BenchInstallation, createBenchInstallation } from './installation.ts';
import { cpuUs, postgresCpuUs, type ServerProcess, startServer } from './processes.ts';

/**
 * How long after an event its segments know of it, while 2,000 events a second arrive of which each may change a member:
 * from the answer to a single event, of a contact that did nothing before, until the contact is a member. The rest comes
 * in batches of 100 for 90,000 contacts, and is asked about by three segments.
 */
const arrivingPerSecond = 2_000;
const batchSize = 100;
const warmUpSeconds = 10;
const seconds = 40;
const contactsCount = 90_000;
const probeEveryMs = 50;
const lookEveryMs = 5;

const kinds = ['order.completed', 'page.viewed', 'probe.done'] as const;

const did = (event: string, more: object = {}) => ({ type: 'event', event, ...more });
const all = (...conditions: object[]) => ({ type: 'group', match: 'all', conditions });

const segments: Readonly<Record<string, object>> = {
  'bought lately': did('order.completed', {
    within: { value: 7, unit: 'day' },
    where: [{ field: 'total', operator: 'gt', value: 50 }],
  }),
  'looked three times and bought nothing': all(
    did('page.viewed', { count: { operator: 'gte', value: 3 } }),
    did('order.completed', { count: { operator: 'eq', value: 0 } }),
  ),
  probes: did('probe.done'),
};

type Call = <Body>(method: string, path: string, body?: unknown) => Promise<Body>;

export async function benchEventFreshness(): Promise<void> {
  const installation = await createBenchInstallation();
  try {
    const environment = {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    };
    const { database, organizationId } = installation;
    await updateOrganization({ database, clock: systemClock }, organizationId, {
      eventsPerWindow: 2_000_000_000,
    });
    await database.rows(unpreparedStatement(insertContactsText), [organizationId, contactsCount]);
    await database.rows(unpreparedStatement('analyze contacts'));
    const [api, worker] = [await startServer('api', environment), await startServer('worker', environment)];
    const call = caller(installation, api);
    const schema = { fields: [{ name: 'total', type: 'number', required: false }] };
    for (const name of kinds) await call('POST', '/events', { name, schema });
    const ids: string[] = [];
    for (const [name, conditions] of Object.entries(segments))
      ids.push((await call<{ id: string }>('POST', '/segments', { name, conditions })).id);
    for (const id of ids)
      while ((await call<{ status: string }>('GET', `/segments/${id}`)).status !== 'ready') await delay(50);

    const overAtMs = performance.now() + (warmUpSeconds + seconds) * 1_000;
    const arriving = sendBatches(call, overAtMs);
    await delay(warmUpSeconds * 1_000);
    const before = processorTimes(installation, api, worker);
    const delaysMs = await probe(installation, call, ids.at(-1) ?? '', overAtMs);
    const after = processorTimes(installation, api, worker);
    const { count, elapsedSeconds } = await arriving;
    delaysMs.sort((first, second) => first - second);
    const quantile = (part: number) => Math.round(delaysMs[Math.floor((delaysMs.length - 1) * part)] ?? 0);
    const share = (name: keyof typeof before) =>
      `${Math.round((after[name] - before[name]) / seconds / 10_000)} %`;
    console.log('\nevent-freshness: from the answer to an event until its contact is in the segment');
    console.table([
      {
        'events a second': Math.round(count / elapsedSeconds),
        probes: delaysMs.length,
        'p50 ms': quantile(0.5),
        'p99 ms': quantile(0.99),
        'longest ms': quantile(1),
        API: share('api'),
        worker: share('worker'),
        PostgreSQL: share('postgres'),
      },
    ]);
    await Promise.all([api.stop(), worker.stop()]);
  } finally {
    await installation.remove();
  }
}

function processorTimes({ dataDirectory }: BenchInstallation, api: ServerProcess, worker: ServerProcess) {
  return {
    api: cpuUs(api.pid) ?? 0,
    worker: cpuUs(worker.pid) ?? 0,
    postgres: postgresCpuUs(dataDirectory),
  };
}

function caller({ key }: BenchInstallation, { url }: ServerProcess): Call {
  return async <Body>(method: string, path: string, body?: unknown) => {
    const response = await fetch(`${url}/v1${path}`, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as Body;
  };
}

/** Of contacts in turns. A batch is due at its time even if others are late, so that a slow server gets no less. */
async function sendBatches(call: Call, overAtMs: number): Promise<{ count: number; elapsedSeconds: number }> {
  const everyMs = (1_000 * batchSize) / arrivingPerSecond;
  const startedAtMs = performance.now();
  let number = 0;
  const sending: Promise<unknown>[] = [];
  for (let dueAtMs = startedAtMs; dueAtMs < overAtMs; dueAtMs += everyMs) {
    await delay(Math.max(0, dueAtMs - performance.now()));
    const events = Array.from({ length: batchSize }, () => {
      number += 1;
      return {
        event: number % 3 === 0 ? 'order.completed' : 'page.viewed',
        external_id: `customer-${1 + ((number * 7_919) % contactsCount)}`,
        payload: { total: number % 100, currency: 'EUR', order: `A-${number}` },
      };
    });
    sending.push(call('POST', '/events/send/batch', { events }));
  }
  await Promise.all(sending);
  return { count: number, elapsedSeconds: (performance.now() - startedAtMs) / 1_000 };
}

/** Milliseconds of each probe. */
async function probe(
  { database, organizationId }: BenchInstallation,
  call: Call,
  segmentId: string,
  overAtMs: number,
): Promise<number[]> {
  const contacts = await database.rows(
    unpreparedStatement<{ id: string }>('select id from contacts where organization_id = $1 limit $2'),
    [organizationId, Math.ceil((seconds * 1_000) / probeEveryMs)],
  );
  const sentAtMs = new Map<string, number>();
  const delaysMs: number[] = [];
  let isSending = true;
  const sending = (async () => {
    for (const { id } of contacts) {
      if (performance.now() >= overAtMs) break;
      await call('POST', '/events/send', { event: 'probe.done', contact_id: id });
      sentAtMs.set(id, performance.now());
      await delay(probeEveryMs);
    }
    isSending = false;
  })();
  // Ends when all have been seen: each is a member sooner or later.
  while (isSending || sentAtMs.size > 0) {
    await delay(lookEveryMs);
    const rows = await database.rows(
      unpreparedStatement<{ id: string }>(
        `select contact_id as id
         from memberships
         where organization_id = $1 and set_id = $2 and contact_id = any ($3::uuid[])`,
      ),
      [organizationId, segmentId, [...sentAtMs.keys()]],
    );
    for (const { id } of rows) {
      delaysMs.push(performance.now() - (sentAtMs.get(id) ?? 0));
      sentAtMs.delete(id);
    }
  }
  await sending;
  return delaysMs;
}

const insertContactsText = `
  insert into contacts (organization_id, id, external_id, created_at, updated_at)
  select $1, gen_random_uuid(), 'customer-' || number, now(), now()
  from generate_series(1, $2::integer) as number`;
