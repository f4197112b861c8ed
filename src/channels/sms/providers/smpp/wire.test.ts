import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../../../../test/support/manual-clock.ts';
import { parseSmppUrl } from './url.ts';
import { isFault, openWire, sequenceAfter, type SmppWire, type WireFault } from './wire.ts';

/** A message centre that accepts connections, and reads nothing until it is told to. */
let server: Server;
let far: Socket;
let sockets: Socket[];
let clock: ManualClock;
let wire: SmppWire;
/** Called when a request of the far side has been read. */
let onRequest: () => void;

beforeEach(async () => {
  server = createServer({ pauseOnConnect: true });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  clock = createManualClock();
  onRequest = () => undefined;
  sockets = [];
  await connect();
});

async function connect(): Promise<void> {
  const { port } = server.address() as { port: number };
  const connected = once(server, 'connection');
  const opened = await openWire(clock, parseSmppUrl(`smpp://us:secret@127.0.0.1:${port}`), {
    authorities: null,
    timeoutMs: 1_000,
    onRequest: () => {
      onRequest();
    },
    signal: new AbortController().signal,
  });
  if (isFault(opened)) throw new Error(opened.detail);
  wire = opened;
  [far] = (await connected) as [Socket];
  far.on('error', () => undefined);
  sockets.push(far);
}

afterEach(async () => {
  wire.break('given_up', 'the test is over');
  for (const socket of sockets) socket.destroy();
  server.close();
  await once(server, 'close');
});

/** The sequence numbers of all that has arrived once the connection is over: §3.2, the fourth of four octets each. */
async function readSequences(): Promise<Set<number>> {
  const chunks: Buffer[] = [];
  far.on('data', (chunk: Buffer) => chunks.push(chunk));
  far.resume();
  if (!far.closed) await once(far, 'close');
  const octets = Buffer.concat(chunks);
  const sequences = new Set<number>();
  for (let at = 0; at + 16 <= octets.length; at += octets.readUInt32BE(at)) {
    sequences.add(octets.readUInt32BE(at + 12));
  }
  return sequences;
}

/** §5.1.2.1 */
const commandIds = {
  enquire_link: 0x15,
  generic_nack: 0x80000000,
  submit_sm_resp: 0x80000004,
  enquire_link_resp: 0x80000015,
};

/** Writes headers of PDUs, a status of 8 in each, and resolves once all of them have been read. */
async function say(...pdus: { command: keyof typeof commandIds; sequence: number }[]): Promise<void> {
  const read = new Promise<void>((resolve) => {
    onRequest = resolve;
  });
  for (const { command, sequence } of [...pdus, { command: 'enquire_link', sequence: 1 } as const]) {
    const octets = Buffer.alloc(16);
    const status = command === 'enquire_link' ? 0 : 8;
    for (const [at, number] of [16, commandIds[command], status, sequence].entries())
      octets.writeUInt32BE(number, 4 * at);
    far.write(octets);
  }
  await read;
}

const answerMs = 30_000;

/** Large, so that few of them fill the buffers of both machines. */
const submission = {
  command: 'submit_sm',
  message: {
    source: { ton: 5, npi: 0, address: 'Postillion' },
    destination: { ton: 1, npi: 1, address: '491510000001' },
    esmClass: 0,
    validityPeriod: '',
    registeredDelivery: 1,
    dataCoding: 0,
    octets: Buffer.alloc(0),
    receiptedMessageId: null,
    messageState: null,
    messagePayload: Buffer.alloc(3_000, 'a'),
  },
} as const;

/** Asks until the connection takes no more; resolves with what became of each question, by its sequence number. */
async function askUntilFull(isFull: () => boolean): Promise<Map<number, WireFault>> {
  const faults = new Map<number, WireFault>();
  // Ends at the limit of what may wait to be written.
  for (let sequence = 1; !isFull(); sequence += 1) {
    void wire.ask(submission, answerMs).then((answer) => {
      if (isFault(answer)) faults.set(sequence, answer);
    });
    if (sequence % 50 === 0) await nextTurn();
  }
  await nextTurn();
  return faults;
}

function unsentOf(faults: ReadonlyMap<number, WireFault>): number[] {
  return [...faults].flatMap(([sequence, { isUnsent }]) => (isUnsent === true ? [sequence] : []));
}

test('of a connection that is lost, nothing has arrived that is said not to have left', async () => {
  const faults = await askUntilFull(() => wire.brokenBy() !== null);
  const unsent = unsentOf(faults);
  const arrived = await readSequences();
  expect(unsent.length).toBeGreaterThan(100);
  expect(arrived.size).toBeGreaterThan(100);
  expect(unsent.filter((sequence) => arrived.has(sequence))).toEqual([]);
  // All others may have arrived, but for those in the one piece that had begun to leave.
  expect(faults.size - unsent.length - arrived.size).toBeLessThan(10);
});

