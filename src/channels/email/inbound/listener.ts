import { createServer, type Server, type Socket } from 'node:net';
import { finished } from 'node:stream';
import ipaddr from 'ipaddr.js';
import {
  SMTPServer,
  type SMTPServerAddress,
  type SMTPServerDataStream,
  type SMTPServerOptions,
  type SMTPServerSession,
} from 'smtp-server';
import type { Clock } from '../../../platform/clock.ts';
import type { Log } from '../../../platform/log.ts';
import { parseAddress } from '../address.ts';
import { createPlaces, type Place } from './places.ts';

/**
 * Where bounces and complaints come back: an SMTP server for a few known addresses, and nothing else.
 *
 * It promises: 250 is said after `receive` has resolved, so that a message is either ours for good or the sender's to
 * send again; whatever fails on our side is 451, and the sender tries later. A message for several recipients is
 * received once for each; if one of them fails, the sender repeats it for all, so that `receive` must not mind
 * getting a message twice. One message in is one message (SMTP smuggling): only CRLF, dot, CRLF ends it. A client
 * that has closed its own side still gets every answer.
 *
 * It does not: relay, authenticate anyone, ask DNS about its clients, or speak TLS. There is no certificate that it
 * could offer, since its name is each installation's own, and senders of bounces use TLS where it is offered without
 * insisting on it. Anyone can connect, so everything here has a limit: connections are let in by `places.ts`,
 * before the SMTP server hears of them, and each has deadlines for its next step and for its whole life.
 */

export type InboundMail = {
  /** As accepted at RCPT: the local part as it was written, the domain in lower-case A-labels. */
  recipient: string;
  /** The first 1 MB at most, not dot-stuffed. */
  source: Uint8Array;
};

export type InboundListenerOptions = {
  host: string;
  /** 0 for any free one. */
  port: number;
  /** Our name in the greeting. */
  hostName: string;
  clock: Clock;
  log: Log;
  /** Whether there is such a recipient; false is 550 to the sender, and a rejection 451. */
  accepts: (recipient: string) => Promise<boolean>;
  /** Resolves once the mail is durable; a rejection is 451 to the sender. */
  receive: (mail: InboundMail) => Promise<void>;
  timeouts?: InboundTimeouts;
};

export type InboundTimeouts = {
  /** Without an octet from the client. Shorter cuts off slow senders; RFC 5321 §4.5.3.2.7 would have five minutes. */
  idleMs: number;
  /**
   * Without a step, which is what a message consists of: its first recipient that is accepted, a kilobyte of it, its
   * end. Commands are none, or else a client could hold a place with RSET for as long as it likes.
   */
  stepMs: number;
  /** Of a client that says nothing while another one has no place. */
  patienceMs: number;
  /** Of a connection altogether, or else a client could hold it with an octet a minute. */
  lifetimeMs: number;
  /** For what is under way when the listener is stopped. */
  stopMs: number;
};

export type InboundListener = {
  port: number;
  /** Takes nothing more, lets what is under way end, and has closed every connection after `stopMs` at the latest. */
  stop: () => Promise<void>;
};

const usualTimeouts: InboundTimeouts = {
  idleMs: 60_000,
  stepMs: 60_000,
  patienceMs: 5_000,
  lifetimeMs: 600_000,
  stopMs: 5_000,
};

/**
 * What is announced. Smaller, and a bounce that returns the whole of the largest mail, 35 MB once it is encoded, is refused:
 * whoever sent it never hears of it. Larger would only be more that is read and thrown away.
 */
const messageBytesMax = 41_943_040;

/** What is kept of each message; fifty connections hold fifty times as much. The rest is thrown away as it comes. */
const keptBytesMax = 1_048_576;

/**
 * After so much a client must connect anew, and its site is weighed against all others again. Smaller, and a server that
 * returns one large message after the other connects for each; larger, and strangers make us read for nothing for longer.
 */
const connectionBytesMax = 104_857_600;

/** Each costs a descriptor and at most what is kept of a message. */
const connectionsMax = 50;

/** Large providers open a dozen at once. */
const connectionsPerNetworkMax = 20;

/** Connections that get a 421 and the time to read it; any beyond these are just closed. */
const leavingMax = 50;
const leavingMs = 1_000;

/** More of a message than that is a step. */
const stepBytes = 1_024;

const recipientsMax = 100;
const messagesPerConnectionMax = 100;

/** No server that returns our mail has the wrong address twenty times; guessing is made slow. */
const unknownRecipientsMax = 20;

