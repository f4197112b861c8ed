import { randomBytes } from 'node:crypto';
import { Type } from 'typebox';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { buildThreadEntry, type ThreadEntry } from '../../../test/support/thread-entry.ts';
import { silentLog } from '../log.ts';
import { readBody } from './body-reader.ts';
import { type BodyThread, createBodyThread, type ThreadTask } from './body-threads.ts';
import { createValidation, type TextFormat } from './validation.ts';

/** Formats are code, and so are written once for this thread and once for the other. */
const mortalFormat = `{
  test: (text) => {
    if (text === 'exit') process.exit(3);
    if (text === 'spin') for (;;);
    if (text === 'throw') throw new Error('broken');
    if (text === 'fill') for (const hoard = []; ; ) hoard.push(new Array(100_000).fill(text));
    return text !== 'wrong';
  },
  mustBe: 'harmless',
}`;
const inlineFormat: TextFormat = { test: (text) => text !== 'wrong', mustBe: 'harmless' };

const schema = Type.Object(
  {
    name: Type.String({ format: 'mortal' }),
    files: Type.Optional(Type.Array(Type.Object({ content: Type.String({ contentEncoding: 'base64' }) }))),
  },
  { additionalProperties: false },
);

let entry: ThreadEntry;
let thread: BodyThread;

beforeAll(async () => {
  entry = await buildThreadEntry(
    `import { serveBodyThread } from './body-threads.ts'; serveBodyThread({ formats: { mortal: ${mortalFormat} }, preparations: { shout: ({ name }) => name === 'as it is' ? null : { loud: new TextEncoder().encode(name.toUpperCase()) } }, tasks: [{ name: 'double', run: ({ bytes, times }) => { if (times === 0) throw new Error('nothing to double'); if (times < 0) process.exit(3); return { first: bytes, second: bytes, text: 'ab'.repeat(times) }; } }] });`,
    import.meta.dirname,
  );
  thread = createBodyThread({
    entry: entry.url,
    schemas: () => ({ letter: schema, shout: schema }),
    log: silentLog,
  });
});

afterAll(async () => {
  await thread.stop();
  await entry.remove();
});

function asking(schemaKey: string, wantsCanonical: boolean) {
  return { schemaKey, wantsCanonical, facts: { at: new Date(0), settings: {} }, translation: null };
}

function bodyOf(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value));
}

/** As it is after the journey: bytes are bytes, of whatever class. */
function withPlainBytes(value: unknown): unknown {
  if (value instanceof Uint8Array) return `bytes ${Buffer.from(value).toString('hex')}`;
  if (Array.isArray(value)) return value.map(withPlainBytes);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withPlainBytes(item)]));
}

test.each([
  [
    'valid',
    bodyOf({ name: 'Ann', files: [{ content: '' }, { content: randomBytes(400_000).toString('base64') }] }),
  ],
  ['two files that are the same', bodyOf({ name: 'Ann', files: [{ content: 'AAAA' }, { content: 'AAAA' }] })],
  ['invalid', bodyOf({ name: 'wrong', files: [{ content: '*' }], other: 1 })],
  ['hostile', Buffer.from('{"name":"\\u0000","__proto__":{}}')],
  ['malformed', Buffer.from('{"name":')],
  ['not UTF-8', Buffer.from([0x7b, 0xff, 0x7d])],
  ['too deep', Buffer.from('['.repeat(300_000))],
  ['empty', Buffer.of()],
])('a body that is %s reads in the thread as it reads inline', async (_name, bytes) => {
  const validate = createValidation({ mortal: inlineFormat }).compile(schema);
  for (const wantsCanonical of [false, true]) {
    const inline = readBody(Buffer.from(bytes), validate, wantsCanonical);
    const threaded = await thread.read([Buffer.from(bytes)], asking('letter', wantsCanonical));
    expect(withPlainBytes(threaded)).toEqual(withPlainBytes(inline));
  }
});

test('a slice of a shared buffer is read without taking the buffer from its owner', async () => {
  const shared = Buffer.concat([Buffer.from('before'), bodyOf({ name: 'Ann' }), Buffer.from('after')]);
  const reading = await thread.read([shared.subarray(6, -5)], asking('letter', false));
  expect(reading).toMatchObject({ kind: 'valid', value: { name: 'Ann' } });
  expect(shared.toString()).toBe('before{"name":"Ann"}after');
});

