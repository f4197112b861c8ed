/**
 * A node that runs with a retired secret has missed the data keys made since. It leaves what is sealed under one of them
 * to other nodes, or learns the key once its secret is the new one.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  keyRestMs,
  newDataKeyBytes,
  openSealedKeys,
  readSealedKeys,
  retireSecret,
  rotateSecret,
  takeUpSecret,
} from '../../src/platform/secret-keys.ts';
import { createKeyRing, type DataKey, type KeyRing, UnknownKeyError } from '../../src/platform/secrets.ts';
import { startWorker } from '../../src/roles/worker.ts';
import {
  createShiftedClock,
  eventually,
  queueOf,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';

const secrets = ['first', 'second', 'third'].map((name) => name.padEnd(40, '.')) as [string, string, string];
const first: DataKey = { id: 1, bytes: newDataKeyBytes(), usableFromMs: 0 };
const contentInBase64 = Buffer.from('a file that is under way').toString('base64');

let clock: ShiftedClock;
/** A node with the present secret. */
let server: TestServer;
let other: { organizationId: string; key: string };

async function keysUnder(secret: string): Promise<DataKey[] | null> {
  return openSealedKeys(await readSealedKeys(server.installation.database), [secret])?.keys ?? null;
}

/** The keys that a process knows from before the rotations; `secret` is what it finds when it looks again. */
function openLateRing(secret: string): { ring: KeyRing; looks: () => number } {
  let looks = 0;
  const ring = createKeyRing([first], clock.nowMs, () => {
    looks += 1;
    return keysUnder(secret);
  });
  return { ring, looks: () => looks };
}

beforeAll(async () => {
  clock = createShiftedClock();
  const ring = createKeyRing([first], clock.nowMs);
  server = await startTestServer({ clock, secrets: ring });
  const { database } = server.installation;
  const at = () => new Date(clock.nowMs());
  await rowsOf(server, 'truncate secret_keys');
  await database.transaction((transaction) =>
    takeUpSecret(transaction, { secret: secrets[0], bytes: first.bytes, at: new Date(0) }),
  );
  for (const [index, next] of secrets.slice(1).entries()) {
    const rotated = await database.transaction((transaction) =>
      rotateSecret(transaction, { secrets: [secrets[index]!], next, at: at() }),
    );
    expect(rotated).toMatchObject({ kind: 'rotated', keyId: index + 2 });
    await database.transaction((transaction) =>
      retireSecret(transaction, { secretId: index + 1, secrets: [next] }),
    );
    clock.putForward(keyRestMs);
  }
  ring.replaceKeys((await keysUnder(secrets[2]))!);
  // Its DKIM key is sealed under the newest, and that of the server's own domain under the first.
  other = await createSender(server.installation, 'other.test');
});
afterAll(() => server.stop());

test('what is sealed under a key that a node does not know waits for another node, as if it had not been touched', async () => {
  const late = openLateRing(secrets[0]);
  const attached = await send(server, { attachments: [{ filename: 'a.txt', content: contentInBase64 }] });
  const signed = await send(server, { from: 'hello@other.test' }, other);
  const plain = await send(server);
  const lateWorker = await startWorker({ ...server.installation, secrets: late.ring });
  for (const id of [attached, signed]) {
    const [job] = await eventually(
      () => queueOf(server, id),
      ([queued]) => queued!.due_at.getTime() > clock.nowMs() + 30_000,
    );
    expect(job).toMatchObject({ attempts: 0, ambiguities: 0, crashes: 0, set_aside_at: null });
  }
  expect((await settled(server, plain)).to[0]).toMatchObject({ status: 'delivered' });
  expect(late.looks()).toBeGreaterThan(0);
  await lateWorker.stop();

  clock.putForward(61_000);
  const worker = await startWorker(server.installation);
  expect((await settled(server, attached)).to[0]).toMatchObject({ status: 'delivered' });
  expect((await settled(server, signed, other)).to[0]).toMatchObject({ status: 'delivered' });
  await worker.stop();
  const [row] = await rowsOf<{ source: Buffer }>(
    server,
    'select source from sandbox_messages where message_id = $1',
    [attached],
  );
  expect(row!.source.toString()).toContain(contentInBase64);
});

test('what waits in vain for as long as mail is tried fails, and says why', async () => {
  const late = openLateRing(secrets[0]);
  const id = await send(server, { attachments: [{ filename: 'a.txt', content: contentInBase64 }] });
  await rowsOf(server, "update delivery_queue set accepted_at = accepted_at - interval '73 hours'");
  const worker = await startWorker({ ...server.installation, secrets: late.ring });
  expect((await settled(server, id)).to[0]).toMatchObject({
    status: 'failed',
    bounce: { diagnostic: expect.stringContaining('sealed under a key that this process does not know') },
  });
  await worker.stop();
});

test('a node that has the present secret at hand learns the keys when it meets what it cannot read', async () => {
  const late = openLateRing(secrets[2]);
  const attached = await send(server, { attachments: [{ filename: 'a.txt', content: contentInBase64 }] });
  const signed = await send(server, { from: 'hello@other.test' }, other);
  const worker = await startWorker({ ...server.installation, secrets: late.ring });
  expect((await settled(server, attached)).to[0]).toMatchObject({ status: 'delivered' });
  expect((await settled(server, signed, other)).to[0]).toMatchObject({ status: 'delivered' });
  await worker.stop();
  // Those that need a key at the same time look once.
  const { ring, looks } = openLateRing(secrets[2]);
  const sealed = server.installation.secrets.encrypt(Buffer.from('x'), 'a test');
  await Promise.all(Array.from({ length: 10 }, () => ring.decryptInSteps(sealed, 'a test')));
  expect(looks()).toBe(1);
});

test('a key that is unknown is told from bytes that are not what was sealed', async () => {
  const { ring } = openLateRing(secrets[0]);
  const sealed = server.installation.secrets.encrypt(Buffer.from('x'), 'a test');
  await expect(ring.decryptInSteps(sealed, 'a test')).rejects.toMatchObject({
    name: 'UnknownKeyError',
    keyId: 3,
  });
  const known = server.installation.secrets.decryptInSteps(sealed, 'another test');
  await expect(known).rejects.not.toBeInstanceOf(UnknownKeyError);
});
