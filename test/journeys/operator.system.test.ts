/** What an operator does at a terminal: the built program, as processes of their own. */
import type { ChildProcess } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, mkdtemp, realpath, rm } from 'node:fs/promises';
import path from 'node:path';
import { once } from 'node:events';
import { beforeAll, expect, test, vi } from 'vitest';
import { createOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createSecrets } from '../../src/platform/secrets.ts';
import { createIds } from '../../src/platform/ids.ts';
import type { Database } from '../../src/platform/postgres/database.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';
import { servedUrl, type Settings, usePrograms } from '../support/programs.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const unknownId = '0199c0de-0000-7000-8000-000000000000';

let database: Database;
let own: Settings;
let org: string;

useTestDatabase({ connectionsMax: 1 }, (opened) => {
  database = opened.database;
  own = {
    DATABASE_URL: databaseUrlOf(opened.address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
  };
});
const { start, run } = usePrograms();
beforeAll(async () => {
  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  org = (await createOrganization(tools, 'Acme')).id;
});

/** Most of what these tests go on with is an id or a key. */
async function runJson(settings: Settings, ...words: string[]): Promise<{ id: string; key: string }> {
  const { output, errors } = await run(settings, ...words, '--json');
  expect(errors).toBe('');
  expect(output.trim().split('\n')).toHaveLength(1);
  return JSON.parse(output) as { id: string; key: string };
}

/** Resolves to the address that it serves. */
async function startServer(settings: Settings): Promise<{ server: ChildProcess; url: string }> {
  const { child, untilSaid, said } = start({ PORT: '0', LOG_LEVEL: 'silent', ...settings }, ['serve']);
  const url = (await untilSaid('output', servedUrl))?.[1];
  if (url === undefined) throw new Error(`the server ended: ${said.output}${said.errors}`);
  return { server: child, url };
}

async function ask(url: string, key: string, body?: unknown) {
  const response = await fetch(url, {
    method: body === undefined ? 'GET' : 'POST',
    headers: {
      authorization: `Bearer ${key}`,
      ...(body !== undefined && { 'content-type': 'application/json' }),
    },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: await response.json() };
}

test('on the embedded database commands count for the running server at once, and work without it', async () => {
  const dataDirectory = await mkdtemp(path.join(databasesDirectory(), 'postillion-operator-'));
  // As root, PostgreSQL runs as another user, who has to pass here.
  await chmod(dataDirectory, 0o711);
  const settings = { POSTILLION_DATA_DIR: dataDirectory };
  const pidFile = path.join(dataDirectory, 'postgres/cluster/postmaster.pid');
  try {
    const { server, url } = await startServer(settings);
    const { id, ...rest } = await runJson(settings, 'org', 'create', '--name', 'Ada & Co');
    expect(rest).toEqual({ name: 'Ada & Co' });
    const [made, domain, suppressed] = await Promise.all([
      runJson(settings, 'key', 'create', '--org', id, '--scopes', 'email:send,email:read'),
      runJson(settings, 'domain', 'verify', id, 'Mail.Example.test'),
      runJson(
        settings,
        'suppression',
        'add',
        '--org',
        id,
        '--channel',
        'email',
        '--address',
        'Ada@Example.test',
      ),
    ]);
    expect(Object.keys(made)).toEqual(['id', 'key']);
    expect(domain).toMatchObject({ name: 'mail.example.test', status: 'verified' });
    expect(suppressed).toMatchObject({ address: 'ada@example.test', suppressed: true, reason: 'operator' });

    const email = {
      from: 'a@mail.example.test',
      from_name: 'A',
      to: ['ada@example.test'],
      subject: 'Hello',
      text: 'Hello',
    };
    const accepted = await ask(`${url}/v1/email/send`, made.key, email);
    expect(accepted).toMatchObject({ status: 202 });
    await vi.waitFor(async () => {
      const { body } = await ask(`${url}/v1/email/${(accepted.body as { id: string }).id}`, made.key);
      expect(body).toMatchObject({ to: [{ dropped: true, drop_reason: 'suppressed' }] });
    }, 60_000);

    await runJson(
      settings,
      'org',
      'update',
      id,
      '--suspend',
      'email',
      '--quota',
      'email=5',
      '--quota',
      'sms=7',
    );
    expect(await ask(`${url}/v1/email/send`, made.key, email)).toMatchObject({
      status: 403,
      body: { name: 'sending_suspended' },
    });

    server.kill('SIGTERM');
    expect(await once(server, 'exit')).toEqual([0, null]);
    expect(existsSync(pidFile)).toBe(false);

    const list = await runJson(settings, 'org', 'list');
    expect(list).toMatchObject({
      data: [
        {
          id,
          quotas: { email: 5, sms: 7, push: null, chatapp: null },
          suspended_channels: ['email'],
          requests_per_window: 600,
        },
        { name: 'My organization' },
      ],
      has_more: false,
    });
    const { exitCode, output } = await run(settings, 'doctor');
    // The server has ended, and with it the only worker.
    expect(output.match(/^(warning|problem).*/gm)).toEqual([
      'warning  workers     no worker runs, and nothing waits to be sent',
    ]);
    expect(output).toMatch(/^ok {7}durability/m);
    expect(exitCode).toBe(0);
    expect(existsSync(pidFile)).toBe(false);
  } finally {
    for (const link of ['postgres/sockets', 'postgres']) {
      const target = await realpath(path.join(dataDirectory, link)).catch(() => null);
      if (target !== null) await rm(target, { recursive: true, force: true, maxRetries: 3 });
    }
    await rm(dataDirectory, { recursive: true, force: true, maxRetries: 3 });
  }
});

test('the link to the sandbox opens what is served', async () => {
  const { server, url } = await startServer({ ...own, POSTILLION_SANDBOX_ACCESS: 'token' });
  const link = async (settings: Settings) =>
    (await runJson(settings, 'sandbox', 'link')) as unknown as { url: string };
  const { url: shown } = await link({ ...own, POSTILLION_PUBLIC_URL: 'https://mail.example.com' });
  expect(shown).toMatch(/^https:\/\/mail\.example\.com\/sandbox\?token=[0-9a-f]{32}$/);
  expect(await link(own)).toEqual({
    url: shown.replace('https://mail.example.com', 'http://127.0.0.1:8025'),
  });
  expect((await fetch(`${url}/sandbox`)).status).toBe(404);
  expect((await fetch(shown.replace('https://mail.example.com', url))).status).toBe(200);
  server.kill('SIGTERM');

  const real = { POSTILLION_SMTP_URL: 'smtp://127.0.0.1', POSTILLION_SMPP_URL: 'smpp://a:b@127.0.0.1' };
  expect(await link({ ...own, ...real })).toEqual(await link(own));
  const allReal = {
    ...real,
    POSTILLION_PUSH_PROVIDER: 'direct',
    POSTILLION_CHATAPP_PROVIDER: 'whatsapp',
    POSTILLION_PUBLIC_URL: 'https://mail.example.com',
  };
  expect(await run({ ...own, ...allReal }, 'sandbox', 'link')).toEqual({
    exitCode: 1,
    output: '',
    errors:
      'Nothing is sent into the sandbox: real providers are set for email, texts, pushes and chat-app messages.\n',
  });
});

test('a key is listed without what it opens, and is revoked by its id', async () => {
  const { id, key } = await runJson(
    own,
    ...['key', 'create', '--org', org, '--name', 'Short-lived', '--expires-at', '2999-12-31T23:59:59+01:00'],
  );
  expect(key).toMatch(/^pst_[0-9A-Za-z]{49}$/);
  expect(await runJson(own, 'key', 'revoke', id)).toEqual({ id, revoked: true });
  const list = await run(own, 'key', 'list', '--org', org, '--json');
  expect(list.output).not.toContain(key);
  expect(JSON.parse(list.output)).toMatchObject({
    data: [
      {
        id,
        name: 'Short-lived',
        prefix: key.slice(0, 12),
        scopes: ['full_access'],
        state: 'revoked',
        expires_at: '2999-12-31T22:59:59.000Z',
      },
    ],
    has_more: false,
  });
});

test.each([
  ['email', 'ADA@example.test'],
  ['sms', '+4915112345678'],
])('an address for %s is suppressed until it is taken back', async (channel, address) => {
  const words = ['--org', org, '--channel', channel, '--address', address];
  expect(await runJson(own, 'suppression', 'add', ...words)).toMatchObject({ suppressed: true });
  expect(await runJson(own, 'suppression', 'remove', ...words)).toMatchObject({
    suppressed: false,
    removed: true,
  });
  expect(await runJson(own, 'suppression', 'show', ...words)).toMatchObject({ suppressed: false });
});

test('an opt-out stays when the operator lifts a suppression of the same number', async () => {
  const address = '+4915112345679';
  const tools = {
    clock: systemClock,
    newId: createIds(systemClock),
    secrets: createSecrets(own.POSTILLION_SECRET!),
  };
  for (const reason of ['unsubscribe', 'operator'] as const)
    await addSuppressions(database, tools, 'sms', [{ organizationId: org, address, reason }]);
  const words = ['--org', org, '--channel', 'sms', '--address', address];
  const remove = () => runJson(own, 'suppression', 'remove', ...words);
  expect(await remove()).toMatchObject({ suppressed: true, removed: true, reason: 'unsubscribe' });
  expect(await remove()).toMatchObject({ suppressed: false, removed: true });
});

test('a sender is added, approved, listed and rejected, and a number belongs to one organization', async () => {
  const add = (...words: string[]) => runJson(own, 'sender', 'add', '--org', org, ...words);
  const acme = await add('--name', 'Acme');
  expect(acme).toEqual({
    id: expect.any(String) as string,
    name: 'Acme',
    type: 'alphanumeric',
    status: 'pending',
    approved_at: null,
    created_at: expect.any(String) as string,
  });
  const number = await add('--name', '+14155550123');
  expect(number).toMatchObject({ name: '14155550123', type: 'long_code' });
  expect(await add('--name', '12345', '--type', 'short_code')).toMatchObject({ type: 'short_code' });
  expect(await runJson(own, 'sender', 'approve', acme.id)).toMatchObject({
    id: acme.id,
    status: 'approved',
    approved_at: expect.any(String) as string,
  });
  expect(await runJson(own, 'sender', 'approve', number.id)).toMatchObject({ status: 'approved' });
  expect(await runJson(own, 'sender', 'reject', acme.id)).toMatchObject({
    id: acme.id,
    status: 'rejected',
    approved_at: null,
  });
  expect(await runJson(own, 'sender', 'list', '--org', org)).toMatchObject({
    data: [
      { name: '12345', status: 'pending' },
      { name: '14155550123', status: 'approved' },
      { name: 'Acme', status: 'rejected' },
    ],
    has_more: false,
  });

  const { id: rival } = await runJson(own, 'org', 'create', '--name', 'Rival');
  const theirs = await runJson(own, 'sender', 'add', '--org', rival, '--name', '14155550123');
  const refusals: [string[], RegExp][] = [
    [['approve', theirs.id], /^The number is approved for another organization/],
    [
      ['add', '--org', org, '--name', 'ACME'],
      /^The organization has the sender Acme already: \S+, rejected\.$/,
    ],
    [['add', '--org', org, '--name', 'Twelve chars'], /^Twelve chars cannot be a sender: /],
    [
      ['add', '--org', org, '--name', '555', '--type', 'alphanumeric'],
      /^555 cannot be of the type alphanumeric/,
    ],
    [['add', '--org', org, '--name', '01711234567'], /^01711234567 begins with 0/],
    [
      ['add', '--org', org, '--name', 'X', '--type', 'letters'],
      /Allowed choices are alphanumeric, long_code/,
    ],
    [['add', '--org', unknownId, '--name', 'Acme'], /^There is no organization/],
    [['list', '--org', unknownId], /^There is no organization/],
    [['approve', unknownId], /^There is no sender/],
    [['reject', unknownId], /^There is no sender/],
    [['reject', 'Acme'], /It must be an id as "bin\/postillion sender list" shows it\./],
  ];
  const ended = await Promise.all(refusals.map(([words]) => run(own, 'sender', ...words, '--json')));
  for (const [index, { exitCode, output }] of ended.entries()) {
    expect((JSON.parse(output) as { error: string }).error).toMatch(refusals[index]![1]);
    expect(exitCode).toBe(1);
  }
});

test('what names no organization, key, address or domain is refused with a sentence and exit code 1', async () => {
  const refusals: [string[], RegExp][] = [
    [['org', 'update', unknownId, '--suspend', 'email'], /There is no organization/],
    [['org', 'update', org], /Nothing to change/],
    [['org', 'update', org, '--suspend', 'email', '--resume', 'email'], /Either suspend or resume/],
    [['key', 'create', '--org', org, '--expires-at', '2020-01-01T00:00:00Z'], /is in the past/],
    [['key', 'revoke', unknownId], /There is no key/],
    [['domain', 'verify', org, 'not a domain'], /is not a domain name/],
    [['suppression', 'add', '--org', org, '--channel', 'email', '--address', 'x@'], /not an email address/],
    [['suppression', 'add', '--org', org, '--channel', 'sms', '--address', '0151 1'], /not a phone number/],
    [
      ['suppression', 'add', '--org', org, '--channel', 'push', '--address', 'x'],
      /use email, sms or chatapp/,
    ],
    [
      ['suppression', 'add', '--org', unknownId, '--channel', 'email', '--address', 'x@y.test'],
      /no organization/,
    ],
    [['key', 'create', '--org', org, '--scopes', 'email:sent'], /There is no scope email:sent/],
    [['org', 'create'], /required option '--name <name>' not specified/],
  ];
  const ended = await Promise.all(refusals.map(([words]) => run(own, ...words, '--json')));
  for (const [index, { exitCode, output, errors }] of ended.entries()) {
    const [, sentence] = refusals[index]!;
    expect(Object.keys(JSON.parse(output) as object)).toEqual(['error']);
    expect((JSON.parse(output) as { error: string }).error).toMatch(sentence);
    expect(errors).not.toMatch(/ at .*:\d+/);
    expect(exitCode).toBe(1);
  }
  const plain = await run(own, 'key', 'revoke', unknownId);
  expect(plain).toMatchObject({
    exitCode: 1,
    output: '',
    errors: expect.stringMatching(/^There is no key .*\.\n$/) as string,
  });
});

test('doctor names what is unsafe and what cannot be reached, and ends with 1', async () => {
  const findings = async (settings: Settings) => {
    const { exitCode, output } = await run(settings, 'doctor', '--json');
    const report = JSON.parse(output) as {
      healthy: boolean;
      findings: { level: string; subject: string; found: string }[];
    };
    return {
      exitCode,
      healthy: report.healthy,
      lines: report.findings.map(({ level, subject, found }) => `${level} ${subject}: ${found}`),
    };
  };
  const [unsafe, unreachable, unset] = await Promise.all([
    // The server of the tests runs without what only a crash would need, such as `fsync`.
    findings({
      ...own,
      POSTILLION_SMTP_URL: 'smtp://127.0.0.1:1',
      POSTILLION_SMPP_URL: 'smpp://us:them@127.0.0.1:1',
      // Else it asks the name servers of the machine.
      POSTILLION_ADDRESS_CHECKS: 'off',
    }),
    findings({ ...own, DATABASE_URL: 'postgres://127.0.0.1:1/none' }),
    findings({ DATABASE_URL: 'postgres://127.0.0.1:1/none', LOG_LEVEL: 'loud' }),
  ]);
  expect(unsafe).toMatchObject({ exitCode: 1, healthy: false });
  expect(unsafe.lines).toEqual([
    expect.stringMatching(/^ok settings/),
    expect.stringMatching(/^warning links: .* lead to http:\/\/127\.0\.0\.1:\d+, which other machines/),
    expect.stringMatching(/^ok database: reached, PostgreSQL/),
    expect.stringMatching(/^problem durability: fsync is off/),
    expect.stringMatching(/^problem durability: full_page_writes is off/),
    expect.stringMatching(/^problem durability: synchronous_commit is off/),
    'ok schema: up to date',
    expect.stringMatching(/^ok second wall/),
    expect.stringMatching(/^warning requests: they are served as the owner of the database/),
    expect.stringMatching(/^ok partitions/),
    expect.stringMatching(/^ok messages: messages .* [kM]B, .*; kept for ever, what messages say for ever$/),
    expect.stringMatching(/^ok secret: /),
    'ok queue: no job was set aside',
    expect.stringMatching(/^\w+ workers: /),
    expect.stringMatching(/^ok clock/),
    expect.stringMatching(/^problem email: smtp cannot be used/),
    expect.stringMatching(/^problem sms: smpp cannot be used/),
    'ok push: the sandbox keeps them: nothing leaves this machine',
    'ok chatapp: the sandbox keeps them: nothing leaves this machine',
    'warning bounces: bounces are not read: they go to the sender of each email',
  ]);
  expect(unreachable.exitCode).toBe(1);
  expect(unreachable.lines[2]).toMatch(/^problem database: it cannot be reached: .*ECONNREFUSED/);
  expect(unset.exitCode).toBe(1);
  expect(unset.lines.slice(0, 2)).toEqual([
    'problem settings: POSTILLION_SECRET is required with DATABASE_URL',
    expect.stringMatching(/^problem settings: LOG_LEVEL must be one of/),
  ]);
});

test('a server that starts on a PostgreSQL which may lose what it has committed says so in its log', async () => {
  const { said, untilSaid } = start({ ...own, PORT: '0', LOG_LEVEL: 'error' }, ['serve']);
  await untilSaid('errors', /(?:.*\n){3}/);
  const lines = said.errors.trim().split('\n');
  expect(lines.map((line) => (JSON.parse(line) as { msg: string }).msg)).toEqual(
    ['fsync', 'full_page_writes', 'synchronous_commit'].map(
      (setting) => expect.stringMatching(`^PostgreSQL is not safe: ${setting} is off, and `) as string,
    ),
  );
});

test('a schema that is up to date stays as it is', async () => {
  expect(await runJson(own, 'migrate')).toEqual({ applied: [] });
});
