/** What an operator is told: by metrics, by readiness, and by the doctor. */
import { once } from 'node:events';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import path from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { dateOf } from '../../src/platform/clock.ts';
import type { Database, DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { createMeters } from '../../src/roles/monitoring/meters.ts';
import { createMonitoring } from '../../src/roles/monitoring/monitoring.ts';
import { anEmail, eventually, rowsOf, send, settled } from '../support/email-journey.ts';
import { scrape } from '../support/metrics.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender, anSms } from '../support/sms-journey.ts';
import { startSmtpSink } from '../support/smtp-sink.ts';
import { stopPostgres } from '../support/stopped-postgres.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
const ends: (() => Promise<unknown> | void)[] = [];

useTestDatabase({ hasNeighbour: true, isForEachTest: true }, (opened) => {
  address = opened.address;
});
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});
const programs = usePrograms();

function start(role: 'all' | 'api' | 'worker', settings: Settings = {}): Program {
  return programs.start(
    {
      PORT: '0',
      LOG_LEVEL: 'info',
      DATABASE_URL: databaseUrlOf(address),
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
      POSTILLION_ADDRESS_CHECKS: 'off',
      POSTILLION_PROCESSES: '1',
      POSTILLION_METRICS_PORT: '0',
      ...settings,
    },
    ['serve', '--role', role],
  );
}

const metricsUrl = /"url":"(http:\/\/[^"]+)","msg":"metrics are served"/;

async function metricsUrlOf({ untilSaid, said }: Program): Promise<string> {
  const found = await untilSaid('errors', metricsUrl);
  if (found === null) throw new Error(said.errors);
  return found[1]!;
}

async function urlOf({ untilSaid }: Program): Promise<string> {
  return (await untilSaid('output', servedUrl))![1]!;
}

async function startServer(): Promise<TestServer> {
  const server = await startTestServer({ database: address, madeByHand: ['leases'] });
  ends.push(server.stop);
  return server;
}

