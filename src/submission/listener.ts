import {
  SMTPServer,
  type SMTPServerAddress,
  type SMTPServerAuthentication,
  type SMTPServerDataStream,
  type SMTPServerOptions,
  type SMTPServerSession,
} from 'smtp-server';
import { parseAddress } from '../channels/email/email.ts';
import {
  createDoor,
  type Door,
  type DoorTimeouts,
  type MessagesUnderWay,
} from '../channels/email/smtp-listening/door.ts';
import type { Admit } from '../platform/http/admission.ts';
import { badRequest, overloaded, PublicError } from '../platform/http/errors.ts';
import { createLocalRateLimiter, type LocalRateLimiter } from '../platform/http/local-rate-limit.ts';
import type { Caller, RequestHolder } from '../platform/http/route.ts';
import { toPublicError } from '../platform/http/refusals.ts';
import type { NewId } from '../platform/ids.ts';
import type { Log } from '../platform/log.ts';
import { isLoopbackHost } from '../platform/loopback.ts';
import { networkOf } from '../platform/network.ts';
import { acceptMessage, type AcceptingTools } from './accepting.ts';
import {
  type Certificate,
  type CertificateFiles,
  createCertificateWatch,
  readCertificate,
} from './certificate.ts';
import { type Collected, collectMessage } from './collecting.ts';
import { type Reply, reply, replyOf } from './replies.ts';

/**
 * Takes emails by SMTP (RFC 6409) from programs that know nothing else, and has them accepted as `POST /email/send` does.
 *
 * It promises: 250 is said after the commit, with the id of the email. What the API would have answered by 429 or 503, and
 * whatever fails on our side, is 4xx, and what it refuses for good is 5xx, with its own sentence. A message that comes again
 * within 24 hours, since its answer was lost, is sent once if it has a Message-ID. One message in is one message
 * (`collecting.ts`).
 *
 * It does not: relay for whoever has no key, or hear a key in the clear from another machine. A key is judged anew for each
 * message, since a connection may outlive it. A message counts as one request from its MAIL command on.
 *
 * Anyone can connect, so connections are let in by a door, and so are those of a key, of which one alone has a share.
 */

export type SubmissionOptions = AcceptingTools & {
  host: string;
  /** Null: there is no port with STARTTLS, or none with TLS from the beginning. 0 for any free one. */
  port: number | null;
  tlsPort: number | null;
  /** Null: only clients on this machine may say their key. */
  certificate: CertificateFiles | null;
  /** Our name in the greeting. */
  hostName: string;
  newId: NewId;
  log: Log;
  admit: Admit;
  /** Told of every refusal and every message, of those whose key is known. */
  note: NoteSubmission;
  timeouts?: SubmissionTimeouts;
};

/** A step is a key that was taken, a kilobyte of a message, or its end. */
export type SubmissionTimeouts = DoorTimeouts & {
  /** Without an octet from the client. */
  idleMs: number;
};

/** What was refused or accepted, for the log. `command` is empty for what was refused without a look at it. */
export type Submitted = {
  id: string;
  holder: RequestHolder;
  command: SubmittedCommand;
  code: number;
  error: PublicError | null;
  /** Whether it counts towards a limit. */
  isCounted: boolean;
  remoteAddress: string;
  clientName: string;
  startedAtMs: number;
  resourceId: string | null;
  key: string | null;
  isReplay: boolean;
  shownBody: string | null;
};

export type SubmittedCommand = 'AUTH' | 'MAIL' | 'RCPT' | 'DATA';

export type NoteSubmission = (submitted: Submitted) => void;

export type SubmissionListener = {
  port: number | null;
  tlsPort: number | null;
  /** Takes nothing more, and lets what is under way end. */
  stop: () => Promise<void>;
  /** How many connections there are. */
  held: () => number;
};

/**
 * Programs keep connections open between messages, and are not to be sent away for that while there is room for others:
 * RFC 5321 §4.5.3.2.7 has five minutes.
 */
