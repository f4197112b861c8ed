/** What stands around the SDK for browsers in tests: the site of a customer, and in the place of the API what notes reports. */
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';

export type Served = {
  origin: string;
  untilAsked: (path: string) => Promise<string>;
  stop: () => Promise<void>;
};

type Answer = { status?: number; headers?: Record<string, string>; body?: string };

export type Asked = { url: string; method: string; body: string; authorization: string | undefined };

/** At a port, and so an origin, of its own. */
export async function serve(answer: (asked: Asked) => Answer | Promise<Answer>): Promise<Served> {
  const asked = createRecord<string>();
  const server = http.createServer((request, response) => {
    const { url = '', method = '', headers } = request;
    asked.add(url);
    void (async () => {
      const body = Buffer.concat((await request.toArray()) as Buffer[]).toString();
      const answered = await answer({ url, method, body, authorization: headers.authorization });
      response.writeHead(answered.status ?? 200, answered.headers).end(answered.body);
    })();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo; // It listens at a port.
  return {
    origin: `http://127.0.0.1:${port}`,
    untilAsked: (path) => asked.until((one) => one === path),
    stop: async () => {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** What has come so far, in its order, and who waits for something. */
export function createRecord<Item>() {
  const items: Item[] = [];
  const waiting = new Set<(item: Item) => void>();
  return {
    items,
    add: (item: Item) => {
      items.push(item);
      for (const look of waiting) look(item);
    },
    until: (isWanted: (item: Item) => boolean) =>
      new Promise<Item>((resolve) => {
        const look = (item: Item) => {
          if (!isWanted(item)) return;
          waiting.delete(look);
          resolve(item);
        };
        waiting.add(look);
        items.forEach(look);
      }),
  };
}

export type Report = { event_id: string; message_id: string; type: string; action_id?: string };

export type Engagements = Served & {
  /** What each request had. */
  batches: readonly Report[][];
  /** The `Authorization` of all of them. */
  secrets: ReadonlySet<string>;
  /** The first request that had this report. */
  untilReported: (messageId: string, type: string) => Promise<Report[]>;
  answerWith: (status: number) => void;
};

/** Stands in for the API, and notes the reports. */
export async function serveEngagements(): Promise<Engagements> {
  const batches = createRecord<Report[]>();
  let status = 202;
  const headers = {
    'access-control-allow-origin': '*',
    'access-control-allow-headers': 'authorization, content-type',
  };
  const secrets = new Set<string>();
  const served = await serve(({ body, method, authorization = '' }) => {
    if (method !== 'POST') return { status: 204, headers };
    secrets.add(authorization);
    batches.add((JSON.parse(body) as { events: Report[] }).events);
    return { status, headers };
  });
  const answerWith = (answered: number) => {
    status = answered;
  };
  const untilReported = (id: string, type: string) =>
    batches.until((batch) => batch.some((report) => report.message_id === id && report.type === type));
  return { ...served, batches: batches.items, secrets, untilReported, answerWith };
}
