/** A DATABASE_URL that leads nowhere, or to the wrong place: one sentence, with the cause and what to mend. */
import { once } from 'node:events';
import { createServer as createHttpServer } from 'node:http';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import pg from 'pg';
import { afterEach, expect, test } from 'vitest';
import { refuseOldServer } from '../../src/installation/database-problem.ts';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { type Ended, usePrograms } from '../support/programs.ts';
import { clientConfigOf, useTestDatabase } from '../support/test-database.ts';

const password = 'a-password-that-is-shown-nowhere';

let address: DatabaseAddress;
const servers: Server[] = [];
const sockets = new Set<Socket>();

useTestDatabase({}, (opened) => {
  address = opened.address;
});
const programs = usePrograms();

afterEach(async () => {
  for (const socket of sockets) socket.destroy();
  for (const server of servers.splice(0)) {
    server.close();
    await once(server, 'close');
  }
});

function run(databaseUrl: string, ...words: string[]): Promise<Ended> {
  const settings = {
    PORT: '0',
    LOG_LEVEL: 'silent',
    DATABASE_URL: databaseUrl,
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
  };
  return programs.run(settings, ...words);
}

/**
 * The same of a start and of a command: one line that says this, without a stack and without the password. A command
 * that changes no schema may have something else to say.
 */
async function expectSentence(databaseUrl: string, sentence: RegExp, ofCommand = sentence): Promise<void> {
  const [served, listed] = await Promise.all([run(databaseUrl, 'serve'), run(databaseUrl, 'org', 'list')]);
  expect(served.errors).toMatch(sentence);
  expect(listed.errors).toMatch(ofCommand);
  for (const { exitCode, output, errors } of [served, listed]) {
    expect(errors.trimEnd().split('\n')).toHaveLength(1);
    expect(errors).not.toContain(password);
    expect({ exitCode, output }).toEqual({ exitCode: 1, output: '' });
  }
}

async function listen(server: Server): Promise<number> {
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  servers.push(server);
  return (server.address() as AddressInfo).port;
}

/** Speaks as PostgreSQL does, and refuses every connection with this SQLSTATE. */
function startRefusing(state: string, message: string): Promise<number> {
  const fields = Buffer.from(`SFATAL\0VFATAL\0C${state}\0M${message}\0\0`);
  const head = Buffer.alloc(5);
  head.write('E');
  head.writeUInt32BE(fields.length + 4, 1);
  return listen(
    createServer((socket) => {
      socket.once('data', () => socket.end(Buffer.concat([head, fields])));
    }),
  );
}

function urlWith(change: { user?: string; database?: string }): string {
  if ('url' in address) {
    const url = new URL(address.url);
    if (change.user !== undefined) url.username = change.user;
    if (change.database !== undefined) url.pathname = `/${change.database}`;
    return url.href;
  }
  const { user = address.user, database = address.database } = change;
  return `postgres://${user}:${password}@/${database}?host=${encodeURIComponent(address.host)}`;
}

test('where nothing listens', async () => {
  const port = await listen(createServer());
  const [server] = servers.splice(0);
  server!.close();
  await once(server!, 'close');
  await expectSentence(
    `postgres://app:${password}@127.0.0.1:${port}/app`,
    new RegExp(
      `^PostgreSQL cannot be reached: nothing listens at 127\\.0\\.0\\.1:${port} \\(ECONNREFUSED\\)\\. `,
    ),
  );
});

test('with an unknown host, as after a password that was not encoded', async () => {
  await expectSentence(
    `postgres://app:p@nowhere.invalid/app`,
    /^PostgreSQL cannot be reached: the host nowhere\.invalid of DATABASE_URL is unknown \(E[A-Z_]+\)\. .*%40/,
  );
});

test('with a URL that is none', async () => {
  await expectSentence(
    `postgres://app:pa/${password}@127.0.0.1:1/app`,
    /^DATABASE_URL cannot be read as postgres:/,
  );
  const { exitCode, errors } = await run('mysql://app@127.0.0.1/app', 'serve');
  expect(errors).toBe('DATABASE_URL must be like postgres://user:password@host:5432/name\n');
  expect(exitCode).toBe(1);
});

test('with a web server in the place of PostgreSQL', async () => {
  const port = await listen(createHttpServer());
  await expectSentence(
    `postgres://app:${password}@127.0.0.1:${port}/app`,
    new RegExp(`^What answers at 127\\.0\\.0\\.1:${port} is not PostgreSQL\\. `),
  );
});

test('with a server that greets first, as MySQL and SMTP servers do', async () => {
  const port = await listen(createServer((socket) => socket.write('J\0\0\0\n8.0.36\0')));
  await expectSentence(
    `postgres://app:${password}@127.0.0.1:${port}/app`,
    new RegExp(`^What answers at 127\\.0\\.0\\.1:${port} is not PostgreSQL\\. `),
  );
});

test('with something that takes connections and says nothing', async () => {
  const port = await listen(createServer());
  await expectSentence(
    `postgres://app:${password}@127.0.0.1:${port}/app`,
    new RegExp(`^PostgreSQL cannot be reached: 127\\.0\\.0\\.1:${port} does not answer \\(timeout\\)\\. `),
  );
});

test.each([
  [
    '28P01',
    'password authentication failed for user "app"',
    /^PostgreSQL at \S+ refuses the password of the user "app"\. /,
  ],
  [
    '28000',
    'no pg_hba.conf entry for host "1.2.3.4"',
    /does not let the user "app" in: no pg_hba\.conf entry for host/,
  ],
  [
    '57P03',
    'the database system is starting up',
    /^PostgreSQL at \S+ is not ready: the database system is starting up\. /,
  ],
  ['53300', 'sorry, too many clients already', /^PostgreSQL at \S+ has no connection left: sorry, too many/],
])(
  'where PostgreSQL refuses with %s',
  async (state, message, sentence) => {
    const port = await startRefusing(state, message);
    await expectSentence(`postgres://app:${password}@127.0.0.1:${port}/app`, sentence);
  },
  60_000,
);

test('with a database that is not there', async () => {
  await expectSentence(
    urlWith({ database: 'nobody_made_this' }),
    /^PostgreSQL at \S+ has no database "nobody_made_this"\. Make it \(create database nobody_made_this owner /,
  );
});

test('with a database in which the user may make nothing', async () => {
  const user = `guest_${process.pid}`;
  const database = `${user}_database`;
  const client = new pg.Client(clientConfigOf(address));
  await client.connect();
  try {
    await client.query(`create role ${user} login`);
    await client.query(`create database ${database} template template0`);
    await expectSentence(
      urlWith({ user, database }),
      new RegExp(
        `does not let the user "${user}" work in the database "${database}": permission denied for schema public\\. `,
      ),
      /^The database has no schema yet\. Run "bin\/postillion migrate"/,
    );
  } finally {
    await client.query(`drop database if exists ${database} (force)`);
    await client.query(`drop role if exists ${user}`);
    await client.end();
  }
});

test('where PostgreSQL is older than its schema is written for', async () => {
  const answering = (text: string) => ({
    rows: <Row>() => Promise.resolve([{ text, number: Number.parseInt(text, 10) * 10_000 } as Row]),
  });
  await expect(refuseOldServer(answering('14.9'))).rejects.toThrow(
    'PostgreSQL 14.9 is too old: Postillion needs 15 or newer. Upgrade it, or name another in DATABASE_URL.',
  );
  await expect(refuseOldServer(answering('15.0'))).resolves.toBeUndefined();
});
