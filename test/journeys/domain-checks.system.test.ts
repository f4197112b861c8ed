/** The verify operation in each way to start the program, whose API may not say that a domain is verified. */
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { DomainRecord } from '../../src/domains/schema.ts';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { startDnsServer, type TestDnsServer } from '../support/dns-server.ts';
import { servedUrl, type Program, type Settings, usePrograms } from '../support/programs.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { addressOfRequests, databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const secret = 'a secret of the tests, and of nothing else';

let address: DatabaseAddress;
let dns: TestDnsServer;
let folder: string;

useTestDatabase({ connectionsMax: 1, isForEachTest: true }, (opened) => {
  address = opened.address;
});
beforeEach(async () => {
  dns = await startDnsServer();
  folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-domains-'));
  await chmod(folder, 0o711);
});
afterEach(async () => {
  await dns.stop();
  await rm(folder, { recursive: true, force: true, maxRetries: 3 });
});
const programs = usePrograms();

async function start(settings: Settings, role: string): Promise<Program> {
  const program = programs.start(
    {
      PORT: '0',
      LOG_LEVEL: 'info',
      POSTILLION_PROCESSES: '1',
      POSTILLION_DNS_SERVERS: dns.address,
      ...settings,
    },
    ['serve', '--role', role],
  );
  expect(await program.untilSaid('errors', /"msg":"ready"/), program.said.errors).not.toBeNull();
  return program;
}

const urlOf = async (program: Program) => (await program.untilSaid('output', servedUrl))![1]!;

/** Registers a domain and publishes its records. */
async function register(url: string, key: string): Promise<DomainRecord> {
  const domain = await ask(url, key, '/email/domains', { name: 'sender.example' });
  for (const { type, name, value } of domain.records) if (type === 'TXT') dns.set(name, { TXT: [value] });
  return domain;
}

/** Asks again where it is told to, which it is while no worker is there, or none was in time. */
async function ask(url: string, key: string, at: string, body: unknown = {}): Promise<DomainRecord> {
  const post = () =>
    fetch(`${url}/v1${at}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
  let response = await post();
  for (let tries = 1; response.status === 503 && tries < 5; tries += 1) response = await post();
  const text = await response.text();
  expect(response.status, text).toBe(200);
  return JSON.parse(text) as DomainRecord;
}

test('one process of both roles answers it', async () => {
  const program = await start({ POSTILLION_DATA_DIR: folder }, 'all');
  const url = await urlOf(program);
  const key = /API key: +(\S+)/.exec(program.said.output)![1]!;
  const { id } = await register(url, key);
  expect((await ask(url, key, `/email/domains/${id}/verify`)).status).toBe('verified');
  program.child.kill('SIGTERM');
  expect((await program.ended).exitCode).toBe(0);
});

test('of several processes the API waits for a worker, and for another one if that is killed', async () => {
  const settings = { DATABASE_URL: databaseUrlOf(address), POSTILLION_SECRET: secret };
  const api = await start(
    { ...settings, POSTILLION_API_DATABASE_URL: databaseUrlOf(addressOfRequests(address)) },
    'api',
  );
  const url = await urlOf(api);
  const { output } = await programs.run(settings, 'org', 'create', '--name', 'Acme', '--sandbox');
  const key = /API key: +(\S+)/.exec(output)![1]!;
  const domain = await register(url, key);
  const dkim = domain.records.find(({ record }) => record === 'dkim')!.name;
  const release = dns.hold(dkim);
  const answer = ask(url, key, `/email/domains/${domain.id}/verify`);
  const first = await start(settings, 'worker');
  await dns.whenAsked(1);
  first.child.kill('SIGKILL');
  await first.ended;
  release();
  await start(settings, 'worker');
  expect((await answer).status).toBe('verified');
});
