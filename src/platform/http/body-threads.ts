import type { IncomingHttpHeaders } from 'node:http';
import { parentPort, Worker, workerData } from 'node:worker_threads';
import type { TSchema } from 'typebox';
import type { Log } from '../log.ts';
import { type BodyReading, readBody } from './body-reader.ts';
import { overloaded } from './errors.ts';
import { isChange } from './route.ts';
import type { BodyTranslation } from './wire.ts';
import {
  createValidation,
  type FieldRule,
  type RuleFacts,
  type TextFormat,
  type Validator,
} from './validation.ts';

/**
 * Large bodies are parsed and validated in a thread of their own: 30 MB of JSON held all other requests up
 * for 305 ms (p99) on the main thread, and for 13 ms this way. The bytes travel there without being copied. Tasks
 * whose output grows large from a small body, such as a template with long values, run there as well.
 */
export type BodyThread = TaskRunner & {
  /** Rejects if the thread dies while it works on this. */
  read: (blocks: readonly Buffer[], asked: AskedReading) => Promise<BodyReading>;
  stop: () => Promise<void>;
};

/** By which schema a body is read, and what its rules go by. */
export type AskedReading = {
  schemaKey: string;
  wantsCanonical: boolean;
  facts: RuleFacts;
  /** By which the body is translated first, and the headers that it looks at; null: it is of our own form. */
  translation: { key: string; headers: IncomingHttpHeaders } | null;
};

/** Work for the thread. The name is unique; input and output can be sent between threads. */
export type ThreadTask<Input extends object, Output> = { name: string; run: (input: Input) => Output };

export type TaskRunner = {
  /** Rejects with a PublicError (503) if the thread failed over it. Buffers that are handed over are gone here, and not copied. */
  run: <Input extends object, Output>(
    task: ThreadTask<Input, Output>,
    input: Input,
    handedOver?: readonly ArrayBuffer[],
  ) => Promise<Output>;
};

/** Runs a task at once, for input that is small. */
export const inlineRunner: TaskRunner = { run: (task, input) => Promise.resolve(task.run(input)) };

/** From here on a body is worth the trip (2 to 3 ms of parsing). */
export const largeBodyBytesMin = 262_144;

/** Enough for a body of 30 MB as bytes, text and values at once; a hostile one kills the thread, not the server. */
const heapMegabytesMax = 384;

type Work =
  | { kind: 'read'; blocks: Uint8Array<ArrayBuffer>[]; asked: AskedReading }
  | { kind: 'task'; name: string; input: object };
type Answer = { id: number } & ({ result: unknown } | { failure: string });

/**
 * `entry` is a module that calls `serveBodyThread`. The thread is started, and the schemas are asked for, when it is
 * first needed.
 */
