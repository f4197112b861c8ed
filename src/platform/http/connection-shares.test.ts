import { createServer } from 'node:http';
import { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { shareConnections } from './connection-shares.ts';

/** A loopback has a single /64, so that sockets only say whose they are. */
function arrive(remoteAddress: string): Socket {
  const socket = new Socket();
  Object.defineProperty(socket, 'remoteAddress', { value: remoteAddress });
  return socket;
}

function countTaken(addresses: readonly string[]): number {
  const server = createServer();
  shareConnections(server, 8);
  const sockets = addresses.map((address) => {
    const socket = arrive(address);
    server.emit('connection', socket);
    return socket;
  });
  const taken = sockets.filter(({ destroyed }) => !destroyed).length;
  for (const socket of sockets) socket.destroy();
  return taken;
}

test('the addresses of one site share one share, however they are written', () => {
  const hosts = [1, 2, 3, 4, 5, 6, 7, 8];
  expect(countTaken(hosts.map((host) => `2001:db8:1:${host}::1`))).toBe(4);
  expect(countTaken(hosts.map((host) => `2001:db8:${host}::1`))).toBe(8);
  expect(countTaken(hosts.map((host) => `::ffff:192.0.2.${host}`))).toBe(4);
  expect(countTaken(hosts.map((host) => `::ffff:192.0.${host}.1`))).toBe(8);
  expect(countTaken(hosts.map((host) => (host % 2 === 0 ? '::ffff:192.0.2.1' : '192.0.2.1')))).toBe(4);
});

test('a connection that ends gives its place back', async () => {
  const server = createServer();
  shareConnections(server, 2);
  const first = arrive('2001:db8::1');
  server.emit('connection', first);
  const refused = arrive('2001:db8::2');
  server.emit('connection', refused);
  expect([first.destroyed, refused.destroyed]).toEqual([false, true]);
  const closed = new Promise((resolve) => first.once('close', resolve));
  first.destroy();
  await closed;
  const next = arrive('2001:db8::2');
  server.emit('connection', next);
  expect(next.destroyed).toBe(false);
  next.destroy();
});
