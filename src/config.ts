import { readFileSync } from 'node:fs';
import path from 'node:path';
import { parseEnv } from 'node:util';
import { parseAddress, parseDomain } from './channels/email/email.ts';
import { isPushHostPattern } from './channels/push/endpoint.ts';
import { type ChatAppProviderName, chatAppProviders } from './channels/chatapp/providers/registry.ts';
import { type EmailProviderName, emailProviders } from './channels/email/providers/registry.ts';
import {
  describeChoice,
  type DescribedProvider,
  describeProviders,
  namesOf,
  settingsOf,
} from './channels/provider-definition.ts';
import { type PushProviderName, pushProviders } from './channels/push/providers/registry.ts';
import { type SmsProviderName, smsProviders } from './channels/sms/providers/registry.ts';
import { parseDnsServer } from './platform/dns/dns.ts';
import { isLoopbackHost } from './platform/loopback.ts';
import { isAllowedHostEntry } from './platform/outbound/allowed-hosts.ts';
import { type PartitionSize, partitionSizes } from './platform/postgres/partition-size.ts';
import { daysOf, findSettingProblem, limitedBytesOf, listOf, type Setting } from './platform/setting.ts';
import { suggestName } from './platform/suggestion.ts';

/** Every setting, once: the documentation and `.env.example` are written from this table. */
export const settings = {
  DATABASE_URL: {
    type: 'text',
    default: '',
    about:
      'Your own PostgreSQL 15 or newer, as postgres://user:password@host:5432/name. Empty: Postillion starts one of its own and keeps it in POSTILLION_DATA_DIR.',
  },
  POSTILLION_API_DATABASE_URL: {
    type: 'text',
    default: '',
    about:
      'The same database as DATABASE_URL, for a user that may do no more than requests need, and owns nothing. The API serves as this user. Empty: as that of DATABASE_URL. See docs/operating.md.',
  },
  POSTILLION_DATA_DIR: {
    type: 'text',
    default: './data',
    about:
      'Where the embedded PostgreSQL and the generated secret are kept. Relative to the folder of Postillion, or to that in which it is run, where it is installed as a package.',
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
      'The URL at which recipients and providers reach this installation; links are built from it. Empty: the address listened on.',
  },
  POSTILLION_TRUSTED_PROXIES: {
    type: 'list',
    default: '',
    about:
      'Addresses or CIDR ranges of your reverse proxies, separated by commas. X-Forwarded-For is trusted only from them.',
  },
  POSTILLION_SECRET: {
    type: 'text',
    default: '',
    about:
      'At least 32 characters that encrypt secrets at rest. All nodes of a database must have the same, and it can only be changed with "secret rotate". Empty with the embedded PostgreSQL: generated at the first start and kept in POSTILLION_DATA_DIR. Required with DATABASE_URL.',
  },
  POSTILLION_NEXT_SECRET: {
    type: 'text',
    default: '',
    about:
      'The next secret, while the secret is being replaced with "secret rotate". A process that has both settings starts with the one that fits the database. Empty: "secret rotate" generates one. See docs/operating.md.',
  },
  POSTILLION_EMAIL_PROVIDER: {
    type: 'choice',
    choices: namesOf(emailProviders),
    default: '',
    about: `How email is sent: ${describeProviders(emailProviders)}. Empty: ${describeChoice(emailProviders)}, else sandbox.`,
  },
  ...settingsOf(emailProviders),
  POSTILLION_MAIL_HOST: {
    type: 'text',
    default: '',
    about:
      'The name by which mail servers know this machine: it is sent in EHLO, and its address should point back to it (PTR). Empty: POSTILLION_BOUNCE_HOST, or the name of the machine.',
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
      'Whether the domain of each recipient is looked up in the DNS before a message is handed off. Empty: on for smtp and mx, off for the sandbox. Set it to off if the name servers know only your own network: nobody is checked by them, and /readyz would say so for ever.',
  },
  POSTILLION_BOUNCE_HOST: {
    type: 'text',
    default: '',
    about:
      "The name under which this installation takes bounces. Sending domains point their return path's MX to it, and its own SPF record names the machines that send. Empty: the host of POSTILLION_PUBLIC_URL if there is a port for bounces; without either, bounces go to the sender's address and are not read.",
  },
  POSTILLION_BOUNCE_PORT: {
    type: 'port',
    default: '',
    about:
      'Port on which bounces, complaints and mail to the postmaster are taken by SMTP, usually 25. Empty: nothing listens. Workers listen, not the API.',
  },
  POSTILLION_BOUNCE_LISTEN: {
    type: 'text',
    default: '0.0.0.0',
    about: 'Address on which bounces are taken.',
  },
  POSTILLION_ALERTS_FROM: {
    type: 'text',
    default: '',
    about:
      'The address from which this installation alerts customers who cannot send by themselves: without a verified domain, suspended, or with a quota that is used up. Its domain must be verified for an organization of this installation, such as your own, which is the sender: its plan and its log. Empty: such alerts wait. See docs/alerts.md.',
  },
  POSTILLION_SUBMISSION_PORT: {
    type: 'port',
    default: '',
    about:
      'Port on which the API takes emails by SMTP with STARTTLS, from programs that know nothing else, usually 2587 or 587. Empty: nothing listens. See docs/smtp.md.',
  },
  POSTILLION_SUBMISSION_TLS_PORT: {
    type: 'port',
    default: '',
    about: 'The same with TLS from the beginning, usually 2465 or 465. Empty: nothing listens.',
  },
  POSTILLION_SUBMISSION_LISTEN: {
    type: 'text',
    default: '127.0.0.1',
    about: 'Address on which emails are taken by SMTP. 0.0.0.0 serves other machines as well.',
  },
  POSTILLION_SUBMISSION_CERT: {
    type: 'text',
    default: '',
    about:
      'File (PEM) with the certificate for SMTP, and its chain. It is read anew when it is replaced. Empty: only programs on this machine can send by SMTP.',
  },
  POSTILLION_SUBMISSION_KEY: {
    type: 'text',
    default: '',
    about: 'File (PEM) with the key of that certificate.',
  },
  POSTILLION_SMS_PROVIDER: {
    type: 'choice',
    choices: namesOf(smsProviders),
    default: '',
    about: `How texts are sent: ${describeProviders(smsProviders)}. Empty: ${describeChoice(smsProviders)}, else sandbox.`,
  },
  ...settingsOf(smsProviders),
  POSTILLION_PUSH_PROVIDER: {
    type: 'choice',
    choices: namesOf(pushProviders),
    default: 'sandbox',
    about: `How pushes are sent: ${describeProviders(pushProviders)}.`,
  },
  ...settingsOf(pushProviders),
  POSTILLION_CHATAPP_PROVIDER: {
    type: 'choice',
    choices: namesOf(chatAppProviders),
    default: 'sandbox',
    about: `How chat-app messages are sent: ${describeProviders(chatAppProviders)}.`,
  },
  ...settingsOf(chatAppProviders),
  POSTILLION_WEB_PUSH_HOSTS: {
    type: 'list',
    default:
      'fcm.googleapis.com, jmt17.google.com, updates.push.services.mozilla.com, web.push.apple.com, *.notify.windows.com, simulator.postillion.test',
    about:
      "The push services of browsers, as host names separated by commas, `*.` for all names below one: endpoints at any other host are refused. The second is that of Chromium without Google's keys, the last the sandbox's.",
  },
  POSTILLION_WEBHOOK_ALLOW_HOSTS: {
    type: 'list',
    default: '',
    about:
      'Where webhooks may go beside the public Internet, separated by commas: hosts such as hooks.internal, `*.` for all names below one, addresses and CIDR ranges. Each customer can have requests sent there, and reads how they are answered. Empty: localhost, as long as the embedded PostgreSQL is used, HOST is an address of this machine alone, and neither POSTILLION_PUBLIC_URL nor POSTILLION_TRUSTED_PROXIES is set; else nothing.',
  },
  POSTILLION_SANDBOX_ACCESS: {
    type: 'choice',
    choices: ['loopback', 'token', 'any'],
    default: '',
    about:
      'Who may open /sandbox: token, everyone with the link that is printed at a start; loopback, also direct requests from this machine; any, everyone who can reach the port. Empty: loopback, and token where POSTILLION_PUBLIC_URL or POSTILLION_TRUSTED_PROXIES is set.',
  },
  POSTILLION_PROCESSES: {
    type: 'count',
    default: 'auto',
    about:
      'In how many processes a role runs, so that it uses as many cores. auto: with --role api and --role worker one for each core, but no more than one for each 512 MB of memory; one where a process has both roles. See docs/operating.md.',
  },
  POSTILLION_METRICS_PORT: {
    type: 'port',
    default: '',
    about:
      'Port on which each role serves /metrics for Prometheus, and /healthz and /readyz. Empty: nothing listens. 0 takes any free one. See docs/monitoring.md.',
  },
  POSTILLION_METRICS_HOST: {
    type: 'text',
    default: '127.0.0.1',
    about:
      'Address on which metrics are served. There is no key: only who watches this installation should reach it.',
  },
  POSTILLION_DRAIN_SECONDS: {
    type: 'count',
    default: '1',
    about:
      'How long an API that was asked to stop goes on serving, while /readyz answers 503: as long as a load balancer takes to notice, so that none of its requests is refused. See docs/operating.md.',
  },
  POSTILLION_DATABASE_CONNECTIONS: {
    type: 'count',
    default: '10',
    about:
      'PostgreSQL connections of a role, in addition to a few of each process for notifications and locks. Its processes divide them, and have four each at least.',
  },
  POSTILLION_SESSION_DATABASE_URL: {
    type: 'text',
    default: '',
    about:
      'The same database as DATABASE_URL, without a pooler in transaction mode in between: notifications and locks need a session of their own. Empty: DATABASE_URL. See docs/operating.md.',
  },
  POSTILLION_PREPARED_STATEMENTS: {
    type: 'choice',
    choices: ['on', 'off'],
    default: 'on',
    about: 'Set it to off if a pooler in transaction mode loses prepared statements.',
  },
  POSTILLION_MESSAGES_KEPT_DAYS: {
    type: 'days',
    least: 7,
    default: 'unlimited',
    about:
      'For how many days messages and their recipients are kept, from their acceptance, 7 to 3650. An organization may have less ("org update --messages-kept-days"), not more. All nodes must have the same. See docs/operating.md.',
  },
  POSTILLION_CONTENT_KEPT_DAYS: {
    type: 'days',
    default: 'unlimited',
    about:
      'For how many days what messages say is kept: HTML, text, what pushes show, 1 to 3650. An organization may have less ("org update --content-kept-days"), not more. All nodes must have the same. See docs/operating.md.',
  },
  POSTILLION_STORAGE_LIMIT: {
    type: 'bytes',
    default: 'unlimited',
    about:
      'How much an organization may store, for organizations that are created from now on: 20GB, for instance. "org update --storage-limit" changes it for one. See docs/operating.md.',
  },
  POSTILLION_PARTITIONS: {
    type: 'choice',
    choices: partitionSizes,
    default: 'month',
    about:
      'How much time a partition of messages and recipients holds. Take week or day if the rows of a month outgrow memory: from about five million recipients a day, or fifty million. All nodes must have the same. See docs/operating.md.',
  },
  LOG_LEVEL: {
    type: 'choice',
    choices: ['debug', 'info', 'warn', 'error', 'fatal', 'silent'],
    default: 'info',
    about: 'What is logged on standard error: as text on a terminal, as JSON lines elsewhere.',
  },
} as const satisfies Record<string, Setting>;

