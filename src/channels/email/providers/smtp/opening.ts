import type { Clock } from '../../../../platform/clock.ts';
import type { RemoteReply } from '../../../outcome.ts';
import { ownWords, remoteWords } from './outcomes.ts';
import type { SmtpReply } from './reply-reader.ts';
import { isLoopbackHost } from '../../../../platform/loopback.ts';
import type { SmtpTarget } from './url.ts';
import { isFault, openWire } from './wire.ts';
import type { SmtpWire, TlsTrust, WireFault } from './wire.ts';

/**
 * From nothing to a connection on which mail can be handed off: connect, greeting, EHLO (HELO where that is not
 * understood), STARTTLS and EHLO again, AUTH. Whatever fails here says nothing about any message.
 */

/** What the server offers (RFC 5321 §4.1.1.1), as far as we use it. */
type SmtpCapabilities = {
  /** RFC 2920. */
  hasPipelining: boolean;
  /** RFC 6152. */
  hasEightBitMime: boolean;
  /** RFC 6531, which is of use only together with RFC 6152. */
  hasSmtpUtf8: boolean;
  /** RFC 1870; null if the server names no limit. */
  hasSize: boolean;
  sizeBytesMax: number | null;
};

export type SmtpConnection = {
  wire: SmtpWire;
  capabilities: SmtpCapabilities;
};

export type OpeningFailure = {
  failed: RemoteReply;
  /** STARTTLS was wanted, and it failed, was refused or not offered, or its certificate is not to be trusted. */
  hasTlsFailed: boolean;
  /** The machine's name for what happened, for example `ENETUNREACH`, where it was the machine that noticed. */
  errorCode: string | null;
};

/**
 * Upper bounds are RFC 5321 §4.5.3.2's five minutes; a server that needs longer than these is as good as down,
 * and everything that waits for the connection waits with it. Shorter ones give up on servers that look the
 * client up in slow DNS before they greet.
 */
const connectTimeoutMs = 30_000;
const greetingTimeoutMs = 60_000;
const handshakeTimeoutMs = 60_000;
export const commandTimeoutMs = 60_000;

/** RFC 5321 §4.5.3.1.4: a command line has at most 512 octets, its CRLF included. */
const commandBytesMax = 512;

export type OpeningOptions = {
  heloName: string;
  /** PEM of the authorities to trust instead of the machine's, or null. */
  authorities: string | null;
  /** The address to connect to, where the target's host has been looked up already. */
  literal?: string;
  /** Gives up the attempt, whatever it waits for. */
  signal: AbortSignal;
};

/** Resolves with a connection ready for its first MAIL, or with what the server or the network said instead. */
export async function openSmtpConnection(
  clock: Clock,
  target: SmtpTarget,
  options: OpeningOptions,
): Promise<SmtpConnection | OpeningFailure> {
  const first = await openOnce(clock, target, options);
  // RFC 7435: opportunistic means that broken TLS is no worse than none. With credentials it would be.
  const mayFallBack = 'failed' in first && first.hasTlsFailed && target.tls === 'opportunistic';
  if (!mayFallBack || target.credentials !== null) return first;
  return openOnce(clock, { ...target, tls: 'off' }, options);
}

async function openOnce(
  clock: Clock,
  target: SmtpTarget,
  options: OpeningOptions,
): Promise<SmtpConnection | OpeningFailure> {
  const trust = {
    // Opportunistic TLS keeps out listeners, not impostors; refusing a certificate would mean plain text instead.
    isVerified: !target.isInsecure && target.tls !== 'opportunistic',
    authorities: options.authorities,
  };
  const { host, port } = target;
  const wire = await openWire(
    clock,
    options.literal === undefined ? { host, port } : { host, port, literal: options.literal },
    target.tls === 'implicit' ? trust : null,
    {
      connectMs: connectTimeoutMs,
      handshakeMs: handshakeTimeoutMs,
    },
    options.signal,
  );
  if (isFault(wire)) return faultFailure(target, wire, 'connecting');

  const giveUpWaiting = () => {
    wire.break('given_up', 'the connection is no longer wanted');
  };
  options.signal.addEventListener('abort', giveUpWaiting, { once: true });
  if (options.signal.aborted) giveUpWaiting();
  const result = await beginSession(wire, target, options, trust);
  options.signal.removeEventListener('abort', giveUpWaiting);
  return result;
}