async function accepted(
  url: string,
  route: string,
  key: string,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): Promise<string> {
  const response = await fetch(`${url}/v1/${route}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...headers },
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(202);
  return ((await response.json()) as { id: string }).id;
}

function linesOf({ said }: Program): Record<string, unknown>[] {
  const whole = said.errors.slice(0, said.errors.lastIndexOf('\n') + 1);
  return whole
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

async function readiness(url: string): Promise<{ status: number; body: Record<string, unknown> }> {
  const response = await fetch(`${url}/readyz`);
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

/** As soon as it answers what it is asked: of a database that is slow on a busy machine it says that it is away. */
async function readinessOnceReady(url: string): Promise<{ status: number; body: Record<string, unknown> }> {
  return eventually(
    () => readiness(url),
    ({ body }) => 'degradations' in body,
  );
}

const kindsOf = async (url: string) =>
  ((await readinessOnceReady(url)).body.degradations as { kind: string }[]).map(({ kind }) => kind);

test('metrics of API and worker tell what was accepted, tried and settled, of two organizations, and name neither', async () => {
  const server = await startServer();
  const other = await createSender(server.installation, 'other.test');
  await addApprovedSender(server, 'Acme');
  const api = start('api');
  const url = await urlOf(api);
  const [apiMetrics, workerMetrics] = [await metricsUrlOf(api), await metricsUrlOf(start('worker'))];

  const emails = 205;
  const ids = await Promise.all([
    ...Array.from({ length: emails }, (_, number) =>
      accepted(url, 'email/send', server.key, anEmail({ to: [`reader${number}@example.com`] })),
    ),
    accepted(
      url,
      'email/send',
      other.key,
      anEmail({ from: 'a@other.test', to: ['reader0@example.com', 'bounced@simulator.postillion.test'] }),
    ),
  ]);
  await accepted(url, 'sms/send', server.key, anSms());
  expect((await fetch(`${url}/v1/email/${ids[0]}`)).status).toBe(401);
  expect((await fetch(`${url}/v1/no/such/${ids[0]}`)).status).toBe(404);

  const ofApi = await scrape(apiMetrics);
  expect({
    messages: ofApi.sum('postillion_messages_accepted_total', { channel: 'email' }),
    recipients: ofApi.sum('postillion_recipients_accepted_total', { channel: 'email' }),
    texts: ofApi.sum('postillion_messages_accepted_total', { channel: 'sms' }),
    requests: ofApi.sum('postillion_http_requests_total', {
      method: 'POST',
      route: '/v1/email/send',
      status: '202',
    }),
    timed: ofApi.sum('postillion_http_request_duration_seconds_count', { route: '/v1/email/send' }),
    refused: ofApi.sum('postillion_http_requests_total', { route: '/v1/email/:id', status: '401' }),
    lost: ofApi.sum('postillion_http_requests_total', { route: 'none', status: '404' }),
    attempts: ofApi.sum('postillion_attempts_total'),
  }).toEqual({
    messages: emails + 1,
    recipients: emails + 2,
    texts: 1,
    requests: emails + 1,
    timed: emails + 1,
    refused: 1,
    lost: 1,
    attempts: null,
  });

  const ofWorker = await eventually(
    () => scrape(workerMetrics),
    ({ sum }) => sum('postillion_outcomes_total') === emails + 3,
  );
  const email = { channel: 'email', provider: 'sandbox' };
  expect({
    handedOff: ofWorker.sum('postillion_hand_offs_total', email),
    taken: ofWorker.sum('postillion_attempts_total', { ...email, outcome: 'accepted' }),
    refused: ofWorker.sum('postillion_attempts_total', { ...email, outcome: 'rejected' }),
    timed: ofWorker.sum('postillion_attempt_duration_seconds_count', email),
    delivered: ofWorker.sum('postillion_outcomes_total', {
      channel: 'email',
      class: 'transactional',
      outcome: 'delivered',
    }),
    bounced: ofWorker.sum('postillion_outcomes_total', { channel: 'email', outcome: 'bounced' }),
    texts: ofWorker.sum('postillion_outcomes_total', { channel: 'sms' }),
    accepted: ofWorker.sum('postillion_messages_accepted_total'),
  }).toEqual({
    handedOff: emails + 2,
    taken: emails + 1,
    refused: 1,
    timed: emails + 2,
    delivered: emails + 1,
    bounced: 1,
    texts: 1,
    accepted: null,
  });
  for (const { sum } of [ofApi, ofWorker]) {
    expect(sum('postillion_database_up')).toBe(1);
    expect(sum('postillion_postgres_setting_is_safe', { setting: 'synchronous_commit' })).not.toBeNull();
    expect(sum('nodejs_eventloop_lag_seconds')).not.toBeNull();
  }
  for (const { text, samples } of [ofApi, ofWorker]) {
    for (const secret of [
      server.organizationId,
      other.organizationId,
      server.key,
      String(ids[0]),
      '@',
      'reader',
    ])
      expect(text).not.toContain(secret);
    expect(text).not.toMatch(/[0-9a-f]{8}-[0-9a-f]{4}-/);
    // However many organizations, addresses and messages there are.
    expect(samples.length).toBeLessThan(400);
  }
  expect(await readinessOnceReady(workerMetrics)).toMatchObject({ status: 200, body: { status: 'ready' } });
});

test('an installation without a worker accepts, and says so in its readiness, its metrics and to its doctor', async () => {
  const server = await startServer();
  const other = await createSender(server.installation, 'other.test');
  const api = start('api');
  const url = await urlOf(api);
  const metrics = await metricsUrlOf(api);
  expect(await readinessOnceReady(url)).toMatchObject({
    status: 200,
    body: { status: 'ready', degradations: [{ kind: 'no_worker' }] },
  });
  await accepted(url, 'email/send', server.key, anEmail({ to: ['a@example.com', 'b@example.com'] }));
  await accepted(url, 'email/send', other.key, anEmail({ from: 'a@other.test' }));
  await rowsOf(server, "update delivery_queue set due_at = due_at - interval '10 minutes'");
  const lane = { channel: 'email', lane: 'transactional' };
  const found = await eventually(
    () => scrape(metrics),
    ({ sum }) => sum('postillion_jobs_waiting', lane) === 3,
  );
  expect(found.sum('postillion_workers_alive')).toBe(0);
  expect(found.sum('postillion_jobs_due', lane)).toBe(3);
  expect(found.sum('postillion_jobs_due', { channel: 'sms' })).toBe(0);
  expect(found.sum('postillion_oldest_due_job_age_seconds', lane)).toBeGreaterThanOrEqual(600);
  expect(found.sum('postillion_oldest_due_job_age_seconds', { channel: 'sms' })).toBe(0);
  expect(
    await eventually(
      () => kindsOf(url),
      (kinds) => kinds.length === 2,
    ),
  ).toEqual(['no_worker', 'jobs_late']);
  expect(await kindsOf(metrics)).toEqual(['no_worker', 'jobs_late']);
  const { output, exitCode } = await programs.run(
    { DATABASE_URL: databaseUrlOf(address), POSTILLION_SECRET: 'a secret of the tests, and of nothing else' },
    'doctor',
  );
  expect(exitCode).toBe(1);
  expect(output).toMatch(/problem +workers +no worker runs, and recipients or slices of campaigns wait: /);
});

test('a provider that is away is told by readiness, metrics and doctor, until it is back, or its worker is gone', async () => {
  const server = await startServer();
  const other = await createSender(server.installation, 'other.test');
  const api = start('api');
  const [url, metrics] = [await urlOf(api), await metricsUrlOf(api)];
  const sink = await startSmtpSink();
  await sink.close();
  const worker = start('worker', { POSTILLION_SMTP_URL: `smtp://127.0.0.1:${sink.port}?connections=2` });
  const ofWorker = await metricsUrlOf(worker);
  const ids = await Promise.all([
    ...Array.from({ length: 8 }, () => accepted(url, 'email/send', server.key, anEmail())),
    accepted(url, 'email/send', other.key, anEmail({ from: 'a@other.test' })),
  ]);
  const isTold = (kinds: string[]) => kinds.includes('provider_unavailable');
  await eventually(() => kindsOf(url), isTold);
  expect(await kindsOf(ofWorker)).toEqual(['provider_unavailable']);
  const { body } = await readinessOnceReady(url);
  expect(body.degradations).toMatchObject([
    { message: expect.stringMatching(/^smtp has not been available since/) },
  ]);
  const labels = { channel: 'email', provider: 'smtp' };
  const found = await eventually(
    () => scrape(metrics),
    ({ sum }) => sum('postillion_provider_unavailable', labels) === 1,
  );
  expect(found.sum('postillion_accounts_unavailable')).toBeNull();
  expect(
    (await scrape(ofWorker)).sum('postillion_attempts_total', { outcome: 'unavailable' }),
  ).toBeGreaterThanOrEqual(5);
  const settings = {
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
  };
  const whileAway = await programs.run(settings, 'doctor');
  expect(whileAway.output).toMatch(/problem +providers +smtp has not been available since/);

  const back = await startSmtpSink({ port: sink.port });
  ends.push(back.close);
  await eventually(
    () => kindsOf(url),
    (kinds) => !isTold(kinds),
  );
  await eventually(
    () => back.messages.length,
    (messages) => messages === ids.length,
  );
  expect(await rowsOf(server, 'select from open_breakers')).toEqual([]);

  await back.close();
  for (let count = 0; count < 8; count += 1) await accepted(url, 'email/send', server.key, anEmail());
  await eventually(() => kindsOf(url), isTold);
  worker.child.kill('SIGKILL');
  await worker.ended;
  const left = await eventually(
    () => kindsOf(url),
    (kinds) => !isTold(kinds),
  );
  expect(left).toEqual(['no_worker']);
  expect((await programs.run(settings, 'doctor')).output).not.toContain('providers');
});