/** A path has 256 octets (RFC 5321 §4.5.3.1.3), its parameters a few hundred more. */
const commandBytesMax = 2_048;

/** Those that need something we have not, and those that only serve the curious. */
const disabledCommands = ['AUTH', 'STARTTLS', 'VRFY', 'HELP', 'XCLIENT', 'XFORWARD', 'WIZ', 'SHELL', 'KILL'];

/** What one connection has used of its limits, and whether it has named a recipient since its last message. */
type Usage = { messages: number; bytes: number; unknownRecipients: number; hasRecipient: boolean };

type ListenerState = {
  options: InboundListenerOptions;
  usages: WeakMap<SMTPServerSession, Usage>;
  /** By session: messages that are being read or received. */
  underWay: Map<string, Promise<void>>;
  /** By the address and port of the client. */
  places: Map<string, Place>;
  /** Called whenever one of them has been answered. */
  onAnswered: () => void;
};

/** Rejects if the address cannot be listened on. */
export async function startInboundListener(options: InboundListenerOptions): Promise<InboundListener> {
  const timeouts = options.timeouts ?? usualTimeouts;
  const state: ListenerState = {
    options,
    usages: new WeakMap(),
    underWay: new Map(),
    places: new Map(),
    onAnswered: () => undefined,
  };
  const server = new SMTPServer(serverOptions(state, timeouts));
  const door = openDoor(server, state, timeouts);
  await listen(door.server, options);
  // From here on it is single connections that fail, which is nothing to stop for.
  server.on('error', (error: NodeJS.ErrnoException) => {
    options.log.debug({ code: error.code }, 'inbound connection failed');
  });
  const address = door.server.address();
  return {
    port: typeof address === 'object' && address !== null ? address.port : options.port,
    stop: () => stopListener(server, state, door, timeouts.stopMs),
  };
}

function serverOptions(state: ListenerState, timeouts: InboundTimeouts): SMTPServerOptions {
  return {
    name: state.options.hostName,
    heloResponse: '%s',
    size: messageBytesMax,
    rejectOversized: true,
    authOptional: true,
    disabledCommands,
    disableReverseLookup: true,
    hideENHANCEDSTATUSCODES: false,
    logger: false,
    maxRecipients: recipientsMax,
    maxCommandLength: commandBytesMax,
    socketTimeout: timeouts.idleMs,
    closeTimeout: timeouts.stopMs,
    onMailFrom: (_address, session, callback) => {
      callback(countMessage(state, session));
    },
    onRcptTo: (address, session, callback) => {
      whileOurTurn(state, session, judgeRecipient(state, address, session))
        .then(callback)
        .catch(logFault(state, session));
    },
    onData: (stream, session, callback) => {
      const answered = takeMessage(state, stream, session)
        .then((refusal) => {
          callback(refusal);
        })
        .catch(logFault(state, session))
        .finally(() => {
          state.underWay.delete(session.id);
          state.onAnswered();
        });
      state.underWay.set(session.id, answered);
    },
  };
}

/** A fault of the server itself while it writes an answer; the client gets none, and tries again. */
function logFault({ options }: ListenerState, session: SMTPServerSession): (cause: unknown) => void {
  return (cause) => {
    options.log.error({ session: session.id, err: cause }, 'inbound mail not answered');
  };
}

function refuse(responseCode: number, text: string): Error {
  return Object.assign(new Error(text), { responseCode });
}

function usageOf(state: ListenerState, session: SMTPServerSession): Usage {
  const usage = state.usages.get(session) ?? {
    messages: 0,
    bytes: 0,
    unknownRecipients: 0,
    hasRecipient: false,
  };
  state.usages.set(session, usage);
  return usage;
}

function countMessage(state: ListenerState, session: SMTPServerSession): Error | null {
  const usage = usageOf(state, session);
  usage.messages += 1;
  return usage.messages > messagesPerConnectionMax || usage.bytes > connectionBytesMax
    ? refuse(421, 'Too many messages in one connection, open another')
    : null;
}

/** Null, or the refusal. Never rejects. */
async function judgeRecipient(
  state: ListenerState,
  address: SMTPServerAddress,
  session: SMTPServerSession,
): Promise<Error | null> {
  const { accepts, log } = state.options;
  const recipient = toRecipient(state, address);
  try {
    if (recipient !== null && (await accepts(recipient))) {
      noteRecipient(state, session);
      return null;
    }
  } catch (cause) {
    log.warn({ session: session.id, err: cause }, 'inbound recipient not judged');
    return refuse(451, 'Try again later');
  }
  const usage = usageOf(state, session);
  usage.unknownRecipients += 1;
  return usage.unknownRecipients > unknownRecipientsMax
    ? refuse(421, 'Too many unknown recipients')
    : refuse(550, 'No such recipient here');
}

