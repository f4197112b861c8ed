import { setTimeout as delay } from 'node:timers/promises';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { fillAudience, idOfFilled, propertiesData } from './audience-data.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { type ServerProcess, startServer } from './processes.ts';

/**
 * An organization with a million contacts: how long pages of them take under every filter, how long a segment of three
 * conditions is computed against the same `select` written by hand, how soon a change of 100 contacts reaches it, and
 * what all this does to contacts being created meanwhile.
 */
const contactsDefault = 1_000_000;
const pagesPerFilter = 300;
const variantsCount = 100;
const roundsCount = 3;

export async function benchAudience({ contacts = contactsDefault }: { contacts?: number }): Promise<void> {
  const installation = await createBenchInstallation();
  try {
    const { organizationId } = installation;
    const startedAtMs = performance.now();
    await fillAudience(installation.database, { organizationId, contacts });
    console.log(`\naudience: ${contacts} contacts made in ${secondsSince(startedAtMs)} s`);
    const environment = { POSTILLION_DATA_DIR: installation.dataDirectory, PORT: '0', LOG_LEVEL: 'info' };
    const api = await startServer('api', environment);
    const worker = await startServer('worker', environment);
    const call = createCaller(api, installation.key);
    await measurePages(call, contacts);
    await measureSegment(installation, call, contacts);
    await Promise.all([api.stop(), worker.stop()]);
  } finally {
    await installation.remove();
  }
}

type Call = <Body>(method: string, path: string, body?: unknown) => Promise<Body>;

