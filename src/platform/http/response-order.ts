import type { RequestListener } from 'node:http';
import type { Socket } from 'node:net';
import { siteOf } from '../network.ts';
import { createShares, type Share, type Shares } from '../shares.ts';

/**
 * Pipelined requests of a connection (RFC 9112 §9.3.2) are worked on one after the other: the next begins when the
 * response before it has left for the network. Node.js begins them all at once, and keeps the responses until the client
 * reads: 300 requests for a page, in 12 kB, ended a process. So a connection has one response in memory, and as requests,
 * which take some kilobytes each, no more than wait here.
 */

export type PipelineLimits = {
  /**
   * Requests of one connection that wait; with one more, it is closed. Clients that pipeline send ten or so at once: less
   * would refuse them, and more is memory.
   */
  pipelinedMax: number;
  /** Those of all connections together, of which each site has a share. */
  pipelinedTotalMax: number;
};

export type OrderedRequests = {
  listener: RequestListener;
  /** How many requests wait on all connections together. */
  held: Shares['held'];
};

type Waiting = { begin: () => void; place: Share };

export function handleInOrder(
  handle: RequestListener,
  { pipelinedMax, pipelinedTotalMax }: PipelineLimits,
): OrderedRequests {
  /** Of each connection that has a request worked on, what waits for it. */
  const queues = new WeakMap<Socket, Waiting[]>();
  const watched = new WeakSet<Socket>();
  const places = createShares(pipelinedTotalMax);

  const begin = (socket: Socket, queue: Waiting[], ...[request, response]: Parameters<RequestListener>) => {
    response.once('close', () => {
      // After the last response of a connection nothing can be answered any more, and so nothing may be done.
      if (!socket.writable) return;
      const next = queue.shift();
      if (next === undefined) queues.delete(socket);
      else {
        next.place.release();
        next.begin();
      }
    });
    handle(request, response);
  };

  const listener: RequestListener = (request, response) => {
    const { socket } = request;
    // The rest of what the connection had sent is parsed even after it was closed.
    if (socket.destroyed) return;
    const queue = queues.get(socket);
    if (queue === undefined) {
      const empty: Waiting[] = [];
      queues.set(socket, empty);
      begin(socket, empty, request, response);
      return;
    }
    const place = queue.length < pipelinedMax ? places.take(siteOf(socket.remoteAddress ?? ''), 1) : null;
    if (place === null) {
      socket.destroy();
      return;
    }
    if (!watched.has(socket)) {
      watched.add(socket);
      socket.once('close', () => {
        for (const waiting of queues.get(socket)?.splice(0) ?? []) waiting.place.release();
      });
    }
    queue.push({
      place,
      begin: () => {
        begin(socket, queue, request, response);
      },
    });
  };
  return { listener, held: places.held };
}
