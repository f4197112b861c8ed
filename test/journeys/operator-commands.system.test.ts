/** What commands have in common: how organizations are named, typing errors, schemas, and long lists. */
import { randomBytes } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { createOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions, eraseSuppressedAddresses } from '../../src/audience/audience.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import {
  type Database,
  type DatabaseAddress,
  openDatabase,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { createSecrets } from '../../src/platform/secrets.ts';
import { type Settings, usePrograms } from '../support/programs.ts';
import { addressOf, createTestDatabase, databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const root = path.resolve(import.meta.dirname, '../..');
const secret = 'a secret of the tests, and of nothing else';

let address: DatabaseAddress;
let database: Database;
let own: Settings;
let acme: string;
const tools = { clock: systemClock, secrets: createSecrets(secret), newId: createIds(systemClock) };

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  address = opened.address;
  database = opened.database;
});
const { run } = usePrograms();
beforeAll(async () => {
  own = { DATABASE_URL: databaseUrlOf(address), POSTILLION_SECRET: secret };
  acme = await anOrganization('Acme & Söhne');
});

async function anOrganization(name: string): Promise<string> {
  return (await createOrganization({ ...tools, database }, name)).id;
}

async function runJson(...words: string[]): Promise<Record<string, unknown>> {
  const { output, errors } = await run(own, ...words, '--json');
  expect(errors).toBe('');
  return JSON.parse(output) as Record<string, unknown>;
}

const errorOf = async (...words: string[]) => (await runJson(...words)).error as string;

test('the version is that of the package', async () => {
  const { version } = JSON.parse(await readFile(path.join(root, 'package.json'), 'utf8')) as {
    version: string;
  };
  expect(await run({}, '--version')).toEqual({ exitCode: 0, output: `${version}\n`, errors: '' });
});

test('a typing error is answered with what was meant', async () => {
  const misspelt: [string[], string][] = [
    [['sreve'], 'Did you mean serve?'],
    [['org', 'lst'], 'Did you mean list?'],
    [['org', 'list', '--limt', '5'], 'Did you mean --limit?'],
    [['key', 'create', '--org', acme, '--scopes', 'email:sent'], 'email:sent (did you mean email:send?)'],
    [
      ['key', 'create', '--org', acme, '--scopes', 'email:sent'],
      'Scopes are email:send, email:read, sms:send',
    ],
    [['org', 'update', acme, '--suspend', 'emial'], 'chatapp (did you mean email?)'],
  ];
  const ended = await Promise.all(misspelt.map(([words]) => run(own, ...words)));
  for (const [index, { exitCode, errors }] of ended.entries()) {
    expect(errors).toContain(misspelt[index]![1]);
    expect(exitCode).toBe(1);
  }
  const help = await run({}, 'key', 'create', '--help');
  expect(help.output).toMatch(/Scopes are email:send.*logs:read; full_access, sending_access, read_only/s);
});

test('an organization is named by its id or its name, everywhere alike', async () => {
  const names = [acme, acme.toUpperCase(), 'Acme & Söhne', ' ACME & söhne '];
  for (const name of names) {
    const made = await runJson('key', 'create', '--org', name, '--name', 'By name');
    expect(made).toEqual({ id: expect.any(String) as string, key: expect.stringMatching(/^pst_/) as string });
  }
  const [, , name = ''] = names;
  expect(await runJson('key', 'list', '--org', name)).toMatchObject({ data: names.map(() => ({})) });
  for (const words of [['--org', name], [name], [acme], [acme, '--org', acme]])
    expect(await runJson('org', 'update', ...words, '--limit', 'domains=5')).toMatchObject({ id: acme });
  expect(await runJson('domain', 'verify', '--org', name, 'one.example')).toMatchObject({
    name: 'one.example',
  });
  expect(await runJson('domain', 'verify', acme, 'two.example')).toMatchObject({ name: 'two.example' });
  expect(await runJson('sender', 'add', '--org', name, '--name', 'Acme')).toMatchObject({ name: 'Acme' });
  expect(await runJson('sender', 'list', '--org', name)).toMatchObject({ data: [{ name: 'Acme' }] });

  await runJson('org', 'create', '--name', 'Not Acme');
  expect(await errorOf('org', 'update', '--limit', 'domains=5')).toMatch(
    /^There are several organizations: name one with --org\./,
  );
  expect(await errorOf('domain', 'verify', 'two.example')).toMatch(
    /^There are several organizations: name one with --org\./,
  );
  expect(await errorOf('domain', 'verify', '--org', name, acme, 'two.example')).toMatch(/^Name one org/);
  expect(await errorOf('key', 'list', '--org', 'Acme')).toBe(
    'There is no organization Acme. "bin/postillion org list" shows them.',
  );
});