test('the trace of a request is in its line and in those of all attempts of its message, and no other', async () => {
  const server = await startServer();
  const other = await createSender(server.installation, 'other.test');
  await addApprovedSender(server, 'Acme');
  const api = start('api');
  const url = await urlOf(api);
  const traceOf = (number: number) => number.toString(16).padStart(32, 'a');
  const headerOf = (number: number) => `00-${traceOf(number)}-b7ad6b7169203331-01`;
  const traced = (route: string, key: string, header: string, body: unknown) =>
    accepted(url, route, key, body, { traceparent: header });
  const to = ['a@example.com', 'deferred@simulator.postillion.test'];
  const expected = new Map([
    [await traced('email/send', server.key, headerOf(1), anEmail({ to })), traceOf(1)],
    [await traced('email/send', other.key, headerOf(2), anEmail({ from: 'a@other.test' })), traceOf(2)],
    [await traced('sms/send', server.key, headerOf(3), anSms()), traceOf(3)],
    [await traced('email/send', server.key, headerOf(4).toUpperCase(), anEmail()), undefined],
    [await accepted(url, 'email/send', server.key, anEmail()), undefined],
    // Too large to be stored with others.
    [await traced('email/send', server.key, headerOf(5), anEmail({ text: 'x'.repeat(300_000) })), traceOf(5)],
  ]);
  // A worker that has died had it: whoever gets it back has its trace as well.
  await rowsOf(
    server,
    "insert into workers (epoch, host, pid, started_at) values (1000000, 'gone', 1, now())",
  );
  await rowsOf(server, 'update delivery_queue set claimed_by = 1000000, claim_number = 1');
  const worker = start('worker');
  const lines = await eventually(
    () => linesOf(worker).filter(({ msg }) => msg === 'attempt'),
    (attempts) => attempts.length >= expected.size + 1,
  );
  expect(lines.map(({ message_id: id, trace_id: trace }) => [id, trace]).sort()).toEqual(
    [...expected]
      .flatMap(([id, trace], index) =>
        index === 0
          ? [
              [id, trace],
              [id, trace],
            ]
          : [[id, trace]],
      )
      .sort(),
  );
  const requests = await eventually(
    () => linesOf(api).filter(({ msg, method }) => msg === 'request' && method === 'POST'),
    (found) => found.length === expected.size,
  );
  expect(requests.map(({ trace_id: trace }) => trace)).toEqual([...expected.values()]);
  // An attempt is told before its outcome is written. The second one is an hour away, and is of the same trace.
  const queued = await eventually(
    () => rowsOf(server, "select replace(trace_id::text, '-', '') as trace from delivery_queue"),
    ({ length }) => length === 1,
  );
  expect(queued).toEqual([{ trace: traceOf(1) }]);
  for (const said of [api.said.errors, worker.said.errors]) {
    expect(said).not.toContain('example.com');
    expect(said).not.toContain(server.key);
  }
});