export function createBodyThread(options: {
  entry: URL;
  schemas: () => Readonly<Record<string, TSchema>>;
  log: Log;
}): BodyThread {
  type Waiting = { resolve: (result: unknown) => void; reject: (cause: Error) => void };
  const waiting = new Map<number, Waiting>();
  let worker: Worker | null = null;
  let lastId = 0;

  const failAll = (cause: Error) => {
    for (const { reject } of waiting.values()) reject(cause);
    waiting.clear();
  };

  const start = (): Worker => {
    const started = new Worker(options.entry, {
      workerData: { schemas: options.schemas() },
      resourceLimits: { maxOldGenerationSizeMb: heapMegabytesMax },
    });
    started.on('message', (answer: Answer) => {
      const { id } = answer;
      if ('result' in answer) waiting.get(id)?.resolve(answer.result);
      else waiting.get(id)?.reject(new Error(answer.failure));
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

  const give = (work: Work, handedOver: ArrayBuffer[]) =>
    new Promise<unknown>((resolve, reject) => {
      worker ??= start();
      worker.ref();
      lastId += 1;
      waiting.set(lastId, { resolve, reject });
      worker.postMessage({ id: lastId, work }, handedOver);
    });

  return {
    read: (blocks, asked) => {
      const own = blocks.map(ownBytes);
      const work: Work = { kind: 'read', blocks: own, asked };
      // As the thread's side answers it.
      return give(
        work,
        own.map(({ buffer }) => buffer),
      ) as Promise<BodyReading>;
    },
    run: async <Input extends object, Output>(
      { name }: ThreadTask<Input, Output>,
      input: Input,
      handedOver: readonly ArrayBuffer[] = [],
    ) => {
      try {
        return (await give({ kind: 'task', name, input }, [...handedOver])) as Output; // As the task of that name returned it.
      } catch (cause) {
        options.log.error({ err: cause, task: name }, 'large work failed');
        throw overloaded('The request is too large to be worked on at the moment.');
      }
    },
    stop: async () => {
      await worker?.terminate();
    },
  };
}

/** Collected blocks belong to nothing else (body-reader.ts), though they may not be full; what is a slice is copied. */
export function ownBytes(block: Buffer): Uint8Array<ArrayBuffer> {
  const { buffer, byteOffset, byteLength } = block;
  return buffer instanceof ArrayBuffer && byteOffset === 0 && buffer.byteLength > Buffer.poolSize
    ? new Uint8Array(buffer, 0, byteLength)
    : new Uint8Array(block);
}

/**
 * What a route makes of a valid body before it looks at anything else, where that costs time that grows with the body.
 * The result can be sent between threads; null where the route needs the body itself.
 */
export type BodyPreparation = (value: unknown, facts: RuleFacts) => object | null;

/**
 * The thread's side: called once by its entry module, with the formats and rules that its schemas name, with preparations
 * by the key of their route, with translations by the key of their wire route, and with the tasks that may be asked for.
 */
export function serveBodyThread({
  formats,
  rules = {},
  preparations = {},
  translations = {},
  tasks = [],
}: {
  formats: Readonly<Record<string, TextFormat>>;
  rules?: Readonly<Record<string, FieldRule>>;
  preparations?: Readonly<Record<string, BodyPreparation>>;
  translations?: Readonly<Record<string, BodyTranslation>>;
  tasks?: readonly ThreadTask<never, unknown>[];
}): void {
  const { schemas } = workerData as { schemas: Record<string, TSchema> };
  const validation = createValidation(formats, rules);
  const validators = new Map<string, Validator>();

  const read = ({ blocks, asked }: Extract<Work, { kind: 'read' }>): BodyReading => {
    const { schemaKey, wantsCanonical, facts, translation } = asked;
    const schema = schemas[schemaKey];
    if (schema === undefined) throw new Error(`no schema ${schemaKey}`);
    const validate =
      validators.get(schemaKey) ?? validation.compile(schema, { isChange: isChange(schemaKey) });
    validators.set(schemaKey, validate);
    const reading = readBody(
      Buffer.concat(blocks),
      (value) => validate(value, facts),
      wantsCanonical,
      translation && translationOf(translation),
    );
    const prepare = preparations[schemaKey];
    const prepared = reading.kind === 'valid' && prepare !== undefined ? prepare(reading.value, facts) : null;
    return reading.kind === 'valid' && prepared !== null ? { ...reading, value: null, prepared } : reading;
  };

  const translationOf = ({ key, headers }: NonNullable<AskedReading['translation']>) => {
    const translate = translations[key];
    if (translate === undefined) throw new Error(`no translation ${key}`);
    return (value: unknown) => translate(value, headers);
  };

  const runTask = ({ name, input }: Extract<Work, { kind: 'task' }>): unknown => {
    const task = tasks.find((one) => one.name === name);
    if (task === undefined) throw new Error(`no task ${name}`);
    return task.run(input as never); // `run` of the other side takes no other input.
  };

  const answer = (id: number, result: unknown) => {
    parentPort?.postMessage({ id, result } satisfies Answer, [...new Set(listBuffers(result))]);
  };

  parentPort?.on('message', ({ id, work }: { id: number; work: Work }) => {
    if (work.kind === 'read') {
      // An error here ends the thread: what a body is, is known.
      answer(id, read(work));
      return;
    }
    try {
      answer(id, runTask(work));
    } catch (cause) {
      const failure = cause instanceof Error ? (cause.stack ?? cause.message) : String(cause);
      parentPort?.postMessage({ id, failure } satisfies Answer);
    }
  });
}

/** Bytes that validation decoded out of a body, or that were made of it: handed over instead of copied. */
function listBuffers(value: unknown): ArrayBuffer[] {
  if (value instanceof Uint8Array) return value.buffer instanceof ArrayBuffer ? [value.buffer] : [];
  if (typeof value !== 'object' || value === null) return [];
  return Object.values(value).flatMap(listBuffers);
}