export type SettingName = keyof typeof settings;

/** The settings that only their provider understands. */
const settingsOfProviders = {
  ...settingsOf(emailProviders),
  ...settingsOf(smsProviders),
  ...settingsOf(pushProviders),
  ...settingsOf(chatAppProviders),
};

type ProviderSettingName = keyof typeof settingsOfProviders;

export type Config = {
  /** Null: the embedded PostgreSQL. */
  databaseUrl: string | null;
  /** As who requests are served; null: as all else. */
  apiDatabaseUrl: string | null;
  /** For what needs a session of its own; null: as all else. */
  sessionDatabaseUrl: string | null;
  dataDirectory: string;
  port: number;
  host: string;
  publicUrl: string | null;
  trustedProxies: string[];
  secret: string | null;
  /** Only beside a secret. */
  nextSecret: string | null;
  emailProvider: EmailProviderName;
  /** Said in EHLO; null: the name of the machine. */
  mailHost: string | null;
  dnsServers: string[];
  areDomainsLookedUp: boolean;
  /** Null: bounces go to the sender's own address. */
  bounceHost: string | null;
  /** Null: nothing listens. */
  bounceListener: { host: string; port: number } | null;
  /** Null: nothing listens. */
  submission: SubmissionSettings | null;
  smsProvider: SmsProviderName;
  pushProvider: PushProviderName;
  chatAppProvider: ChatAppProviderName;
  /** In lower case. */
  webPushHosts: string[];
  /** From which customers are alerted who cannot send by themselves; null: from none. */
  alertsFrom: { address: string; domain: string } | null;
  /** Hosts, `*.` for all names below one, addresses and ranges inside to which webhooks may go. In lower case. */
  webhookAllowedHosts: string[];
  /** Of all providers, as they were set, or their defaults: what they mean is their provider's. */
  providerSettings: Readonly<Record<ProviderSettingName, string>>;
  sandboxAccess: SandboxAccessName;
  /** Null: nothing listens. */
  metricsListener: { host: string; port: number } | null;
  /** In how many a role runs; null: as many as the machine has room for. */
  processes: number | null;
  drainMs: number;
  /** For how many days the installation keeps messages, and what they say, at most; null for ever. */
  keptDays: { messages: number | null; content: number | null };
  /** Of organizations that are created; null for no limit. */
  storageLimitBytes: number | null;
  partitionSize: PartitionSize;
  databaseConnectionsMax: number;
  usePreparedStatements: boolean;
  logLevel: (typeof settings)['LOG_LEVEL']['choices'][number];
  /** Names that begin like ours and are no settings of this release; they are told and change nothing. */
  unknownSettings: string[];
};

