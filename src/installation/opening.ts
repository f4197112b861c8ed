import { existsSync } from 'node:fs';
import { isIPv6 } from 'node:net';
import path from 'node:path';
import { parseDomain } from '../channels/email/email.ts';
import { emailProviders } from '../channels/email/providers/registry.ts';
import { chatAppProviders } from '../channels/chatapp/providers/registry.ts';
import { pushProviders } from '../channels/push/providers/registry.ts';
import { smsProviders } from '../channels/sms/providers/registry.ts';
import type { Config } from '../config.ts';
import { type InstanceHosts, sandboxDomain } from '../domains/domains.ts';
import { type Clock, sleep, stayUntil, systemClock } from '../platform/clock.ts';
import { createResolver } from '../platform/dns/dns.ts';
import { createIds } from '../platform/ids.ts';
import { type Log, silentLog } from '../platform/log.ts';
import { type AnchoredClock, startAnchoredClock } from '../platform/postgres/anchored-clock.ts';
import {
  type Connection,
  type Database,
  type DatabaseAddress,
  DatabaseUnavailableError,
  openDatabase,
} from '../platform/postgres/database.ts';
import { startEmbeddedPostgres } from '../platform/postgres/embedded.ts';
import { migrate, type Migration, pendingMigrations } from '../platform/postgres/migrate.ts';
import type { PartitionSize } from '../platform/postgres/partition-size.ts';
import { createPartitions, withPartitionsOnDemand } from '../platform/postgres/partitions.ts';
import { admitServingUser, findUserKind, servingUser } from '../platform/postgres/serving-role.ts';
import { programName } from '../platform/program-name.ts';
import { readSealedKeys } from '../platform/secret-keys.ts';
import { type SandboxAccess, sandboxToken } from '../sandbox/sandbox.ts';
import type { KeyRing, Secrets } from '../platform/secrets.ts';
import { wordFor } from '../platform/wording.ts';
import { explainDataDirectory } from './data-directory.ts';
import { asDatabaseProblem, DatabaseProblem, refuseOldServer } from './database-problem.ts';
import { describeFailure } from './failure.ts';
import type { Foundation } from './foundation.ts';
import { openSecrets } from './secret.ts';

export type OpeningOptions = {
  migrate: boolean;
  /** Of a PostgreSQL that another process keeps running. Absent: it is found, or started. */
  address?: DatabaseAddress;
  /** Whether it serves requests and nothing else, as a user that may do no more (serving-role.ts) if there is one. */
  servesRequests?: boolean;
};

/** What every role stands on. */
export type Installation = Foundation & { secrets: Secrets };

/**
 * Finds or starts PostgreSQL, brings its schema up to date, and opens the secret. Throws a ConfigError if the secret
 * is not that of the database.
 */
export async function openInstallation(
  config: Config,
  log: Log,
  options: OpeningOptions = { migrate: true },
): Promise<Installation & { secrets: KeyRing }> {
  const foundation = await openFoundation(config, log, options);
  try {
    return await openSecretsOf(foundation);
  } catch (cause) {
    await foundation.close();
    throw await asProblemOf(config, cause, options.servesRequests === true);
  }
}

/**
 * The same for a process that serves requests and does nothing else. What takes the owner of the database is done first,
 * over connections that are closed by then.
 */
export async function openForRequests(
  config: Config,
  log: Log,
  address: DatabaseAddress,
): Promise<Installation & { secrets: KeyRing }> {
  await prepare(config, log, address);
  return openInstallation(config, log, { migrate: true, address, servesRequests: true });
}

/** Brings the schema up to date, and has an unused database take up its secret. */
async function prepare(config: Config, log: Log, address: DatabaseAddress): Promise<void> {
  const foundation = await openFoundation(config, log, { migrate: true, address });
  try {
    const sealed = await whileRestarting(config, () => readSealedKeys(foundation.database));
    if (sealed.length === 0) await openSecretsOf(foundation);
  } catch (cause) {
    throw await asProblemOf(config, cause, false);
  } finally {
    await foundation.close();
  }
}

/** For requests, beside the installation that a worker of the same process has; `close` closes the connections alone. */
export function openBeside(installation: Installation, address: DatabaseAddress): Installation {
  const { config, clock } = installation;
  // What the two have to say of PostgreSQL, the worker's says.
  const database = open(config, silentLog, { address, servesRequests: true });
  return {
    ...installation,
    database: withPartitionsOnDemand(database, clock, config.partitionSize),
    close: () => database.close(),
  };
}

/** Needs the schema: what is known of the secret is in the database. Throws as `openInstallation` does. */
export async function openSecretsOf(foundation: Foundation): Promise<Installation & { secrets: KeyRing }> {
  return {
    ...foundation,
    secrets: await whileRestarting(foundation.config, () => openSecrets(foundation)),
  };
}

