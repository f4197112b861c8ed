import { isIP } from 'node:net';
import type { SenderType } from '../../provider.ts';
import type { NumberPlan } from './pdu.ts';
import { parseUrl } from '../../../../platform/url.ts';

/** The message centre (SMSC) to hand texts to, and how it wants them. */
export type SmppUrl = {
  host: string;
  port: number;
  tls: { isVerified: boolean } | null;
  systemId: string;
  password: string;
  systemType: string;
  /** Whether one connection carries everything, or texts go over one and receipts over another. */
  bind: (typeof binds)[number];
  /** How many texts may wait for their answer at once, on each connection. */
  window: number;
  /** With separate binds, this many of each. */
  connections: number;
  /** How many parts of texts leave a second at most, on all connections of a worker together; null for no limit. */
  perSecondMax: number | null;
  /** The dialling code of the country whose national numbers the provider gives without it; null where it gives none. */
  country: string | null;
  /** How long the provider should try; null leaves it to the provider. */
  validityMinutes: number | null;
  senderPlans: Readonly<Record<SenderType, NumberPlan>>;
  destinationPlan: NumberPlan;
};

/** Fewer and a distant provider is used poorly; more and most providers refuse what is beyond their own window. */
const defaultWindow = 100;
const windowLimit = 1_000;
const connectionsLimit = 16;
const rateLimit = 10_000;
/** A relative time (§7.1.1.2) of whole days, hours and minutes that every month has. */
const validityMinutesLimit = 28 * 24 * 60;

/** §4.1.1: system_id of 15 octets, password of 8, system_type of 12. Many providers hand out longer passwords. */
const systemIdCharsMax = 15;
const passwordCharsMax = 64;
const systemTypeCharsMax = 12;

const binds = ['transceiver', 'separate'] as const;

const knownParameters = [
  'system_type',
  'bind',
  'rate',
  'country',
  'window',
  'connections',
  'validity_minutes',
  'insecure',
  'alphanumeric',
  'long_code',
  'short_code',
  'destination',
];
const hostnamePattern = /^[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$/;

/**
 * Reads `smpp://SYSTEM_ID:PASSWORD@host:2775?window=100&connections=1&system_type=…&validity_minutes=…`, or
 * `smpps://…` for TLS from the first octet (port 3550), whose certificate is checked unless `insecure=1`. With
 * `bind=separate` each connection is two, a transmitter and a receiver, in place of a transceiver. `rate=N` lets
 * N parts of texts leave a second, and `country=CC` says which country national numbers are of. How numbers are marked
 * is given as TON/NPI where the provider wants it otherwise: `alphanumeric=5/0`, `long_code=1/1` (also
 * for toll-free ones), `short_code=3/0`, `destination=1/1`.
 *
 * Throws an Error that says what is wrong and how to write it, and that never contains the URL's password.
 */
export function parseSmppUrl(url: string): SmppUrl {
  const parsed = parseUrl(url);
  if (parsed === null) {
    throw new Error('POSTILLION_SMPP_URL cannot be read. Write it as smpp://SYSTEM_ID:PASSWORD@host:2775.');
  }
  if (parsed.protocol !== 'smpp:' && parsed.protocol !== 'smpps:') {
    throw new Error('POSTILLION_SMPP_URL must begin with smpp:// or smpps://.');
  }
  if ((parsed.pathname !== '' && parsed.pathname !== '/') || parsed.hash !== '') {
    throw new Error(
      'POSTILLION_SMPP_URL has something after its host. Encode /, ? and # in the password as %2F, %3F, %23.',
    );
  }
  for (const name of parsed.searchParams.keys()) {
    if (!knownParameters.includes(name)) {
      throw new Error(
        `POSTILLION_SMPP_URL has an unknown parameter; it may have ${knownParameters.join(', ')}.`,
      );
    }
  }
  const isSecure = parsed.protocol === 'smpps:';
  const isInsecure = readSwitch(parsed, 'insecure');
  if (isInsecure && !isSecure) {
    throw new Error(
      'The insecure parameter belongs to smpps:// only: an smpp:// URL has no certificate to check.',
    );
  }
  const longCode = readPlan(parsed, 'long_code', { ton: 1, npi: 1 });
  return {
    host: hostOf(parsed),
    port: readPort(parsed.port, isSecure ? 3550 : 2775),
    tls: isSecure ? { isVerified: !isInsecure } : null,
    ...credentialsOf(parsed),
    systemType: readText('system type', parsed.searchParams.get('system_type') ?? '', systemTypeCharsMax),
    bind: readChoice(parsed, 'bind', binds),
    window: readNumber(parsed, 'window', windowLimit) ?? defaultWindow,
    connections: readNumber(parsed, 'connections', connectionsLimit) ?? 1,
    perSecondMax: readNumber(parsed, 'rate', rateLimit),
    country: readCountry(parsed),
    validityMinutes: readNumber(parsed, 'validity_minutes', validityMinutesLimit),
    senderPlans: {
      alphanumeric: readPlan(parsed, 'alphanumeric', { ton: 5, npi: 0 }),
      long_code: longCode,
      toll_free: longCode,
      short_code: readPlan(parsed, 'short_code', { ton: 3, npi: 0 }),
    },
    destinationPlan: readPlan(parsed, 'destination', { ton: 1, npi: 1 }),
  };
}

function hostOf(parsed: URL): string {
  const host = parsed.hostname.startsWith('[') ? parsed.hostname.slice(1, -1) : parsed.hostname;
  if (isIP(host) !== 0 || hostnamePattern.test(host)) return host;
  throw new Error('POSTILLION_SMPP_URL has no host, or one that is no host name.');
}

function readPort(port: string, usual: number): number {
  if (port === '0') throw new Error('The port of POSTILLION_SMPP_URL must be from 1 to 65535.');
  return port === '' ? usual : Number(port);
}

function credentialsOf(parsed: URL): { systemId: string; password: string } {
  if (parsed.username === '' || parsed.password === '') {
    throw new Error(
      'POSTILLION_SMPP_URL needs a system ID and a password. Write it as smpp://SYSTEM_ID:PASSWORD@host:2775.',
    );
  }
  return {
    systemId: readText('system ID', decodePart(parsed.username), systemIdCharsMax),
    password: readText('password', decodePart(parsed.password), passwordCharsMax),
  };
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    // Without the cause, which would carry the password.
    throw new Error(
      'The system ID or password of POSTILLION_SMPP_URL is not well encoded. Write % itself as %25.',
    );
  }
}

