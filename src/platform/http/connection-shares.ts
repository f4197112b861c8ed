import type { Server } from 'node:http';
import type { Socket } from 'node:net';
import { siteOf } from '../network.ts';
import { createShares, type Shares } from '../shares.ts';

/**
 * Each site may have as many connections as are left for the others; connections beyond that are closed. Returns the
 * shares that the connections hold.
 */
export function shareConnections(server: Server, connectionsMax: number): Shares {
  const connections = createShares(connectionsMax);
  server.on('connection', (socket: Socket) => {
    const place = connections.take(siteOf(socket.remoteAddress ?? ''), 1);
    if (place === null) socket.destroy();
    else socket.once('close', place.release);
  });
  return connections;
}
