import { createSocket } from 'node:dgram';
import { isIPv6 } from 'node:net';
import type { Clock } from './clock.ts';

const packetBytes = 48;
/** RFC 5905 §7.3: leap indicator unknown, version 4, mode 3 (client). */
const clientFlags = 0b11_100_011;
const serverMode = 4;
/** The octets of the server's transmit timestamp. */
const transmitOffset = 40;
/** From 1900, where NTP begins to count, to 1970. */
const epochOffsetSeconds = 2_208_988_800;
const timeoutMs = 3_000;

/**
 * Asks a time server once (SNTP, RFC 5905 §14). Returns by how many milliseconds its clock is ahead of this machine's,
 * to about half the round trip, or null if it does not answer as it should.
 */
export function readNetworkTimeSkewMs(
  clock: Clock,
  server: { address: string; port: number },
): Promise<number | null> {
  const socket = createSocket(isIPv6(server.address) ? 'udp6' : 'udp4');
  return new Promise((resolve) => {
    const end = (skewMs: number | null) => {
      cancel();
      socket.close();
      resolve(skewMs);
    };
    const cancel = clock.after(timeoutMs, () => {
      end(null);
    });
    let askedAtMs = 0;
    socket.once('error', () => {
      end(null);
    });
    socket.once('message', (packet) => {
      const serverMs = readTransmitMs(packet);
      end(serverMs === null ? null : serverMs - (askedAtMs + clock.nowMs()) / 2);
    });
    socket.connect(server.port, server.address, () => {
      const packet = Buffer.alloc(packetBytes);
      packet[0] = clientFlags;
      askedAtMs = clock.nowMs();
      socket.send(packet);
    });
  });
}

function readTransmitMs(packet: Buffer): number | null {
  if (packet.length < packetBytes || ((packet[0] ?? 0) & 0b111) !== serverMode) return null;
  // Stratum 0 is a refusal in friendly words (RFC 5905 §7.4).
  if (packet[1] === 0) return null;
  const seconds = packet.readUInt32BE(transmitOffset);
  const fraction = packet.readUInt32BE(transmitOffset + 4) / 2 ** 32;
  return (seconds + fraction - epochOffsetSeconds) * 1_000;
}