const usualTimeouts: SubmissionTimeouts = {
  idleMs: 300_000,
  stepMs: 300_000,
  patienceMs: 5_000,
  lifetimeMs: 3_600_000,
  stopMs: 5_000,
};

/** As large as a body of `POST /email/send`, and files grow in it by as much. */
const messageBytesMax = 31_457_280;

/** Each costs a descriptor, and what has come of a message, which has a limit of its own. */
const connectionsMax = 200;
/** A machine that sends may have many processes. More would let some machines have all places. */
const connectionsPerNetworkMax = 50;
const connectionsPerKeyMax = 20;

/** Wrong keys in a minute by one network (`networkOf`), each of which was answered. The next ends its connection. */
const wrongKeysPerMinute = 5;
const networksMax = 50_000;

/** As in a request. RFC 5321 §4.5.3.1.10 has the client send to the others once more. */
const recipientsMax = 50;

/** A key and a name in Base64 are shorter, and so is a path with its parameters. */
const commandBytesMax = 4_096;

const disabledCommands = ['VRFY', 'HELP', 'XCLIENT', 'XFORWARD', 'WIZ', 'SHELL', 'KILL'];

const scope = 'email:send';

type User = { key: string; holder: RequestHolder };

/** Of the message that is being sent. */
type Transaction = { id: string; startedAtMs: number; caller: Caller };

type State = {
  options: SubmissionOptions;
  door: Door;
  underWay: MessagesUnderWay & { messages: Map<string, Promise<void>> };
  users: WeakMap<SMTPServerSession, User>;
  /** Those that have ended: a key that is looked up meanwhile is not theirs any more. */
  ended: WeakSet<SMTPServerSession>;
  transactions: WeakMap<SMTPServerSession, Transaction>;
  connectionsOfKeys: Map<string, number>;
  wrongKeys: LocalRateLimiter;
};

/** Rejects if an address cannot be listened on, or the certificate not be read. */
export async function startSubmissionListener(options: SubmissionOptions): Promise<SubmissionListener> {
  const { port, tlsPort, host, hostName, clock, log } = options;
  const timeouts = options.timeouts ?? usualTimeouts;
  const certificate = options.certificate === null ? null : readCertificate(options.certificate);
  const servers: SMTPServer[] = [];
  const lookAtCertificate =
    options.certificate === null
      ? () => undefined
      : createCertificateWatch(options, options.certificate, (replaced) => {
          for (const server of servers) server.updateSecureContext(replaced);
        });
  const state: State = {
    options,
    door: createDoor({
      hostName,
      clock,
      limits: { connectionsMax, connectionsPerNetworkMax },
      timeouts,
      onConnection: lookAtCertificate,
    }),
    underWay: { messages: new Map(), onAnswered: () => undefined },
    users: new WeakMap(),
    ended: new WeakSet(),
    transactions: new WeakMap(),
    connectionsOfKeys: new Map(),
    wrongKeys: createLocalRateLimiter(options, { limit: wrongKeysPerMinute, subjectsMax: networksMax }),
  };
  const open = async (at: number | null, isSecure: boolean): Promise<number | null> => {
    if (at === null) return null;
    const server = openServer(state, timeouts, { isSecure, certificate });
    servers.push(server);
    server.on('error', (error: NodeJS.ErrnoException) => {
      log.debug({ code: error.code }, 'connection of a submission failed');
    });
    return (await state.door.open(server, { host, port: at })).port;
  };
  return {
    port: await open(port, false),
    tlsPort: await open(tlsPort, true),
    stop: () => state.door.close(state.underWay),
    held: state.door.held,
  };
}