/** All of that but the secret: for what must work although there is none. */
export async function openFoundation(config: Config, log: Log, options: OpeningOptions): Promise<Foundation> {
  const { address, stop } =
    options.address === undefined
      ? await findPostgres(config, log)
      : { address: options.address, stop: () => Promise.resolve() };
  const servesRequests = options.servesRequests === true;
  const database = open(config, log, { address, servesRequests });
  let anchored: AnchoredClock | undefined;
  try {
    if (options.migrate) {
      if (config.databaseUrl !== null) await refuseOldServer(database);
      const kind = await whileRestarting(config, () => findUserKind(database));
      if (servesRequests) refuseOthers(kind);
      if (servesRequests || kind === 'serving') await refuseOldSchema(database);
      else {
        const applied = await whileRestarting(config, () => migrate(database));
        logMigrations(applied, log);
        if (config.databaseUrl === null) await whileRestarting(config, () => admitServingUser(database));
      }
    }
    // What changes nothing dates nothing either, and compares the clocks.
    if (options.migrate)
      anchored = await whileRestarting(config, () => anchorClock(database, log, config.partitionSize));
    const clock = anchored ?? systemClock;
    const resolver = createResolver({ servers: config.dnsServers, clock });
    return {
      config,
      database: withPartitionsOnDemand(database, clock, config.partitionSize),
      resolver,
      hosts: instanceHostsOf(config),
      clock,
      newId: createIds(clock),
      random: Math.random,
      log,
      close: async () => {
        resolver.close();
        await anchored?.stop();
        await database.close();
        await stop();
      },
    };
  } catch (cause) {
    // Not waited for: what does not answer may not answer to this either. Left open, it would keep the process for a minute.
    anchored?.stop().catch(() => undefined);
    database.close().catch(() => undefined);
    await stop();
    throw await asProblemOf(config, cause, servesRequests);
  }
}

/** The embedded PostgreSQL has no place that a setting could name wrongly. */
async function asProblemOf(config: Config, cause: unknown, servesRequests: boolean): Promise<unknown> {
  const { databaseUrl, apiDatabaseUrl } = config;
  if (databaseUrl === null) return cause;
  return servesRequests && apiDatabaseUrl !== null
    ? asDatabaseProblem(cause, apiDatabaseUrl, 'POSTILLION_API_DATABASE_URL')
    : asDatabaseProblem(cause, databaseUrl);
}

function open(
  config: Config,
  log: Log,
  { address, servesRequests }: { address: DatabaseAddress; servesRequests: boolean },
): Database {
  const sessionAddress = sessionAddressOf(config, servesRequests);
  return openDatabase({
    address: servesRequests ? addressOfRequests(config, address) : address,
    ...(sessionAddress !== null && { sessionAddress }),
    servesRequests,
    connectionsMax: config.databaseConnectionsMax,
    usePreparedStatements: config.usePreparedStatements,
    onSilence: (isSilent) => {
      if (isSilent) log.error('PostgreSQL does not answer: requests get 503 until it does');
      else log.info('PostgreSQL answers again');
    },
  });
}

/** The owner's where no user for requests is named. */
function addressOfRequests({ apiDatabaseUrl }: Config, address: DatabaseAddress): DatabaseAddress {
  if (!('url' in address)) return { ...address, user: servingUser };
  return apiDatabaseUrl === null ? address : { url: apiDatabaseUrl };
}

/** The place is the same for all users, and so it is set once, with the owner's name. Null where it is no other place. */
export function sessionAddressOf(
  { sessionDatabaseUrl, apiDatabaseUrl }: Pick<Config, 'sessionDatabaseUrl' | 'apiDatabaseUrl'>,
  servesRequests: boolean,
): DatabaseAddress | null {
  if (sessionDatabaseUrl === null) return null;
  if (!servesRequests || apiDatabaseUrl === null) return { url: sessionDatabaseUrl };
  const user = userIn.exec(apiDatabaseUrl)?.[2] ?? '';
  return { url: sessionDatabaseUrl.replace(userIn, (_whole, scheme: string) => scheme + user) };
}

