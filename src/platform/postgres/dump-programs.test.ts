import { expect, test } from 'vitest';
import { environmentOf } from './dump-programs.ts';

const modeOf = (query: string) => environmentOf({ url: `postgres://ada:secret@db.example/mail${query}` });

test.each([
  ['', 'disable'],
  ['?sslmode=disable', 'disable'],
  ['?sslmode=no-verify', 'require'],
  ['?sslmode=prefer', 'verify-full'],
  ['?sslmode=require', 'verify-full'],
  ['?sslmode=verify-full', 'verify-full'],
  ['?ssl=true', 'verify-full'],
])('with %j programs of PostgreSQL look at certificates as our own client does', (query, mode) => {
  const { PGSSLMODE, PGSSLROOTCERT, PGHOST, PGPASSWORD } = modeOf(query);
  expect({ PGSSLMODE, PGHOST, PGPASSWORD }).toEqual({
    PGSSLMODE: mode,
    PGHOST: 'db.example',
    PGPASSWORD: 'secret',
  });
  expect(PGSSLROOTCERT === undefined).toBe(!mode.startsWith('verify'));
});
