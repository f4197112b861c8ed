import { createServer, type AddressInfo, type Socket } from 'node:net';
import { credentials } from './mail-server.ts';

/**
 * The part of Dovecot that Postfix asks about passwords (protocol 1.1): it knows one user, and only PLAIN.
 * https://doc.dovecot.org/2.3/developer_manual/design/auth_protocol/
 */
export async function startDovecotAuth(): Promise<{ port: number; stop: () => Promise<void> }> {
  const right = Buffer.from(`\0${credentials.user}\0${credentials.password}`).toString('base64');
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.write('VERSION\t1\t1\nMECH\tPLAIN\tplaintext\nSPID\t1\nCUID\t1\nCOOKIE\t1\nDONE\n');
    let unread = '';
    socket.on('data', (chunk) => {
      const lines = `${unread}${String(chunk)}`.split('\n');
      unread = lines.pop()!;
      for (const line of lines) {
        const [command, id, , ...parameters] = line.split('\t');
        if (command !== 'AUTH') continue;
        const isRight = parameters.includes(`resp=${right}`);
        socket.write(`${isRight ? 'OK' : 'FAIL'}\t${id}\tuser=${credentials.user}\n`);
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    port: (server.address() as AddressInfo).port,
    stop: () =>
      new Promise((resolve) => {
        server.close(() => {
          resolve();
        });
        for (const socket of sockets) socket.destroy();
      }),
  };
}
