import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';

const root = path.resolve(import.meta.dirname, '../..');
/** What starts the program, a browser, a cluster or somebody else's server. */
const startsSomething =
  /from '[./\w-]*\/(?:chaos\/[\w-]+|support\/(?:programs|browser|firefox|autopush|replicated-postgres|stopped-postgres|postgres-programs|pgbouncer|nginx|mail-servers\/[\w-]+))\.ts'/;

test('whatever starts programs, browsers or clusters is a test of the system', async () => {
  const files = (
    await Promise.all(
      ['src', 'clients', 'test', 'tools'].map(async (folder) =>
        (await readdir(path.join(root, folder), { recursive: true })).map((file) => `${folder}/${file}`),
      ),
    )
  )
    .flat()
    .filter((file) => file.endsWith('.test.ts'));
  const starting = await Promise.all(
    files.map(async (file) => startsSomething.test(await readFile(path.join(root, file), 'utf8'))),
  );
  const found = files.filter((_, index) => starting[index]);
  expect(found.length).toBeGreaterThan(20);
  expect(found.filter((file) => !file.endsWith('.system.test.ts'))).toEqual([]);
});