export type SubmissionSettings = {
  host: string;
  /** With STARTTLS, and with TLS from the beginning; null: no such port. */
  port: number | null;
  tlsPort: number | null;
  /** Null: only programs on this machine may say their key. */
  certificate: { certificateFile: string; keyFile: string } | null;
};

export type SandboxAccessName = (typeof settings)['POSTILLION_SANDBOX_ACCESS']['choices'][number];

/** All that is wrong with the settings, a sentence each. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** The project's own folder: the same distance from `src/` and from `dist/`. */
export const projectDirectory = path.resolve(import.meta.dirname, '..');

/**
 * Where `.env` is looked for, and where relative paths begin: the project's own folder. That of an installed package is
 * replaced with the next release, and is not the operator's: there it is the folder that the program is run in.
 */
const homeDirectory =
  path.basename(path.dirname(projectDirectory)) === 'node_modules' ? process.cwd() : projectDirectory;

/** That of `package.json`. */
export function readVersion(): string {
  const manifest: unknown = JSON.parse(readFileSync(path.join(projectDirectory, 'package.json'), 'utf8'));
  return (manifest as { version: string }).version; // Our own file.
}

/** The environment over the `.env` file. */
export function readEnvironment(environment: NodeJS.ProcessEnv): Record<string, string | undefined> {
  let file = '';
  try {
    file = readFileSync(path.join(homeDirectory, '.env'), 'utf8');
  } catch {
    // Most installations have none.
  }
  return { ...parseEnv(file), ...environment };
}

