/** A load balancer, and clients that go on sending while nodes are replaced. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { anEmail, eventually } from './email-journey.ts';

/** Of a load balancer: how long it waits until it asks each node again whether it is ready. */
const probeMs = 50;

export type Balancer = {
  url: string;
  /** How many nodes have last said that they are ready. */
  ready: () => number;
  /** Connections that a node refused although it had last said that it was ready. */
  refused: () => number;
  stop: () => Promise<void>;
};

/**
 * Gives each connection to the next node that said it was ready when it was asked last, as a balancer for TCP does, and
 * tries no other when that node refuses it.
 */
export async function startBalancer(nodes: readonly string[]): Promise<Balancer> {
  const ready = new Set<string>();
  let next = 0;
  let refused = 0;
  const look = () =>
    Promise.all(
      nodes.map(async (node) => {
        const response = await fetch(`${node}/readyz`, { headers: { connection: 'close' } }).catch(
          () => null,
        );
        if (response?.status === 200) ready.add(node);
        else ready.delete(node);
        await response?.text();
      }),
    );
  const sockets = new Set<Socket>();
  const balancer = createServer((client) => {
    const [node] = [...ready].slice(next++ % Math.max(1, ready.size));
    sockets.add(client);
    client.on('close', () => sockets.delete(client));
    client.on('error', () => undefined);
    if (node === undefined) {
      refused += 1;
      client.destroy();
      return;
    }
    const upstream = connect(Number(new URL(node).port), '127.0.0.1');
    upstream.on('error', () => {
      refused += 1;
      client.destroy();
    });
    client.pipe(upstream).pipe(client);
    client.on('close', () => upstream.destroy());
  });
  await look();
  const ending = new AbortController();
  const probing = (async () => {
    while (!ending.signal.aborted) {
      await look();
      await delay(probeMs);
    }
  })();
  balancer.listen(0, '127.0.0.1');
  await once(balancer, 'listening');
  const { port } = balancer.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    ready: () => ready.size,
    refused: () => refused,
    stop: async () => {
      ending.abort();
      await probing;
      balancer.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}

export type Answer = { key: string; to: string; status: number | string; id: string };

export type Load = {
  /** Resolves when so many more requests have been answered. */
  untilMore: (count: number) => Promise<unknown>;
  stop: () => Promise<Answer[]>;
};

/**
 * A load that leaves the machine to those who start beside it. Shorter, and most of what such a test takes is the
 * processor time of thousands of emails; longer, and hardly any is under way when a node goes.
 */
export const thinkMs = 100;

/** Of an organization, and what it sends from. */
export type LoadSender = { key: string; domain: string };

/** Four clients of each sender, each of which sends its next email soon after the last one was answered. They repeat nothing; all senders write to the same addresses. */
export function startLoad(url: string, senders: readonly LoadSender[]): Load {
  const answers: Answer[] = [];
  let isStopping = false;
  const send = async ({ key, domain }: LoadSender, to: string): Promise<Answer> => {
    const response = await fetch(`${url}/v1/email/send`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${key}`,
        'content-type': 'application/json',
        'idempotency-key': to,
        connection: 'close',
      },
      body: JSON.stringify(anEmail({ from: `hello@${domain}`, to: [to] })),
    }).catch((cause: unknown) => cause as Error);
    if (response instanceof Error) return { key, to, status: String(response.cause), id: to };
    return { key, to, status: response.status, id: ((await response.json()) as { id: string }).id };
  };
  const clients = senders.flatMap((sender) =>
    Array.from({ length: 4 }, async (_, client) => {
      for (let number = 1; !isStopping; number += 1) {
        answers.push(await send(sender, `reader${client}-${number}@example.com`));
        await delay(thinkMs);
      }
    }),
  );
  return {
    untilMore: (count) => {
      const wanted = answers.length + count;
      return eventually(
        () => answers.length,
        (length) => length >= wanted,
      );
    },
    stop: async () => {
      isStopping = true;
      await Promise.all(clients);
      return answers;
    },
  };
}