/** One step a message: a client that only names recipients, up to a hundred of them, does not get on. */
function noteRecipient(state: ListenerState, session: SMTPServerSession): void {
  const usage = usageOf(state, session);
  if (!usage.hasRecipient) noteStep(state, session);
  usage.hasRecipient = true;
}

/** RFC 5321 §4.5.1: `postmaster` is the one address that needs no domain. */
function toRecipient(state: ListenerState, { address }: SMTPServerAddress): string | null {
  // Our own name may be one that is no domain to the world, such as that of a machine.
  if (/^postmaster$/i.test(address)) return `postmaster@${state.options.hostName.toLowerCase()}`;
  return parseAddress(address)?.envelope ?? null;
}

/** Null for 250, or the refusal. Never rejects. */
async function takeMessage(
  state: ListenerState,
  stream: SMTPServerDataStream,
  session: SMTPServerSession,
): Promise<Error | null> {
  const { log, receive } = state.options;
  // The session's own list is emptied for the next message.
  const recipients = session.envelope.rcptTo.map((address) => toRecipient(state, address));
  const source = await readBeginning(stream, () => {
    noteStep(state, session);
  });
  usageOf(state, session).bytes += stream.byteLength;
  const line = { session: session.id, bytes: stream.byteLength, recipients: recipients.length };
  if (source === null) {
    log.info({ ...line, decision: 'cut_off' }, 'inbound mail');
    return refuse(451, 'Not received whole');
  }
  if (stream.sizeExceeded) {
    log.info({ ...line, decision: 'too_large' }, 'inbound mail');
    return null;
  }
  try {
    for (const recipient of recipients) {
      if (recipient !== null) await whileOurTurn(state, session, receive({ recipient, source }));
    }
  } catch (cause) {
    log.warn({ ...line, decision: 'put_off', err: cause }, 'inbound mail');
    return refuse(451, 'Try again later');
  }
  usageOf(state, session).hasRecipient = false;
  noteStep(state, session);
  log.info({ ...line, decision: 'received' }, 'inbound mail');
  return null;
}

/**
 * The first 1 MB of what is read to its end; null if the client went away before that. It is copied into one buffer:
 * a client may send an octet at a time, and a list of a million pieces costs a hundred times what is in them.
 */
function readBeginning(stream: SMTPServerDataStream, onStep: () => void): Promise<Uint8Array | null> {
  return new Promise((resolve) => {
    let kept = Buffer.allocUnsafe(16_384);
    let length = 0;
    let sinceStep = 0;
    stream.on('data', (chunk: Buffer) => {
      sinceStep += chunk.length;
      if (sinceStep >= stepBytes) {
        sinceStep = 0;
        onStep();
      }
      const added = chunk.subarray(0, keptBytesMax - length);
      if (length + added.length > kept.length) {
        const larger = Buffer.allocUnsafe(Math.min(keptBytesMax, 2 * (length + added.length)));
        kept.copy(larger, 0, 0, length);
        kept = larger;
      }
      added.copy(kept, length);
      length += added.length;
    });
    stream.on('end', () => {
      resolve(kept.subarray(0, length));
    });
    stream.on('error', () => {
      resolve(null);
    });
    stream.on('close', () => {
      resolve(null);
    });
  });
}

function listen(server: Server, options: InboundListenerOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(options.port, options.host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

type Door = { server: Server; sockets: ReadonlySet<Socket> };

/** Where connections come in: those that get a place go on to the SMTP server, the others hear 421. */
function openDoor(smtp: SMTPServer, state: ListenerState, timeouts: InboundTimeouts): Door {
  const sockets = new Set<Socket>();
  const leaving = new Set<Socket>();
  const { hostName, clock } = state.options;
  const places = createPlaces({
    placesMax: connectionsMax,
    placesPerNetworkMax: connectionsPerNetworkMax,
    patienceMs: timeouts.patienceMs,
  });
  const socketsByPlace = new Map<Place, Socket>();

  const sendAway = (socket: Socket, reply: string) => {
    if (leaving.size >= leavingMax) {
      socket.destroy();
      return;
    }
    leaving.add(socket);
    socket.end(`${reply}\r\n`);
    const cancel = clock.after(leavingMs, () => socket.destroy());
    socket.once('close', () => {
      cancel();
      leaving.delete(socket);
    });
    socket.resume();
  };
  const tooMany = `421 4.3.2 ${hostName} Too many connections, try again later`;

  const server = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.once('close', () => {
      sockets.delete(socket);
    });
    const taken = places.take(socket, clock.monotonicMs());
    if (taken === null) {
      sendAway(socket, tooMany);
      return;
    }
    const { place, displaced } = taken;
    const loser = displaced === null ? undefined : socketsByPlace.get(displaced);
    if (loser !== undefined) sendAway(loser, tooMany);
    const key = keyOfClient(socket);
    const cancels = [
      clock.after(timeouts.lifetimeMs, () => socket.destroy()),
      watchSteps(clock, place, timeouts.stepMs, () => {
        sendAway(socket, `421 4.4.2 ${hostName} Timeout`);
      }),
    ];
    state.places.set(key, place);
    socketsByPlace.set(place, socket);
    socket.once('close', () => {
      for (const cancel of cancels) cancel();
      places.leave(place);
      socketsByPlace.delete(place);
      if (state.places.get(key) === place) state.places.delete(key);
    });
    answerToTheEnd(smtp, socket);
    smtp.server.emit('connection', socket);
  });
  return { server, sockets };
}