/** By hand: of a socket, whose URL has no host, URL takes no user. A password is encoded, and so has no slash. */
const userIn = /^(postgres(?:ql)?:\/\/)([^/?#]*@)?/;

function refuseOthers(kind: Awaited<ReturnType<typeof findUserKind>>): void {
  if (kind === 'other')
    throw new DatabaseProblem(
      'The user that requests are to be served as is not a member of postillion_serving. Run "grant postillion_serving to" that user as the owner of the database.',
    );
}

/** For a user that cannot change it. */
async function refuseOldSchema(connection: Connection): Promise<void> {
  const pending = await pendingMigrations(connection);
  if (pending.length > 0)
    throw new DatabaseProblem(
      `The schema lacks ${pending.length} ${wordFor(pending.length, 'migration')} of this release, and the user that is logged in may only serve requests. Run "${programName()} migrate" as the owner of the database, or start a worker, which does the same.`,
    );
}

/** It makes partitions at once: after a long time off, the months of those that there are may be over. */
function anchorClock(database: Database, log: Log, size: PartitionSize): Promise<AnchoredClock> {
  return startAnchoredClock({
    database,
    base: systemClock,
    log,
    makeRoom: (at) => createPartitions(database, at, size),
  });
}

/** A fresh database takes all of them: one line, not one for each. */
function logMigrations(applied: readonly Migration[], log: Log): void {
  const last = applied.at(-1);
  if (last === undefined) return;
  log.info({ migrations: applied.length, newest: last.name }, 'schema brought up to date');
}

/** Whether there is anything to open. With a database of one's own that is not known before it is asked. */
export function hasInstallation({ databaseUrl, dataDirectory }: Config): boolean {
  return databaseUrl !== null || existsSync(path.join(dataDirectory, 'postgres'));
}

/**
 * A PostgreSQL that was killed takes some hundreds of milliseconds to come back, ten seconds where others want its cores,
 * and half a minute after the longest log that it keeps (embedded-server.ts). Shorter: a process ends that would have
 * served, as if it could not start. Longer: a person at the terminal learns late of a PostgreSQL that stays away.
 */
const restartMsMax = 60_000;
const restartPauseMs = 500;

/** The embedded PostgreSQL was just found, so that it comes back if it was killed at this very moment. */
export async function whileRestarting<Result>(
  { databaseUrl }: Pick<Config, 'databaseUrl'>,
  work: () => Promise<Result>,
  clock: Clock = systemClock,
): Promise<Result> {
  const giveUpAtMs = clock.monotonicMs() + restartMsMax;
  for (;;) {
    try {
      return await work();
    } catch (cause) {
      const mayComeBack = databaseUrl === null && cause instanceof DatabaseUnavailableError;
      if (!mayComeBack || clock.monotonicMs() >= giveUpAtMs) throw cause;
    }
    await stayUntil(sleep(clock, restartPauseMs));
  }
}

/** For an installation in which mail is only tried out, and to which no DNS record points yet. */
const hostOfNoInstallation = `mail.${sandboxDomain}`;

/** Whoever sets only the port of the listener means it to be found under the name of the installation. */
export function instanceHostsOf({ bounceHost, bounceListener, publicUrl }: Config): InstanceHosts {
  const publicHost = publicUrl === null ? null : parseDomain(new URL(publicUrl).hostname);
  return {
    bounceHost: bounceHost ?? (bounceListener === null ? null : publicHost),
    trackingHost: publicHost ?? bounceHost ?? hostOfNoInstallation,
  };
}

/** The PostgreSQL of the settings, or the embedded one, which runs until it is stopped. Throws a DatabaseProblem. */
export async function findPostgres(
  config: Config,
  log: Log,
): Promise<{ address: DatabaseAddress; stop: () => Promise<void> }> {
  if (config.databaseUrl !== null) {
    return { address: { url: config.databaseUrl }, stop: () => Promise.resolve() };
  }
  try {
    const embedded = await startEmbeddedPostgres({ dataDirectory: config.dataDirectory, logger: log });
    return { address: embedded.connection, stop: embedded.stop };
  } catch (cause) {
    const sentence =
      explainDataDirectory(cause, config.dataDirectory) ??
      `The embedded PostgreSQL does not start. ${describeFailure(cause)}`;
    throw new DatabaseProblem(sentence, { cause });
  }
}

/** Where browsers find this installation; links in what it sends and answers begin with it. */
export function publicUrlOf({ publicUrl, host, port }: Config): string {
  if (publicUrl !== null) return publicUrl;
  // What listens on all addresses is found by none of these names.
  const name = host === '0.0.0.0' || host === '::' ? 'localhost' : host;
  return `http://${isIPv6(name) ? `[${name}]` : name}:${port}`;
}

/** Whether anything is sent into the sandbox; it is served nowhere else. */
export function hasSandbox({ emailProvider, smsProvider, pushProvider, chatAppProvider }: Config): boolean {
  return (
    emailProviders[emailProvider].isSandbox ||
    smsProviders[smsProvider].isSandbox ||
    pushProviders[pushProvider].isSandbox ||
    chatAppProviders[chatAppProvider].isSandbox
  );
}

/** Whether everything is, so that nobody outside of this installation is written to. */
export function hasSandboxAlone(config: Config): boolean {
  const { emailProvider, smsProvider, pushProvider, chatAppProvider } = config;
  return (
    emailProviders[emailProvider].isSandbox &&
    smsProviders[smsProvider].isSandbox &&
    pushProviders[pushProvider].isSandbox &&
    chatAppProviders[chatAppProvider].isSandbox
  );
}

export function sandboxAccessOf({ config, secrets }: Installation): SandboxAccess {
  return { mode: config.sandboxAccess, token: () => sandboxToken(secrets) };
}

/** Null where nothing is sent into the sandbox, which is not served then. `url` is how browsers reach the API. */
export function sandboxLinkOf(installation: Installation, url: string): string | null {
  if (!hasSandbox(installation.config)) return null;
  return `${url}/sandbox?token=${sandboxAccessOf(installation).token()}`;
}

/** With an external database, output is usually kept in a log, where no secret belongs. */
export function mayPrintSecrets({ databaseUrl }: Config): boolean {
  return databaseUrl === null || process.stdout.isTTY;
}