function openServer(
  state: State,
  timeouts: SubmissionTimeouts,
  { isSecure, certificate }: { isSecure: boolean; certificate: Certificate | null },
): SMTPServer {
  const offered = certificate === null ? [...disabledCommands, 'STARTTLS'] : disabledCommands;
  const options: SMTPServerOptions = {
    name: state.options.hostName,
    heloResponse: '%s',
    secure: isSecure,
    ...certificate,
    minVersion: 'TLSv1.2',
    size: messageBytesMax,
    authMethods: ['PLAIN', 'LOGIN'],
    // What may be said in the clear, and what needs a key, is decided below.
    allowInsecureAuth: true,
    authOptional: true,
    disabledCommands: offered,
    disableReverseLookup: true,
    hideENHANCEDSTATUSCODES: false,
    logger: false,
    maxCommandLength: commandBytesMax,
    socketTimeout: timeouts.idleMs,
    closeTimeout: timeouts.stopMs,
    onConnect: (session, callback) => {
      sayOwnCodes(server, session);
      // Not offered, so that no program says its key where others could hear it.
      if (!isSecure && !isLoopbackHost(session.remoteAddress))
        session.disabledCommands = [...offered, 'AUTH'];
      callback();
    },
    onSecure: (socket, session, callback) => {
      delete session.disabledCommands;
      // What was known before TLS is not believed (RFC 3207 §4.2).
      leaveKey(state, session);
      state.door.secured(server, socket, session);
      callback();
    },
    onAuth: (authentication, session, callback) => {
      answerInTurn(state, session, authenticate(state, authentication, session), (refusal) => {
        if (refusal === null) callback(null, { user: 'key' });
        else callback(toError(refusal));
      });
    },
    onMailFrom: (_address, session, callback) => {
      answerInTurn(state, session, beginMessage(state, session), (refusal) => {
        callback(refusal && toError(refusal));
      });
    },
    onRcptTo: (address, session, callback) => {
      const refusal = judgeRecipient(state, address, session);
      callback(refusal && toError(refusal));
    },
    onData: (stream, session, callback) => {
      const answered = takeMessage(state, server, stream, session)
        .then((answer) => {
          if (answer === null) return;
          if (answer.code < 400) callback(null, answer.text);
          else callback(toError(answer));
        })
        .catch((cause: unknown) => {
          state.options.log.error({ session: session.id, err: cause }, 'a submission was not answered');
        })
        .finally(() => {
          state.underWay.messages.delete(session.id);
          state.underWay.onAnswered();
        });
      state.underWay.messages.set(session.id, answered);
    },
    onClose: (session) => {
      state.ended.add(session);
      leaveKey(state, session);
    },
  };
  const server = new SMTPServer(options);
  return server;
}

/** The server knows one enhanced code for each code; replies of ours that begin with one have it already. */
function sayOwnCodes(server: SMTPServer, session: SMTPServerSession): void {
  const connection = [...server.connections].find((one) => one.session === session);
  if (connection === undefined) return;
  const send = connection.send.bind(connection);
  connection.send = (code, text, context) => {
    const hasOwn = typeof text === 'string' && /^[245]\.\d{1,3}\.\d{1,3} /.test(text);
    send(code, text, hasOwn ? false : context);
  };
}

function toError({ code, text }: Reply): Error {
  return Object.assign(new Error(text), { responseCode: code });
}

/** A fault of ours is 4xx: the client tries again. */
function answerInTurn(
  { door, options }: State,
  session: SMTPServerSession,
  work: Promise<Reply | null>,
  answer: (refusal: Reply | null) => void,
): void {
  door
    .whileOurTurn(session, work)
    .catch((cause: unknown) => replyOf(toPublicError(cause, { id: session.id }, options.log)))
    .then(answer)
    .catch((cause: unknown) => {
      options.log.error({ session: session.id, err: cause }, 'a submission was not answered');
    });
}

