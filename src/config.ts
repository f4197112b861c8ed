import { readFileSync } from 'node:fs';
import path from 'node:path';
import { parseEnv } from 'node:util';
import { parseDomain } from './channels/email/email.ts';
import { parseDnsServer } from './platform/dns/dns.ts';
import { suggestName } from './platform/suggestion.ts';

/** Every setting, once: the documentation and `.env.example` are written from this table. */
export const settings = {
  DATABASE_URL: {
    type: 'text',
    default: '',
    about:
      'Your own PostgreSQL 15 or newer, as postgres://user:password@host:5432/name. Empty: Postillion starts one of its own and keeps it in POSTILLION_DATA_DIR.',
  },
  POSTILLION_DATA_DIR: {
    type: 'text',
    default: './data',
    about:
      'Where the embedded PostgreSQL and the generated secret are kept. Relative to the folder of Postillion.',
  },
  PORT: { type: 'port', default: '8025', about: 'Port of the HTTP API. 0 takes any free one.' },
  HOST: {
    type: 'text',
    default: '127.0.0.1',
    about: 'Address to listen on. 0.0.0.0 serves other machines as well.',
  },
  POSTILLION_PUBLIC_URL: {
    type: 'url',
    default: '',
    about:
      'How the outside world reaches this installation; links are built from it. Empty: the address listened on.',
  },
  POSTILLION_TRUSTED_PROXIES: {
    type: 'list',
    default: '',
    about:
      'Addresses or CIDR ranges of your reverse proxies, separated by commas. Only from them X-Forwarded-For is believed.',
  },
  POSTILLION_SECRET: {
    type: 'text',
    default: '',
    about:
      'At least 32 characters that encrypt what is kept secret at rest; the same on all nodes, and always that of the database. Empty with the embedded PostgreSQL: made at the first start and kept in POSTILLION_DATA_DIR. Required with DATABASE_URL.',
  },
  POSTILLION_NEXT_SECRET: {
    type: 'text',
    default: '',
    about:
      'While the secret is being replaced, the one that "secret rotate" is to take; a process that has both settings starts with whichever fits. Empty: "secret rotate" makes one. See docs/operating.md.',
  },
  POSTILLION_EMAIL_PROVIDER: {
    type: 'choice',
    choices: ['sandbox', 'smtp', 'mx'],
    default: '',
    about:
      "How email leaves: sandbox keeps it in the built-in inbox, smtp hands it to the server of POSTILLION_SMTP_URL, mx delivers straight to the recipients' own servers. Empty: smtp where POSTILLION_SMTP_URL is set, else sandbox.",
  },
  POSTILLION_SMTP_URL: {
    type: 'text',
    default: '',
    about:
      'The relay for email, as smtp://user:password@host:587 or smtps://host:465. Options behind a question mark: connections=16, tls=required|opportunistic|off, insecure=1.',
  },
  POSTILLION_MX_PORT: {
    type: 'port',
    default: '25',
    about: 'The port of mail servers for mx. Any other than 25 is for tests.',
  },
  POSTILLION_MX_PRIVATE_ADDRESSES: {
    type: 'choice',
    choices: ['refuse', 'allow'],
    default: '',
    about:
      'Whether mx delivers to servers on private addresses, which a stranger may name in the DNS to reach into your network. Empty: refused on port 25, allowed on any other.',
  },
  POSTILLION_MX_REQUIRE_TLS: {
    type: 'list',
    default: '',
    about:
      'Domains of recipients, separated by commas, to whose servers mx sends only with TLS and a valid certificate. To all others TLS is used where it is offered.',
  },
  POSTILLION_MAIL_HOST: {
    type: 'text',
    default: '',
    about:
      'The name by which mail servers know this machine: it is said in EHLO, and its address should point back to it (PTR). Empty: POSTILLION_BOUNCE_HOST, or the name of the machine.',
  },
  POSTILLION_DNS_SERVERS: {
    type: 'list',
    default: '',
    about:
      'DNS servers to ask, as addresses with an optional port, separated by commas: 127.0.0.1:5300, [::1]:53. Empty: those of the machine.',
  },
  POSTILLION_ADDRESS_CHECKS: {
    type: 'choice',
    choices: ['on', 'off'],
    default: '',
    about:
      'Whether the domain of each recipient is looked up in the DNS before a message leaves. Empty: on for smtp and mx, off for the sandbox. Set off where the name servers know your own network only: they would deny all others.',
  },
  POSTILLION_BOUNCE_HOST: {
    type: 'text',
    default: '',
    about:
      "The name under which this installation takes bounces. Sending domains point their return path's MX to it, and its own SPF record names the machines that send. Empty, and no port either: bounces go to the sender's address, except with mx for domains whose return path was found in the DNS.",
  },
  POSTILLION_BOUNCE_PORT: {
    type: 'port',
    default: '',
    about:
      'Port on which bounces and complaints are taken by SMTP, usually 25. Empty: nothing listens. Workers listen, not the API.',
  },
  POSTILLION_BOUNCE_LISTEN: {
    type: 'text',
    default: '0.0.0.0',
    about: 'Address on which bounces are taken.',
  },
  POSTILLION_SMS_PROVIDER: {
    type: 'choice',
    choices: ['sandbox', 'smpp', 'twilio'],
    default: '',
    about:
      'How texts leave: sandbox keeps them in the built-in inbox, smpp binds to the SMSC of POSTILLION_SMPP_URL, twilio hands them to the account of POSTILLION_TWILIO_URL. Empty: the one whose URL is set, else sandbox.',
  },
  POSTILLION_SMPP_URL: {
    type: 'text',
    default: '',
    about:
      'The SMSC for texts, as smpp://system_id:password@host:2775 or smpps:// with TLS. Its options stand in docs/sms.md.',
  },
  POSTILLION_TWILIO_URL: {
    type: 'text',
    default: '',
    about:
      'The Twilio account for texts, as https://ACCOUNT_SID:AUTH_TOKEN@api.twilio.com. Its reports come to POSTILLION_PUBLIC_URL, which has to be set along with it.',
  },
  POSTILLION_SANDBOX_ACCESS: {
    type: 'choice',
    choices: ['loopback', 'token', 'any'],
    default: '',
    about:
      'Who may look at /sandbox: token, whoever has the link that a start prints; loopback, also what asks directly from this machine; any, everyone who reaches the port. Empty: loopback, and token where POSTILLION_PUBLIC_URL or POSTILLION_TRUSTED_PROXIES is set.',
  },
  POSTILLION_DATABASE_CONNECTIONS: {
    type: 'count',
    default: '10',
    about: 'PostgreSQL connections of each process, besides a few for notifications and locks.',
  },
  POSTILLION_PREPARED_STATEMENTS: {
    type: 'choice',
    choices: ['on', 'off'],
    default: 'on',
    about: 'Off where a pooler in transaction mode loses prepared statements.',
  },
  LOG_LEVEL: {
    type: 'choice',
    choices: ['debug', 'info', 'warn', 'error', 'fatal', 'silent'],
    default: 'info',
    about: 'What is logged on standard error: in words on a terminal, as JSON lines elsewhere.',
  },
} as const satisfies Record<string, Setting>;

