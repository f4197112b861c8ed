import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { isIPv6 } from 'node:net';
import { startListening } from '../listening.ts';
import type { Readiness } from './readiness.ts';

export type MonitoringListenerOptions = {
  host: string;
  port: number;
  /** In the text format of Prometheus, and what that is called. */
  readMetrics: () => Promise<{ contentType: string; text: string }>;
  findReadiness: () => Promise<Readiness>;
};

export type MonitoringListener = { url: string; stop: () => Promise<void> };

/** A Prometheus, a supervisor and a person or two. */
const connectionsMax = 100;
const requestMaxMs = 10_000;

/**
 * Serves `/metrics`, `/healthz` and `/readyz` apart from the API: to whoever reaches the port, which has no key. It reads no
 * body, and what many ask for at once is read once. Throws a ListenError if the port cannot be had.
 */
export async function startMonitoringListener(
  options: MonitoringListenerOptions,
): Promise<MonitoringListener> {
  const { host, port } = options;
  const readMetrics = shareRun(options.readMetrics);
  const findReadiness = shareRun(options.findReadiness);
  const server = createServer(
    { requestTimeout: requestMaxMs, headersTimeout: requestMaxMs, keepAliveTimeout: requestMaxMs },
    (request, response) => {
      request.resume();
      answer(request.method ?? '', request.url ?? '', response).catch(() => {
        // Measuring has failed: whoever asked sees that there is nothing to be seen.
        if (!response.headersSent) sendJson(response, 500, { status: 'failed' });
        else response.destroy();
      });
    },
  );
  server.maxConnections = connectionsMax;
  // Or a client that asks for thousands of answers and reads none has them all kept for it.
  server.maxRequestsPerSocket = 1;
  server.timeout = requestMaxMs;

  const answer = async (method: string, url: string, response: ServerResponse): Promise<void> => {
    if (method !== 'GET' && method !== 'HEAD') {
      response.setHeader('allow', 'GET, HEAD');
      sendJson(response, 405, { status: 'only GET and HEAD are served' });
      return;
    }
    switch (url.split('?', 1)[0] ?? '') {
      case '/metrics': {
        const { contentType, text } = await readMetrics();
        send(response, 200, contentType, text);
        return;
      }
      case '/healthz':
        sendJson(response, 200, { status: 'ok' });
        return;
      case '/readyz': {
        const { unreadiness, degradations } = await findReadiness();
        if (unreadiness === null) sendJson(response, 200, { status: 'ready', degradations });
        else sendJson(response, 503, { status: 'not ready', reason: unreadiness, degradations });
        return;
      }
      default:
        sendJson(response, 404, { status: 'there are /metrics, /healthz and /readyz' });
    }
  };

  await startListening(
    { host, port, hostSetting: 'POSTILLION_METRICS_HOST', portSetting: 'POSTILLION_METRICS_PORT' },
    () => listen(server, host, port),
  );
  const { port: listening } = server.address() as AddressInfo; // It listens on TCP.
  return {
    url: `http://${isIPv6(host) ? `[${host}]` : host}:${listening}`,
    stop: () =>
      new Promise((resolve) => {
        server.close(() => {
          resolve();
        });
        server.closeAllConnections();
      }),
  };
}

function listen(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host, port }, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

function sendJson(response: ServerResponse, statusCode: number, body: unknown): void {
  send(response, statusCode, 'application/json; charset=utf-8', JSON.stringify(body));
}

function send(response: ServerResponse, statusCode: number, contentType: string, text: string): void {
  response.writeHead(statusCode, {
    'content-type': contentType,
    'content-length': Buffer.byteLength(text),
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
  });
  // Node.js leaves the body out where the head alone was asked for.
  response.end(text);
}

/** Those who ask while it runs get what it resolves to. */
function shareRun<Result>(run: () => Promise<Result>): () => Promise<Result> {
  let running: Promise<Result> | null = null;
  return () => {
    running ??= run().finally(() => (running = null));
    return running;
  };
}