/** Null, or the refusal. */
async function authenticate(
  state: State,
  { password }: SMTPServerAuthentication,
  session: SMTPServerSession,
): Promise<Reply | null> {
  const { admit, clock, newId } = state.options;
  const startedAtMs = clock.nowMs();
  const key = password ?? '';
  const { result, holder } = await admit({
    authorization: key,
    address: session.remoteAddress,
    scope,
    countsAs: 'nothing',
  });
  if (result instanceof PublicError) {
    const refusal = refuseKey(state, session, result);
    if (holder !== undefined) {
      const id = newId();
      noteRefusal(
        state,
        session,
        { id, holder, command: 'AUTH', startedAtMs, error: result, isCounted: false },
        refusal,
      );
    }
    return refusal;
  }
  const keyId = holder?.apiKey?.id;
  if (holder === undefined || keyId === undefined) throw new Error('a key that was taken has a holder');
  if (state.ended.has(session)) return reply(421, '4.4.2', 'The connection has ended.');
  const used = state.connectionsOfKeys.get(keyId) ?? 0;
  if (used >= connectionsPerKeyMax) {
    const error = overloaded(`This API key has ${connectionsPerKeyMax} connections already.`);
    const refusal = { ...replyOf(error), code: 421 };
    noteRefusal(
      state,
      session,
      { id: newId(), holder, command: 'AUTH', startedAtMs, error, isCounted: false },
      refusal,
    );
    return refusal;
  }
  state.connectionsOfKeys.set(keyId, used + 1);
  state.users.set(session, { key, holder });
  state.door.noteStep(session);
  return null;
}

/** A right key is taken all the same, since a whole office may have one address. */
function refuseKey(state: State, session: SMTPServerSession, error: PublicError): Reply {
  const { statusCode } = error.definition;
  if (statusCode >= 500) return { ...replyOf(error), code: 454 };
  const { isWithin } = state.wrongKeys.count(networkOf(session.remoteAddress));
  if (!isWithin || statusCode === 429)
    return reply(421, '4.7.0', 'Too many wrong API keys. Wait before you try another.');
  if (statusCode === 401) return reply(535, '5.7.8', wrongKey);
  return reply(535, '5.7.1', error.message);
}

const wrongKey =
  'The API key is missing, invalid, expired or revoked. Give it as the password, with any user name.';

function leaveKey({ users, connectionsOfKeys }: State, session: SMTPServerSession): void {
  const keyId = users.get(session)?.holder.apiKey?.id;
  users.delete(session);
  if (keyId === undefined) return;
  const left = (connectionsOfKeys.get(keyId) ?? 1) - 1;
  if (left > 0) connectionsOfKeys.set(keyId, left);
  else connectionsOfKeys.delete(keyId);
}

/** Null, or the refusal. */
async function beginMessage(state: State, session: SMTPServerSession): Promise<Reply | null> {
  const { admit, clock, newId, log } = state.options;
  const user = state.users.get(session);
  if (user === undefined) return reply(530, '5.7.0', 'Authenticate first, with an API key as the password.');
  const id = newId();
  const startedAtMs = clock.nowMs();
  const { holder } = user;
  try {
    const { result } = await admit({
      authorization: user.key,
      address: session.remoteAddress,
      scope,
      countsAs: 'request',
    });
    if (result instanceof PublicError) throw result;
    state.transactions.set(session, { id, startedAtMs, caller: result });
    return null;
  } catch (cause) {
    const error = toPublicError(cause, { id }, log);
    const refusal = replyOf(error);
    noteRefusal(
      state,
      session,
      { id, holder, command: 'MAIL', startedAtMs, error, isCounted: false },
      refusal,
    );
    return refusal;
  }
}

