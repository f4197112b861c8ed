import { once } from 'node:events';
import net, { type AddressInfo, type Socket } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { startTcpForwarder } from '../../test/support/tcp-forwarder.ts';
import { isOwnSocket, showEnd } from './socket-owner.ts';

const isLinux = process.platform === 'linux';
const nobody = 65_534;
const isRoot = process.getuid?.() === 0;
if (!isLinux) console.log('Skipped, because only Linux says whose a socket is: the owners of sockets');
else if (!isRoot) console.log('Skipped, because it takes root to run as another user: the owners of sockets');

const endings: (() => unknown)[] = [];
afterEach(async () => {
  for (const ending of endings.splice(0).reverse()) await ending();
});

async function listen(host: string): Promise<{ port: number; accept: () => Promise<Socket> }> {
  const accepted: Socket[] = [];
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    accepted.push(socket);
    endings.push(() => socket.destroy());
  });
  server.listen(0, host);
  await once(server, 'listening');
  endings.push(() => server.close());
  const accept = async () => {
    if (accepted.length === 0) await once(server, 'connection');
    return accepted.shift()!;
  };
  return { port: (server.address() as AddressInfo).port, accept };
}

async function connectTo(port: number, host: string): Promise<Socket> {
  const client = net.connect(port, host);
  endings.push(() => client.destroy());
  await once(client, 'connect');
  return client;
}

const isOwn = ({ remoteAddress, remotePort, localAddress, localPort }: Socket) =>
  isOwnSocket({ address: remoteAddress!, port: remotePort! }, { address: localAddress!, port: localPort! });

test.skipIf(!isLinux).each([
  ['127.0.0.1', '127.0.0.1'],
  ['127.0.0.1', '::ffff:127.0.0.1'],
  ['::', '127.0.0.1'],
  ['::', '::1'],
])('a program that asks at %s by %s is ours', async (host, address) => {
  const { port, accept } = await listen(host);
  await connectTo(port, address);
  expect(await isOwn(await accept())).toBe(true);
});

test.skipIf(!isLinux)('what is not among the sockets of this machine is not ours', async () => {
  const { port, accept } = await listen('127.0.0.1');
  await connectTo(port, '127.0.0.1');
  const { localPort = 0 } = await accept();
  const ours = { address: '127.0.0.1', port: localPort };
  expect(await isOwnSocket({ address: '127.0.0.1', port: 1 }, ours)).toBe(false);
  expect(await isOwnSocket({ address: 'nonsense', port: 1 }, ours)).toBe(false);
});

test.skipIf(!isLinux)(
  'a socket that was closed is not ours, though the kernel says it is of root',
  async () => {
    const { port, accept } = await listen('127.0.0.1');
    const client = await connectTo(port, '127.0.0.1');
    const server = await accept();
    expect(await isOwn(server)).toBe(true);
    server.resume();
    client.destroy();
    await once(server, 'end');
    expect(await isOwn(server)).toBe(false);
  },
);

test.skipIf(!isLinux || !isRoot)('a socket of another user is not ours', async () => {
  const { port, accept } = await listen('127.0.0.1');
  const forwarder = await startTcpForwarder({ port, uid: nobody });
  endings.push(forwarder.stop);
  await connectTo(forwarder.port, '127.0.0.1');
  expect(await isOwn(await accept())).toBe(false);
});

test('of IPv4 either table can have an address, of IPv6 the one', () => {
  const end = { address: '::ffff:127.0.0.1', port: 80 };
  expect(showEnd('tcp', end)).toMatch(/^(0100007F|7F000001):0050$/);
  expect(showEnd('tcp', { ...end, address: '127.0.0.1' })).toBe(showEnd('tcp', end));
  expect(showEnd('tcp6', end)).toMatch(/^0{16}(FFFF00000100007F|0000FFFF7F000001):0050$/);
  expect(showEnd('tcp', { address: '::1', port: 80 })).toBeNull();
});