test('a question that was not read in time is taken back, and never arrives', async () => {
  const first = await askUntilFull(() => wire.brokenBy() !== null);
  await connect();
  // So many that some stay here, and not so many that the connection is given up.
  const asked = first.size - Math.round(unsentOf(first).length / 2);
  let count = 0;
  const faults = await askUntilFull(() => (count += 1) > asked);
  expect(wire.brokenBy()).toBeNull();
  clock.advance(answerMs);
  await nextTurn();
  const unsent = unsentOf(faults);
  expect(unsent.length).toBeGreaterThan(10);
  wire.hangUp();
  const arrived = await readSequences();
  expect(unsent.filter((sequence) => arrived.has(sequence))).toEqual([]);
  expect(arrived.size + unsent.length).toBe(asked);
});

test('what is asked and broken off in one turn has not left, and all that is asked in one turn arrives in its order', async () => {
  const asked = Array.from({ length: 1_000 }, () => wire.ask({ command: 'enquire_link' }, answerMs));
  await nextTurn();
  const last = wire.ask({ command: 'enquire_link' }, answerMs);
  wire.break('given_up', 'by the test');
  expect(await last).toMatchObject({ isUnsent: true });
  expect((await Promise.all(asked)).filter((answer) => isFault(answer) && answer.isUnsent === true)).toEqual(
    [],
  );
  expect([...(await readSequences())]).toEqual(asked.map((_answer, index) => index + 1));
});

test('an answer to another command is not taken for the answer, whatever its number', async () => {
  const asked = wire.ask(submission, answerMs);
  let answered = 0;
  void asked.then(() => (answered += 1));
  await say({ command: 'enquire_link_resp', sequence: 1 }, { command: 'submit_sm_resp', sequence: 2 });
  expect(answered).toBe(0);
  await say({ command: 'submit_sm_resp', sequence: 1 });
  expect(await asked).toMatchObject({ command: 'submit_sm_resp', sequence: 1 });
  const nacked = wire.ask(submission, answerMs);
  await say({ command: 'generic_nack', sequence: 2 });
  expect(await nacked).toMatchObject({ command: 'generic_nack', status: 8 });
});

test('questions are over at their own times, in whatever order they were asked, and leave no timer', async () => {
  const over: number[] = [];
  const ask = (timeoutMs: number) =>
    wire.ask({ command: 'enquire_link' }, timeoutMs).then(() => over.push(timeoutMs));
  const asked = [20_000, 30_000, 10_000].map(ask);
  await nextTurn();
  expect(clock.countWaiting()).toBe(1);
  for (const count of [1, 2, 3]) {
    clock.advance(10_000);
    await nextTurn();
    expect(over).toHaveLength(count);
  }
  await Promise.all(asked);
  expect(over).toEqual([10_000, 20_000, 30_000]);
  expect(clock.countWaiting()).toBe(0);
  void wire.ask(submission, answerMs);
  wire.break('given_up', 'by the test');
  expect(clock.countWaiting()).toBe(0);
});

test('a late answer is told once, and one before its time never is', async () => {
  const told: string[] = [];
  const ask = (name: string) => wire.ask(submission, answerMs, () => told.push(name));
  const asked = [ask('in time'), ask('late')];
  await nextTurn();
  await say({ command: 'submit_sm_resp', sequence: 1 });
  clock.advance(answerMs);
  await Promise.all(asked);
  for (const sequence of [1, 2, 2, 3]) await say({ command: 'submit_sm_resp', sequence });
  expect(told).toEqual(['late']);
});

test('of a thousand questions the late answers are waited for, and no longer of those before', async () => {
  const told: number[] = [];
  const asked = Array.from({ length: 1_001 }, (_, index) =>
    wire.ask({ command: 'enquire_link' }, answerMs, () => told.push(index + 1)),
  );
  far.resume();
  // Whoever has not left in time has no answer to come.
  await say();
  while (far.bytesRead < 1_001 * 16) await once(far, 'data');
  clock.advance(answerMs);
  await Promise.all(asked);
  await say(...[1, 2, 1_001].map((sequence) => ({ command: 'enquire_link_resp', sequence }) as const));
  expect(told).toEqual([2, 1_001]);
});

test('what was taken back does not count against what may wait to be written', async () => {
  const askedAtOnce = 100;
  const ask = async () => {
    const asked = Array.from({ length: askedAtOnce }, () => wire.ask(submission, answerMs));
    await nextTurn();
    clock.advance(answerMs);
    return (await Promise.all(asked)).filter((answer) => isFault(answer) && answer.isUnsent === true).length;
  };
  // Ends when the buffers of both machines are full, and nothing leaves any more.
  while ((await ask()) < askedAtOnce);
  for (let round = 0; round < 10; round += 1) expect(await ask()).toBe(askedAtOnce);
  expect(wire.brokenBy()).toBeNull();
});

test('questions are numbered from 1 to 0x7fffffff, and from 1 again', () => {
  expect([0, 1, 0x7fff_fffe, 0x7fff_ffff].map(sequenceAfter)).toEqual([1, 2, 0x7fff_ffff, 1]);
});
