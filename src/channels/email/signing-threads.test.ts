import { generateKeyPairSync, verify } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import os from 'node:os';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { buildThreadEntry, type ThreadEntry } from '../../../test/support/thread-entry.ts';
import { silentLog } from '../../platform/log.ts';
import { createSigningThreads, type SigningThreads } from './signing-threads.ts';

const [first, second] = [rsaPair(), rsaPair()];
const notRsa = generateKeyPairSync('ed25519').privateKey;

let entry: ThreadEntry;
let threads: SigningThreads;

beforeAll(async () => {
  entry = await buildThreadEntry(
    `import { parentPort } from 'node:worker_threads';
    import { serveSigningThread } from './signing-threads.ts';
    parentPort.on('message', ({ items }) => {
      if (items.some(({ text }) => text === 'exit')) process.exit(3);
      if (items.some(({ text }) => text === 'spin')) for (;;);
    });
    serveSigningThread();`,
    import.meta.dirname,
  );
  threads = createSigningThreads({ entry: entry.url, log: silentLog });
});

afterAll(async () => {
  await threads.stop();
  await entry.remove();
});

function rsaPair() {
  return generateKeyPairSync('rsa', { modulusLength: 2_048 });
}

test('each text gets its own signature, by its own key, however many are asked for at once', async () => {
  const wanted = Array.from({ length: 60 }, (_none, index) => ({
    pair: index % 3 === 0 ? second : first,
    text: `text ${index}`,
  }));
  const signatures = await Promise.all(wanted.map(({ pair, text }) => threads.sign(pair.privateKey, text)));
  const verdicts = wanted.map(({ pair, text }, index) =>
    verify('sha256', Buffer.from(text), pair.publicKey, signatures[index]!),
  );
  expect(verdicts).toEqual(wanted.map(() => true));
});

test('a key that cannot sign fails by itself', async () => {
  const outcomes = await Promise.allSettled([
    threads.sign(notRsa, 'a'),
    ...Array.from({ length: 11 }, () => threads.sign(first.privateKey, 'b')),
  ]);
  expect(outcomes.map(({ status }) => status)).toEqual([
    'rejected',
    ...Array.from({ length: 11 }, () => 'fulfilled'),
  ]);
});

test.each([
  ['die', () => entry.url],
  ['cannot be loaded', () => new URL('file:///nowhere/entry.js')],
  // The constructor of a thread throws.
  ['cannot be started', () => 'no entry' as unknown as URL],
])('threads that %s leave nothing unsigned', async (_fault, entryOf) => {
  const failing = createSigningThreads({ entry: entryOf(), log: silentLog });
  const texts = [...Array.from({ length: 60 }, () => 'exit'), 'after'];
  const signatures = await Promise.all(texts.map((text) => failing.sign(first.privateKey, text)));
  const verdicts = texts.map((text, index) =>
    verify('sha256', Buffer.from(text), first.publicKey, signatures[index]!),
  );
  expect(verdicts).toEqual(texts.map(() => true));
  expect(await failing.sign(first.privateKey, 'later')).toHaveLength(256);
  await expect(failing.sign(notRsa, 'never')).rejects.toThrow();
  await failing.stop();
});

test('threads that are stopped reject what they were signing, what waits and what is asked for later', async () => {
  const stopped = createSigningThreads({ entry: entry.url, log: silentLog });
  const texts = Array.from({ length: 50 }, () => stopped.sign(first.privateKey, 'spin'));
  const outcomes = Promise.allSettled(texts);
  await new Promise((resolve) => setImmediate(resolve));
  await stopped.stop();
  expect((await outcomes).map(({ status }) => status)).toEqual(texts.map(() => 'rejected'));
  await expect(stopped.sign(first.privateKey, 'later')).rejects.toThrow('any more');
});

test.runIf(process.platform === 'linux')('threads that sign have a lower priority', async () => {
  await threads.sign(first.privateKey, 'text');
  const niceness = await Promise.all(
    (await readdir('/proc/self/task')).map(async (thread) => {
      const stat = await readFile(`/proc/self/task/${thread}/stat`, 'utf8').catch(() => '');
      // The nineteenth field (proc(5)); the second one, a name, may have blanks in it.
      return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[16]);
    }),
  );
  expect(niceness).toContain(Math.min(os.getPriority() + 10, 19));
});
