/** What a start says: words on standard output, and a log that fits where it goes. */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { program, servedUrl } from '../support/programs.ts';
import { addressOf, clientConfigOf, databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const emptyDatabase = `empty_${process.pid}`;

let address: DatabaseAddress;

useTestDatabase({}, (opened) => {
  address = opened.address;
});
beforeAll(() => withAdministrator(`create database ${emptyDatabase} template template0`));
afterAll(() => withAdministrator(`drop database if exists ${emptyDatabase} (force)`));

async function withAdministrator(statement: string): Promise<void> {
  const client = new pg.Client(clientConfigOf(address));
  await client.connect();
  await client.query(statement);
  await client.end();
}

type Said = { output: string; errors: string };

/** Starts `command`, does `work` once it serves, and ends it. */
async function serve(
  command: readonly [string, ...string[]],
  work: (url: string) => Promise<void>,
): Promise<Said> {
  const [executable, ...words] = command;
  const server = spawn(executable, words, {
    env: {
      PATH: process.env.PATH,
      TERM: 'xterm',
      PORT: '0',
      DATABASE_URL: databaseUrlOf(addressOf(address, emptyDatabase)),
      POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
    },
    // `script` ends with its standard input.
    stdio: ['pipe', 'pipe', 'pipe'],
    // `script` passes no signal on: the whole group gets it.
    detached: true,
  });
  const said: Said = { output: '', errors: '' };
  server.stderr.on('data', (chunk) => (said.errors += String(chunk)));
  const ended = once(server, 'close');
  const url = await new Promise<string>((resolve, reject) => {
    server.stdout.on('data', (chunk) => {
      said.output += String(chunk);
      const found = servedUrl.exec(said.output)?.[1];
      if (found !== undefined) resolve(found);
    });
    void ended.then(() => {
      reject(new Error(`it ended: ${said.output}${said.errors}`));
    });
  });
  try {
    await work(url);
  } finally {
    process.kill(-server.pid!, 'SIGTERM');
    await ended;
  }
  return said;
}

async function askFor(url: string, paths: readonly string[]): Promise<void> {
  for (const asked of paths) await (await fetch(`${url}${asked}`)).text();
}

test('the log of a first start is JSON, with one line for all migrations and none for the page that looks for mail', async () => {
  const { output, errors } = await serve([process.execPath, program, 'serve'], (url) =>
    askFor(url, [
      '/sandbox',
      '/sandbox/messages?limit=1',
      '/sandbox/messages?limit=1',
      '/sandbox/messages?limit=nonsense',
    ]),
  );
  expect(output).toMatch(
    /^\nPostillion serves http:\/\/127\.0\.0\.1:\d+\/v1\nEmail, texts, pushes and chat-app messages stay in the sandbox: nothing leaves this machine\. Ctrl-C stops it\.\n/,
  );
  // With a database of one's own, output to a file holds no secret.
  expect(output).toContain('Sandbox inbox: bin/postillion sandbox link prints its address\n');
  expect(output).not.toMatch(/token=|pst_/);

  const lines = errors
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  const migrated = lines.filter(({ msg }) => msg === 'schema brought up to date');
  expect(migrated).toMatchObject([
    { migrations: expect.any(Number) as number, newest: expect.stringMatching(/^\d{4}-/) as string },
  ]);
  expect(migrated[0]!.migrations).toBeGreaterThan(10);
  const asked = lines.filter(({ msg }) => msg === 'request').map(({ route, status }) => [route, status]);
  expect(asked).toEqual([
    ['/sandbox', 200],
    ['/sandbox/messages', 422],
  ]);
  expect(lines.find(({ msg }) => msg === 'ready')).toMatchObject({
    email_provider: 'sandbox',
    sms_provider: 'sandbox',
    push_provider: 'sandbox',
    chatapp_provider: 'sandbox',
  });
});

const hasScript = (() => {
  try {
    return execFileSync('script', ['--version'], { encoding: 'utf8' }).includes('util-linux');
  } catch {
    return false;
  }
})();
if (!hasScript) console.log('Skipped, because there is no `script` of util-linux: the log on a terminal');

test.skipIf(!hasScript)(
  'on a terminal the log is in words, and the link to the sandbox is shown',
  async () => {
    const command = `${process.execPath} ${program} serve`;
    const { output } = await serve(['script', '-qec', command, '/dev/null'], (url) =>
      askFor(url, ['/sandbox']),
    );
    const shown = output.replaceAll(/\u001b\[\d+m/g, '');
    expect(shown).toMatch(/Sandbox inbox: http:\/\/127\.0\.0\.1:\d+\/sandbox\?token=[0-9a-f]{32}\r?\n/);
    expect(shown).toMatch(/^\[\d\d:\d\d:\d\d\] INFO: ready \{"url":/m);
    expect(shown).not.toContain('{"level":');
  },
  60_000,
);
