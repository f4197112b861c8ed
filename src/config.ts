import { readFileSync } from 'node:fs';
import path from 'node:path';
import { parseEnv } from 'node:util';

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
      'At least 32 characters that encrypt what is kept secret at rest; the same on all nodes. Empty with the embedded PostgreSQL: made at the first start and kept in POSTILLION_DATA_DIR. Required with DATABASE_URL.',
  },
  POSTILLION_EMAIL_PROVIDER: {
    type: 'choice',
    choices: ['sandbox', 'smtp'],
    default: '',
    about:
      'How email leaves: sandbox keeps it in the built-in inbox, smtp hands it to the server of POSTILLION_SMTP_URL. Empty: smtp where that is set, else sandbox.',
  },
  POSTILLION_SMTP_URL: {
    type: 'text',
    default: '',
    about:
      'The relay for email, as smtp://user:password@host:587 or smtps://host:465. Options behind a question mark: connections=16, tls=required|opportunistic|off, insecure=1.',
  },
  POSTILLION_SANDBOX_ACCESS: {
    type: 'choice',
    choices: ['loopback', 'any'],
    default: 'loopback',
    about: 'Who may look at /sandbox: only this machine, or everyone who reaches the port.',
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
    about: 'What is logged, as JSON lines on standard error.',
  },
} as const satisfies Record<string, Setting>;

export type Setting = {
  type: 'text' | 'port' | 'count' | 'url' | 'list' | 'choice';
  choices?: readonly string[];
  default: string;
  about: string;
};

type SettingName = keyof typeof settings;

export type Config = {
  /** Null: the embedded PostgreSQL. */
  databaseUrl: string | null;
  dataDirectory: string;
  port: number;
  host: string;
  publicUrl: string | null;
  trustedProxies: string[];
  secret: string | null;
  emailProvider: 'sandbox' | 'smtp';
  smtpUrl: string | null;
  isSandboxPublic: boolean;
  databaseConnectionsMax: number;
  usePreparedStatements: boolean;
  logLevel: (typeof settings)['LOG_LEVEL']['choices'][number];
};

/** All that is wrong with the settings, a sentence each. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

/** The project's own folder: the same distance from `src/` and from `dist/`. */
export const projectDirectory = path.resolve(import.meta.dirname, '..');

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

  const smtpUrl = read('POSTILLION_SMTP_URL');
  const emailProvider = read('POSTILLION_EMAIL_PROVIDER') || (smtpUrl === '' ? 'sandbox' : 'smtp');
  if (emailProvider === 'smtp' && smtpUrl === '') {
    problems.push('POSTILLION_SMTP_URL is required with POSTILLION_EMAIL_PROVIDER=smtp');
  }
  const databaseUrl = read('DATABASE_URL');
  const secret = read('POSTILLION_SECRET');
  if (databaseUrl !== '' && secret === '') problems.push('POSTILLION_SECRET is required with DATABASE_URL');
  if (secret !== '' && secret.length < 32)
    problems.push('POSTILLION_SECRET must have at least 32 characters');

  const config: Config = {
    databaseUrl: databaseUrl || null,
    dataDirectory: path.resolve(projectDirectory, read('POSTILLION_DATA_DIR')),
    port: Number(read('PORT')),
    host: read('HOST'),
    publicUrl: read('POSTILLION_PUBLIC_URL').replace(/\/+$/, '') || null,
    trustedProxies: read('POSTILLION_TRUSTED_PROXIES')
      .split(',')
      .map((range) => range.trim())
      .filter((range) => range !== ''),
    secret: secret || null,
    emailProvider: emailProvider === 'smtp' ? 'smtp' : 'sandbox',
    smtpUrl: smtpUrl || null,
    isSandboxPublic: read('POSTILLION_SANDBOX_ACCESS') === 'any',
    databaseConnectionsMax: Number(read('POSTILLION_DATABASE_CONNECTIONS')),
    usePreparedStatements: read('POSTILLION_PREPARED_STATEMENTS') === 'on',
    logLevel: read('LOG_LEVEL') as Config['logLevel'], // One of the choices, or a problem.
  };
  if (problems.length > 0) throw new ConfigError(problems.join('\n'));
  return config;
}

function checkSetting(name: SettingName, text: string): string | null {
  const setting: Setting = settings[name];
  switch (setting.type) {
    case 'text':
    case 'list':
      return null;
    case 'port':
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