/** Null, or the refusal. */
function judgeRecipient(
  state: State,
  { address }: SMTPServerAddress,
  session: SMTPServerSession,
): Reply | null {
  const refuse = (code: number, enhanced: string, sentence: string): Reply => {
    const refusal = reply(code, enhanced, sentence);
    const holder = state.users.get(session)?.holder;
    const { clock, newId } = state.options;
    if (holder !== undefined) {
      const error = new PublicError(badRequest, sentence);
      const refused = { id: newId(), holder, startedAtMs: clock.nowMs(), error, isCounted: true };
      noteRefusal(state, session, { ...refused, command: 'RCPT' }, refusal);
    }
    return refusal;
  };
  if (session.envelope.rcptTo.length >= recipientsMax)
    return refuse(452, '4.5.3', `Too many recipients: at most ${recipientsMax} in one message.`);
  return parseAddress(address) === null
    ? refuse(553, '5.1.3', 'The recipient must be an email address.')
    : null;
}

/** What the client hears; null if it is gone. */
async function takeMessage(
  state: State,
  server: SMTPServer,
  stream: SMTPServerDataStream,
  session: SMTPServerSession,
): Promise<Reply | null> {
  const { clock, lent, log } = state.options;
  const user = state.users.get(session);
  const transaction = state.transactions.get(session);
  if (user === undefined || transaction === undefined) throw new Error('a message has a sender');
  state.transactions.delete(session);
  const { id, startedAtMs, caller } = transaction;
  // The session's own list is emptied for the next message.
  const recipients = session.envelope.rcptTo.map(({ address }) => address);
  const place = lent.bodies.arriving.take(caller.organizationId, 1);
  const collected: Collected = await collectMessage(stream, {
    clock,
    arrival: lent.bodies.arrival,
    bytes: lent.bodies.bytes,
    holder: caller.organizationId,
    bytesMax: messageBytesMax,
    onStep: () => {
      state.door.noteStep(session);
    },
    ...(place === null && { refused: overloaded('Too many requests are arriving at the moment.') }),
  });
  place?.release();
  const line = {
    submission: id,
    session: session.id,
    bytes: stream.byteLength,
    recipients: recipients.length,
  };
  if (collected.kind === 'cut_off') {
    log.info({ ...line, decision: collected.reason }, 'submission');
    endConnection(server, session);
    return null;
  }
  const accepted =
    collected.kind === 'refused'
      ? { id: null, error: collected.error, key: null, isReplay: false, shownBody: null }
      : await state.door.whileOurTurn(
          session,
          acceptMessage(state.options, caller, { ...collected, recipients }),
        );
  if (collected.kind === 'whole') collected.release();
  state.door.noteStep(session);
  const { id: emailId, key, isReplay } = accepted;
  const error = emailId === null ? toPublicError(accepted.error, { id }, log) : null;
  const answer = error === null ? reply(250, '2.0.0', `queued as ${emailId ?? ''}`) : replyOf(error);
  log.info(
    {
      ...line,
      decision: error === null ? 'accepted' : error.definition.name,
      email: emailId,
      replayed: isReplay,
    },
    'submission',
  );
  state.options.note({
    id,
    holder: user.holder,
    command: 'DATA',
    code: answer.code,
    error,
    isCounted: true,
    remoteAddress: session.remoteAddress,
    clientName: session.hostNameAppearsAs || '',
    startedAtMs,
    resourceId: emailId,
    key,
    isReplay,
    shownBody: error === null ? null : accepted.shownBody,
  });
  return answer;
}

/** In the middle of a message nothing can be said that would be heard as an answer to it. */
function endConnection(server: SMTPServer, session: SMTPServerSession): void {
  for (const connection of server.connections) {
    if (connection.session === session) connection.send(421, '4.4.2 Timeout - closing connection');
  }
}

function noteRefusal(
  { options }: State,
  session: SMTPServerSession,
  refused: Pick<Submitted, 'id' | 'holder' | 'command' | 'startedAtMs' | 'isCounted'> & {
    error: PublicError;
  },
  { code }: Reply,
): void {
  options.note({
    ...refused,
    code,
    remoteAddress: session.remoteAddress,
    clientName: session.hostNameAppearsAs || '',
    resourceId: null,
    key: null,
    isReplay: false,
    shownBody: null,
  });
}
