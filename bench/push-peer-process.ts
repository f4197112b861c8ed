import { createSecureServer, type ServerHttp2Stream } from 'node:http2';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { certificateForTests, privateKeyForTests } from '../test/support/certificate-for-tests.ts';

/**
 * All push services in one, at a distance of 50 ms: takes whatever is posted, over HTTP/2 or HTTP/1.1, and gives access
 * tokens to whoever asks.
 */
const answerMs = 50;
/**
 * Far more than anybody here opens. Node refuses one stream too many with ENHANCE_YOUR_CALM, and counts those that have
 * just ended: with a tenth more than a sender uses, a fast one lost its connection now and then.
 */
const streamsMax = 4_000;

const server = createSecureServer({
  cert: certificateForTests,
  key: privateKeyForTests,
  allowHTTP1: true,
  // In MB, a session. A thousand streams on one take more than the default.
  maxSessionMemory: 256,
  settings: { maxConcurrentStreams: streamsMax },
});

const grant = JSON.stringify({ access_token: 'ya29.bench', expires_in: 3_600, token_type: 'Bearer' });
const name = JSON.stringify({ name: 'projects/bench/messages/0:1' });

function answerTo(path: string): { status: number; body: string } {
  if (path === '/token') return { status: 200, body: grant };
  if (path.startsWith('/v1/projects/')) return { status: 200, body: name };
  return path.startsWith('/3/device/') ? { status: 200, body: '' } : { status: 201, body: '' };
}

server.on('stream', (stream: ServerHttp2Stream, headers) => {
  const { status, body } = answerTo(headers[':path'] ?? '');
  stream.on('error', () => undefined);
  stream.resume();
  setTimeout(() => {
    if (stream.destroyed) return;
    stream.respond({ ':status': status, ...(status === 201 && { location: '/m/1' }) });
    stream.end(body);
  }, answerMs);
});
server.on('request', (request: IncomingMessage, response: ServerResponse) => {
  if (request.httpVersionMajor !== 1) return;
  const { status, body } = answerTo(request.url ?? '');
  request.resume();
  setTimeout(() => {
    response.writeHead(status, { location: '/m/1' }).end(body);
  }, answerMs);
});
server.listen(0, '127.0.0.1', () => {
  console.log(JSON.stringify({ port: (server.address() as AddressInfo).port }));
});
