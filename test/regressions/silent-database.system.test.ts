/**
 * A PostgreSQL that stops answering without ending a connection: requests hung for minutes, `/readyz` with them. Every
 * answer must come in time and be 503, and afterwards everything must work by itself, with nothing lost or sent twice.
 */
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import { openDatabase, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { startEmbeddedPostgres } from '../../src/platform/postgres/embedded.ts';
import { migrate } from '../../src/platform/postgres/migrate.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { startSilentProxy } from '../support/silent-proxy.ts';
import { startSmtpSink } from '../support/smtp-sink.ts';
import { stopPostgres } from '../support/stopped-postgres.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { createTestDatabase } from '../support/test-database.ts';

type CleanUp = () => Promise<unknown> | void;
type Silence = { begin: () => Promise<void>; end: () => void };
type Start = (
  options: { smtpUrl: string },
  cleanUps: CleanUp[],
) => Promise<{ server: TestServer; silence: Silence }>;

const startStoppable: Start = async (options, cleanUps) => {
  const dataDirectory = await mkdtemp(path.join(databasesDirectory(), 'postillion-stopped-'));
  await chmod(dataDirectory, 0o711);
  cleanUps.push(() => rm(dataDirectory, { recursive: true, force: true, maxRetries: 3 }));
  const postgres = await startEmbeddedPostgres({ dataDirectory, settings: { shared_buffers: '32MB' } });
  cleanUps.push(postgres.stop);
  const schema = openDatabase({ address: postgres.connection, connectionsMax: 1 });
  await migrate(schema);
  await schema.close();
  const server = await startTestServer({ ...options, worker: true, database: postgres.connection });
  cleanUps.push(server.stop);
  let goOn: () => void = () => undefined;
  cleanUps.push(() => {
    goOn();
  });
  return {
    server,
    silence: {
      begin: async () => {
        goOn = await stopPostgres(dataDirectory);
      },
      end: () => {
        goOn();
      },
    },
  };
};

const startCuttable: Start = async (options, cleanUps) => {
  const database = await createTestDatabase();
  cleanUps.push(database.drop);
  const proxy = await startSilentProxy(database.address);
  cleanUps.push(proxy.stop);
  const server = await startTestServer({ ...options, worker: true, database: proxy.address });
  cleanUps.push(server.stop, () => {
    proxy.speak();
  });
  return {
    server,
    silence: {
      begin: () => {
        proxy.fallSilent();
        return Promise.resolve();
      },
      end: proxy.speak,
    },
  };
};

const letter = {
  from: 'hello@postillion.test',
  from_name: 'Hello',
  to: ['ann@example.com'],
  subject: 'Hello',
  text: 'Hello Ann',
};

// Beside each other, since they mostly wait for the silence to be noticed.
test.concurrent.each([
  ['whose processes stand still', startStoppable],
  ['whose network swallows everything', startCuttable],
] as const)(
  'a PostgreSQL %s holds up no answer, loses nothing, and is used again as soon as it answers',
  async (_name, start) => {
    const cleanUps: CleanUp[] = [];
    try {
      const sink = await startSmtpSink();
      cleanUps.push(sink.close);
      const { server, silence } = await start({ smtpUrl: `smtp://127.0.0.1:${sink.port}?tls=off` }, cleanUps);
      const keys = Array.from({ length: 30 }, (_none, index) => `key ${index}`);
      const send = (key: string) =>
        server.request<{ id: string; name: string }>('POST', '/v1/email/send', letter, {
          'idempotency-key': key,
        });
      expect((await send('before')).status).toBe(202);
      expect((await server.request('GET', '/readyz')).status).toBe(200);

      await silence.begin();
      const answers = await Promise.all([
        ...keys.map(send),
        server.request<{ name: string }>('GET', '/v1/email'),
        server.request<{ name: string }>('GET', '/v1/contacts'),
      ]);
      expect(answers.map(({ status, body }) => [status, body.name])).toEqual(
        answers.map(() => [503, 'service_unavailable']),
      );
      expect(answers.every(({ headers }) => headers.get('retry-after') === '1')).toBe(true);
      expect((await server.request('GET', '/readyz')).status).toBe(503);
      expect((await server.request('GET', '/healthz')).status).toBe(200);

      silence.end();
      const ids: string[] = [];
      for (const key of keys) {
        let answer = await send(key);
        while (answer.status === 503) answer = await send(key);
        expect(answer.status).toBe(202);
        ids.push(answer.body.id);
      }
      // What had been committed without a response was found under its key.
      expect(new Set(ids).size).toBe(keys.length);
      const countMessages = unpreparedStatement<{ count: number }>('select count(*) as count from messages');
      expect(await server.installation.database.rows(countMessages)).toEqual([{ count: keys.length + 1 }]);
      const countDelivered = unpreparedStatement<{ count: number }>(
        "select count(*) as count from recipients where status = 'delivered'",
      );
      for (let delivered = 0; delivered < keys.length + 1;) {
        delivered = (await server.installation.database.rows(countDelivered))[0]!.count;
      }
      expect(sink.messages).toHaveLength(keys.length + 1);
      expect((await server.request('GET', '/readyz')).status).toBe(200);
    } finally {
      for (const cleanUp of cleanUps.reverse()) await cleanUp();
    }
  },
);
