import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../../../../test/support/manual-clock.ts';
import { parseSmppUrl } from './url.ts';
import { isFault, openWire, type SmppWire, type WireFault } from './wire.ts';

/** A message centre that accepts connections, and reads nothing until it is told to. */
let server: Server;
let far: Socket;
let sockets: Socket[];
let clock: ManualClock;
let wire: SmppWire;

beforeEach(async () => {
  server = createServer({ pauseOnConnect: true });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  clock = createManualClock();
  sockets = [];
  await connect();
});

async function connect(): Promise<void> {
  const { port } = server.address() as { port: number };
  const connected = once(server, 'connection');
  const opened = await openWire(clock, parseSmppUrl(`smpp://us:secret@127.0.0.1:${port}`), {
    authorities: null,
    timeoutMs: 1_000,
    onRequest: () => undefined,
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
