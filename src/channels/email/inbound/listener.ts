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
import { createDoor, type Door, type DoorTimeouts, type MessagesUnderWay } from '../smtp-listening/door.ts';

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
 * insisting on it. Anyone can connect, so everything here has a limit: connections are let in by
 * `smtp-listening/door.ts` before the SMTP server hears of them.
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

/** A step is the first recipient of a message that is accepted, a kilobyte of it, or its end. */
export type InboundTimeouts = DoorTimeouts & {
  /** Without an octet from the client. Shorter cuts off slow senders; RFC 5321 §4.5.3.2.7 would have five minutes. */
  idleMs: number;
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
  underWay: MessagesUnderWay & { messages: Map<string, Promise<void>> };
  door: Door;
};

/** Rejects if the address cannot be listened on. */
export async function startInboundListener(options: InboundListenerOptions): Promise<InboundListener> {
  const timeouts = options.timeouts ?? usualTimeouts;
  const state: ListenerState = {
    options,
    usages: new WeakMap(),
    underWay: { messages: new Map(), onAnswered: () => undefined },
    door: createDoor({
      ...options,
      limits: { connectionsMax, connectionsPerNetworkMax },
      timeouts,
    }),
  };
  const server = new SMTPServer(serverOptions(state, timeouts));
  const { port } = await state.door.open(server, options);
  // From here on it is single connections that fail, which is nothing to stop for.
  server.on('error', (error: NodeJS.ErrnoException) => {
    options.log.debug({ code: error.code }, 'inbound connection failed');
  });
  return { port, stop: () => state.door.close(state.underWay) };
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
      state.door
        .whileOurTurn(session, judgeRecipient(state, address, session))
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
          state.underWay.messages.delete(session.id);
          state.underWay.onAnswered();
        });
      state.underWay.messages.set(session.id, answered);
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
  if (!usage.hasRecipient) state.door.noteStep(session);
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
    state.door.noteStep(session);
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
      if (recipient !== null) await state.door.whileOurTurn(session, receive({ recipient, source }));
    }
  } catch (cause) {
    log.warn({ ...line, decision: 'put_off', err: cause }, 'inbound mail');
    return refuse(451, 'Try again later');
  }
  usageOf(state, session).hasRecipient = false;
  state.door.noteStep(session);
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
