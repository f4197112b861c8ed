import { isIP } from 'node:net';
import { isLoopbackHost } from '../../../../platform/loopback.ts';
import { parseUrl } from '../../../../platform/url.ts';

/**
 * What happens about TLS (RFC 3207, RFC 8314): `implicit` from the first octet; `required` by STARTTLS or not at
 * all; `opportunistic` by STARTTLS where offered, with whatever certificate; `off` never.
 */
type TlsMode = 'implicit' | 'required' | 'opportunistic' | 'off';

/** The server to hand mail to. */
export type SmtpTarget = {
  host: string;
  port: number;
  tls: TlsMode;
  /** True if any certificate will do, and if credentials may go over an unprotected connection. */
  isInsecure: boolean;
  credentials: { user: string; password: string } | null;
  connectionsMax: number;
  /** The name to say in EHLO instead of the program's own, or null. */
  heloName: string | null;
};

/** On loopback 32 carry a quarter more than 16; a distant server needs more, a strict one allows fewer. */
const defaultConnections = 32;
const connectionsLimit = 200;

const knownParameters = ['connections', 'tls', 'insecure', 'name'];
const hostnamePattern = /^[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$/;

/**
 * Reads `smtp://user:password@host:587?connections=32&tls=required|opportunistic|off&insecure=1&name=…`, or
 * `smtps://…` for TLS from the first octet (port 465). Where `tls` is not given, TLS is required as soon as there
 * are credentials and the host is not this machine: an opportunistic handshake believes any certificate, and
 * would give the password to a man in the middle.
 *
 * Throws an Error that says what is wrong and how to write it, and that never contains the URL's password.
 */
export function parseSmtpUrl(url: string): SmtpTarget {
  const parsed = parseUrl(url);
  if (parsed === null) {
    throw new Error('POSTILLION_SMTP_URL cannot be read. Write it as smtp://user:password@host:587.');
  }
  if (parsed.protocol !== 'smtp:' && parsed.protocol !== 'smtps:') {
    throw new Error('POSTILLION_SMTP_URL must begin with smtp:// or smtps://.');
  }
  const isImplicit = parsed.protocol === 'smtps:';
  const host = hostOf(parsed);
  if ((parsed.pathname !== '' && parsed.pathname !== '/') || parsed.hash !== '') {
    throw new Error(
      'POSTILLION_SMTP_URL has something after its host. Encode /, ? and # in the password as %2F, %3F, %23.',
    );
  }
  for (const name of parsed.searchParams.keys()) {
    if (!knownParameters.includes(name)) {
      throw new Error(
        `POSTILLION_SMTP_URL has an unknown parameter; it may have ${knownParameters.join(', ')}.`,
      );
    }
  }
  const credentials = credentialsOf(parsed);
  const isInsecure = readSwitch(parsed, 'insecure');
  return {
    host,
    port: parsed.port === '' ? (isImplicit ? 465 : 587) : readPort(parsed.port),
    tls: tlsModeOf(parsed, isImplicit, credentials !== null && !isInsecure && !isLoopbackHost(host)),
    isInsecure,
    credentials,
    connectionsMax: readConnections(parsed.searchParams.get('connections')),
    heloName: readName(parsed.searchParams.get('name')),
  };
}

function hostOf(parsed: URL): string {
  const host = parsed.hostname.startsWith('[') ? parsed.hostname.slice(1, -1) : parsed.hostname;
  if (isIP(host) !== 0 || hostnamePattern.test(host)) return host;
  throw new Error('POSTILLION_SMTP_URL has no host, or one that is no host name.');
}

function readPort(port: string): number {
  if (port === '0') throw new Error('The port of POSTILLION_SMTP_URL must be from 1 to 65535.');
  return Number(port);
}

function credentialsOf(parsed: URL): SmtpTarget['credentials'] {
  if (parsed.username === '' && parsed.password === '') return null;
  const user = decodePart(parsed.username);
  const password = decodePart(parsed.password);
  if (user === '' || password === '')
    throw new Error('POSTILLION_SMTP_URL has a user without a password, or the reverse.');
  // RFC 4616 §2 forbids NUL, which separates the two in the exchange.
  if (user.includes('\0') || password.includes('\0'))
    throw new Error('User and password of POSTILLION_SMTP_URL cannot contain NUL.');
  return { user, password };
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    // Without the cause, which would carry the password.
    throw new Error(
      'The user or password of POSTILLION_SMTP_URL is not well encoded. Write % itself as %25.',
    );
  }
}

function tlsModeOf(parsed: URL, isImplicit: boolean, hasSomethingToProtect: boolean): TlsMode {
  const wish = parsed.searchParams.get('tls');
  if (isImplicit) {
    if (wish !== null) throw new Error('An smtps:// URL always uses TLS: leave its tls parameter out.');
    return 'implicit';
  }
  if (wish === null) return hasSomethingToProtect ? 'required' : 'opportunistic';
  if (wish === 'required' || wish === 'opportunistic' || wish === 'off') return wish;
  throw new Error('The tls parameter of POSTILLION_SMTP_URL must be required, opportunistic or off.');
}

function readSwitch(parsed: URL, name: string): boolean {
  const value = parsed.searchParams.get(name);
  if (value === null || value === '0') return false;
  if (value === '1') return true;
  throw new Error(`The ${name} parameter of POSTILLION_SMTP_URL must be 1 or 0.`);
}

function readConnections(value: string | null): number {
  if (value === null) return defaultConnections;
  const connections = /^\d{1,3}$/.test(value) ? Number(value) : 0;
  if (connections >= 1 && connections <= connectionsLimit) return connections;
  throw new Error(`The connections parameter of POSTILLION_SMTP_URL must be from 1 to ${connectionsLimit}.`);
}

function readName(value: string | null): string | null {
  if (value === null || hostnamePattern.test(value)) return value;
  throw new Error('The name parameter of POSTILLION_SMTP_URL must be a host name.');
}
