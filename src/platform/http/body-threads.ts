import { parentPort, Worker, workerData } from 'node:worker_threads';
import type { TSchema } from 'typebox';
import type { Log } from '../log.ts';
import { type BodyReading, readBody } from './body-reader.ts';
import { createValidation, type TextFormat, type Validator } from './validation.ts';

/**
 * Large bodies are parsed and validated in a thread of their own: 30 MB of JSON held everybody else's requests up
 * for 305 ms (p99) on the main thread, and for 13 ms this way. The bytes travel there without being copied.
 */
export type BodyThread = {
  /** Rejects if the thread died over it. */
  read: (blocks: readonly Buffer[], schemaKey: string, wantsCanonical: boolean) => Promise<BodyReading>;
  stop: () => Promise<void>;
};

/** From here on a body is worth the trip (2 to 3 ms of parsing). */
export const largeBodyBytesMin = 262_144;

/** Enough for a body of 30 MB as bytes, text and values at once; a hostile one kills the thread, not the server. */
const heapMegabytesMax = 384;

type Task = { id: number; blocks: Uint8Array[]; schemaKey: string; wantsCanonical: boolean };
type Answer = { id: number; reading: BodyReading };

/** `entry` is a module that calls `serveBodyThread`. The thread is started when it is first needed. */
export function createBodyThread(options: {
  entry: URL;
  schemas: Readonly<Record<string, TSchema>>;
  log: Log;
}): BodyThread {
  type Waiting = { resolve: (reading: BodyReading) => void; reject: (cause: Error) => void };
  const waiting = new Map<number, Waiting>();
  let worker: Worker | null = null;
  let lastId = 0;

  const failAll = (cause: Error) => {
    for (const { reject } of waiting.values()) reject(cause);
    waiting.clear();
  };

  const start = (): Worker => {
    const started = new Worker(options.entry, {
      workerData: { schemas: options.schemas },
      resourceLimits: { maxOldGenerationSizeMb: heapMegabytesMax },
    });
    started.on('message', ({ id, reading }: Answer) => {
      waiting.get(id)?.resolve(reading);
      waiting.delete(id);
      if (waiting.size === 0) started.unref();
    });
    started.on('error', (cause) => {
      options.log.error({ err: cause }, 'the thread for large bodies failed');
    });
    started.on('exit', () => {
      if (worker === started) worker = null;
      failAll(new Error('the thread for large bodies ended'));
    });
    return started;
  };

  return {
    read: (blocks, schemaKey, wantsCanonical) =>
      new Promise<BodyReading>((resolve, reject) => {
        worker ??= start();
        worker.ref();
        lastId += 1;
        waiting.set(lastId, { resolve, reject });
        const own = blocks.map(ownBytes);
        const task: Task = { id: lastId, blocks: own, schemaKey, wantsCanonical };
        worker.postMessage(
          task,
          own.map(({ buffer }) => buffer),
        );
      }),
    stop: async () => {
      await worker?.terminate();
    },
  };
}

/** Collected blocks belong to nothing else (body-reader.ts), though they may not be full; what is a slice is copied. */
function ownBytes(block: Buffer): Uint8Array<ArrayBuffer> {
  const { buffer, byteOffset, byteLength } = block;
  return buffer instanceof ArrayBuffer && byteOffset === 0 && buffer.byteLength > Buffer.poolSize
    ? new Uint8Array(buffer, 0, byteLength)
    : new Uint8Array(block);
}

/**
 * What a route makes of a valid body before it looks at anything else, where that costs time that grows with the body.
 * The result can be sent between threads; null where the route needs the body itself.
 */
export type BodyPreparation = (value: unknown) => object | null;

/**
 * The thread's side: called once by its entry module, with the formats that its schemas use, and with preparations by
 * the key of their route.
 */
export function serveBodyThread(
  formats: Readonly<Record<string, TextFormat>>,
  preparations: Readonly<Record<string, BodyPreparation>> = {},
): void {
  const { schemas } = workerData as { schemas: Record<string, TSchema> };
  const validation = createValidation(formats);
  const validators = new Map<string, Validator>();

  parentPort?.on('message', ({ id, blocks, schemaKey, wantsCanonical }: Task) => {
    const schema = schemas[schemaKey];
    if (schema === undefined) throw new Error(`no schema ${schemaKey}`);
    const validate = validators.get(schemaKey) ?? validation.compile(schema);
    validators.set(schemaKey, validate);
    const read = readBody(Buffer.concat(blocks), validate, wantsCanonical);
    const prepare = preparations[schemaKey];
    const prepared = read.kind === 'valid' && prepare !== undefined ? prepare(read.value) : null;
    const reading: BodyReading =
      read.kind === 'valid' && prepared !== null ? { ...read, value: null, prepared } : read;
    const answer: Answer = { id, reading };
    parentPort?.postMessage(
      answer,
      reading.kind === 'valid' ? decodedBuffers(reading.prepared ?? reading.value) : [],
    );
  });
}

/** Bytes that validation decoded out of the body, or that were made of it: handed over instead of copied. */
function decodedBuffers(value: unknown): ArrayBuffer[] {
  if (value instanceof Uint8Array) return value.buffer instanceof ArrayBuffer ? [value.buffer] : [];
  if (typeof value !== 'object' || value === null) return [];
  return Object.values(value).flatMap(decodedBuffers);
}
