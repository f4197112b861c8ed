import { createServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';
import { TLSSocket, createSecureContext } from 'node:tls';
import { certificateForTests, privateKeyForTests } from './certificate-for-tests.ts';

/**
 * An SMTP server that swallows mail, written by hand so that a test can make it misbehave at any step, and so that
 * a benchmark measures its client. It listens on loopback only, keeps what it took (bounded), and can write a
 * message down before it says 250.
 */

type SinkPhase =
  | 'connect'
  | 'ehlo'
  | 'helo'
  | 'starttls'
  | 'auth'
  | 'mail'
  | 'rcpt'
  | 'data'
  | 'content'
  | 'rset'
  | 'quit'
  | 'other';

export type SinkStep = {
  phase: SinkPhase;
  /** The command without its line end; empty for `connect` and `content`. */
  line: string;
  /** From 1, in the order of arrival. */
  connection: number;
  /** Messages completed on this connection so far. */
  completed: number;
  /** The recipient of the transaction, from `rcpt` on. */
  recipient: string;
};

/** What to do instead of the usual. Replies are given without the final CRLF; lines of one reply are joined by CRLF. */
export type SinkAction =
  | { reply: string; thenClose?: boolean }
  /** Closes without a word. With `accept`, after the message has been taken down. */
  | { close: true; accept?: boolean }
  /** Says nothing, and leaves the connection open. */
  | { stall: true; accept?: boolean }
  /** Sends the reply an octet at a time, at every turn of the event loop. */
  | { slowly: string }
  /** Sends this over and over until the client goes away. */
  | { endlessly: string }
  /** For `data`: says 354 and closes after so many octets of content. */
  | { closeAfterBytes: number }
  /** For `data`: says 354, and after so many octets of content sends this. */
  | { interruptAfterBytes: number; reply: string }
  /** For `data`: says 354 and reads no more. */
  | { stopReading: true };

export type SinkMessage = {
  envelopeFrom: string;
  recipients: string[];
  /** Parameters of MAIL, for example `SIZE=1000`. */
  parameters: string;
  /** Dots removed again. Empty unless `keepContent`. */
  content: Buffer;
  connection: number;
  isSecure: boolean;
};

export type SmtpSinkOptions = {
  /** Asked at every step; undefined means the usual reply. */
  script?: (step: SinkStep) => SinkAction | undefined | Promise<SinkAction | undefined>;
  /** Awaited before the 250 after the dot, so that what was accepted is known before the client knows it. */
  onMessage?: (message: SinkMessage) => void | Promise<void>;
  tls?: 'none' | 'starttls' | 'implicit';
  auth?: { user: string; password: string; mechanisms: ('PLAIN' | 'LOGIN')[] };
  pipelining?: boolean;
  /** Whether SMTPUTF8 is offered. */
  smtpUtf8?: boolean;
  /** Announced by SIZE; null announces nothing. */
  sizeBytesMax?: number | null;
  keepContent?: boolean;
  /** Messages kept for inspection; all are counted. */
  messagesKeptMax?: number;
  port?: number;
  /** The address to listen on, 127.0.0.1 if not given. Others of 127.0.0.0/8 make several hosts with one port. */
  address?: string;
};

export type SmtpSink = {
  port: number;
  messages: SinkMessage[];
  counts: { connections: number; openConnections: number; accepted: number; contentBytes: number };
  /** Every command in the order of arrival, bounded, without content. */
  commands: string[];
  /** Resolves when the step has been reached; counts only from the call on. */
  reached: (phase: SinkPhase) => Promise<SinkStep>;
  /** Resolves when no connection is open. */
  quiet: () => Promise<void>;
  close: () => Promise<void>;
};

const commandsKeptMax = 10_000;
const lineBytesMax = 4_096;
const contentEnd = Buffer.from('\r\n.\r\n');
const stuffedDot = Buffer.from('\r\n..');

export async function startSmtpSink(options: SmtpSinkOptions = {}): Promise<SmtpSink> {
  const sockets = new Set<Socket>();
  const waiters: { phase: SinkPhase; resolve: (step: SinkStep) => void }[] = [];
  const quietWaiters: (() => void)[] = [];
  const shared: Shared = {
    options,
    secureContext:
      (options.tls ?? 'none') === 'none'
        ? null
        : createSecureContext({ cert: certificateForTests, key: privateKeyForTests }),
    messages: [],
    commands: [],
    counts: { connections: 0, openConnections: 0, accepted: 0, contentBytes: 0 },
    note: (step) => {
      for (const waiter of waiters.splice(0)) {
        if (waiter.phase === step.phase) waiter.resolve(step);
        else waiters.push(waiter);
      }
    },
    hasWaiters: () => waiters.length > 0,
  };
  const server = createServer((socket) => {
    sockets.add(socket);
    shared.counts.connections += 1;
    shared.counts.openConnections += 1;
    socket.on('close', () => {
      sockets.delete(socket);
      shared.counts.openConnections -= 1;
      if (sockets.size === 0) for (const resolve of quietWaiters.splice(0)) resolve();
    });
    new SinkConnection(shared, socket, shared.counts.connections).start();
  });
  await listen(server, options.port ?? 0, options.address ?? '127.0.0.1');
  return {
    port: (server.address() as AddressInfo).port,
    messages: shared.messages,
    counts: shared.counts,
    commands: shared.commands,
    reached: (phase) =>
      new Promise((resolve) => {
        waiters.push({ phase, resolve });
      }),
    quiet: () =>
      sockets.size === 0
        ? Promise.resolve()
        : new Promise((resolve) => {
            quietWaiters.push(resolve);
          }),
    close: () =>
      new Promise((resolve) => {
        server.close(() => {
          resolve();
        });
        for (const socket of sockets) socket.destroy();
      }),
  };
}

type Shared = {
  options: SmtpSinkOptions;
  secureContext: ReturnType<typeof createSecureContext> | null;
  messages: SinkMessage[];
  commands: string[];
  counts: SmtpSink['counts'];
  note: (step: SinkStep) => void;
  hasWaiters: () => boolean;
};

function listen(server: Server, port: number, address: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, address, () => {
      resolve();
    });
  });
}