test('a name that several organizations have is refused, with their ids', async () => {
  const twins = [await anOrganization('Twin'), await anOrganization('twin')];
  // One that is called like another's id does not take its place.
  const impostor = await anOrganization(acme);
  const error = await errorOf('key', 'create', '--org', 'TWIN');
  for (const id of twins) expect(error).toContain(id);
  expect(await runJson('org', 'update', acme, '--limit', 'domains=6')).toMatchObject({ id: acme });
  expect(await runJson('org', 'update', impostor, '--limit', 'domains=6')).toMatchObject({ id: impostor });
});

test.each([
  ['events', 1],
  ['messages', 7],
  ['content', 1],
])(
  'for how many days %s are kept is set, shown and lifted again, and nothing else is taken for days',
  async (what, least) => {
    const id = await anOrganization(`Keeper of ${what}`);
    const field = `${what}_kept_days`;
    const shown = async () => {
      const { data } = (await runJson('org', 'list')) as unknown as { data: Record<string, unknown>[] };
      return data.find((organization) => organization.id === id)?.[field];
    };
    expect(await shown()).toBeNull();
    const set = (days: string) => ['org', 'update', id, `--${what}-kept-days`, days];
    expect(await runJson(...set('3650'))).toEqual({ id, [field]: 3650 });
    expect(await shown()).toBe(3650);
    for (const wrong of [`${least - 1}`, '3651', '7.5', 'forever', '']) {
      const { exitCode, errors } = await run(own, ...set(wrong));
      expect(exitCode).toBe(1);
      expect(errors).toContain(`a number of days from ${least} to 3650, or unlimited`);
    }
    expect(await runJson(...set(`${least}`))).toEqual({ id, [field]: least });
    expect(await runJson(...set('unlimited'))).toEqual({ id, [field]: null });
    expect(await shown()).toBeNull();
  },
);

test('a plan that keeps messages for longer than the installation does is told to have no effect', async () => {
  const id = await anOrganization('Hoarder');
  const limited = { ...own, POSTILLION_MESSAGES_KEPT_DAYS: '30', POSTILLION_CONTENT_KEPT_DAYS: '7' };
  const set = async (settings: Settings, ...words: string[]) => {
    const { exitCode, output } = await run(settings, 'org', 'update', '--org', id, ...words);
    expect(exitCode).toBe(0);
    return output;
  };
  const changed = `Changed the organization ${id}.\n`;
  const messages = `--messages-kept-days 31 has no effect: the installation keeps messages for 30 days (POSTILLION_MESSAGES_KEPT_DAYS).`;
  const content = `--content-kept-days 8 has no effect: the installation keeps what messages say for 7 days (POSTILLION_CONTENT_KEPT_DAYS).`;
  expect(await set(limited, '--messages-kept-days', '31', '--content-kept-days', '8')).toBe(
    `${changed}${messages}\n${content}\n`,
  );
  expect(await set(limited, '--messages-kept-days', '30', '--content-kept-days', '7')).toBe(changed);
  expect(await set(limited, '--messages-kept-days', 'unlimited', '--content-kept-days', 'unlimited')).toBe(
    changed,
  );
  // What the plan itself keeps of messages limits what it keeps of their content.
  expect(await set(own, '--messages-kept-days', '31')).toBe(changed);
  expect(await set(own, '--content-kept-days', '32', '--json')).toBe(
    `${JSON.stringify({
      id,
      content_kept_days: 32,
      warnings: [
        '--content-kept-days 32 has no effect: messages are kept for 31 days, and what they say for no longer.',
      ],
    })}\n`,
  );
  expect(await set(limited, '--requests-per-window', '100')).toBe(changed);
  const { output } = await run(own, 'org', 'list');
  const [head = '', ...rows] = output.split('\n');
  const row = rows.find((line) => line.startsWith(id)) ?? '';
  expect(row.slice(head.indexOf('DAYS KEPT'), head.indexOf('SUSPENDED')).trim()).toBe(
    'messages 31, content 32',
  );
});

