import { hasOrganizations } from '../accounts/accounts.ts';
import type { Config } from '../config.ts';
import {
  asDatabaseProblem,
  createFirstOrganization,
  DatabaseProblem,
  findFilesElsewhere,
  findPostgres,
  type Installation,
  mayPrintSecrets,
  openBeside,
  openForRequests,
  openFoundation,
  openInstallation,
  type SandboxOrganization,
  sandboxLinkOf,
  watchSecretKeys,
  whileRestarting,
} from '../installation/installation.ts';
import { stayUntil } from '../platform/clock.ts';
import type { HttpServer } from '../platform/http/server.ts';
import { createLog, type Log } from '../platform/log.ts';
import type { Database, DatabaseAddress } from '../platform/postgres/database.ts';
import { findDurabilityProblems } from '../platform/postgres/durability.ts';
import { examineServingRoles, findUserKind } from '../platform/postgres/serving-role.ts';
import { examineTenantWall } from '../platform/postgres/tenant-wall.ts';
import { type ProcessShare, wholeShare } from '../platform/process-share.ts';
import type { KeyRing } from '../platform/secrets.ts';
import { composeGreeting, type Sandbox } from './greeting.ts';
import type { MonitoringListener } from './monitoring/listener.ts';
import { createMonitoring, type Monitoring, openMeters, startMonitoring } from './monitoring/monitoring.ts';
import { describeStop, type StopReason, whenAskedToStop } from './stopping.ts';
import type { Worker } from './worker.ts';

export type Role = 'all' | 'api' | 'worker';

/** Of a process that a supervisor has started (supervisor.ts). */
export type Supervised = {
  share: ProcessShare;
  /** Of the PostgreSQL that the supervisor keeps running. */
  address: DatabaseAddress;
  /** Resolves when the process is to stop; rejects where it has failed. */
  asked: Promise<StopReason>;
  /** Called when the database is open, and its schema up to date. */
  onOpened: () => void;
  /** Called when what the process says of itself can be asked for. */
  onMonitored: (monitoring: Monitoring) => void;
  /** Called when all else is ready. It may greet later, or never. */
  greetInTime: (greet: () => Promise<void>) => Promise<void>;
};

/** Serves until a signal asks to stop; resolves when everything has ended in good order. */
export async function serve(config: Config, role: Role, supervised?: Supervised): Promise<void> {
  const { asked = whenAskedToStop(), share = wholeShare } = supervised ?? {};
  const log = await createLog(config.logLevel, supervised ? { role, process: share.number } : { role });
  // What a role does not need is not loaded, and what it needs is loaded while PostgreSQL is looked for: after a
  // crash the way to the first answer is mostly this.
  const [opened, api, worker] = await Promise.all([
    open(config, log, role, supervised?.address),
    role === 'worker' ? null : import('./api.ts'),
    role === 'api' ? null : import('./worker.ts'),
  ]);
  supervised?.onOpened();
  const meters = await openMeters({ ...opened.installation, database: opened }, role, share);
  const observed = meters === null ? {} : { observers: meters.observers };
  const installation = { ...opened.installation, ...observed };
  const forRequests = { ...opened.forRequests, ...observed };
  let serving: HttpServer | undefined;
  let working: Worker | undefined;
  let monitored: MonitoringListener | undefined;
  let reason: StopReason | undefined;
  const watching = watchSecretKeys(installation, opened.installation.secrets);
  try {
    // Once more if PostgreSQL is gone: a process that fails here and lives on would be taken for one that serves.
    if (share.number === 1) await whileRestarting(config, () => warnOfShortcomings(opened, role, log));
    serving = await api?.startApi(forRequests, {}, undefined, share);
    working = await worker?.startWorker(installation, share);
    if (meters !== null) {
      const monitoring = await createMonitoring(installation, meters, async () => {
        if (reason !== undefined) return 'stopping';
        if (working?.isWorking() === false) return 'the worker has no lease: it delivers nothing';
        return api === null ? null : api.findUnreadiness(forRequests);
      });
      if (supervised !== undefined) supervised.onMonitored(monitoring);
      else if (config.metricsListener !== null) {
        monitored = await startMonitoring(monitoring, config.metricsListener);
        log.info({ url: monitored.url }, 'metrics are served');
      }
    }
    // Only now, since the key is seen once: whatever else can fail has not failed.
    const greetNow = () => greet(opened, serving?.url ?? null);
    await (supervised === undefined ? greetNow() : supervised.greetInTime(greetNow));
    log.info(
      {
        url: serving?.url,
        email_provider: config.emailProvider,
        sms_provider: config.smsProvider,
        push_provider: config.pushProvider,
        chatapp_provider: config.chatAppProvider,
      },
      'ready',
    );

    reason = await stayUntil(asked);
    log.info(describeStop(reason), 'stopping');
  } catch (cause) {
    throw config.databaseUrl === null ? cause : await asDatabaseProblem(cause, config.databaseUrl);
  } finally {
    try {
      await serving?.stop(reason === 'orphaned' ? 'at_once' : undefined);
    } finally {
      await working?.stop();
      // The last, so that it can be watched how a process ends.
      await monitored?.stop();
      await watching.stop();
      await opened.close();
      log.flush();
    }
  }
}

/** What a role stands on. */
type Opened = Pick<Database, 'connections'> & {
  /** Of the owner of the database, unless requests are all that is served. */
  installation: Installation & { secrets: KeyRing };
  /** Of a user that may do no more than requests need, if there is one. The same where only requests are served. */
  forRequests: Installation;
  /** Runs `work` as the owner of the database; null if nobody has named it here. */
  asOwner: <Result>(work: (database: Database) => Promise<Result>) => Promise<Result | null>;
  close: () => Promise<void>;
};

