import { randomInt } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { connect, isIPv6 } from 'node:net';
import type { Clock } from '../clock.ts';
import { type DnsFailed, failed } from './answer.ts';
import { type DnsServer, dnsServerText } from './server-address.ts';
import {
  type Query,
  type RecordType,
  type Reply,
  decodeReply,
  encodeQuery,
  isReplyTo,
  isTruncated,
  rcodeOf,
  rcodes,
} from './wire.ts';

/**
 * One question put to one server, once. Over UDP first; over TCP when the answer was too large for a datagram (TC);
 * without EDNS when the server does not know it. A datagram that answers another question, or another client, is
 * ignored, and the wait goes on: it may be forged by someone who hopes to be faster than the server.
 */

export type ServerLine = {
  clock: Clock;
  server: DnsServer;
  /** For each of at most three transmissions. */
  timeoutMs: number;
  /** Ends the wait at once; its reason is a text for the detail. */
  signal: AbortSignal;
};

export type TryOutcome = { kind: 'replied'; reply: Reply } | DnsFailed;

/** A message that answers the query, or none. */
type Transmission = { kind: 'received'; message: Buffer } | DnsFailed;

/** Ends the wait for a transmission. Only the first call counts. */
type End = (transmission: Transmission) => void;

export async function askServer(
  line: ServerLine,
  question: { name: string; type: RecordType },
): Promise<TryOutcome> {
  let query = encodeQuery(randomId(), question, true);
  let transmission = await askOverUdp(line, query);
  if (transmission.kind === 'received' && rcodeOf(transmission.message) === rcodes.formatError) {
    // RFC 6891 section 7: what a server says that does not know EDNS.
    query = encodeQuery(randomId(), question, false);
    transmission = await askOverUdp(line, query);
  }
  if (transmission.kind === 'received' && isTruncated(transmission.message)) {
    transmission = await askOverTcp(line, query);
  }
  return transmission.kind === 'received' ? judge(line.server, transmission.message) : transmission;
}

/** RFC 5452 section 9.2: an id that cannot be foreseen, beside a port that cannot. */
function randomId(): number {
  return randomInt(0x10000);
}

function judge(server: DnsServer, message: Buffer): TryOutcome {
  const rcode = rcodeOf(message);
  const name = dnsServerText(server);
  if (rcode === rcodes.refused) return failed('refused', `${name} answered REFUSED`);
  if (rcode === rcodes.serverFailure) return failed('server_failure', `${name} answered SERVFAIL`);
  if (rcode !== rcodes.noError && rcode !== rcodes.nameUnknown) {
    return failed('server_failure', `${name} answered with code ${rcode}`);
  }
  const reply = decodeReply(message);
  if (reply === null) return failed('malformed', `${name} answered with octets that are no DNS message`);
  return { kind: 'replied', reply };
}

function askOverUdp(line: ServerLine, query: Query): Promise<Transmission> {
  return transmit(line, (end) => {
    // A fresh socket has a fresh port, chosen by the system; a connected one hears only the server.
    const socket = createSocket(isIPv6(line.server.host) ? 'udp6' : 'udp4');
    const onError = (cause: Error) => {
      end(unreached(line.server, cause));
    };
    socket.on('error', onError);
    socket.on('message', (message) => {
      if (isReplyTo(query, message)) end({ kind: 'received', message });
    });
    let isOpen = true;
    socket.connect(line.server.port, line.server.host, (cause?: Error) => {
      if (cause !== undefined) onError(cause);
      else if (isOpen) socket.send(query.message);
    });
    return () => {
      isOpen = false;
      socket.close();
    };
  });
}

/** RFC 7766: one connection, one question, each message after its length in two octets. */
function askOverTcp(line: ServerLine, query: Query): Promise<Transmission> {
  return transmit(line, (end) => {
    const socket = connect({ host: line.server.host, port: line.server.port });
    const name = dnsServerText(line.server);
    const prefix = Buffer.alloc(2);
    prefix.writeUInt16BE(query.message.length);
    socket.write(Buffer.concat([prefix, query.message]));

    const chunks: Buffer[] = [];
    let receivedBytes = 0;
    let messageBytes: number | null = null;
    socket.on('data', (chunk: Buffer) => {
      chunks.push(chunk);
      receivedBytes += chunk.length;
      if (receivedBytes < 2) return;
      messageBytes ??= Buffer.concat(chunks).readUInt16BE(0);
      if (receivedBytes < 2 + messageBytes) return;
      const message = Buffer.concat(chunks).subarray(2, 2 + messageBytes);
      end(
        isReplyTo(query, message)
          ? { kind: 'received', message }
          : failed('malformed', `${name} answered another question over TCP`),
      );
    });
    socket.on('error', (cause) => {
      end(unreached(line.server, cause));
    });
    socket.on('close', () => {
      end(failed('server_failure', `${name} closed the connection before its answer was complete`));
    });
    return () => {
      socket.destroy();
    };
  });
}

/** Waits for what `start` begins until it ends, the time is over or the signal is given; then lets go of all. */
function transmit(
  { clock, server, timeoutMs, signal }: ServerLine,
  start: (end: End) => () => void,
): Promise<Transmission> {
  if (signal.aborted) return Promise.resolve(failed('timeout', String(signal.reason)));
  return new Promise((resolve) => {
    let isEnded = false;
    const end: End = (transmission) => {
      if (isEnded) return;
      isEnded = true;
      cancelTimer();
      signal.removeEventListener('abort', onAbort);
      release();
      resolve(transmission);
    };
    const onAbort = () => {
      end(failed('timeout', String(signal.reason)));
    };
    const release = start(end);
    const cancelTimer = clock.after(timeoutMs, () => {
      end(failed('timeout', `${dnsServerText(server)} did not answer within ${timeoutMs} ms`));
    });
    signal.addEventListener('abort', onAbort, { once: true });
  });
}

/** The system's own error code: the text of the error names ports and addresses of this machine. */
function unreached(server: DnsServer, cause: Error): DnsFailed {
  const code = 'code' in cause && typeof cause.code === 'string' ? cause.code : 'error';
  return failed('timeout', `${dnsServerText(server)} could not be reached (${code})`);
}