function createCaller(api: ServerProcess, key: string): Call {
  return async <Body>(method: string, path: string, body?: unknown): Promise<Body> => {
    const response = await fetch(`${api.url}/v1${path}`, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as Body;
  };
}

function secondsSince(startedAtMs: number): string {
  return ((performance.now() - startedAtMs) / 1_000).toFixed(1);
}

/** `n` is the number of the variant. */
const filters: Readonly<Record<string, (n: number, contacts: number) => string>> = {
  'no filter': () => '',
  'page in the middle': (n, contacts) =>
    `after=${idOfFilled('contact', Math.floor((contacts * n) / variantsCount) + 2)}`,
  email: (n) => `email=nobody${n}@example.com`,
  external_id: (n, contacts) => `external_id=crm-${Math.floor((contacts * n) / variantsCount) + 1}`,
  phone_number: (n) => `phone_number=${encodeURIComponent(`+49150${10_000_000 + n * 1_009}`)}`,
  'a large list': (n) => `list_id=${idOfFilled('list', 1 + (n % 3))}`,
  'a small list': (n) => `list_id=${idOfFilled('list', 48 + (n % 3))}`,
  'a tag': (n) => `tag_id=${idOfFilled('tag', 1 + n)}`,
  'list and tag': (n) => `list_id=${idOfFilled('list', 1 + (n % 50))}&tag_id=${idOfFilled('tag', 1 + n)}`,
  'search of one letter': (n) => `search=${String.fromCharCode(97 + (n % 26))}`,
  'search of a name': (n) => `search=${['ada', 'kim', 'smith', 'müller', 'tanaka'][n % 5] ?? ''}`,
  'search of two names': (n) =>
    `search=${encodeURIComponent(['ada smith', 'kim tanaka', "ines o'b"][n % 3] ?? '')}`,
  'search of an address': (n) => `search=${(n * 7_919).toString(16)}`,
  'search without result': (n) => `search=zzz${n}`,
  'search in a list': (n) => `search=ada&list_id=${idOfFilled('list', 1 + (n % 50))}`,
  'rare search in a list': (n) => `search=crm-${n}1&list_id=${idOfFilled('list', 1 + (n % 50))}`,
};

async function measurePages(call: Call, contacts: number): Promise<void> {
  const rows: Record<string, unknown>[] = [];
  for (const [filter, queryOf] of Object.entries(filters)) {
    const latenciesMs: number[] = [];
    for (let n = 0; n < pagesPerFilter; n += 1) {
      const startedAtMs = performance.now();
      await call('GET', `/contacts?limit=100&${queryOf(n % variantsCount, contacts)}`);
      latenciesMs.push(performance.now() - startedAtMs);
    }
    latenciesMs.sort((first, second) => first - second);
    rows.push({
      filter,
      'p50 ms': median(latenciesMs).toFixed(1),
      'p99 ms': (latenciesMs[Math.ceil(latenciesMs.length * 0.99) - 1] ?? 0).toFixed(1),
    });
  }
  console.log(`pages of 100 out of ${contacts} contacts, one request at a time`);
  console.table(rows);
}

const conditions = {
  type: 'group',
  match: 'all',
  conditions: [
    { type: 'property', key: 'country', operator: 'eq', value: 'DE' },
    { type: 'property', key: 'score', operator: 'gte', value: 50 },
    { type: 'property', key: 'signed_up_at', operator: 'after', value: '2020-01-01' },
  ],
};

/** The numbers of the properties are their places, counted from 1. */
function numberOf(key: string): string {
  return `${propertiesData.findIndex((property) => property.key === key) + 1}`;
}

const byHand = `
  select count(*)
  from contacts
  where organization_id = $1
    and properties ->> '${numberOf('country')}' = 'DE'
    and (properties ->> '${numberOf('score')}')::numeric >= 50
    and properties ->> '${numberOf('signed_up_at')}' > '2020-01-01'`;

type Segment = { id: string; status: string; contact_count: number };

async function measureSegment(installation: BenchInstallation, call: Call, contacts: number): Promise<void> {
  const { organizationId, database } = installation;
  await database.rows(unpreparedStatement('set statement_timeout = 0'));
  const handMs: number[] = [];
  const previewMs: number[] = [];
  for (let round = 0; round < roundsCount; round += 1) {
    let startedAtMs = performance.now();
    await database.rows(unpreparedStatement(byHand), [organizationId]);
    handMs.push(performance.now() - startedAtMs);
    startedAtMs = performance.now();
    await call('POST', '/segments/preview', { conditions });
    previewMs.push(performance.now() - startedAtMs);
  }
  const alone = await createContacts(call, 'alone', async () => delay(3_000));
  const startedAtMs = performance.now();
  const segment = await call<Segment>('POST', '/segments', { name: 'Benchmark', conditions });
  const beside = await createContacts(call, 'beside', () => untilReady(call, segment.id));
  const computedSeconds = secondsSince(startedAtMs);
  const { contact_count: members } = await call<Segment>('GET', `/segments/${segment.id}`);
  console.log('a segment of three property conditions');
  console.table([
    {
      'by hand ms': Math.round(median(handMs)),
      'the same conditions ms': Math.round(median(previewMs)),
      ratio: (median(previewMs) / median(handMs)).toFixed(2),
      'computed and written s': computedSeconds,
      members,
    },
  ]);
  console.log(
    `contacts created a second: ${alone.perSecond} alone (p99 ${alone.p99Ms} ms), ${beside.perSecond} while the segment is computed (p99 ${beside.p99Ms} ms)`,
  );
  await measureChange(call, segment.id, contacts);
}

async function untilReady(call: Call, segmentId: string): Promise<void> {
  while ((await call<Segment>('GET', `/segments/${segmentId}`)).status !== 'ready') await delay(20);
}

/** Over eight connections, until the work beside it is done. */
async function createContacts(
  call: Call,
  prefix: string,
  besides: () => Promise<void>,
): Promise<{ perSecond: number; p99Ms: string }> {
  const latenciesMs: number[] = [];
  let isOver = false;
  let number = 0;
  const startedAtMs = performance.now();
  const creating = Array.from({ length: 8 }, async () => {
    while (!isOver) {
      number += 1;
      const sentAtMs = performance.now();
      await call('POST', '/contacts', {
        external_id: `${prefix}-${number}`,
        properties: { country: 'DE', score: 75, signed_up_at: '2024-05-06' },
      });
      latenciesMs.push(performance.now() - sentAtMs);
    }
  });
  await besides();
  isOver = true;
  await Promise.all(creating);
  const elapsedSeconds = (performance.now() - startedAtMs) / 1_000;
  latenciesMs.sort((first, second) => first - second);
  return {
    perSecond: Math.round(latenciesMs.length / elapsedSeconds),
    p99Ms: (latenciesMs[Math.ceil(latenciesMs.length * 0.99) - 1] ?? 0).toFixed(1),
  };
}

/** From the last answer to a change, to the segment that knows of all of them. */
async function measureChange(call: Call, segmentId: string, contacts: number): Promise<void> {
  await settledCount(call, segmentId);
  const latenciesMs: number[] = [];
  for (let round = 0; round < roundsCount; round += 1) {
    const before = await settledCount(call, segmentId);
    const made = await Promise.all(
      Array.from({ length: 100 }, (_none, index) =>
        call<{ id: string }>('POST', '/contacts', {
          external_id: `change-${round}-${index}`,
          properties: { country: 'DE', score: 75, signed_up_at: '2024-05-06' },
        }),
      ),
    );
    const startedAtMs = performance.now();
    while ((await call<Segment>('GET', `/segments/${segmentId}`)).contact_count < before + made.length) {
      await delay(5);
    }
    latenciesMs.push(performance.now() - startedAtMs);
  }
  console.log(
    `100 new contacts among ${contacts} are in the segment ${Math.round(median(latenciesMs))} ms after the last answer`,
  );
}

/** How many members there are once the count stands still. */
async function settledCount(call: Call, segmentId: string): Promise<number> {
  for (let last = -1; ;) {
    const { contact_count: count } = await call<Segment>('GET', `/segments/${segmentId}`);
    if (count === last) return count;
    last = count;
    await delay(500);
  }
}