test('a misspelt setting is refused, one of another release is reported and changes nothing', async () => {
  const [typo, brand, foreign, beside] = await Promise.all([
    run({ ...own, POSTILLION_SMTP_ULR: 'smtp://mail.example' }, 'org', 'list'),
    run({ ...own, POSTILION_SMTP_URL: 'smtp://mail.example' }, 'org', 'list'),
    run({ ...own, POSTILLION_FUTURE_FEATURE: 'on', POSTILLION_SMTP_ULR: ' ' }, 'org', 'list'),
    run({ ...own, POSTILLION_SMTP_URL: 'smtp://127.0.0.1:1', POSTILLION_SMTP_URLS: 'x' }, 'org', 'list'),
  ]);
  expect(typo).toMatchObject({
    exitCode: 1,
    output: '',
    errors: 'There is no setting POSTILLION_SMTP_ULR (did you mean POSTILLION_SMTP_URL?)\n',
  });
  expect(brand.errors).toContain('There is no setting POSTILION_SMTP_URL');
  expect([foreign.exitCode, foreign.errors, beside.exitCode, beside.errors]).toEqual([0, '', 0, '']);
  const doctor = await run({ ...own, POSTILLION_FUTURE_FEATURE: 'on' }, 'doctor');
  expect(doctor.output).toMatch(/^warning +settings +there is no setting POSTILLION_FUTURE_FEATURE in/m);
});

/** A database without anything in it, on the same server. */
async function withEmptyDatabase(work: (settings: Settings) => Promise<void>): Promise<void> {
  const name = `test_empty_${process.pid}_${randomBytes(6).toString('hex')}`;
  await database.rows(unpreparedStatement(`create database ${name} template template0`));
  try {
    await work({ ...own, DATABASE_URL: databaseUrlOf(addressOf(address, name)) });
  } finally {
    await database.rows(unpreparedStatement(`drop database ${name} (force)`));
  }
}

test('an empty database is begun by org create, by migrate, and by no other command', async () => {
  await withEmptyDatabase(async (settings) => {
    for (const words of [
      ['org', 'list'],
      ['key', 'list', '--org', 'Acme'],
    ]) {
      expect(await run(settings, ...words)).toMatchObject({
        exitCode: 1,
        output: '',
        errors: expect.stringMatching(
          /^The database has no schema yet\. Run "bin\/postillion migrate"/,
        ) as string,
      });
    }
    expect(await run(settings, 'org', 'create', '--name', 'First')).toMatchObject({ exitCode: 0 });
    expect((await run(settings, 'org', 'list')).output).toContain('First');
  });
});

test('a database that lacks migrations is left as it is, until migrate is asked for', async () => {
  const behind = await createTestDatabase();
  const old = openDatabase({ address: behind.address, connectionsMax: 1 });
  try {
    const versions = async () =>
      (await old.rows(unpreparedStatement<{ version: number }>('select version from schema_migrations')))
        .length;
    await old.rows(
      unpreparedStatement(
        'delete from schema_migrations where version = (select max(version) from schema_migrations)',
      ),
    );
    const before = await versions();
    const settings = { ...own, DATABASE_URL: databaseUrlOf(behind.address) };
    for (const words of [
      ['org', 'list'],
      ['org', 'create', '--name', 'New'],
    ]) {
      expect(await run(settings, ...words)).toMatchObject({
        exitCode: 1,
        errors: expect.stringMatching(/^The database lacks a migration of this release\. Run /) as string,
      });
    }
    expect(await versions()).toBe(before);
  } finally {
    await old.close();
    await behind.drop();
  }
});

