import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

/**
 * Meta's Graph API at a distance of 50 ms: takes every message, and says of every number that it is a fast one. It reads
 * nothing and reports nothing, so that it is never what is slowest.
 */
const answerMs = 50;

const number = JSON.stringify({ id: '1', throughput: { level: 'HIGH' }, quality_rating: 'GREEN' });

const server = createServer((request, response) => {
  request.resume();
  const body = request.method === 'GET' ? number : acceptance();
  setTimeout(() => {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length });
    response.end(body);
  }, answerMs);
});

let messages = 0;

/** Ids are as long as Meta's. */
function acceptance(): string {
  messages += 1;
  const id = `wamid.HBgLMTY0NjcwNDM1OTUVAgARGBI${String(messages).padStart(24, '0')}`;
  return JSON.stringify({
    messaging_product: 'whatsapp',
    contacts: [{ input: '491510000000', wa_id: '491510000000' }],
    messages: [{ id, message_status: 'accepted' }],
  });
}

server.listen(0, '127.0.0.1', () => {
  console.log(JSON.stringify({ port: (server.address() as AddressInfo).port }));
});
