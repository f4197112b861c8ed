import { writeFile } from 'node:fs/promises';
import http from 'node:http';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { unpreparedStatement } from '../src/platform/postgres/database.ts';
import { type BenchInstallation, createBenchInstallation, median } from './installation.ts';
import { startModule, startServer } from './processes.ts';

/**
 * How long small requests take while one client sends large bodies, one after the other, and how long with nothing
 * else under way. The server has all roles, and therefore also builds, signs and delivers what it accepts.
 */
const roundsCount = 3;
const seconds = 5;
const requestsPerSecond = 50;

type Target = { url: string; key: string };
type Measurement = { p50Ms: number; p99Ms: number; maxMs: number; refused: number; sent: number };
type Load = { name: string; body: object | null };

export async function benchLargeBody(): Promise<void> {
  const installation = await createBenchInstallation({ isSigned: true });
  try {
    const server = await startServer('all', {
      POSTILLION_DATA_DIR: installation.dataDirectory,
      PORT: '0',
      LOG_LEVEL: 'info',
    });
    const target = { url: `${server.url}/v1`, key: installation.key };
    const loads = await prepareLoads(target);
    const measured = loads.map(() => [] as Measurement[]);
    await measure(installation, target, loads[0]?.body ?? null);
    for (let round = 0; round < roundsCount; round += 1) {
      for (const [index, { body }] of loads.entries()) {
        measured[index]?.push(await measure(installation, target, body));
      }
    }
    report(loads, measured);
    await server.stop();
  } finally {
    await installation.remove();
  }
}

async function prepareLoads(target: Target): Promise<Load[]> {
  const template = await call(target, 'POST', '/templates', {
    name: 'Large',
    subject: 'Large',
    html: '{{a}}'.repeat(400_000),
  });
  const { id } = JSON.parse(template.text) as { id: string };
  const file = { filename: 'a.bin', content: Buffer.alloc(22_000_000, 'postillion').toString('base64') };
  return [
    { name: 'nothing else', body: null },
    {
      name: '28 MB of placeholders',
      body: { ...letter, html: '{{a}}'.repeat(5_600_000), variables: { a: 'b' } },
    },
    { name: '22 MB of attachments', body: { ...letter, attachments: [file] } },
    {
      name: 'a template of 2 MB, with 16 MB of values',
      body: {
        ...letter,
        html: undefined,
        template_id: id,
        variables: { a: 'x'.repeat(40) },
      },
    },
  ];
}

const letter = {
  from: 'hello@postillion.test',
  from_name: 'Benchmark',
  to: ['somebody@example.com'],
  subject: 'A benchmark',
  html: '<p>All work and no play.</p>',
};

async function measure(
  installation: BenchInstallation,
  target: Target,
  body: object | null,
): Promise<Measurement> {
  const sender = body === null ? null : await startSender(installation, target, body);
  const { latenciesMs, refused } = await sendSmallRequests(target);
  sender?.write('enough\n');
  const { statuses } = (await sender?.nextLine((line) => 'statuses' in line)) ?? { statuses: {} };
  const counts = statuses as Record<string, number>;
  if (Object.keys(counts).some((status) => status !== '202')) {
    throw new Error(`large bodies were refused: ${JSON.stringify(counts)}`);
  }
  await sender?.stop();
  await waitUntilDelivered(installation);
  const sorted = latenciesMs.sort((first, second) => first - second);
  const quantile = (part: number) => sorted[Math.floor((sorted.length - 1) * part)] ?? Number.NaN;
  return {
    p50Ms: quantile(0.5),
    p99Ms: quantile(0.99),
    maxMs: quantile(1),
    refused,
    sent: counts['202'] ?? 0,
  };
}

async function startSender(installation: BenchInstallation, { url, key }: Target, body: object) {
  const bodyFile = path.join(installation.dataDirectory, 'body.json');
  await writeFile(bodyFile, JSON.stringify(body));
  const sender = startModule('bench/large-body-process.ts', [
    JSON.stringify({ url: `${url}/email/send`, key, bodyFile }),
  ]);
  await sender.nextLine((line) => 'ready' in line);
  return sender;
}

/** Each is sent when its time has come, whether or not those before it were answered. */
async function sendSmallRequests(target: Target): Promise<{ latenciesMs: number[]; refused: number }> {
  const agent = new http.Agent({ keepAlive: true });
  const startedAtMs = performance.now();
  let refused = 0;
  const requests = Array.from({ length: seconds * requestsPerSecond }, async (_, index) => {
    const dueAtMs = startedAtMs + (index * 1_000) / requestsPerSecond;
    await sleep(dueAtMs - performance.now());
    const { status } = await (index % 2 === 0
      ? call(target, 'GET', '/email?limit=1', null, agent)
      : call(target, 'POST', '/email/send', letter, agent));
    if (status >= 300) refused += 1;
    return performance.now() - dueAtMs;
  });
  const latenciesMs = await Promise.all(requests);
  agent.destroy();
  return { latenciesMs, refused };
}

/** What is left over of one round must not count in the next one. */
async function waitUntilDelivered({ database }: BenchInstallation): Promise<void> {
  const hasQueued = unpreparedStatement<{ queued: boolean }>(
    'select exists (select 1 from delivery_queue) as queued',
  );
  // Ends when the queue does, which nothing fills any more.
  while ((await database.rows(hasQueued, []))[0]?.queued === true) await sleep(200);
}

function call(
  { url, key }: Target,
  method: string,
  pathAndQuery: string,
  body: object | null,
  agent?: http.Agent,
): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
    const request = http.request(`${url}${pathAndQuery}`, { method, headers, agent }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
      response.once('end', () => {
        resolve({ status: response.statusCode ?? 0, text });
      });
    });
    request.once('error', reject);
    request.end(body === null ? undefined : JSON.stringify(body));
  });
}

function report(loads: readonly Load[], measured: readonly Measurement[][]): void {
  const p99Of = (index: number) => median((measured[index] ?? []).map(({ p99Ms }) => p99Ms));
  console.log('\nlarge-body: small requests beside large ones, medians of interleaved rounds');
  console.table(
    loads.map(({ name }, index) => {
      const all = measured[index] ?? [];
      const of = (pick: (measurement: Measurement) => number) => median(all.map(pick));
      return {
        beside: name,
        'p50 ms': of(({ p50Ms }) => p50Ms).toFixed(1),
        'p99 ms': p99Of(index).toFixed(1),
        'max ms': of(({ maxMs }) => maxMs).toFixed(1),
        'p99 to nothing else': (p99Of(index) / p99Of(0)).toFixed(1),
        refused: of(({ refused }) => refused),
        'large ones': of(({ sent }) => sent),
      };
    }),
  );
}