test('a database with a schema from before the first release is refused in one sentence, and left as it is', async () => {
  const before = await createTestDatabase();
  const old = openDatabase({ address: before.address, connectionsMax: 1 });
  try {
    await old.rows(
      unpreparedStatement("update schema_migrations set name = '0001-foundation' where version = 1"),
    );
    const settings = { ...own, DATABASE_URL: databaseUrlOf(before.address) };
    const sentence =
      /^The database has a schema from before the first release \(0001-foundation instead of 0001-platform\), which nothing brings up to date: begin with a new database, or another data directory\.\n$/;
    for (const words of [['serve'], ['migrate'], ['org', 'list'], ['org', 'create', '--name', 'New']]) {
      const { exitCode, errors } = await run({ PORT: '0', ...settings }, ...words);
      const sentences = errors.split('\n').filter((line) => !line.startsWith('{'));
      expect([words, exitCode, sentences.join('\n')]).toEqual([
        words,
        1,
        expect.stringMatching(sentence) as string,
      ]);
    }
    const doctor = await run(settings, 'doctor');
    expect(doctor).toMatchObject({
      exitCode: 1,
      output: expect.stringMatching(/^problem +schema +The database has a schema from before/m) as string,
    });
    expect(
      await old.rows(unpreparedStatement("select from organizations where name in ('New', 'First')")),
    ).toEqual([]);
  } finally {
    await old.close();
    await before.drop();
  }
});

