import { once } from 'node:events';
import { openSync, writeSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { Webhook } from 'standardwebhooks';
import { fateOf, type FromReceivers, type Line } from './webhook-receivers.ts';

/**
 * The receivers, in a process that nothing kills: `webhook-receivers-process.ts LOGFILE SEED SECRET`. A webhook is in the log
 * before it is answered. Its fate is drawn from the endpoint and the event (webhook-receivers.ts); it has it once.
 */
const [logFile = '', seed = '', secret = ''] = process.argv.slice(2);
const log = openSync(logFile, 'a');
const webhook = new Webhook(secret);
/** Those that had their fate: what comes again is taken. */
const met = new Set<string>();

const server = createServer((request, response) => {
  // A sender that is killed breaks off.
  answer(request, response).catch(() => request.destroy());
});
server.listen(0, '127.0.0.1');
await once(server, 'listening');
process.on('disconnect', () => process.exit(0));
process.send?.({ port: (server.address() as AddressInfo).port } satisfies FromReceivers); // It listens on a port.

/** The time in which other requests are under way when a process is killed. */
const answerMs = 3;
const slowMs = 1_000;

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const body = Buffer.concat(chunks).toString();
  const path = request.url ?? '';
  const id = String(request.headers['webhook-id']);
  const note = (kind: Line['kind']) => {
    const isVerified = verify(body, request);
    writeSync(
      log,
      `${JSON.stringify({ atMs: Date.now(), path, id, kind, isVerified, body } satisfies Line)}\n`,
    );
  };
  const name = `${path} ${id}`;
  const fate = met.has(name) ? 'accepted' : fateOf(seed, path, id);
  met.add(name);
  await delay(fate === 'slow' ? slowMs : answerMs);
  switch (fate) {
    case 'unavailable':
      note('refused');
      response.writeHead(503).end();
      return;
    case 'overloaded':
      note('refused');
      response.writeHead(429, { 'retry-after': '1' }).end();
      return;
    case 'cut':
      note('cut');
      request.destroy();
      return;
    case 'silence':
      note('cut');
      return;
    case 'cut_after':
      note('taken');
      response.writeHead(200, { 'content-length': '10' }).write('half', () => request.destroy());
      return;
    case 'slow':
    case 'accepted':
      note('taken');
      response.writeHead(204).end();
      return;
  }
}

function verify(body: string, { headers }: IncomingMessage): boolean {
  try {
    webhook.verify(body, headers as Record<string, string>); // None of these headers comes twice.
    return true;
  } catch {
    return false;
  }
}
