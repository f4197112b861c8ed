/** The first start: its key is shown once, and so is made only where a person sees it. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { createApiKey, createOrganization } from '../../src/accounts/accounts.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import {
  type Database,
  type DatabaseAddress,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { type Ended, servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

/** Of what is started with it, standard output is a terminal as far as the program can tell. */
const asTerminal = ['--import', 'data:text/javascript,process.stdout.isTTY=true'];

let address: DatabaseAddress;
let database: Database;
const listeners: Server[] = [];

useTestDatabase({ connectionsMax: 1, isForEachTest: true }, (opened) => {
  address = opened.address;
  database = opened.database;
});
afterEach(() => {
  for (const listener of listeners.splice(0)) listener.close();
});
const programs = usePrograms();

type Started = Ended & { isServing: boolean };

/** Until it serves, or has ended. */
async function serve(
  settings: Settings,
  options: { role?: string; isTerminal?: boolean } = {},
): Promise<Started> {
  const { role = 'all', isTerminal = false } = options;
  const { child, said, untilSaid } = programs.start(
    {
      PORT: '0',
      LOG_LEVEL: 'info',
      DATABASE_URL: databaseUrlOf(address),
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
      ...settings,
    },
    ['serve', '--role', role],
    { nodeOptions: isTerminal ? asTerminal : [] },
  );
  // The last line of a start; what is printed was printed before it.
  const isServing = (await untilSaid('errors', /"msg":"ready"/)) !== null;
  // Standard output is another pipe, whose bytes may come later.
  if (isServing && role !== 'worker') await untilSaid('output', servedUrl);
  return { isServing, exitCode: child.exitCode, ...said };
}

async function countOf(table: 'organizations' | 'api_keys' | 'domains'): Promise<number> {
  const [row] = await database.rows(
    unpreparedStatement<{ count: number }>(`select count(*)::integer as count from ${table}`),
  );
  return row!.count;
}

async function takePort(): Promise<number> {
  const listener = createServer();
  listeners.push(listener);
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  return (listener.address() as AddressInfo).port;
}

function keyIn(output: string): string | undefined {
  return /API key: +(\S+)/.exec(output)?.[1];
}

function urlIn(output: string): string | undefined {
  return servedUrl.exec(output)?.[1];
}

test('a port that is in use is one sentence, and takes no key with it', async () => {
  const port = await takePort();
  const refused = await serve({ PORT: `${port}` }, { isTerminal: true });
  expect(refused).toMatchObject({ isServing: false, exitCode: 1, output: '' });
  const sentences = refused.errors.split('\n').filter((line) => line !== '' && !line.startsWith('{'));
  expect(sentences).toEqual([
    `Port ${port} on 127.0.0.1 is in use by another process: stop that one, or set PORT to another port.`,
  ]);
  expect([await countOf('organizations'), await countOf('api_keys'), await countOf('domains')]).toEqual([
    0, 0, 0,
  ]);

  const { output } = await serve({}, { isTerminal: true });
  const response = await fetch(`${urlIn(output)}/v1/email`, {
    headers: { authorization: `Bearer ${keyIn(output)}` },
  });
  expect(response.status).toBe(200);
});

test('so is the port on which bounces are taken', async () => {
  const port = await takePort();
  const settings = { POSTILLION_BOUNCE_PORT: `${port}`, POSTILLION_BOUNCE_LISTEN: '127.0.0.1' };
  const refused = await serve(settings, { isTerminal: true });
  expect(refused).toMatchObject({ isServing: false, exitCode: 1, output: '' });
  expect(refused.errors).toContain(
    `Port ${port} on 127.0.0.1 is in use by another process: stop that one, or set POSTILLION_BOUNCE_PORT to another port.\n`,
  );
  expect(refused.errors).not.toContain('    at ');
  expect(await countOf('organizations')).toBe(0);
});

test('a host that is no address of this machine is a sentence, too', async () => {
  const refused = await serve({ HOST: '192.0.2.1' });
  expect(refused).toMatchObject({ isServing: false, exitCode: 1 });
  expect(refused.errors).toContain('192.0.2.1 is no address of this machine: set HOST to one');
  expect(refused.errors).not.toContain('    at ');
});

test('a worker that starts first leaves the first organization to the API', async () => {
  const worker = await serve({}, { role: 'worker', isTerminal: true });
  expect(worker.isServing).toBe(true);
  expect(worker.output).not.toContain('pst_');
  expect(await countOf('organizations')).toBe(0);
  const { output } = await serve({}, { role: 'api', isTerminal: true });
  expect(keyIn(output)).toMatch(/^pst_/);
  expect(await countOf('organizations')).toBe(1);
});

test('with a database of its own and no terminal it makes no key, and says which command does', async () => {
  const { output, errors } = await serve({});
  expect(output).toContain('\nbin/postillion org create --name NAME --sandbox\n');
  expect(output + errors).not.toContain('pst_');
  expect(await countOf('organizations')).toBe(0);

  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  const { id } = await createOrganization(tools, 'Acme');
  const wanted = { organizationId: id, name: 'K', scopes: ['full_access'], expiresAt: null };
  const { key } = await createApiKey(tools, wanted);
  const response = await fetch(`${urlIn(output)}/v1/email`, { headers: { authorization: `Bearer ${key}` } });
  expect(response.status).toBe(200);
});

test('of several that start at once on a terminal each, one makes the organization and shows its key', async () => {
  const outputs = await Promise.all([1, 2, 3].map(() => serve({}, { role: 'api', isTerminal: true })));
  expect(outputs.filter(({ output }) => keyIn(output) !== undefined)).toHaveLength(1);
  expect([await countOf('organizations'), await countOf('api_keys'), await countOf('domains')]).toEqual([
    1, 1, 1,
  ]);
});
