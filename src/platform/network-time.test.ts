import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { afterEach, expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { readNetworkTimeSkewMs } from './network-time.ts';

const servers: Socket[] = [];
afterEach(() => {
  for (const server of servers.splice(0)) server.close();
});

const nowMs = Date.parse('2026-11-21T12:00:00.000Z');

async function startTimeServer(answer: (request: Buffer) => Buffer): Promise<number> {
  const server = createSocket('udp4');
  servers.push(server);
  server.on('message', (request, from) => server.send(answer(request), from.port, from.address));
  server.bind(0, '127.0.0.1');
  await once(server, 'listening');
  return server.address().port;
}

function packetOf(timeMs: number, mode = 4, stratum = 2): Buffer {
  const packet = Buffer.alloc(48);
  packet[0] = (4 << 3) | mode;
  packet[1] = stratum;
  packet.writeUInt32BE(Math.floor(timeMs / 1_000) + 2_208_988_800, 40);
  packet.writeUInt32BE(Math.floor(((timeMs % 1_000) / 1_000) * 2 ** 32), 44);
  return packet;
}

const ask = (port: number) => readNetworkTimeSkewMs(createManualClock(nowMs), { address: '127.0.0.1', port });

test('the skew is how far the server is ahead', async () => {
  for (const skewMs of [0, 2_500, -90_000]) {
    const port = await startTimeServer(() => packetOf(nowMs + skewMs));
    expect(await ask(port)).toBeCloseTo(skewMs, 0);
  }
});

test('the question is a client of version 4', async () => {
  let asked: Buffer = Buffer.alloc(0);
  const port = await startTimeServer((request) => {
    asked = request;
    return packetOf(nowMs);
  });
  await ask(port);
  expect([asked.length, asked[0]! & 0b111, (asked[0]! >> 3) & 0b111]).toEqual([48, 3, 4]);
});

test.each([
  ['too short', Buffer.alloc(20)],
  ['from a client', packetOf(nowMs, 3)],
  ['a refusal', packetOf(nowMs, 4, 0)],
])('an answer that is %s is none', async (_what, answer) => {
  expect(await ask(await startTimeServer(() => answer))).toBeNull();
});
