import { beforeEach, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { type Database, type Transaction, unpreparedStatement } from './postgres/database.ts';
import {
  keyRestMs,
  newDataKeyBytes,
  openSealedKeys,
  readSealedKeys,
  retireSecret,
  rotateSecret,
  takeUpSecret,
} from './secret-keys.ts';

const [one, two, three] = ['one', 'two', 'three'].map((name) => name.padEnd(40, '.')) as [
  string,
  string,
  string,
];
const at = new Date('2026-11-22T12:00:00Z');

let database: Database;

useTestDatabase({ connectionsMax: 8 }, (opened) => {
  database = opened.database;
});
beforeEach(() => database.rows(unpreparedStatement('truncate secret_keys')));

const takeUp = (secret: string, bytes = newDataKeyBytes()) =>
  database.transaction((transaction) => takeUpSecret(transaction, { secret, bytes, at }));
const rotate = (secrets: string[], next: string) =>
  database.transaction((transaction) => rotateSecret(transaction, { secrets, next, at }));
const retire = (secretId: number, secrets: string[]) =>
  database.transaction((transaction) => retireSecret(transaction, { secretId, secrets }));
const open = async (...secrets: string[]) => openSealedKeys(await readSealedKeys(database), secrets);
const keysOf = async (secret: string) =>
  (await open(secret))?.keys.map(({ id, bytes }) => `${id} ${bytes.toString('hex')}`);

test('the secret that was taken up opens the key, and any other opens nothing', async () => {
  const bytes = newDataKeyBytes();
  await takeUp(one, bytes);
  expect(await open(one)).toMatchObject({ secretId: 1, keys: [{ id: 1, bytes }] });
  expect(await open(two)).toBeNull();
  expect(await open()).toBeNull();
  expect(await open(two, one), 'the one of several that fits').toMatchObject({ secret: one });
});

test('of many that take up different secrets at once one succeeds, and the others see that theirs opens nothing', async () => {
  const secrets = Array.from({ length: 20 }, (_, index) => `secret ${index}`.padEnd(40, '.'));
  const outcomes = await Promise.all(
    secrets.map(async (secret) => openSealedKeys(await takeUp(secret), [secret]) !== null),
  );
  expect(outcomes.filter((isIts) => isIts)).toHaveLength(1);
  expect(await readSealedKeys(database)).toHaveLength(1);
});

test('after a rotation both secrets open the same keys, and one more, which rests at first', async () => {
  await takeUp(one);
  const before = await keysOf(one);
  expect(await rotate([one], two)).toMatchObject({ kind: 'rotated', secretId: 2, retiringId: 1, keyId: 2 });
  expect(await keysOf(two)).toEqual(await keysOf(one));
  expect((await keysOf(two))?.slice(0, 1)).toEqual(before);
  expect((await open(two))?.keys.map(({ usableFromMs }) => usableFromMs - at.getTime())).toEqual([
    0,
    keyRestMs,
  ]);
});

test('the old secret opens nothing once it is retired, and the new one everything', async () => {
  await takeUp(one);
  await rotate([one], two);
  const keys = await keysOf(two);
  expect(await retire(1, [two])).toEqual({ kind: 'retired' });
  expect(await open(one)).toBeNull();
  expect(await keysOf(two)).toEqual(keys);
  await rotate([two], three);
  await retire(2, [three]);
  expect((await open(three))?.keys.map(({ id }) => id)).toEqual([1, 2, 3]);
});

test('a rotation is taken back by retiring the new secret, and the key that it made stays', async () => {
  await takeUp(one);
  await rotate([one], two);
  expect(await retire(2, [one])).toEqual({ kind: 'retired' });
  expect(await open(two)).toBeNull();
  expect((await open(one))?.keys.map(({ id }) => id)).toEqual([1, 2]);
});

test('the last secret that is at hand cannot be retired, nor one that does not exist', async () => {
  await takeUp(one);
  expect(await retire(1, [one])).toEqual({ kind: 'last' });
  await rotate([one], two);
  expect(await retire(1, [one]), 'no secret here would open what is left').toEqual({ kind: 'last' });
  expect(await retire(3, [one])).toEqual({ kind: 'not_found', secretIds: [1, 2] });
  expect(await readSealedKeys(database)).toHaveLength(2);
});

test('a rotation is refused without the secret, to the same secret, and while another is under way', async () => {
  await takeUp(one);
  expect(await rotate([two], three)).toEqual({ kind: 'wrong_secret' });
  expect(await rotate([one], one)).toEqual({ kind: 'same_secret' });
  const outcomes = await Promise.all([rotate([one], two), rotate([one], three)]);
  expect(outcomes.map(({ kind }) => kind).sort()).toEqual(['rotated', 'under_way']);
  expect(await readSealedKeys(database)).toHaveLength(2);
});

test('a rotation that dies after any of its statements has not taken place', async () => {
  await takeUp(one);
  const before = await readSealedKeys(database);
  let statementsMax = 0;
  let isDone = false;
  while (!isDone) {
    statementsMax += 1;
    isDone = await database
      .transaction((transaction) =>
        rotateSecret(endingAfter(transaction, statementsMax), { secrets: [one], next: two, at }),
      )
      .then(
        () => true,
        async () => {
          expect(await readSealedKeys(database)).toEqual(before);
          return false;
        },
      );
  }
  expect(statementsMax).toBeGreaterThan(4);
});

function endingAfter(transaction: Transaction, statementsMax: number): Transaction {
  let statements = 0;
  return {
    ...transaction,
    rows: (...given) => {
      statements += 1;
      return statements > statementsMax ? Promise.reject(new Error('killed')) : transaction.rows(...given);
    },
  };
}

test('a key that was put under the number of another does not open', async () => {
  await takeUp(one);
  await rotate([one], two);
  await retire(1, [two]);
  await database.rows(unpreparedStatement('update secret_keys set key_id = 251 where key_id = 2'));
  expect(await open(two)).toBeNull();
});