/** From the greeting to the last thing before MAIL. */
async function beginSession(
  wire: SmtpWire,
  target: SmtpTarget,
  options: OpeningOptions,
  trust: TlsTrust,
): Promise<SmtpConnection | OpeningFailure> {
  const greeting = await wire.receive(greetingTimeoutMs);
  if (isFault(greeting)) return faultFailure(target, greeting, 'the greeting');
  if (greeting.code !== 220) return refusal(wire, target, greeting);

  const heloName = target.heloName ?? options.heloName;
  let offers = await sayHello(wire, heloName);
  if ('failed' in offers) return offered(wire, target, offers.failed, 'EHLO');

  if (target.tls === 'required' || target.tls === 'opportunistic') {
    const isOffered = offers.extensions.has('STARTTLS');
    if (!isOffered && target.tls === 'required') {
      const detail = 'the server does not offer STARTTLS, and TLS is required';
      return { ...giveUp(wire, target, detail), hasTlsFailed: true };
    }
    if (isOffered) {
      const reply = await exchange(wire, 'STARTTLS');
      if (isFault(reply)) return faultFailure(target, reply, 'STARTTLS');
      if (reply.code === 220) {
        const fault = await wire.secure(trust, handshakeTimeoutMs);
        if (fault !== null)
          return { ...faultFailure(target, fault, 'the TLS handshake'), hasTlsFailed: true };
        // RFC 3207 §4.2: what was offered in the clear is forgotten.
        offers = await sayHello(wire, heloName);
        if ('failed' in offers) return offered(wire, target, offers.failed, 'EHLO after STARTTLS');
      } else if (target.tls === 'required') {
        return { ...refusal(wire, target, reply), hasTlsFailed: true };
      }
    }
  }

  const refused = await authenticate(wire, target, offers.extensions);
  if (refused !== null) return refused;
  return { wire, capabilities: capabilitiesOf(offers.extensions) };
}

type Offers = { extensions: ReadonlyMap<string, string> };

async function sayHello(
  wire: SmtpWire,
  heloName: string,
): Promise<Offers | { failed: SmtpReply | WireFault }> {
  const reply = await exchange(wire, `EHLO ${heloName}`);
  if (isFault(reply)) return { failed: reply };
  if (reply.code === 250) return { extensions: readExtensions(reply.text) };
  // RFC 5321 §3.2: a server that does not know EHLO refuses it for good, and may know HELO.
  if (reply.code < 500) return { failed: reply };
  const older = await exchange(wire, `HELO ${heloName}`);
  // OpenSMTPD hangs up after it has refused: then what it said to EHLO is its reason.
  if (isFault(older)) return { failed: reply };
  return older.code === 250 ? { extensions: new Map() } : { failed: older };
}

/** Keywords in upper case with their parameters. The first line is the server's greeting, not an extension. */
function readExtensions(text: string): ReadonlyMap<string, string> {
  const extensions = new Map<string, string>();
  for (const line of text.split('\n').slice(1)) {
    // `AUTH=PLAIN LOGIN` is how servers wrote it before RFC 2554.
    const [keyword = '', ...parameters] = line.trim().toUpperCase().split(/[ =]/);
    const earlier = extensions.get(keyword);
    extensions.set(
      keyword,
      earlier === undefined ? parameters.join(' ') : `${earlier} ${parameters.join(' ')}`,
    );
  }
  return extensions;
}

function capabilitiesOf(extensions: ReadonlyMap<string, string>): SmtpCapabilities {
  const size = extensions.get('SIZE');
  const limit = size !== undefined && /^\d{1,15}$/.test(size) ? Number(size) : 0;
  return {
    hasPipelining: extensions.has('PIPELINING'),
    hasEightBitMime: extensions.has('8BITMIME'),
    hasSmtpUtf8: extensions.has('SMTPUTF8') && extensions.has('8BITMIME'),
    hasSize: size !== undefined,
    // RFC 1870 §3: zero says that there is no fixed limit.
    sizeBytesMax: limit === 0 ? null : limit,
  };
}