test('a body that comes in blocks, the last of them not full, reads as the whole does', async () => {
  const whole = bodyOf({ name: 'Ann', files: [{ content: randomBytes(200_000).toString('base64') }] });
  const blocks: Buffer[] = [];
  for (let start = 0; start < whole.length; start += 100_000) {
    const block = Buffer.allocUnsafeSlow(100_000);
    blocks.push(block.subarray(0, whole.copy(block, 0, start, start + 100_000)));
  }
  const inBlocks = await thread.read(blocks, asking('letter', true));
  expect(withPlainBytes(inBlocks)).toEqual(
    withPlainBytes(await thread.read([whole], asking('letter', true))),
  );
  expect(inBlocks.kind).toBe('valid');
});

test('what a route makes of a body is made in the thread, and comes back instead of the body', async () => {
  const read = (name: string) => thread.read([bodyOf({ name })], asking('shout', true));
  expect(withPlainBytes(await read('ann'))).toMatchObject({
    kind: 'valid',
    value: null,
    prepared: { loud: `bytes ${Buffer.from('ANN').toString('hex')}` },
  });
  expect(await read('as it is')).toMatchObject({ kind: 'valid', value: { name: 'as it is' } });
  expect(await read('wrong')).toMatchObject({ kind: 'invalid' });
});

const double: ThreadTask<{ bytes: Uint8Array; times: number }, { first: Uint8Array; text: string }> = {
  name: 'double',
  run: () => expect.fail('not in this thread'),
};

test('a task is run in the thread, its input is kept, and what it gives twice comes back twice', async () => {
  const bytes = Buffer.from('shared with others');
  expect(withPlainBytes(await thread.run(double, { bytes, times: 2 }))).toEqual({
    first: `bytes ${Buffer.from(bytes).toString('hex')}`,
    second: `bytes ${Buffer.from(bytes).toString('hex')}`,
    text: 'abab',
  });
  expect(bytes.toString()).toBe('shared with others');
});

test('a task that fails is answered with 503, and takes nothing else with it', async () => {
  const outcomes = await Promise.allSettled([
    thread.run(double, { bytes: Buffer.of(), times: 0 }),
    thread.read([bodyOf({ name: 'Ann' })], asking('letter', false)),
    thread.run({ ...double, name: 'unknown' }, { bytes: Buffer.of(), times: 1 }),
  ]);
  const refused = { status: 'rejected', reason: { definition: { statusCode: 503 } } };
  expect(outcomes).toMatchObject([refused, { status: 'fulfilled', value: { kind: 'valid' } }, refused]);
});

test('a task over which the thread dies is answered with 503, and the next one is run', async () => {
  await expect(thread.run(double, { bytes: Buffer.of(), times: -1 })).rejects.toMatchObject({
    definition: { statusCode: 503 },
  });
  expect(await thread.run(double, { bytes: Buffer.of(), times: 1 })).toMatchObject({ text: 'ab' });
});

test('bodies read at once get their own answers', async () => {
  const names = Array.from({ length: 50 }, (_, index) => `name ${index}`);
  const readings = await Promise.all(
    names.map((name) => thread.read([bodyOf({ name })], asking('letter', false))),
  );
  expect(readings.map((reading) => reading.kind === 'valid' && reading.value)).toEqual(
    names.map((name) => ({ name })),
  );
});

test.each(['exit', 'throw', 'fill'])(
  'a body over which the thread dies (%s) rejects, with those that wait after it, and the next one is read',
  async (name) => {
    const outcomes = await Promise.allSettled([
      thread.read([bodyOf({ name })], asking('letter', false)),
      thread.read([bodyOf({ name: 'Ann' })], asking('letter', false)),
    ]);
    expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    expect(await thread.read([bodyOf({ name: 'Ann' })], asking('letter', false))).toMatchObject({
      kind: 'valid',
    });
  },
);

test('a thread that is stopped rejects what it was reading', async () => {
  const reading = thread.read([bodyOf({ name: 'spin' })], asking('letter', false));
  await Promise.all([expect(reading).rejects.toThrow('ended'), thread.stop()]);
});