test('jobs that were set aside, campaigns and segments that lag are measured', async () => {
  const server = await startServer();
  const ids = [await send(server), await send(server)];
  await rowsOf(server, 'update delivery_queue set set_aside_at = now() where message_id = $1', [ids[0]]);
  const created = await server.request<{ id: string }>('POST', '/v1/contacts', { email: 'ann@example.com' });
  expect(created.status).toBe(201);
  const at = dateOf(server.installation.clock.nowMs() - 3_600_000);
  const lateId = `${at
    .getTime()
    .toString(16)
    .padStart(12, '0')
    .replace(/^(.{8})/, '$1-')}-7000-8000-000000000000`;
  await rowsOf(server, 'delete from contact_changes');
  await rowsOf(server, 'insert into contact_changes values ($1, $2, array[$3::uuid])', [
    server.organizationId,
    lateId,
    created.body.id,
  ]);
  const { sum } = await scrape(await metricsUrlOf(start('api')));
  expect(sum('postillion_jobs_set_aside', { channel: 'email' })).toBe(1);
  expect(sum('postillion_jobs_waiting', { channel: 'email', lane: 'transactional' })).toBe(1);
  expect(sum('postillion_segments_lag_seconds')).toBeGreaterThanOrEqual(3_600);
  // The neighbour has one of each.
  const [expected] = await rowsOf<{ campaigns: number }>(
    server,
    "select count(*) as campaigns from campaigns where status = 'paused'",
  );
  expect(sum('postillion_campaigns', { status: 'paused' })).toBe(expected!.campaigns);
});

test('nothing listens unless a port is set, and then on loopback alone', async () => {
  const silent = start('api', { POSTILLION_METRICS_PORT: '' });
  await urlOf(silent);
  expect(silent.said.errors).not.toMatch(metricsUrl);
  const url = new URL(await metricsUrlOf(start('worker')));
  expect(url.hostname).toBe('127.0.0.1');
  // An address of the same machine that only a listener on all of them has.
  await expect(fetch(`http://127.0.0.2:${url.port}/metrics`)).rejects.toThrow('fetch failed');
  expect((await fetch(`${url.href}healthz`)).status).toBe(200);
  expect((await fetch(`${url.href}metrics`, { method: 'POST', body: 'x' })).status).toBe(405);
  expect((await fetch(`${url.href}v1/email`)).status).toBe(404);
});

