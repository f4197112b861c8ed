/** The commands on organizations and their domains that change and show single rows, with a rival beside. */
import { expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import { usePrograms } from '../support/programs.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

let address: DatabaseAddress;
useTestDatabase({ connectionsMax: 1, isForEachTest: true }, (opened) => {
  address = opened.address;
});
const programs = usePrograms();

async function run<Result>(...words: string[]): Promise<Result & { error?: string }> {
  const { output } = await programs.run(
    { DATABASE_URL: databaseUrlOf(address), POSTILLION_SECRET: 'a secret of the tests, and of nothing else' },
    ...words,
    '--json',
  );
  return JSON.parse(output) as Result & { error?: string };
}

type Named = { id: string; name: string };

const namesById = async () => {
  const { data } = await run<{ data: Named[] }>('org', 'list');
  return Object.fromEntries(data.map(({ id, name }) => [id, name]));
};

test('a renaming changes the name of one organization, and says what it was', async () => {
  const acme = await run<Named>('org', 'create', '--name', 'Acme');
  const rival = await run<Named>('org', 'create', '--name', 'Acme');
  expect((await run('org', 'rename', '--org', 'Acme', '--name', 'Acme plc')).error).toMatch(
    /^Several organizations are called Acme\./,
  );
  expect(await run('org', 'rename', '--org', acme.id, '--name', 'Acme plc')).toEqual({
    id: acme.id,
    name: 'Acme plc',
    former_name: 'Acme',
  });
  expect(await namesById()).toEqual({ [acme.id]: 'Acme plc', [rival.id]: 'Acme' });
  const nobody = '01890f3c-7b1a-7c3e-9d2f-0a1b2c3d4e5f';
  expect((await run('org', 'rename', '--org', nobody, '--name', 'X')).error).toMatch(
    /^There is no organization/,
  );
});

test("the domains of an organization are listed by pages, and never another's", async () => {
  await run('org', 'create', '--name', 'Acme');
  await run('org', 'create', '--name', 'Rival');
  const ofAcme = ['a.example', 'b.example', 'c.example'];
  for (const name of ofAcme) await run('domain', 'verify', '--org', 'Acme', name);
  await run('domain', 'verify', '--org', 'Rival', 'd.example');
  type Listed = { data: (Named & { status: string })[]; has_more: boolean };
  const first = await run<Listed>('domain', 'list', '--org', 'Acme', '--limit', '2');
  expect(first).toMatchObject({
    data: [
      { name: 'c.example', status: 'verified' },
      { name: 'b.example', status: 'verified' },
    ],
    has_more: true,
  });
  const more = await run<Listed>('domain', 'list', '--org', 'Acme', '--after', first.data[1]!.id);
  expect(more).toMatchObject({ data: [{ name: 'a.example' }], has_more: false });
  expect(more.data).toHaveLength(1);
  expect((await run<Listed>('domain', 'list', '--org', 'Rival')).data).toMatchObject([{ name: 'd.example' }]);
});
