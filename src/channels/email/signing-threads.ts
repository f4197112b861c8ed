import { type KeyObject, sign } from 'node:crypto';
import { readlinkSync } from 'node:fs';
import os from 'node:os';
import { parentPort, Worker } from 'node:worker_threads';
import type { Log } from '../../platform/log.ts';
import { partOf, type ProcessShare, wholeShare } from '../../platform/process-share.ts';

/**
 * RSA signatures in threads of their own. The RSA operation is most of what a signed message costs. In the thread pool
 * of Node.js it has normal priority: while signatures queue there, each answer of PostgreSQL and of the remote
 * server waits for a core, and the cores then for them. These threads have a lower priority.
 *
 * A thread that ends is not replaced, and what it had is signed in the pool; without any thread the pool signs it all.
 * No message is to blame for it.
 */
export type SigningThreads = {
  sign: SignText;
  /** Rejects what is still to be signed. */
  stop: () => Promise<void>;
};

/** The signature (RSA with SHA-256, PKCS #1 v1.5) of an ASCII text. Rejects if the key cannot make one. */
export type SignText = (key: KeyObject, text: string) => Promise<Buffer>;

/** Of two busy threads on one core, the one that is nicer by ten gets a tenth (sched(7)). */
const niceness = 10;

/** What the main threads of one machine send keeps no more of them busy. */
const threadsMax = 8;

/** Signatures of one trip, a few milliseconds of work. More would keep the first waiting for the last. */
const batchItemsMax = 4;

/** One that it works on, and one that it begins with by itself: the main thread may be busy for some milliseconds. */
const tripsMax = 2;

type Task = { keys: KeyObject[]; items: { keyIndex: number; text: string }[] };
/** For each item its signature, or why there is none. */
type Answer = { results: (Uint8Array | string)[] };

type Waiting = {
  key: KeyObject;
  text: string;
  resolve: (signature: Buffer) => void;
  reject: (cause: Error) => void;
};

/** `trips` are in the order in which they were sent, and are answered. */
type Thread = { worker: Worker; trips: Waiting[][] };

/**
 * `entry` is a module that calls `serveSigningThread`. A thread is started when it is first needed. Several processes
 * share the cores.
 */
export function createSigningThreads(options: {
  entry: URL;
  log: Log;
  share?: ProcessShare;
}): SigningThreads {
  const { log } = options;
  const threads = new Set<Thread>();
  const threadsOfAll = Math.min(os.availableParallelism(), threadsMax);
  let placesLeft = Math.max(1, partOf(threadsOfAll, options.share ?? wholeShare));
  const waiting: Waiting[] = [];
  let isScheduled = false;
  let isStopped = false;

  const start = (): Thread => {
    const thread: Thread = { worker: new Worker(options.entry), trips: [] };
    placesLeft -= 1;
    thread.worker.on('message', ({ results }: Answer) => {
      const answered = thread.trips.shift() ?? [];
      if (thread.trips.length === 0) thread.worker.unref();
      // The next ones first, so that the thread works while these are sent.
      handOut();
      answered.forEach(({ resolve, reject }, index) => {
        const result = results[index] ?? 'the thread left it out';
        if (typeof result === 'string') reject(new Error(`no signature: ${result}`));
        else resolve(Buffer.from(result.buffer, result.byteOffset, result.byteLength));
      });
    });
    thread.worker.on('error', (cause) => {
      log.error({ err: cause }, 'a thread for signatures failed');
    });
    thread.worker.on('exit', () => {
      threads.delete(thread);
      const lost = thread.trips.flat();
      if (isStopped) rejectAll(lost);
      else signAllInPool(lost);
      handOut();
    });
    threads.add(thread);
    return thread;
  };

  const findFreeThread = (): Thread | undefined => {
    let freest: Thread | undefined;
    for (const thread of threads) {
      if (thread.trips.length === 0) return thread;
      if (thread.trips.length < (freest?.trips.length ?? tripsMax)) freest = thread;
    }
    if (placesLeft === 0) return freest;
    try {
      return start();
    } catch (cause) {
      log.error({ err: cause }, 'a thread for signatures cannot be started');
      placesLeft = 0;
      return freest;
    }
  };

  const handOut = () => {
    isScheduled = false;
    const share = Math.min(batchItemsMax, Math.ceil(waiting.length / (threads.size + placesLeft)));
    while (waiting.length > 0 && !isStopped) {
      const thread = findFreeThread();
      if (thread === undefined) break;
      const trip = waiting.splice(0, share);
      thread.trips.push(trip);
      thread.worker.ref();
      thread.worker.postMessage(makeTask(trip));
    }
    if (threads.size === 0) signAllInPool(waiting.splice(0));
  };

  return {
    sign: (key, text) =>
      new Promise((resolve, reject) => {
        if (isStopped) {
          reject(endedError());
          return;
        }
        waiting.push({ key, text, resolve, reject });
        if (isScheduled) return;
        isScheduled = true;
        // What is asked for in the same turn of the event loop is shared out among the threads.
        setImmediate(handOut);
      }),
    stop: async () => {
      isStopped = true;
      rejectAll(waiting.splice(0));
      await Promise.all([...threads].map(({ worker }) => worker.terminate()));
    },
  };
}

/** A key travels once with all that it signs. */
function makeTask(batch: readonly Waiting[]): Task {
  const keys = [...new Set(batch.map(({ key }) => key))];
  return { keys, items: batch.map(({ key, text }) => ({ keyIndex: keys.indexOf(key), text })) };
}

function signAllInPool(batch: readonly Waiting[]): void {
  for (const { key, text, resolve, reject } of batch) {
    sign('sha256', Buffer.from(text, 'latin1'), key, (error, signature) => {
      if (error === null) resolve(signature);
      else reject(error);
    });
  }
}

function rejectAll(batch: readonly Waiting[]): void {
  for (const { reject } of batch) reject(endedError());
}

function endedError(): Error {
  return new Error('nothing is signed any more');
}

/** The thread's side: called once by its entry module. */
export function serveSigningThread(): void {
  standBack();
  parentPort?.on('message', ({ keys, items }: Task) => {
    const answer: Answer = { results: items.map(({ keyIndex, text }) => signText(keys[keyIndex], text)) };
    parentPort?.postMessage(answer);
  });
}

/** A key that cannot sign must not take down what it travels with. */
function signText(key: KeyObject | undefined, text: string): Uint8Array | string {
  if (key === undefined) return 'it came without its key';
  try {
    return sign('sha256', Buffer.from(text, 'latin1'), key);
  } catch (cause) {
    return cause instanceof Error ? cause.message : String(cause);
  }
}

/** Linux keeps a priority for each thread. Elsewhere it is the process's, and stays. */
function standBack(): void {
  if (process.platform !== 'linux') return;
  try {
    const threadId = Number(readlinkSync('/proc/thread-self').split('/').at(-1));
    os.setPriority(threadId, Math.min(os.getPriority() + niceness, os.constants.priority.PRIORITY_LOW));
  } catch {
    // Without /proc the id of this thread is not known; it signs all the same.
  }
}