function readText(what: string, text: string, charsMax: number): string {
  if (text.length <= charsMax && /^[\x20-\x7e]*$/.test(text)) return text;
  throw new Error(
    `The ${what} of POSTILLION_SMPP_URL must have at most ${charsMax} characters, all of them ASCII.`,
  );
}

function readSwitch(parsed: URL, name: string): boolean {
  const value = parsed.searchParams.get(name);
  if (value === null || value === '0') return false;
  if (value === '1') return true;
  throw new Error(`The ${name} parameter of POSTILLION_SMPP_URL must be 1 or 0.`);
}

/** The first choice is the default. */
function readChoice<Choice extends string>(
  parsed: URL,
  name: string,
  choices: readonly [Choice, ...Choice[]],
): Choice {
  const value = parsed.searchParams.get(name) ?? choices[0];
  const choice = choices.find((each) => each === value);
  if (choice !== undefined) return choice;
  throw new Error(`The ${name} parameter of POSTILLION_SMPP_URL must be ${choices.join(' or ')}.`);
}

function readNumber(parsed: URL, name: string, limit: number): number | null {
  const value = parsed.searchParams.get(name);
  if (value === null) return null;
  const number = /^\d{1,6}$/.test(value) ? Number(value) : 0;
  if (number >= 1 && number <= limit) return number;
  throw new Error(`The ${name} parameter of POSTILLION_SMPP_URL must be from 1 to ${limit}.`);
}

/** ITU-T E.164 §6.2.1 */
function readCountry(parsed: URL): string | null {
  const value = parsed.searchParams.get('country');
  if (value === null || /^[1-9]\d{0,2}$/.test(value)) return value;
  throw new Error(
    'The country parameter of POSTILLION_SMPP_URL must be a dialling code without its plus, for example 49.',
  );
}

/** §5.2.5 and §5.2.6: one octet each, of which six types and nineteen plans are given a meaning. */
function readPlan(parsed: URL, name: string, usual: NumberPlan): NumberPlan {
  const value = parsed.searchParams.get(name);
  if (value === null) return usual;
  const [, ton, npi] = /^([0-6])\/(1?\d)$/.exec(value) ?? [];
  if (ton !== undefined && npi !== undefined) return { ton: Number(ton), npi: Number(npi) };
  throw new Error(
    `The ${name} parameter of POSTILLION_SMPP_URL must be TON/NPI, for example ${usual.ton}/${usual.npi}.`,
  );
}