export type Setting = {
  type: 'text' | 'port' | 'count' | 'url' | 'list' | 'choice';
  choices?: readonly string[];
  default: string;
  about: string;
};

export type SettingName = keyof typeof settings;

export type Config = {
  /** Null: the embedded PostgreSQL. */
  databaseUrl: string | null;
  dataDirectory: string;
  port: number;
  host: string;
  publicUrl: string | null;
  trustedProxies: string[];
  secret: string | null;
  /** Only beside a secret. */
  nextSecret: string | null;
  emailProvider: EmailProviderName;
  smtpUrl: string | null;
  mx: { port: number; mayUsePrivateAddresses: boolean; domainsRequiringTls: string[] };
  /** Said in EHLO; null: the name of the machine. */
  mailHost: string | null;
  dnsServers: string[];
  areDomainsLookedUp: boolean;
  /** Null: bounces go to the sender's own address. */
  bounceHost: string | null;
  /** Null: nothing listens. */
  bounceListener: { host: string; port: number } | null;
  smsProvider: SmsProviderName;
  smppUrl: string | null;
  twilioUrl: string | null;
  sandboxAccess: SandboxAccessName;
  databaseConnectionsMax: number;
  usePreparedStatements: boolean;
  logLevel: (typeof settings)['LOG_LEVEL']['choices'][number];
  /** Names that begin like ours and are no settings of this release; they are told and change nothing. */
  unknownSettings: string[];
};

export type EmailProviderName = (typeof settings)['POSTILLION_EMAIL_PROVIDER']['choices'][number];

export type SandboxAccessName = (typeof settings)['POSTILLION_SANDBOX_ACCESS']['choices'][number];

export type SmsProviderName = (typeof settings)['POSTILLION_SMS_PROVIDER']['choices'][number];

/** All that is wrong with the settings, a sentence each. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** The project's own folder: the same distance from `src/` and from `dist/`. */
export const projectDirectory = path.resolve(import.meta.dirname, '..');

