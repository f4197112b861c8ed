/** Behind PgBouncer everything works, in transaction mode with a way of its own for what needs a session. */
import { afterEach, describe, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { eventually, repeatAtOnce, rowsOf } from '../support/email-journey.ts';
import { neighbourId } from '../support/neighbour.ts';
import { hasPgBouncer, startPgBouncer } from '../support/pgbouncer.ts';
import { type Program, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { startLoad } from '../support/rolling-load.ts';
import { createSender, startTestServer } from '../support/server.ts';
import { startSmtpSink } from '../support/smtp-sink.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
const ends: (() => Promise<unknown>)[] = [];

useTestDatabase({ hasNeighbour: true, isForEachTest: true }, (opened) => {
  address = opened.address;
});
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});
const programs = usePrograms();

const modes = {
  session: () => ({}),
  transaction: () => ({
    POSTILLION_PREPARED_STATEMENTS: 'off',
    POSTILLION_SESSION_DATABASE_URL: databaseUrlOf(address),
  }),
};

describe.skipIf(!hasPgBouncer('nothing is tried behind PgBouncer'))('behind PgBouncer', () => {
  test.each(Object.entries(modes))(
    'in %s mode messages are accepted and delivered once, and a dead worker is replaced',
    async (mode, more) => {
      const bouncer = await startPgBouncer(mode as keyof typeof modes, address);
      ends.push(bouncer.stop);
      const sink = await startSmtpSink();
      ends.push(sink.close);
      const server = await startTestServer({ database: address, madeByHand: ['leases'] });
      ends.push(server.stop);
      const senders = [
        { key: server.key, domain: 'postillion.test' },
        { key: (await createSender(server.installation, 'other.example')).key, domain: 'other.example' },
      ];
      await rowsOf(server, 'update organizations set requests_per_window = 100000');
      const settings: Settings = {
        LOG_LEVEL: 'info',
        DATABASE_URL: bouncer.url,
        POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
        POSTILLION_ADDRESS_CHECKS: 'off',
        POSTILLION_PROCESSES: '1',
        POSTILLION_SMTP_URL: `smtp://127.0.0.1:${sink.port}?connections=4`,
        POSTILLION_DRAIN_SECONDS: '1',
        PORT: '0',
        ...more(),
      };
      const start = async (role: 'api' | 'worker'): Promise<Program> => {
        const node = programs.start(settings, ['serve', '--role', role]);
        expect(await node.untilSaid('errors', /"msg":"ready"/), node.said.errors).not.toBeNull();
        return node;
      };
      const [api, worker, other] = [await start('api'), await start('worker'), await start('worker')];
      const url = (await api.untilSaid('output', servedUrl))![1]!;
      const load = startLoad(url, senders);
      await load.untilMore(100);
      worker.child.kill('SIGKILL');
      await load.untilMore(100);
      const answers = await load.stop();
      expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
      // Whoever is left has buried the dead one.
      await eventually(
        () => rowsOf(server, 'select from workers'),
        (workers) => workers.length === 1,
      );
      await repeatAtOnce(server);
      await eventually(
        () => rowsOf(server, 'select from delivery_queue where organization_id <> $1', [neighbourId]),
        (jobs) => jobs.length === 0,
      );
      const recipients = await rowsOf<{ id: string; status: string; ambiguities: number }>(
        server,
        'select message_id as id, status, ambiguities from recipients where organization_id <> $1',
        [neighbourId],
      );
      expect(recipients.map(({ id }) => id).sort()).toEqual(answers.map(({ id }) => id).sort());
      for (const { status } of recipients) expect(status).toBe('delivered');
      const repeated = recipients.reduce((sum, { ambiguities }) => sum + ambiguities, 0);
      const reached = sink.messages.flatMap((message) => message.recipients).length;
      expect(reached).toBeGreaterThanOrEqual(answers.length);
      expect(reached).toBeLessThanOrEqual(answers.length + repeated);
      const errors = [api, other].flatMap(({ said }) =>
        // The server of the tests may lose what it has.
        said.errors
          .split('\n')
          .filter((line) => line.includes('"level":50') && !line.includes('is not safe')),
      );
      expect(errors).toEqual([]);
      for (const { child, ended } of [api, other]) {
        child.kill('SIGTERM');
        expect((await ended).exitCode).toBe(0);
      }
    },
  );
});
