import { readFileSync } from 'node:fs';
import net from 'node:net';

/**
 * Sends one and the same request, numbered if asked for, over kept connections, one at a time on each, for some seconds
 * or so many times, and prints what came of it. Plain sockets: a generator that costs as much as the server would
 * measure itself.
 */
type Order = {
  port: number;
  /** In a file where it would be too long for an argument. */
  request: string | { file: string };
  connections: number;
  seconds?: number;
  requests?: number;
  pauseMs?: number;
  isNumbered?: boolean;
};

const numberMin = 10_000;
const order = JSON.parse(process.argv[2] ?? '{}') as Order;
const text = typeof order.request === 'string' ? order.request : readFileSync(order.request.file, 'utf8');
const request = Buffer.from(text);
let number = numberMin;
/** Each `#####` becomes a number of five digits. */
const nextRequest = () => (order.isNumbered === true ? text.replaceAll('#####', nextNumber) : request);
const latenciesMs: number[] = [];
const statuses: Record<string, number> = {};
let isOver = false;

const startedAtMs = performance.now();
if (order.seconds !== undefined) {
  setTimeout(() => {
    isOver = true;
  }, order.seconds * 1_000);
}
await Promise.all(Array.from({ length: order.connections }, useConnection));
const elapsedSeconds = (performance.now() - startedAtMs) / 1_000;

latenciesMs.sort((first, second) => first - second);
const quantile = (part: number) => latenciesMs[Math.floor((latenciesMs.length - 1) * part)] ?? 0;
process.stdout.write(
  `${JSON.stringify({ perSecond: latenciesMs.length / elapsedSeconds, count: latenciesMs.length, statuses, p50Ms: quantile(0.5), p99Ms: quantile(0.99) })}\n`,
);

function nextNumber(): string {
  // A prime: all come in turn, and neighbours are far apart.
  number = numberMin + ((number - numberMin + 7_919) % 90_000);
  return String(number);
}

function useConnection(): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = net.connect({ port: order.port, host: '127.0.0.1', noDelay: true });
    let sentAtMs = 0;
    let received = '';
    const send = () => {
      sentAtMs = performance.now();
      socket.write(nextRequest());
    };
    socket.on('connect', send);
    socket.on('error', reject);
    socket.on('data', (chunk) => {
      received += chunk.toString('latin1');
      const headersEnd = received.indexOf('\r\n\r\n');
      if (headersEnd === -1) return;
      const length = Number(/content-length: (\d+)/i.exec(received)?.[1] ?? 0);
      if (received.length < headersEnd + 4 + length) return;
      latenciesMs.push(performance.now() - sentAtMs);
      const status = received.slice(9, 12);
      statuses[status] = (statuses[status] ?? 0) + 1;
      received = '';
      if (isOver || latenciesMs.length >= (order.requests ?? Infinity)) {
        socket.end();
        resolve();
      } else if (order.pauseMs === undefined) {
        send();
      } else {
        setTimeout(send, order.pauseMs);
      }
    });
  });
}
