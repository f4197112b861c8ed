import { execFile } from 'node:child_process';
import { generateKeyPairSync, sign } from 'node:crypto';
import os from 'node:os';
import { promisify } from 'node:util';

/** How many RSA-2048 signatures a second all cores of the machine make when they do nothing else. */
export type RsaSpeed = { perSecond: number; measuredBy: string };

const seconds = 3;

export async function measureRsaSpeed(): Promise<RsaSpeed> {
  return (await measureByOpenssl()) ?? (await measureByNode());
}

/** Null where there is no openssl, or one that knows no such options. */
async function measureByOpenssl(): Promise<RsaSpeed | null> {
  const cores = os.availableParallelism();
  const parameters = ['speed', '-seconds', String(seconds), '-multi', String(cores), 'rsa2048'];
  try {
    const { stdout } = await promisify(execFile)('openssl', parameters);
    // Seconds for each kind of operation come first, then signatures a second.
    const perSecond = Number(/^rsa\s+2048 bits(?:\s+[\d.]+s)+\s+([\d.]+)/m.exec(stdout)?.[1]);
    return perSecond > 0 ? { perSecond, measuredBy: `openssl ${parameters.join(' ')}` } : null;
  } catch {
    return null;
  }
}

/** The thread pool has four threads unless told otherwise: on more cores this says too little. */
async function measureByNode(): Promise<RsaSpeed> {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2_048 });
  const text = Buffer.alloc(1_000, 'a');
  const signOnce = () =>
    new Promise((resolve, reject) => {
      sign('sha256', text, privateKey, (error, signature) => {
        if (error === null) resolve(signature);
        else reject(error);
      });
    });
  let count = 0;
  const startedAtMs = performance.now();
  const isOver = () => performance.now() - startedAtMs > seconds * 1_000;
  await Promise.all(
    Array.from({ length: 16 }, async () => {
      while (!isOver()) {
        await signOnce();
        count += 1;
      }
    }),
  );
  return { perSecond: count / ((performance.now() - startedAtMs) / 1_000), measuredBy: "Node's crypto.sign" };
}
