/** A release is begun while nodes of the one before serve: both work on the new schema, and nothing is lost or sent twice. */
import { randomBytes } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import pg from 'pg';
import { afterAll, afterEach, beforeAll, expect, inject, test } from 'vitest';
import { type Database, openDatabase, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { examineTenantWall } from '../../src/platform/postgres/tenant-wall.ts';
import { eventually } from '../support/email-journey.ts';
import { buildPreviousRelease } from '../support/previous-release.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { startBalancer, startLoad } from '../support/rolling-load.ts';
import { startSmtpSink } from '../support/smtp-sink.ts';
import { addressOf, clientConfigOf, databaseUrlOf } from '../support/test-database.ts';

const built = await buildPreviousRelease();
const name = `previous_${process.pid}_${randomBytes(6).toString('hex')}`;
const ends: (() => Promise<unknown>)[] = [];

async function onServer(text: string): Promise<void> {
  const client = new pg.Client(clientConfigOf(inject('databaseServer')));
  await client.connect();
  await client.query(text).finally(() => client.end());
}

beforeAll(() => onServer(`create database ${name}`));
afterAll(async () => {
  await onServer(`drop database ${name} (force)`);
  await built?.remove();
});
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});
const programs = usePrograms();

const rows = <Row>(database: Database, text: string) => database.rows(unpreparedStatement<Row>(text));

test.skipIf(built === null)(
  'nodes of the previous release work on the schema of this one, beside its own',
  async () => {
    const previous = built!;
    const address = addressOf(inject('databaseServer'), name);
    const database = openDatabase({ address, connectionsMax: 2 });
    ends.push(database.close);
    const sink = await startSmtpSink();
    ends.push(sink.close);
    const settings: Settings = {
      LOG_LEVEL: 'info',
      DATABASE_URL: databaseUrlOf(address),
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
      POSTILLION_ADDRESS_CHECKS: 'off',
      POSTILLION_PROCESSES: '1',
      POSTILLION_SMTP_URL: `smtp://127.0.0.1:${sink.port}?connections=4`,
      POSTILLION_DRAIN_SECONDS: '5',
    };
    type Release = 'previous' | 'this';
    const optionsOf = (release: Release) => (release === 'previous' ? { entry: previous.entry } : {});
    const run = async (release: Release, ...words: string[]) => {
      const { exitCode, output, errors } = await programs.start(
        settings,
        [...words, '--json'],
        optionsOf(release),
      ).ended;
      expect({ exitCode, errors }).toEqual({ exitCode: 0, errors: expect.any(String) as string });
      return JSON.parse(output) as Record<string, string> & { applied?: string[] };
    };
    const startNode = async (release: Release, role: 'api' | 'worker', port = '0'): Promise<Program> => {
      const node = programs.start({ ...settings, PORT: port }, ['serve', '--role', role], optionsOf(release));
      expect(await node.untilSaid('errors', /"msg":"ready"/), node.said.errors).not.toBeNull();
      return node;
    };
    const urlOf = async ({ untilSaid }: Program) => (await untilSaid('output', servedUrl))![1]!;
    const stop = async ({ child, ended }: Program) => {
      child.kill('SIGTERM');
      expect((await ended).exitCode).toBe(0);
    };
    const makeSender = async (domain: string) => {
      const { id } = await run('previous', 'org', 'create', '--name', domain);
      await run('previous', 'domain', 'verify', '--org', id!, domain);
      await run('previous', 'org', 'update', '--org', id!, '--requests-per-window', '100000');
      const { key } = await run('previous', 'key', 'create', '--org', id!);
      return { key: key!, domain };
    };

    const oldApi = await startNode('previous', 'api');
    const oldWorker = await startNode('previous', 'worker');
    const senders = [await makeSender('one.example'), await makeSender('other.example')];
    // Their ports are known to the balancer before they serve.
    const newApi = await startNode('previous', 'api');
    const urls = [await urlOf(oldApi), await urlOf(newApi)];
    const balancer = await startBalancer(urls);
    ends.push(balancer.stop);
    const load = startLoad(balancer.url, senders);
    await load.untilMore(50);

    // The schema changes under the nodes of the previous release.
    const { applied } = await run('this', 'migrate');
    const known = new Set(await readdir(path.join(previous.folder, 'migrations')));
    const newer = (await readdir(path.resolve(import.meta.dirname, '../../migrations'))).filter(
      (file) => !known.has(file),
    );
    expect(newer.length).toBeGreaterThan(0);
    expect(applied).toEqual(newer.map((file) => file.replace(/\.sql$/, '')));
    await load.untilMore(100);
    expect(balancer.ready()).toBe(2);

    // One node of each kind is replaced.
    await stop(newApi);
    await load.untilMore(20);
    const api = await startNode('this', 'api', new URL(urls[1]!).port);
    await eventually(balancer.ready, (count) => count === 2);
    const worker = await startNode('this', 'worker');
    await load.untilMore(150);

    // The other is started again as it was, as after a change of mind, and serves on.
    await stop(oldApi);
    const oldAgain = await startNode('previous', 'api', new URL(urls[0]!).port);
    await eventually(balancer.ready, (count) => count === 2);
    await stop(oldWorker);
    const oldWorkerAgain = await startNode('previous', 'worker');
    await load.untilMore(150);
    expect(await examineTenantWall(database)).toEqual({ kind: 'standing' });
    // A worker of the previous release alone, and then one of this alone.
    await stop(worker);
    await load.untilMore(50);
    const workerAgain = await startNode('this', 'worker');
    await stop(oldWorkerAgain);
    await stop(oldAgain);
    await load.untilMore(50);
    const answers = await load.stop();

    expect(balancer.refused()).toBe(0);
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
    expect(new Set(answers.map(({ id }) => id)).size).toBe(answers.length);
    await eventually(
      () => rows(database, 'select from delivery_queue'),
      (jobs) => jobs.length === 0,
    );
    const recipients = await rows<{
      message_id: string;
      address: string;
      status: string;
      ambiguities: number;
    }>(database, 'select message_id, address, status, ambiguities from recipients');
    expect(recipients.map((row) => `${row.message_id} ${row.address}`).sort()).toEqual(
      answers.map(({ id, to }) => `${id} ${to}`).sort(),
    );
    for (const row of recipients) expect(row).toMatchObject({ status: 'delivered', ambiguities: 0 });
    expect(sink.messages.flatMap(({ recipients: reached }) => reached).sort()).toEqual(
      answers.map(({ to }) => to).sort(),
    );
    await Promise.all([api, workerAgain].map(stop));
  },
);