type Challenge = { kind: 'plain' } | { kind: 'login_user' } | { kind: 'login_password'; user: string };

class SinkConnection {
  #shared: Shared;
  #socket: Socket;
  #number: number;
  #isSecure = false;
  #isBusy = false;
  #isOver = false;
  #input: Buffer = Buffer.alloc(0);
  #output = '';

  #completed = 0;
  #envelopeFrom: string | null = null;
  #parameters = '';
  #recipients: string[] = [];
  #challenge: Challenge | null = null;

  #isInContent = false;
  #content: Buffer[] = [];
  #contentBytes = 0;
  /** The last octets of the content so far, in which the end may have begun. */
  #tail: Buffer = Buffer.alloc(0);
  #interruption: { afterBytes: number; reply: string | null } | null = null;

  constructor(shared: Shared, socket: Socket, number: number) {
    this.#shared = shared;
    this.#socket = socket;
    this.#number = number;
  }

  start(): void {
    if (this.#shared.options.tls === 'implicit') this.#startTls();
    else this.#listen(this.#socket);
    this.#begin('connect', '', '220 sink.test ESMTP');
    this.#work();
  }

  #listen(socket: Socket): void {
    socket.setNoDelay(true);
    socket.on('data', (octets: Buffer) => {
      this.#input = this.#input.length === 0 ? octets : Buffer.concat([this.#input, octets]);
      this.#work();
    });
    socket.on('error', () => {
      this.#isOver = true;
    });
    socket.on('close', () => {
      this.#isOver = true;
    });
  }

