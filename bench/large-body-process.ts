import { readFileSync } from 'node:fs';
import http from 'node:http';

/**
 * Posts one body again and again, one at a time, until its input ends; says how often it was accepted. In a process of
 * its own, since writing 28 MB would hold up what is measured beside it.
 */
type Order = { url: string; key: string; bodyFile: string };

const order = JSON.parse(process.argv[2] ?? '{}') as Order;
const body = readFileSync(order.bodyFile);
const agent = new http.Agent({ keepAlive: true });
const statuses: Record<number, number> = {};
let isOver = false;

process.stdin.resume().once('data', () => {
  isOver = true;
});
process.stdout.write('{"ready":true}\n');
// Ends with the first answer after a line has come in.
while (!isOver) {
  const status = await post();
  statuses[status] = (statuses[status] ?? 0) + 1;
}
agent.destroy();
process.stdin.pause();
process.stdout.write(`${JSON.stringify({ statuses })}\n`);

function post(): Promise<number> {
  return new Promise((resolve, reject) => {
    const headers = {
      authorization: `Bearer ${order.key}`,
      'content-type': 'application/json',
      'content-length': body.length,
    };
    const request = http.request(order.url, { method: 'POST', agent, headers }, (response) => {
      response.resume().once('end', () => {
        resolve(response.statusCode ?? 0);
      });
    });
    request.once('error', reject);
    request.end(body);
  });
}
