/** How an operator gives organizations their accounts for chat-app messages, by the program. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createOrganization } from '../../src/accounts/accounts.ts';
import { systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import {
  type Database,
  type DatabaseAddress,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { type Settings, usePrograms } from '../support/programs.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let database: Database;
let address: DatabaseAddress;
let folder: string;
let settings: Settings;

useTestDatabase({ connectionsMax: 2 }, (opened) => {
  ({ database, address } = opened);
});
const { run } = usePrograms();

beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'postillion-chatapp-'));
  settings = {
    DATABASE_URL: databaseUrlOf(address),
    POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
    POSTILLION_PUBLIC_URL: 'https://postillion.example',
  };
  const tools = { database, clock: systemClock, newId: createIds(systemClock) };
  await createOrganization(tools, 'Acme');
  await createOrganization(tools, 'Other');
});
afterAll(() => rm(folder, { recursive: true }));

const account = {
  business_account_id: '102290129340398',
  phone_number_id: '106540352242922',
  access_token: 'EAAJB-of-the-file',
  app_secret: 'app-secret-of-the-file',
  verify_token: 'verify-token-of-the-file',
};

async function aFile(content: unknown): Promise<string> {
  const file = path.join(folder, 'account.json');
  await writeFile(file, typeof content === 'string' ? content : JSON.stringify(content));
  return file;
}

const give = async (org: string, content: unknown, ...more: string[]) =>
  run(settings, 'chatapp', 'credentials', '--org', org, '--file', await aFile(content), ...more);
const list = async (org: string) => {
  const { output } = await run(settings, 'chatapp', 'list', '--org', org, '--json');
  return (JSON.parse(output) as { data: Record<string, unknown>[] }).data;
};

test('an account is given, shown without its secrets, and belongs to one organization', async () => {
  expect(await list('Acme')).toEqual([]);
  const given = await give('Acme', account);
  expect(given).toMatchObject({ exitCode: 0, errors: '' });
  expect(given.output).toContain('business account 102290129340398');
  const [shown] = await list('Acme');
  expect(shown).toEqual({
    business_account_id: account.business_account_id,
    phone_number_ids: [account.phone_number_id],
    callback_url: expect.stringMatching(
      /^https:\/\/postillion\.example\/callbacks\/whatsapp\/[\w-]{32}$/,
    ) as string,
    problem: null,
    campaigns_held: null,
    people_per_day_max: null,
    people_reached: null,
    created_at: expect.any(String) as string,
    updated_at: expect.any(String) as string,
  });
  expect(given.output).toContain(shown!.callback_url);
  expect(given.output + JSON.stringify(shown)).not.toContain('of-the-file');

  const taken = await give('Other', account);
  expect(taken.exitCode).toBe(1);
  expect(taken.errors).toContain('Another organization has the business account 102290129340398');
  expect(await list('Other')).toEqual([]);

  const { app_secret: _secret, verify_token: _token, ...withoutApp } = account;
  const replaced = JSON.parse((await give('Acme', withoutApp, '--json')).output) as Record<string, unknown>;
  expect(replaced).toEqual({ business_account_id: account.business_account_id, callback_url: null });
});

test('a file that holds none is refused, and none of its values is told', async () => {
  for (const [content, problem] of [
    ['EAAJB-of-the-file', 'it is not JSON'],
    [{ ...account, access_token: undefined }, 'access_token is required'],
    [{ ...account, phone_number_id: 'of-the-file' }, 'phone_number_id must match'],
    [{ ...account, app_secret: undefined }, 'app_secret and verify_token must be given together'],
    ['x'.repeat(70_000), 'more than 65536 bytes'],
  ] as const) {
    const refused = await give('Acme', content);
    expect([refused.exitCode, refused.output]).toEqual([1, '']);
    expect(refused.errors).toContain(problem);
    expect(refused.errors).not.toContain('of-the-file');
  }
  const missing = await run(
    settings,
    'chatapp',
    'credentials',
    '--org',
    'Acme',
    '--file',
    path.join(folder, 'none'),
  );
  expect(missing.errors).toContain('cannot be read');
  expect((await give('Nobody', account)).errors).toContain('There is no organization Nobody');
});

test('an account that cannot be read is shown as such', async () => {
  await give('Other', { ...account, business_account_id: '7' });
  await database.rows(
    unpreparedStatement(
      `update chat_app_accounts set content_sealed = 'broken' where business_account_id = '7'`,
    ),
  );
  expect(await list('Other')).toMatchObject([
    {
      business_account_id: '7',
      phone_number_ids: null,
      callback_url: null,
      problem: expect.stringContaining('sealed') as string,
    },
  ]);
});

test('the doctor asks for each account at the provider, and tells of those that cannot be used', async () => {
  await give('Acme', account);
  const examine = async (more: Settings) => {
    const { output } = await run({ ...settings, ...more }, 'doctor', '--json');
    const { findings } = JSON.parse(output) as {
      findings: { subject: string; level: string; found: string }[];
    };
    return findings.filter(({ subject }) => subject === 'chat-app accounts');
  };
  const unreadable = {
    level: 'problem',
    found: expect.stringContaining('was sealed under another secret') as string,
  };
  expect(await examine({})).toMatchObject([unreadable]);
  const unreachable = {
    POSTILLION_CHATAPP_PROVIDER: 'whatsapp',
    // Nothing listens there.
    POSTILLION_WHATSAPP_URL: 'http://127.0.0.1:1',
  };
  expect(await examine(unreachable)).toMatchObject([
    { level: 'warning', found: expect.stringContaining('could not be asked for') as string },
    unreadable,
  ]);
  await database.rows(unpreparedStatement(`delete from chat_app_accounts where business_account_id = '7'`));
  expect(await examine({})).toMatchObject([
    { level: 'ok', found: '1 can be used' },
    { level: 'ok', found: expect.stringContaining('may write to as many people as it likes') as string },
  ]);

  const words = '131042 a payment is due';
  const hold = `update chat_app_accounts set campaigns_held_words = $1`;
  await database.rows(unpreparedStatement(hold), [words]);
  expect(await list('Acme')).toMatchObject([{ campaigns_held: { words, until: null } }]);
  expect(await examine({})).toMatchObject([
    { level: 'warning', found: expect.stringContaining(`may send no campaigns: ${words}`) as string },
  ]);
  // What was found, and what to do, begin in one column, however long the subjects are.
  const { output: table } = await run(settings, 'doctor');
  const columnOf = (text: string) => /^(.*?)(the account of|reached, |→ Mend it)/m.exec(text)?.[1]?.length;
  const lines = table.split('\n').filter((line) => /the account of|reached, |→ Mend it/.test(line));
  expect(new Set(lines.map(columnOf)).size).toBe(1);
  expect(lines).toHaveLength(3);
  const release = async () => (await run(settings, 'chatapp', 'release', '--org', 'Acme')).output;
  expect([await release(), await release()]).toEqual([
    expect.stringContaining('campaigns go on'),
    expect.stringContaining('are not held'),
  ]);
  expect(await list('Acme')).toMatchObject([{ campaigns_held: null }]);
  const [acme] = await database.rows(
    unpreparedStatement<{ id: string }>('select organization_id as id from chat_app_accounts'),
  );
  await database.rows(
    unpreparedStatement(
      `with told as (insert into chat_app_limits (organization_id, people_per_day_max, told_at) values ($1, 250, now()))
       insert into chat_app_reached_counts (organization_id, period, people) values ($1, now(), 251)`,
    ),
    [acme!.id],
  );
  expect(await list('Acme')).toMatchObject([{ people_per_day_max: 250, people_reached: 251 }]);
  expect(await examine({})).toMatchObject([
    {
      level: 'warning',
      found: expect.stringContaining('written to 251 people in 24 hours, and may') as string,
    },
  ]);
  // What was over an hour ago holds nothing.
  await database.rows(unpreparedStatement(`${hold}, campaigns_held_until = now() - interval '1 hour'`), [
    words,
  ]);
  expect(await list('Acme')).toMatchObject([{ campaigns_held: null }]);
});