test('a command that only reads makes nothing where there is no installation', async () => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'postillion-nothing-'));
  try {
    const ended = await run({ POSTILLION_DATA_DIR: folder }, 'org', 'list');
    expect(ended).toMatchObject({
      exitCode: 1,
      errors: expect.stringMatching(
        /^There is no installation in .* yet\. "bin\/postillion serve"/,
      ) as string,
    });
    expect(await readdir(folder)).toEqual([]);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

type Listed = {
  data: { channel: string; address: string | null; erased: boolean; reason: string; address_hash: string }[];
  has_more: boolean;
};

test('suppressions are listed newest first, by channel, and all of them without a limit', async () => {
  const [org, rival] = [await anOrganization('Lister'), await anOrganization('Rival')];
  const addAt = (organizationId: string, channel: 'email' | 'sms', addresses: string[], at: number) =>
    addSuppressions(database, { ...tools, clock: { ...systemClock, nowMs: () => at } }, channel, [
      ...addresses.map((address) => ({ organizationId, address, reason: 'operator' as const })),
    ]);
  const addresses = Array.from({ length: 2_500 }, (_none, index) => `m${index}@example.com`);
  // All in one instant, as an import leaves them, and across two pages of what is read at once.
  await addAt(org, 'email', addresses, 1_700_000_000_000);
  await addAt(org, 'email', ['newest@example.com', 'gone@example.com'], 1_800_000_000_000);
  await addAt(org, 'sms', ['+4915112345678'], 1_600_000_000_000);
  await addAt(rival, 'email', ['theirs@example.com', 'm1@example.com'], 1_900_000_000_000);
  await eraseSuppressedAddresses(database, tools, [{ organizationId: org, address: 'gone@example.com' }]);

  const list = async (...words: string[]) =>
    (await runJson('suppression', 'list', '--org', 'Lister', ...words)) as unknown as Listed;
  const few = await list('--limit', '3');
  expect(few.has_more).toBe(true);
  expect(
    few.data
      .map(({ address }) => address ?? 'erased')
      .slice(0, 2)
      .sort(),
  ).toEqual(['erased', 'newest@example.com']);
  const erased = few.data.find((row) => row.erased);
  expect(erased).toMatchObject({
    address: null,
    address_hash: expect.stringMatching(/^[0-9a-f]{64}$/) as string,
  });

  const all = await list('--all');
  expect(all.has_more).toBe(false);
  expect(
    all.data
      .map(({ address }) => address)
      .filter((address) => address !== null)
      .sort(),
  ).toEqual([...addresses, 'newest@example.com', '+4915112345678'].sort());
  expect(all.data.at(-1)).toMatchObject({ channel: 'sms', reason: 'operator' });
  expect(await list('--channel', 'sms')).toMatchObject({
    data: [{ address: '+4915112345678' }],
    has_more: false,
  });
  expect(await list('--channel', 'push', '--all')).toEqual({ data: [], has_more: false });

  const table = await run(own, 'suppression', 'list', '--org', 'Lister', '--all');
  expect(table.output.trimEnd().split('\n')).toHaveLength(1 + all.data.length);
  expect(table.output).toContain(`(erased, ${erased!.address_hash.slice(0, 12)}…)`);
  expect((await run(own, 'suppression', 'list', '--org', 'Lister', '--channel', 'sms')).output).toMatch(
    /^CHANNEL +ADDRESS +REASON +SCOPE +SINCE +OPTED OUT\nsms +\+4915112345678 +operator +all +2020-09-13T12:26:40.000Z\n$/,
  );
});

test('what another provider has suppressed is imported, and bad rows are named', async () => {
  const org = await anOrganization('Mover');
  const folder = await mkdtemp(path.join(os.tmpdir(), 'postillion-suppressions-'));
  try {
    const file = path.join(folder, 'bounces.csv');
    await writeFile(
      file,
      'status,reason,email,created\n5.1.1,No such user,ann@example.com,1443651125\n5.1.1,None,bob,1443651125\n',
    );
    const words = ['suppression', 'import', file, '--org', 'Mover', '--from', 'sendgrid'];
    expect(await errorOf(...words)).toContain('Say with --list which list');
    const imported = await run(own, ...words, '--list', 'bounces', '--json');
    expect(imported.exitCode).toBe(2);
    expect(JSON.parse(imported.output)).toMatchObject({
      ...{ rows: 2, created: 1, unchanged: 0, subscribed_since: 0, bad: 1, interrupted: false },
      bad_rows: [{ row: 3, column: 'email', reason: 'email must be an email address' }],
    });
    const rows = await database.rows(
      unpreparedStatement<object>(
        'select organization_id, address, reason from suppressions where organization_id = $1',
      ),
      [org],
    );
    expect(rows).toEqual([{ organization_id: org, address: 'ann@example.com', reason: 'hard_bounce' }]);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test('mail to the postmaster is listed, shown and deleted', async () => {
  const source =
    'From: Ann <ann@example.test>\r\nSubject: =?utf-8?q?On_a_list?=\u001b]0;x\r\n\r\nYour server is \u001b[31mlisted.\r\n';
  const keep = async (kind: string, isCut: boolean) => {
    const id = tools.newId();
    await database.rows(
      unpreparedStatement(
        `insert into postmaster_mail (id, kind, recipient, digest, source, is_cut)
         values ($1::uuid, $2, 'postmaster@bounces.example.test', sha256($1::uuid::text::bytea), $3, $4)`,
      ),
      [id, kind, Buffer.from(source), isCut],
    );
    return id;
  };
  expect(await runJson('postmaster', 'list')).toEqual({ data: [], has_more: false });
  const [first, second] = [await keep('mail', false), await keep('complaint', true)];

  const shown = {
    id: first,
    kind: 'mail',
    to: 'postmaster@bounces.example.test',
    from: 'ann@example.test',
    subject: 'On a list ]0;x',
    cut: false,
  };
  expect(await runJson('postmaster', 'list')).toMatchObject({
    data: [{ ...shown, id: second, kind: 'complaint', cut: true }, shown],
    has_more: false,
  });
  expect(await runJson('postmaster', 'list', '--limit', '1')).toMatchObject({
    data: [{ id: second }],
    has_more: true,
  });
  expect((await run(own, 'postmaster', 'list')).output).toMatch(
    /^ID +RECEIVED +KIND +TO +FROM +SUBJECT\n.+ complaint .+\n.+ mail +postmaster@bounces\.example\.test +ann@example\.test +On a list \]0;x\n$/,
  );
  expect(await runJson('postmaster', 'show', first)).toMatchObject({ ...shown, source });
  // What would change the colours of a terminal, or its title, must not reach it.
  expect((await run(own, 'postmaster', 'show', second)).output).toBe(
    'From: Ann <ann@example.test>\nSubject: =?utf-8?q?On_a_list?=\ufffd]0;x\n\nYour server is \ufffd[31mlisted.\n\n(There was more of it.)\n',
  );

  expect(await errorOf('postmaster', 'delete')).toBe('Give the ids of mail, or --all.');
  expect(await errorOf('postmaster', 'delete', first, '--all')).toBe('Give the ids of mail, or --all.');
  expect(await runJson('postmaster', 'delete', first)).toEqual({ deleted: 1 });
  expect(await errorOf('postmaster', 'show', first)).toMatch(/^There is no mail /);
  await keep('mail', false);
  expect(await runJson('postmaster', 'delete', '--all')).toEqual({ deleted: 2 });
});
