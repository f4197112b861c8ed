import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdtemp, readdir, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeEach, expect, test, vi } from 'vitest';
import { type Clock, systemClock } from '../clock.ts';
import type { LockPlace } from './embedded-lock.ts';

/** A contender can only be made to sleep at the worst moment from inside the call that follows it. */
const hooks = vi.hoisted(() => ({ beforeLink: (): Promise<void> => Promise.resolve() }));
vi.mock('node:fs/promises', async (importOriginal) => {
  const real = await importOriginal<{ link: (from: string, to: string) => Promise<void> }>();
  return {
    ...real,
    link: async (from: string, to: string) => {
      await hooks.beforeLink();
      await real.link(from, to);
    },
  };
});

/** Loaded anew, and not left to others: test files of one process share what they load. */
vi.resetModules();
const { withLock } = await import('./embedded-lock.ts');
afterAll(() => {
  vi.resetModules();
});

let place: LockPlace;

beforeEach(async () => {
  place = { directory: await mkdtemp(path.join(os.tmpdir(), 'postillion-lock-')), owner: null };
  await chmod(place.directory, 0o700);
});

afterEach(async () => {
  await rm(place.directory, { recursive: true, force: true });
});

const limits = { waitMsMax: 20_000 };
const soon = () => new Promise((resolve) => setImmediate(resolve));

/** As many trips to the file system as an intruder would need several times over. */
async function linger(): Promise<void> {
  for (let trip = 0; trip < 100; trip += 1) await readdir(place.directory);
}

test('forty contenders are never inside at the same time, and each gets its turn', async () => {
  let inside = 0;
  let turns = 0;
  await Promise.all(
    Array.from({ length: 40 }, () =>
      withLock(systemClock, place, limits, async () => {
        inside += 1;
        expect(inside).toBe(1);
        await linger();
        turns += 1;
        inside -= 1;
      }),
    ),
  );
  expect(turns).toBe(40);
});

test('only the last claim is left over, however many turns there were', async () => {
  for (let turn = 0; turn < 10; turn += 1) await withLock(systemClock, place, limits, soon);
  expect(await readdir(place.directory)).toEqual(['10']);
});

test('a holder that is killed gives the lock to the one that waits for it', async () => {
  const url = (file: string) => JSON.stringify(pathToFileURL(path.resolve(import.meta.dirname, file)).href);
  const code = `
    import { withLock } from ${url('embedded-lock.ts')};
    import { systemClock } from ${url('../clock.ts')};
    await withLock(systemClock, ${JSON.stringify(place)}, { waitMsMax: 1000 }, async () => {
      console.log('held');
      await new Promise(() => undefined);
    });`;
  const holder = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', code], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(holder.stdout, 'data');

  let isHeld = true;
  const waiting = withLock(systemClock, place, limits, async () => {
    expect(isHeld).toBe(false);
  });
  await linger();
  isHeld = false;
  holder.kill('SIGKILL');
  await waiting;
});

test('a contender that slept through two turns before its claim does not get in beside the third', async () => {
  await withLock(systemClock, place, limits, soon);
  let wake = () => undefined as void;
  const asleep = new Promise<void>((arrived) => {
    hooks.beforeLink = () => {
      hooks.beforeLink = () => Promise.resolve();
      arrived();
      return new Promise((resolve) => {
        wake = resolve;
      });
    };
  });
  let isThirdInside = false;
  const sleeper = withLock(systemClock, place, limits, async () => {
    expect(isThirdInside).toBe(false);
  });
  await asleep;
  await withLock(systemClock, place, limits, soon);
  await withLock(systemClock, place, limits, async () => {
    isThirdInside = true;
    wake();
    await linger();
    isThirdInside = false;
  });
  await sleeper;
});

test('a failure inside gives the lock back', async () => {
  await expect(
    withLock(systemClock, place, limits, () => Promise.reject(new Error('inside'))),
  ).rejects.toThrow('inside');
  await expect(withLock(systemClock, place, limits, async () => 'next')).resolves.toBe('next');
});

test('a process that waits too long, or is told to stop, is refused while the holder keeps the lock', async () => {
  // Its time runs only when something waits, and then all at once.
  let nowMs = 0;
  const hasty: Clock = {
    ...systemClock,
    monotonicMs: () => nowMs,
    after: (delayMs, callback) => {
      nowMs += delayMs;
      const immediate = setImmediate(callback);
      return () => {
        clearImmediate(immediate);
      };
    },
  };
  await withLock(systemClock, place, limits, async () => {
    await expect(withLock(hasty, place, { waitMsMax: 500 }, soon)).rejects.toThrow('still held after 500 ms');
    const signal = AbortSignal.abort(new Error('told to stop'));
    await expect(withLock(systemClock, place, { ...limits, signal }, soon)).rejects.toThrow('told to stop');
    const later = new AbortController();
    const waiting = withLock(systemClock, place, { ...limits, signal: later.signal }, soon);
    setImmediate(() => {
      later.abort(new Error('told later'));
    });
    await expect(waiting).rejects.toThrow('told later');
  });
});