/**
 * Exim sends QUIT right after its last message and closes its side before it has read the answer. If there is none, it
 * sends the message again. So our side stays open until everything that the client said has been worked off.
 */
function answerToTheEnd(smtp: SMTPServer, socket: Socket): void {
  // The SMTP server writes only to what is `open`, which Node does not call a socket whose other side is closed.
  Object.defineProperty(socket, 'readyState', { get: () => (socket.writable ? 'open' : 'closed') });
  socket.once('end', () => {
    const connection = [...smtp.connections].find(({ _socket }) => _socket === socket);
    if (connection === undefined || connection._parser === false) socket.end();
    else finished(connection._parser, () => socket.end());
  });
}

/** Calls once the client has been waited for so long. Returns what ends the watch. */
function watchSteps(clock: Clock, place: Place, stepMs: number, onTooLong: () => void): () => void {
  let cancel: () => void = () => undefined;
  const watch = (afterMs: number) => {
    cancel = clock.after(afterMs, () => {
      const waitedMs = place.isOurTurn ? 0 : clock.monotonicMs() - place.waitedSinceMs;
      if (waitedMs >= stepMs) onTooLong();
      else watch(stepMs - waitedMs);
    });
  };
  watch(stepMs);
  return () => {
    cancel();
  };
}

function keyOfClient({
  remoteAddress = '',
  remotePort,
}: Pick<Socket, 'remoteAddress' | 'remotePort'>): string {
  const address = ipaddr.isValid(remoteAddress) ? ipaddr.process(remoteAddress).toString() : remoteAddress;
  return `${address} ${remotePort}`;
}

function noteStep(state: ListenerState, session: SMTPServerSession): void {
  const place = state.places.get(keyOfClient(session));
  if (place !== undefined) place.waitedSinceMs = state.options.clock.monotonicMs();
}

/** The time in which the client waits for us does not count; that it was answered is no step of its own. */
async function whileOurTurn<Result>(
  state: ListenerState,
  session: SMTPServerSession,
  work: Promise<Result>,
): Promise<Result> {
  const place = state.places.get(keyOfClient(session));
  if (place === undefined) return work;
  const { clock } = state.options;
  const begunAtMs = clock.monotonicMs();
  place.isOurTurn = true;
  try {
    return await work;
  } finally {
    place.isOurTurn = false;
    const endedAtMs = clock.monotonicMs();
    place.waitedSinceMs = Math.min(place.waitedSinceMs + endedAtMs - begunAtMs, endedAtMs);
  }
}

/** Connections without a message get a 421 at once, the others when their message has been answered. */
async function stopListener(
  server: SMTPServer,
  state: ListenerState,
  door: Door,
  stopMs: number,
): Promise<void> {
  const endIdleConnections = () => {
    for (const connection of server.connections) {
      if (!state.underWay.has(connection.session.id)) connection.send(421, 'Server shutting down');
    }
  };
  state.onAnswered = endIdleConnections;
  const closed = new Promise<void>((resolve) => {
    door.server.close(() => {
      resolve();
    });
  });
  // It listens to nothing itself: from here on it answers every command with 421.
  server.close();
  endIdleConnections();
  let cancel: () => void = () => undefined;
  const timedOut = new Promise<void>((resolve) => {
    cancel = state.options.clock.after(stopMs, resolve);
  });
  await Promise.race([Promise.all([closed, ...state.underWay.values()]), timedOut]);
  cancel();
  for (const socket of door.sockets) socket.destroy();
}
