import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';

/** Receivers of webhooks, which read each and answer at once. Prints its port, and how many there were for each line it reads. */
let count = 0;
const server = createServer((request, response) => {
  request.resume().once('end', () => {
    count += 1;
    response.writeHead(204).end();
  });
});
server.listen(0, '127.0.0.1');
await once(server, 'listening');
print({ port: (server.address() as AddressInfo).port }); // It listens on a port.

const lines = createInterface({ input: process.stdin });
lines.on('line', () => {
  print({ count });
});
lines.on('close', () => process.exit(0));
process.on('SIGTERM', () => process.exit(0));

function print(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}