/**
 * Takes out of the environment what names the owner of the database, for a process that serves requests as another user:
 * what it starts inherits none of it. What the system keeps of the environment that a process began with, on Linux in
 * `/proc`, stays.
 */
export function forgetOwner(environment: NodeJS.ProcessEnv): void {
  delete environment.DATABASE_URL;
  delete environment.POSTILLION_SESSION_DATABASE_URL;
}

const besideDatabase = ['POSTILLION_API_DATABASE_URL', 'POSTILLION_SESSION_DATABASE_URL'] as const;
type DatabaseSetting = 'DATABASE_URL' | (typeof besideDatabase)[number];

/** Throws a ConfigError that lists every setting which cannot be used. */
export function readConfig(environment: Readonly<Record<string, string | undefined>>): Config {
  const problems: string[] = [];
  const textOf = (name: SettingName) => {
    const value = environment[name]?.trim() ?? '';
    return value === '' ? settings[name].default : value;
  };
  const read = (name: SettingName) => {
    const text = textOf(name);
    const problem = findSettingProblem(name, settings[name], text);
    if (problem !== null) problems.push(problem);
    return text;
  };

  const unknown = findUnknownSettings(environment);
  for (const { name, meant } of unknown.filter(({ isTypo }) => isTypo))
    problems.push(`There is no setting ${name} (did you mean ${meant ?? ''}?)`);

  const emailProvider = readProvider('POSTILLION_EMAIL_PROVIDER', emailProviders, { textOf, read, problems });
  const smsProvider = readProvider('POSTILLION_SMS_PROVIDER', smsProviders, { textOf, read, problems });
  const pushProvider = readProvider('POSTILLION_PUSH_PROVIDER', pushProviders, { textOf, read, problems });
  const chatAppProvider = readProvider('POSTILLION_CHATAPP_PROVIDER', chatAppProviders, {
    textOf,
    read,
    problems,
  });
  const publicUrl = read('POSTILLION_PUBLIC_URL').replace(/\/+$/, '');
  const providerSettings = Object.fromEntries(
    Object.keys(settingsOfProviders).map((name) => [name, read(name as SettingName)]),
  ) as Config['providerSettings']; // All names of that record, and no others.
  const chosen = [
    emailProviders[emailProvider],
    smsProviders[smsProvider],
    pushProviders[pushProvider],
    chatAppProviders[chatAppProvider],
  ];
  for (const { requires, readSettings } of chosen) {
    // What is missing is told already.
    if (readSettings === undefined || requires.some(({ setting }) => textOf(setting) === '')) continue;
    const problem = findProblem(() => readSettings(providerSettings));
    if (problem !== null) problems.push(problem);
  }
  const dnsServers = listOf(read('POSTILLION_DNS_SERVERS'));
  for (const server of dnsServers) {
    if (parseDnsServer(server) === null)
      problems.push(`POSTILLION_DNS_SERVERS must hold IP addresses with an optional port: ${server}`);
  }
  const webPushHosts = listOf(read('POSTILLION_WEB_PUSH_HOSTS').toLowerCase());
  for (const host of webPushHosts) {
    if (!isPushHostPattern(host))
      problems.push(`POSTILLION_WEB_PUSH_HOSTS must hold host names, such as *.notify.windows.com: ${host}`);
  }
  const webhookAllowedHosts = listOf(read('POSTILLION_WEBHOOK_ALLOW_HOSTS').toLowerCase());
  for (const entry of webhookAllowedHosts) {
    if (!isAllowedHostEntry(entry))
      problems.push(
        `POSTILLION_WEBHOOK_ALLOW_HOSTS must hold host names, addresses and CIDR ranges, such as *.internal or 10.0.0.0/8: ${entry}`,
      );
  }
  const alertsFromText = read('POSTILLION_ALERTS_FROM');
  const alertsFrom = parseAddress(alertsFromText);
  if (alertsFromText !== '' && (alertsFrom === null || alertsFrom.isInternational))
    problems.push('POSTILLION_ALERTS_FROM must be an email address, such as alerts@example.com');
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
  const databaseUrlOf = (name: DatabaseSetting) => {
    const url = read(name);
    if (url !== '' && !/^postgres(ql)?:\/\//.test(url))
      problems.push(`${name} must be like postgres://user:password@host:5432/name`);
    return url;
  };
  const databaseUrl = databaseUrlOf('DATABASE_URL');
  const [apiDatabaseUrl = '', sessionDatabaseUrl = ''] = besideDatabase.map((name) => {
    const url = databaseUrlOf(name);
    if (databaseUrl === '' && url !== '')
      problems.push(`${name} can be used only together with DATABASE_URL`);
    return url;
  });
  const secret = read('POSTILLION_SECRET');
  if (databaseUrl !== '' && secret === '') problems.push('POSTILLION_SECRET is required with DATABASE_URL');
  if (secret !== '' && secret.length < 32)
    problems.push('POSTILLION_SECRET must have at least 32 characters');
  const nextSecret = read('POSTILLION_NEXT_SECRET');
  if (nextSecret !== '' && nextSecret.length < 32)
    problems.push('POSTILLION_NEXT_SECRET must have at least 32 characters');
  if (nextSecret !== '' && secret === '')
    problems.push('POSTILLION_NEXT_SECRET can be used only together with POSTILLION_SECRET');

  const processes = read('POSTILLION_PROCESSES');
  const metricsPort = read('POSTILLION_METRICS_PORT');
  const metricsHost = read('POSTILLION_METRICS_HOST');
  const trustedProxies = listOf(read('POSTILLION_TRUSTED_PROXIES'));
  const host = read('HOST');
  const isBehindProxy = publicUrl !== '' || trustedProxies.length > 0;
  // What others can reach is not opened by an address, which a proxy on this machine lends to everybody.
  const guessedAccess = isBehindProxy ? 'token' : 'loopback';
  // Whoever tries this out on one machine. A worker of its own has an API elsewhere, which others may reach.
  const isOfOneMachine = databaseUrl === '' && !isBehindProxy && isLoopbackHost(host);
  if (webhookAllowedHosts.length === 0 && isOfOneMachine)
    webhookAllowedHosts.push('localhost', '127.0.0.0/8', '::1');

  const config: Config = {
    databaseUrl: databaseUrl || null,
    apiDatabaseUrl: apiDatabaseUrl || null,
    sessionDatabaseUrl: sessionDatabaseUrl || null,
    dataDirectory: path.resolve(homeDirectory, read('POSTILLION_DATA_DIR')),
    port: Number(read('PORT')),
    host,
    publicUrl: publicUrl || null,
    trustedProxies,
    secret: secret || null,
    nextSecret: nextSecret || null,
    emailProvider,
    mailHost: hostOf('POSTILLION_MAIL_HOST') ?? bounceHost,
    dnsServers,
    areDomainsLookedUp:
      addressChecks === '' ? !emailProviders[emailProvider].isSandbox : addressChecks === 'on',
    bounceHost,
    bounceListener: bouncePort === '' ? null : { host: bounceListen, port: Number(bouncePort) },
    submission: readSubmission(read, problems),
    smsProvider,
    pushProvider,
    chatAppProvider,
    webPushHosts,
    webhookAllowedHosts,
    alertsFrom: alertsFrom && { address: alertsFrom.address, domain: alertsFrom.domain },
    providerSettings,
    sandboxAccess: (read('POSTILLION_SANDBOX_ACCESS') || guessedAccess) as SandboxAccessName, // One of the choices, or a problem.
    metricsListener: metricsPort === '' ? null : { host: metricsHost, port: Number(metricsPort) },
    processes: processes === 'auto' ? null : Number(processes),
    drainMs: 1_000 * Number(read('POSTILLION_DRAIN_SECONDS')),
    keptDays: {
      messages: daysOf(read('POSTILLION_MESSAGES_KEPT_DAYS')),
      content: daysOf(read('POSTILLION_CONTENT_KEPT_DAYS')),
    },
    storageLimitBytes: limitedBytesOf(read('POSTILLION_STORAGE_LIMIT')),
    // One of the choices: `read` refuses any other.
    partitionSize: read('POSTILLION_PARTITIONS') as PartitionSize,
    databaseConnectionsMax: Number(read('POSTILLION_DATABASE_CONNECTIONS')),
    usePreparedStatements: read('POSTILLION_PREPARED_STATEMENTS') === 'on',
    logLevel: read('LOG_LEVEL') as Config['logLevel'], // As above.
    unknownSettings: unknown.map(({ name }) => name),
  };
  if (problems.length > 0) throw new ConfigError(problems.join('\n'));
  return config;
}

type Reading = {
  /** What a setting says, or its default. */
  textOf: (name: SettingName) => string;
  /** The same; what is wrong with it becomes a problem. */
  read: (name: SettingName) => string;
  problems: string[];
};

/** The provider that is named, or else the one that a setting chooses. What it requires and lacks becomes a problem. */
function readProvider<Name extends string>(
  choice: SettingName,
  providers: Readonly<Record<Name | 'sandbox', DescribedProvider & Requiring>>,
  { textOf, read, problems }: Reading,
): Name | 'sandbox' {
  const names = namesOf(providers);
  const isChosen = (name: Name | 'sandbox') => {
    const { isChosenBy } = providers[name];
    return isChosenBy !== null && textOf(isChosenBy) !== '';
  };
  const wanted = read(choice) || (names.find(isChosen) ?? 'sandbox');
  const provider = names.find((name) => name === wanted);
  // Refused already: it is none of the choices.
  if (provider === undefined) return 'sandbox';
  for (const { setting, why } of providers[provider].requires) {
    if (textOf(setting) !== '') continue;
    const reason = why === undefined ? '' : `, ${why}`;
    problems.push(`${setting} is required with ${choice}=${provider}${reason}`);
  }
  return provider;
}

function readSubmission(read: Reading['read'], problems: Reading['problems']): SubmissionSettings | null {
  const portOf = (name: SettingName) => {
    const text = read(name);
    return text === '' ? null : Number(text);
  };
  const fileOf = (name: SettingName) => {
    const text = read(name);
    return text === '' ? null : path.resolve(homeDirectory, text);
  };
  const port = portOf('POSTILLION_SUBMISSION_PORT');
  const tlsPort = portOf('POSTILLION_SUBMISSION_TLS_PORT');
  const host = read('POSTILLION_SUBMISSION_LISTEN');
  const certificateFile = fileOf('POSTILLION_SUBMISSION_CERT');
  const keyFile = fileOf('POSTILLION_SUBMISSION_KEY');
  if (port === null && tlsPort === null) return null;
  const certificate = certificateFile === null || keyFile === null ? null : { certificateFile, keyFile };
  const needs = 'POSTILLION_SUBMISSION_CERT and POSTILLION_SUBMISSION_KEY are required';
  if (certificate === null && (certificateFile !== null || keyFile !== null))
    problems.push('POSTILLION_SUBMISSION_CERT and POSTILLION_SUBMISSION_KEY can only be used together');
  else if (certificate === null && tlsPort !== null)
    problems.push(`${needs} with POSTILLION_SUBMISSION_TLS_PORT`);
  else if (certificate === null && !isLoopbackHost(host))
    problems.push(`${needs} where POSTILLION_SUBMISSION_LISTEN is no address of this machine alone`);
  return { host, port, tlsPort, certificate };
}

/** What `read` throws, in words; without the full stop, as all problems with settings. */
function findProblem(read: () => unknown): string | null {
  try {
    read();
    return null;
  } catch (cause) {
    return (cause instanceof Error ? cause.message : String(cause)).replace(/\.$/, '');
  }
}

/** Names settings of this table only. */
type Requiring = {
  isChosenBy: SettingName | null;
  requires: readonly { setting: SettingName; why?: string }[];
};

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