  #startTls(): void {
    const plain = this.#socket;
    plain.removeAllListeners('data');
    this.#isSecure = true;
    this.#socket = new TLSSocket(plain, { isServer: true, secureContext: this.#shared.secureContext! });
    this.#listen(this.#socket);
    this.#socket.on('close', () => plain.destroy());
    // A client that refuses the certificate goes before the greeting could leave, and Node would wait for it to leave.
    this.#socket.on('end', () => plain.destroy());
    plain.on('error', () => {
      this.#isOver = true;
    });
  }

  /** Works off the input until it is used up or a step has to be awaited. */
  #work(): void {
    while (!this.#isBusy && !this.#isOver && this.#input.length > 0) {
      const isProgress = this.#isInContent ? this.#readContent() : this.#readLine();
      if (!isProgress) break;
    }
    this.#flush();
  }

  #flush(): void {
    if (this.#output === '' || this.#isOver) return;
    const output = this.#output;
    this.#output = '';
    this.#socket.write(output, 'latin1');
  }

  #readLine(): boolean {
    const end = this.#input.indexOf(0x0a);
    if (end === -1) {
      if (this.#input.length > lineBytesMax) this.#hangUp();
      return false;
    }
    const line = this.#input.toString('utf8', 0, end).trimEnd();
    this.#input = this.#input.subarray(end + 1);
    if (this.#shared.commands.length < commandsKeptMax) this.#shared.commands.push(line);
    this.#command(line);
    return true;
  }

  #command(line: string): void {
    if (this.#challenge !== null) {
      this.#begin('auth', line, this.#answerChallenge(this.#challenge, line));
      return;
    }
    const verb = line.slice(0, 4).toUpperCase();
    switch (verb) {
      case 'MAIL':
        this.#begin('mail', line, this.#mail(line));
        return;
      case 'RCPT':
        if (this.#envelopeFrom !== null) this.#recipients.push(between(line));
        this.#begin('rcpt', line, this.#envelopeFrom === null ? '503 5.5.1 MAIL first' : '250 2.1.5 Ok');
        return;
      case 'DATA':
        if (this.#recipients.length === 0) this.#begin('data', line, '554 5.5.1 No valid recipients');
        else this.#begin('data', line, '354 Go ahead');
        return;
      case 'RSET':
        this.#forget();
        this.#begin('rset', line, '250 2.0.0 Ok');
        return;
      case 'EHLO':
        this.#forget();
        this.#begin('ehlo', line, this.#extensions());
        return;
      case 'HELO':
        this.#begin('helo', line, '250 sink.test');
        return;
      case 'STAR':
        this.#begin('starttls', line, '220 2.0.0 Ready');
        return;
      case 'AUTH':
        this.#begin('auth', line, this.#auth(line));
        return;
      case 'QUIT':
        this.#begin('quit', line, '221 2.0.0 Bye');
        return;
      default:
        this.#begin('other', line, '500 5.5.2 What?');
    }
  }

  #mail(line: string): string {
    if (this.#envelopeFrom !== null) return '503 5.5.1 Nested MAIL';
    this.#envelopeFrom = between(line);
    this.#parameters = line.slice(line.indexOf('>') + 1).trim();
    return '250 2.1.0 Ok';
  }

  #extensions(): string {
    const { options } = this.#shared;
    const size = options.sizeBytesMax === undefined ? 52_428_800 : options.sizeBytesMax;
    const lines = ['sink.test', '8BITMIME', 'ENHANCEDSTATUSCODES'];
    if (options.pipelining !== false) lines.push('PIPELINING');
    if (options.smtpUtf8 === true) lines.push('SMTPUTF8');
    if (size !== null) lines.push(`SIZE ${size}`);
    if (options.tls === 'starttls' && !this.#isSecure) lines.push('STARTTLS');
    if (options.auth) lines.push(`AUTH ${options.auth.mechanisms.join(' ')}`);
    return lines.map((text, at) => `250${at === lines.length - 1 ? ' ' : '-'}${text}`).join('\r\n');
  }

  #auth(line: string): string {
    const [, mechanism, initial] = line.split(' ');
    if (mechanism === 'LOGIN') {
      this.#challenge = { kind: 'login_user' };
      return '334 VXNlcm5hbWU6';
    }
    if (initial !== undefined) return this.#checkPlain(initial);
    this.#challenge = { kind: 'plain' };
    return '334 ';
  }

  #answerChallenge(challenge: Challenge, line: string): string {
    this.#challenge = null;
    const text = Buffer.from(line, 'base64').toString();
    if (challenge.kind === 'plain') return this.#checkPlain(line);
    if (challenge.kind === 'login_user') {
      this.#challenge = { kind: 'login_password', user: text };
      return '334 UGFzc3dvcmQ6';
    }
    return this.#checkCredentials(challenge.user, text);
  }

  #checkPlain(response: string): string {
    const [, user = '', password = ''] = Buffer.from(response, 'base64').toString().split('\0');
    return this.#checkCredentials(user, password);
  }

  #checkCredentials(user: string, password: string): string {
    const { auth } = this.#shared.options;
    return auth?.user === user && auth.password === password
      ? '235 2.7.0 Welcome'
      : '535 5.7.8 Authentication credentials invalid';
  }

  /** Takes as much content as there is. The line end before the content is the one after DATA. */
  #readContent(): boolean {
    const input = this.#input;
    const { keepContent } = this.#shared.options;
    if (this.#interruption !== null && this.#contentBytes + input.length >= this.#interruption.afterBytes) {
      const { reply } = this.#interruption;
      this.#interruption = null;
      if (reply === null) {
        this.#hangUp();
        return false;
      }
      this.#output += `${reply}\r\n`;
    }
    const joined = Buffer.concat([this.#tail, input.subarray(0, contentEnd.length - 1)]);
    const early = joined.indexOf(contentEnd);
    const late = early === -1 ? input.indexOf(contentEnd) : -1;
    if (early === -1 && late === -1) {
      if (keepContent) this.#content.push(input);
      this.#contentBytes += input.length;
      const tail = input.length >= 4 ? input : Buffer.concat([this.#tail, input]);
      this.#tail = Buffer.from(tail.subarray(-4));
      this.#input = input.subarray(input.length);
      return false;
    }
    const endAt = early === -1 ? late + contentEnd.length : early + contentEnd.length - this.#tail.length;
    if (keepContent) this.#content.push(input.subarray(0, endAt));
    this.#contentBytes += endAt;
    this.#input = input.subarray(endAt);
    this.#isInContent = false;
    this.#begin('content', '', `250 2.0.0 Ok: queued as S${this.#number}M${this.#completed + 1}`);
    return true;
  }

  /** Asks the script, then does as it says; asynchronously only if the script or the recording is. */
  #begin(phase: SinkPhase, line: string, usual: string): void {
    const { script } = this.#shared.options;
    if (script === undefined && !this.#shared.hasWaiters()) {
      this.#act(phase, undefined, usual);
      return;
    }
    const step: SinkStep = {
      phase,
      line,
      connection: this.#number,
      completed: this.#completed,
      recipient: this.#recipients.at(-1) ?? '',
    };
    const action = script?.(step);
    if (action instanceof Promise) {
      this.#isBusy = true;
      void action.then((settled) => {
        this.#isBusy = false;
        this.#act(phase, settled, usual);
        this.#shared.note(step);
        this.#work();
      });
      return;
    }
    this.#act(phase, action, usual);
    this.#shared.note(step);
  }

  #act(phase: SinkPhase, action: SinkAction | undefined, usual: string): void {
    if (phase === 'content') {
      const isAccepted =
        action === undefined
          ? true
          : 'reply' in action
            ? action.reply.startsWith('2')
            : 'accept' in action && action.accept === true;
      const recorded = isAccepted ? this.#record() : undefined;
      this.#forget();
      if (recorded instanceof Promise) {
        this.#isBusy = true;
        void recorded.then(() => {
          this.#isBusy = false;
          this.#answer(phase, action, usual);
          this.#work();
        });
        return;
      }
    }
    this.#answer(phase, action, usual);
  }

  #answer(phase: SinkPhase, action: SinkAction | undefined, usual: string): void {
    if (action === undefined) {
      this.#reply(phase, usual);
      return;
    }
    if ('endlessly' in action) {
      this.#flush();
      this.#repeat(action.endlessly);
    } else if ('slowly' in action) {
      this.#flush();
      this.#drip(`${action.slowly}\r\n`, 0);
    } else if ('closeAfterBytes' in action) {
      this.#interruption = { afterBytes: action.closeAfterBytes, reply: null };
      this.#reply(phase, usual);
    } else if ('interruptAfterBytes' in action) {
      this.#interruption = { afterBytes: action.interruptAfterBytes, reply: action.reply };
      this.#reply(phase, usual);
    } else if ('stopReading' in action) {
      this.#reply(phase, usual);
      this.#flush();
      this.#socket.pause();
    } else if ('reply' in action) {
      if (phase === 'rcpt' && !action.reply.startsWith('2')) this.#recipients.pop();
      if (phase === 'mail' && !action.reply.startsWith('2')) this.#envelopeFrom = null;
      this.#reply(phase, action.reply);
      if (action.thenClose) this.#hangUp();
    } else if ('close' in action) {
      this.#hangUp();
    } else {
      // What is left is `stall`: says nothing, and works off nothing that comes after.
      this.#isBusy = true;
    }
  }

  #reply(phase: SinkPhase, text: string): void {
    this.#output += `${text}\r\n`;
    if (phase === 'data' && text.startsWith('354')) {
      this.#isInContent = true;
      this.#content = [];
      this.#contentBytes = 0;
      this.#tail = Buffer.from('\r\n');
    } else if (phase === 'starttls' && text.startsWith('220')) {
      this.#flush();
      this.#input = Buffer.alloc(0);
      this.#startTls();
    } else if (phase === 'quit') {
      this.#hangUp();
    }
  }

  #record(): void | Promise<void> {
    const { messages, counts, options } = this.#shared;
    this.#completed += 1;
    counts.accepted += 1;
    counts.contentBytes += this.#contentBytes;
    const isKept = messages.length < (options.messagesKeptMax ?? 10_000);
    if (!isKept && options.onMessage === undefined) return;
    const message: SinkMessage = {
      envelopeFrom: this.#envelopeFrom ?? '',
      recipients: this.#recipients,
      parameters: this.#parameters,
      content: options.keepContent ? unstuff(Buffer.concat(this.#content)) : Buffer.alloc(0),
      connection: this.#number,
      isSecure: this.#isSecure,
    };
    if (isKept) messages.push(message);
    return options.onMessage?.(message);
  }

  #forget(): void {
    this.#envelopeFrom = null;
    this.#recipients = [];
    this.#content = [];
  }

  #drip(text: string, at: number): void {
    if (this.#isOver || at >= text.length) return;
    this.#socket.write(text.slice(at, at + 1));
    setImmediate(() => {
      this.#drip(text, at + 1);
    });
  }

  #repeat(text: string): void {
    if (this.#isOver) return;
    this.#socket.write(text);
    setImmediate(() => {
      this.#repeat(text);
    });
  }

  #hangUp(): void {
    this.#flush();
    this.#isOver = true;
    // Everything still unread is thrown away, so that the system sends FIN and not RST, which could overtake the reply.
    this.#socket.resume();
    this.#socket.end();
  }
}

function between(line: string): string {
  return line.slice(line.indexOf('<') + 1, line.indexOf('>'));
}

/** Takes off the final dot and the stuffed ones. The content begins after a line end. */
function unstuff(wire: Buffer): Buffer {
  const whole = Buffer.concat([Buffer.from('\r\n'), wire.subarray(0, wire.length - 3)]);
  const parts: Buffer[] = [];
  let from = 0;
  for (let at = whole.indexOf(stuffedDot); at !== -1; at = whole.indexOf(stuffedDot, from)) {
    parts.push(whole.subarray(from, at + 3));
    from = at + 4;
  }
  parts.push(whole.subarray(from));
  return Buffer.concat(parts).subarray(2);
}