/** `given` is where the PostgreSQL is that another process keeps running. */
async function open(
  config: Config,
  log: Log,
  role: Role,
  given: DatabaseAddress | undefined,
): Promise<Opened> {
  const { address, stop } =
    given === undefined ? await findPostgres(config, log) : { address: given, stop: () => Promise.resolve() };
  try {
    if (role === 'api') {
      const installation = await openForRequests(config, log, address);
      return {
        installation,
        forRequests: installation,
        asOwner: (work) => runAsOwner(config, log, address, work),
        connections: installation.database.connections,
        close: async () => {
          await installation.close();
          await stop();
        },
      };
    }
    const installation = await openInstallation(config, log, { migrate: true, address });
    if ((await findUserKind(installation.database)) === 'serving') {
      await installation.close();
      throw new DatabaseProblem(
        'The user of DATABASE_URL may only serve requests. Start this process with --role api, or name the owner of the database in DATABASE_URL.',
      );
    }
    const forRequests = role === 'all' ? openBeside(installation, address) : installation;
    return {
      installation,
      forRequests,
      asOwner: (work) => work(installation.database),
      connections: () => sumConnections(new Set([installation.database, forRequests.database])),
      close: async () => {
        if (forRequests !== installation) await forRequests.close();
        await installation.close();
        await stop();
      },
    };
  } catch (cause) {
    await stop();
    throw cause;
  }
}

async function runAsOwner<Result>(
  config: Config,
  log: Log,
  address: DatabaseAddress,
  work: (database: Database) => Promise<Result>,
): Promise<Result | null> {
  const { database, close } = await openFoundation(config, log, { migrate: false, address });
  try {
    return (await findUserKind(database)) === 'serving' ? null : await work(database);
  } finally {
    await close();
  }
}

function sumConnections(databases: ReadonlySet<Database>): ReturnType<Database['connections']> {
  const sum = { used: 0, idle: 0, waiting: 0, max: 0 };
  for (const database of databases) {
    const { used, idle, waiting, max } = database.connections();
    sum.used += used;
    sum.idle += idle;
    sum.waiting += waiting;
    sum.max += max;
  }
  return sum;
}

async function warnOfShortcomings(
  { installation, forRequests }: Opened,
  role: Role,
  log: Log,
): Promise<void> {
  await warnOfDurability(installation, log);
  await warnOfWall(installation, log);
  if (role !== 'worker') await warnOfUser(forRequests, log);
  for (const setting of installation.config.unknownSettings)
    log.warn({ setting }, 'there is no such setting in this release: it changes nothing');
}

/** This process cannot change the settings, but the operator should know of them before a crash. */
async function warnOfDurability({ database }: Installation, log: Log): Promise<void> {
  for (const { setting, value, danger } of await findDurabilityProblems(database)) {
    log.error({ setting, value }, `PostgreSQL is not safe: ${setting} is ${value}, and ${danger}`);
  }
}

/** Work goes on without it as well, or fails for want of grants: `doctor` says how to mend either. */
async function warnOfWall({ database }: Installation, log: Log): Promise<void> {
  // Who owns no table is held by the wall everywhere.
  if ((await findUserKind(database)) === 'serving') return;
  const { kind } = await examineTenantWall(database);
  if (kind === 'missing') {
    log.error(
      'there is no role postillion_tenant to enter: only the statements themselves keep organizations apart; run doctor',
    );
  }
  if (kind === 'unreachable') log.error('the role postillion_tenant lacks grants: requests fail; run doctor');
}

/** An installation with a single user serves, and may do with its database what it likes while it does. */
async function warnOfUser({ database }: Installation, log: Log): Promise<void> {
  if ((await findUserKind(database)) === 'owner')
    log.warn(
      'requests are served as the owner of the database: run doctor, which says how to have them do less',
    );
  if ((await examineServingRoles(database)).kind === 'unreachable')
    log.error('the roles that requests are served as lack grants: requests fail; run doctor');
}

/**
 * Makes the first organization where its key can be shown: on a terminal, or with the embedded database wherever the
 * output goes. A database of one's own is one in earnest, and the output that no person reads is kept in a log.
 */
async function findFirstOrganization({
  installation,
  asOwner,
}: Opened): Promise<SandboxOrganization | 'exists' | 'none'> {
  if (await hasOrganizations(installation.database)) return 'exists';
  if (!mayPrintSecrets(installation.config)) return 'none';
  const made = await asOwner((database) => createFirstOrganization({ ...installation, database }));
  return made ?? 'none';
}

async function greet(opened: Opened, listeningUrl: string | null): Promise<void> {
  const { installation } = opened;
  const { config } = installation;
  const { emailProvider, smsProvider, pushProvider, chatAppProvider, publicUrl } = config;
  const url = publicUrl ?? listeningUrl;
  const api =
    listeningUrl === null || url === null
      ? null
      : {
          url,
          sandbox: findSandbox(installation, url),
          organization: await findFirstOrganization(opened),
        };
  const files = config.databaseUrl === null ? await findFilesElsewhere(config.dataDirectory) : null;
  const filesElsewhere = files === null ? null : { files, dataDirectory: config.dataDirectory };
  process.stdout.write(
    composeGreeting({ api, filesElsewhere, emailProvider, smsProvider, pushProvider, chatAppProvider }),
  );
}

function findSandbox(installation: Installation, url: string): Sandbox {
  const link = sandboxLinkOf(installation, url);
  if (link === null) return { kind: 'none' };
  return mayPrintSecrets(installation.config) ? { kind: 'shown', link } : { kind: 'hidden' };
}