test('a port for metrics that is taken ends the start with a sentence', async () => {
  const listener = createServer().listen(0, '127.0.0.1');
  ends.push(() => {
    listener.close();
  });
  await once(listener, 'listening');
  const { port } = listener.address() as AddressInfo;
  for (const processes of ['1', '2']) {
    const { exitCode, errors } = await start('worker', {
      POSTILLION_METRICS_PORT: `${port}`,
      POSTILLION_PROCESSES: processes,
    }).ended;
    expect(exitCode).toBe(1);
    expect(errors).toContain(
      `Port ${port} on 127.0.0.1 is in use by another process: stop that one, or set POSTILLION_METRICS_PORT to another port.`,
    );
  }
});

test('a supervisor tells the metrics of all its processes, and of one that hangs that it does not answer', async () => {
  const server = await startServer();
  const url = await metricsUrlOf(start('worker', { POSTILLION_PROCESSES: '2' }));
  await eventually(
    () => readiness(url),
    ({ status }) => status === 200,
  );
  const id = await send(server, { to: ['a@example.com', 'b@example.com', 'c@example.com'] });
  await settled(server, id);
  const whole = await eventually(
    () => scrape(url),
    ({ sum }) => sum('postillion_outcomes_total') === 3 && sum('postillion_workers_alive') === 2,
  );
  for (const process of ['1', '2']) {
    expect(whole.sum('postillion_process_up', { process })).toBe(1);
    expect(whole.sum('postillion_info', { process, role: 'worker' })).toBe(1);
  }
  expect(whole.samples.filter(({ name }) => name === 'postillion_database_up')).toHaveLength(1);
  expect(whole.text.match(/^# TYPE postillion_info gauge$/gm)).toHaveLength(1);

  // The first is the one that is asked for the installation.
  const [first] = await rowsOf<{ pid: number }>(server, 'select pid from workers order by epoch limit 1');
  process.kill(first!.pid, 'SIGSTOP');
  ends.push(() => {
    process.kill(first!.pid, 'SIGCONT');
  });
  const part = await scrape(url);
  expect(['1', '2'].map((number) => part.sum('postillion_process_up', { process: number })).sort()).toEqual([
    0, 1,
  ]);
  expect(part.sum('postillion_database_up')).toBe(1);
  const { status, body } = await readiness(url);
  expect(status).toBe(503);
  expect(body.reason).toMatch(/^process [12]: it does not answer$/);
});

test('while PostgreSQL stands still a scrape is answered, and says so', async () => {
  const dataDirectory = await mkdtemp(path.join(databasesDirectory(), 'postillion-monitoring-'));
  await chmod(dataDirectory, 0o711);
  ends.push(() => rm(dataDirectory, { recursive: true, force: true }));
  const program = start('all', { DATABASE_URL: '', POSTILLION_DATA_DIR: dataDirectory });
  const url = await metricsUrlOf(program);
  expect((await scrape(url)).sum('postillion_database_up')).toBe(1);
  const goOn = await stopPostgres(dataDirectory);
  try {
    const away = await eventually(
      () => scrape(url),
      ({ sum }) => sum('postillion_database_up') === 0,
    );
    // What was true before is not told as if it still were.
    expect(away.sum('postillion_workers_alive')).toBeNull();
    expect(away.sum('postillion_info')).toBe(1);
    expect((await readiness(url)).status).toBe(503);
  } finally {
    goOn();
  }
  await eventually(
    () => scrape(url),
    ({ sum }) => sum('postillion_database_up') === 1,
  );
  program.child.kill('SIGTERM');
  expect((await program.ended).exitCode).toBe(0);
});

test('a hundred scrapes at once read the database once', async () => {
  const server = await startServer();
  const { installation } = server;
  let transactions = 0;
  const database: Database = {
    ...installation.database,
    transaction: (work) => {
      transactions += 1;
      return installation.database.transaction(work);
    },
  };
  const watched = { ...installation, database };
  const meters = createMeters(watched, { role: 'api', process: 1 });
  const monitoring = await createMonitoring(watched, meters, () => Promise.resolve(null));
  const answers = await Promise.all(
    Array.from({ length: 100 }, () =>
      Promise.all([monitoring.measureInstallation(), monitoring.findReadiness()]),
    ),
  );
  expect(new Set(answers.map(([measured]) => JSON.stringify(measured))).size).toBe(1);
  // One for metrics, one for readiness.
  expect(transactions).toBe(2);
});