/** That of `package.json`. */
export function readVersion(): string {
  const manifest: unknown = JSON.parse(readFileSync(path.join(projectDirectory, 'package.json'), 'utf8'));
  return (manifest as { version: string }).version; // Our own file.
}

/** The environment over the `.env` file in the project's folder. */
export function readEnvironment(environment: NodeJS.ProcessEnv): Record<string, string | undefined> {
  let file = '';
  try {
    file = readFileSync(path.join(projectDirectory, '.env'), 'utf8');
  } catch {
    // Most installations have none.
  }
  return { ...parseEnv(file), ...environment };
}

/** Throws a ConfigError that lists every setting which cannot be used. */
export function readConfig(environment: Readonly<Record<string, string | undefined>>): Config {
  const problems: string[] = [];
  const read = (name: SettingName) => {
    const value = environment[name]?.trim() ?? '';
    const text = value === '' ? settings[name].default : value;
    const problem = checkSetting(name, text);
    if (problem !== null) problems.push(problem);
    return text;
  };

  const unknown = findUnknownSettings(environment);
  for (const { name, meant } of unknown.filter(({ isTypo }) => isTypo))
    problems.push(`There is no setting ${name} (did you mean ${meant ?? ''}?)`);

  const smtpUrl = read('POSTILLION_SMTP_URL');
  const emailProvider = read('POSTILLION_EMAIL_PROVIDER') || (smtpUrl === '' ? 'sandbox' : 'smtp');
  if (emailProvider === 'smtp' && smtpUrl === '') {
    problems.push('POSTILLION_SMTP_URL is required with POSTILLION_EMAIL_PROVIDER=smtp');
  }
  const smppUrl = read('POSTILLION_SMPP_URL');
  const twilioUrl = read('POSTILLION_TWILIO_URL');
  const urlsOfTexts = { smpp: smppUrl, twilio: twilioUrl };
  const smsProvider = read('POSTILLION_SMS_PROVIDER') || guessSmsProvider(smppUrl, twilioUrl);
  if (smsProvider in urlsOfTexts && urlsOfTexts[smsProvider as keyof typeof urlsOfTexts] === '') {
    problems.push(
      `POSTILLION_${smsProvider.toUpperCase()}_URL is required with POSTILLION_SMS_PROVIDER=${smsProvider}`,
    );
  }
  const publicUrl = read('POSTILLION_PUBLIC_URL').replace(/\/+$/, '');
  if (smsProvider === 'twilio' && publicUrl === '')
    problems.push('POSTILLION_PUBLIC_URL is required with POSTILLION_SMS_PROVIDER=twilio, for its reports');
  const mxPort = Number(read('POSTILLION_MX_PORT'));
  const privateAddresses = read('POSTILLION_MX_PRIVATE_ADDRESSES');
  const dnsServers = listOf(read('POSTILLION_DNS_SERVERS'));
  for (const server of dnsServers) {
    if (parseDnsServer(server) === null)
      problems.push(`POSTILLION_DNS_SERVERS must hold IP addresses with an optional port: ${server}`);
  }
  const hostOf = (name: 'POSTILLION_BOUNCE_HOST' | 'POSTILLION_MAIL_HOST') => {
    const text = read(name);
    const host = parseDomain(text);
    if (text !== '' && host === null) problems.push(`${name} must be a host name, such as mail.example.com`);
    return host;
  };
  const bounceHost = hostOf('POSTILLION_BOUNCE_HOST');
  const bouncePort = read('POSTILLION_BOUNCE_PORT');
  const bounceListen = read('POSTILLION_BOUNCE_LISTEN');
  const addressChecks = read('POSTILLION_ADDRESS_CHECKS');
  const databaseUrl = read('DATABASE_URL');
  if (databaseUrl !== '' && !/^postgres(ql)?:\/\//.test(databaseUrl))
    problems.push('DATABASE_URL must be like postgres://user:password@host:5432/name');
  const secret = read('POSTILLION_SECRET');
  if (databaseUrl !== '' && secret === '') problems.push('POSTILLION_SECRET is required with DATABASE_URL');
  if (secret !== '' && secret.length < 32)
    problems.push('POSTILLION_SECRET must have at least 32 characters');
  const nextSecret = read('POSTILLION_NEXT_SECRET');
  if (nextSecret !== '' && nextSecret.length < 32)
    problems.push('POSTILLION_NEXT_SECRET must have at least 32 characters');
  if (nextSecret !== '' && secret === '')
    problems.push('POSTILLION_NEXT_SECRET is of use only beside POSTILLION_SECRET');

  const trustedProxies = listOf(read('POSTILLION_TRUSTED_PROXIES'));
  // What others can reach is not opened by an address, which a proxy on this machine lends to everybody.
  const guessedAccess = publicUrl === '' && trustedProxies.length === 0 ? 'loopback' : 'token';

  const config: Config = {
    databaseUrl: databaseUrl || null,
    dataDirectory: path.resolve(projectDirectory, read('POSTILLION_DATA_DIR')),
    port: Number(read('PORT')),
    host: read('HOST'),
    publicUrl: publicUrl || null,
    trustedProxies,
    secret: secret || null,
    nextSecret: nextSecret || null,
    emailProvider: emailProvider as EmailProviderName, // One of the choices, or a problem.
    smtpUrl: smtpUrl || null,
    mx: {
      port: mxPort,
      mayUsePrivateAddresses: privateAddresses === '' ? mxPort !== 25 : privateAddresses === 'allow',
      domainsRequiringTls: listOf(read('POSTILLION_MX_REQUIRE_TLS')).map((domain) => domain.toLowerCase()),
    },
    mailHost: hostOf('POSTILLION_MAIL_HOST') ?? bounceHost,
    dnsServers,
    areDomainsLookedUp:
      addressChecks === '' ? emailProvider === 'smtp' || emailProvider === 'mx' : addressChecks === 'on',
    bounceHost,
    bounceListener: bouncePort === '' ? null : { host: bounceListen, port: Number(bouncePort) },
    smsProvider: smsProvider as SmsProviderName, // One of the choices, or a problem.
    smppUrl: smppUrl || null,
    twilioUrl: twilioUrl || null,
    sandboxAccess: (read('POSTILLION_SANDBOX_ACCESS') || guessedAccess) as SandboxAccessName, // As above.
    databaseConnectionsMax: Number(read('POSTILLION_DATABASE_CONNECTIONS')),
    usePreparedStatements: read('POSTILLION_PREPARED_STATEMENTS') === 'on',
    logLevel: read('LOG_LEVEL') as Config['logLevel'], // One of the choices, or a problem.
    unknownSettings: unknown.map(({ name }) => name),
  };
  if (problems.length > 0) throw new ConfigError(problems.join('\n'));
  return config;
}

const prefix = 'POSTILLION_';

/**
 * What begins like a setting and is none. One that is a slip away from a setting which is not set is taken for a
 * typing error, and refused: what it was meant to change would quietly stay as it is, such as mail that is to leave
 * and is kept in the sandbox. Any other may belong to a newer release that was rolled back, and must not keep this one
 * from starting. An empty value is none.
 */
function findUnknownSettings(
  environment: Readonly<Record<string, string | undefined>>,
): { name: string; meant: string | null; isTypo: boolean }[] {
  const known = Object.keys(settings);
  const isSet = (name: string) => (environment[name]?.trim() ?? '') !== '';
  // The prefix itself may be misspelt.
  const ours = known.filter((name) => name.startsWith(prefix));
  return Object.keys(environment)
    .filter((name) => isSet(name) && !known.includes(name))
    .map((name) => ({ name, meant: suggestName(name, ours) }))
    .filter(({ name, meant }) => name.startsWith(prefix) || meant !== null)
    .map(({ name, meant }) => ({ name, meant, isTypo: meant !== null && !isSet(meant) }));
}

function guessSmsProvider(smppUrl: string, twilioUrl: string): SmsProviderName {
  if (smppUrl !== '') return 'smpp';
  return twilioUrl === '' ? 'sandbox' : 'twilio';
}

function listOf(text: string): string[] {
  return text
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');
}

function checkSetting(name: SettingName, text: string): string | null {
  const setting: Setting = settings[name];
  switch (setting.type) {
    case 'text':
    case 'list':
      return null;
    case 'port':
      if (text === setting.default) return null;
      return isNumberWithin(text, 0, 65_535) ? null : `${name} must be a port number, 0 to 65535`;
    case 'count':
      return isNumberWithin(text, 1, 1_000) ? null : `${name} must be a number from 1 to 1000`;
    case 'url':
      return text === '' || /^https?:\/\/[^/]/.test(text) ? null : `${name} must be an http or https URL`;
    case 'choice':
      return text === setting.default || setting.choices?.includes(text)
        ? null
        : `${name} must be one of ${setting.choices?.join(', ') ?? ''}`;
  }
}

function isNumberWithin(text: string, minimum: number, maximum: number): boolean {
  return /^\d+$/.test(text) && Number(text) >= minimum && Number(text) <= maximum;
}