/** Returns null when the server has accepted our credentials, or when there are none. */
async function authenticate(
  wire: SmtpWire,
  target: SmtpTarget,
  extensions: ReadonlyMap<string, string>,
): Promise<OpeningFailure | null> {
  const credentials = target.credentials;
  if (credentials === null) return null;
  if (!wire.isSecure() && !target.isInsecure && !isLoopbackHost(wire.remoteAddress())) {
    return giveUp(wire, target, 'the credentials are not sent over a connection without TLS');
  }
  const mechanisms = (extensions.get('AUTH') ?? '').split(' ');
  const isPlain = mechanisms.includes('PLAIN');
  if (!isPlain && !mechanisms.includes('LOGIN')) {
    return giveUp(wire, target, 'the server offers neither AUTH PLAIN nor AUTH LOGIN');
  }
  const reply = isPlain
    ? await authenticatePlain(wire, credentials)
    : await authenticateLogin(wire, credentials);
  if (isFault(reply)) return faultFailure(target, reply, 'AUTH');
  if (reply.code === 235) return null;
  return refusal(wire, target, withoutSecrets(reply, credentials));
}

type Credentials = { user: string; password: string };

/** RFC 4616: no authorization identity, user and password between NULs; RFC 4954 §4 on the line's length. */
async function authenticatePlain(wire: SmtpWire, credentials: Credentials): Promise<SmtpReply | WireFault> {
  const response = encode(`\0${credentials.user}\0${credentials.password}`);
  const command = `AUTH PLAIN ${response}`;
  if (command.length + 2 <= commandBytesMax) return exchange(wire, command);
  const challenge = await exchange(wire, 'AUTH PLAIN');
  return isChallenge(challenge) ? exchange(wire, response) : challenge;
}

/** The challenges say "Username:" and "Password:" in every language; only their order counts. */
async function authenticateLogin(wire: SmtpWire, credentials: Credentials): Promise<SmtpReply | WireFault> {
  const userChallenge = await exchange(wire, 'AUTH LOGIN');
  if (!isChallenge(userChallenge)) return userChallenge;
  const passwordChallenge = await exchange(wire, encode(credentials.user));
  if (!isChallenge(passwordChallenge)) return passwordChallenge;
  return exchange(wire, encode(credentials.password));
}

function isChallenge(reply: SmtpReply | WireFault): boolean {
  return !isFault(reply) && reply.code === 334;
}

function encode(text: string): string {
  return Buffer.from(text, 'utf8').toString('base64');
}

/** Some servers repeat in their refusal what they were given. */
function withoutSecrets(reply: SmtpReply, credentials: Credentials): SmtpReply {
  const secrets = [
    encode(`\0${credentials.user}\0${credentials.password}`),
    encode(credentials.password),
    credentials.password,
  ];
  return {
    code: reply.code,
    text: secrets.reduce((text, secret) => text.replaceAll(secret, '***'), reply.text),
  };
}

async function exchange(wire: SmtpWire, command: string): Promise<SmtpReply | WireFault> {
  wire.write([], `${command}\r\n`);
  return wire.receive(commandTimeoutMs);
}

function offered(
  wire: SmtpWire,
  target: SmtpTarget,
  failed: SmtpReply | WireFault,
  step: string,
): OpeningFailure {
  return isFault(failed) ? faultFailure(target, failed, step) : refusal(wire, target, failed);
}

function refusal(wire: SmtpWire, target: SmtpTarget, reply: SmtpReply): OpeningFailure {
  wire.break('given_up', 'the server refused the connection');
  return { failed: remoteWords(reply, target.host), hasTlsFailed: false, errorCode: null };
}

function giveUp(wire: SmtpWire, target: SmtpTarget, detail: string): OpeningFailure {
  wire.break('given_up', detail);
  return { failed: ownWords(detail, target.host), hasTlsFailed: false, errorCode: null };
}

function faultFailure(target: SmtpTarget, fault: WireFault, step: string): OpeningFailure {
  return {
    failed: ownWords(`${step}: ${fault.detail}`, target.host),
    hasTlsFailed: false,
    errorCode: fault.code ?? null,
  };
}
