import { access, constants, stat, statfs } from 'node:fs/promises';
import path from 'node:path';
import { emailProviders } from '../channels/email/providers/registry.ts';
import { choosingSettings, type DescribedProvider } from '../channels/provider-definition.ts';
import { chatAppProviders } from '../channels/chatapp/providers/registry.ts';
import { pushProviders } from '../channels/push/providers/registry.ts';
import { smsProviders } from '../channels/sms/providers/registry.ts';
import { type Config, ConfigError, readConfig } from '../config.ts';
import {
  asDatabaseProblem,
  describeFailure,
  examineSecret,
  explainDataDirectory,
  findFilesElsewhere,
  type Foundation,
  generateSecret,
  hasInstallation,
  type Installation,
  openFoundation,
  publicUrlOf,
  whyElsewhere,
} from '../installation/installation.ts';
import { listDeletions } from '../accounts/accounts.ts';
import { examineCredentials } from '../devices/devices.ts';
import type { Log } from '../platform/log.ts';
import {
  isReadOnly,
  readServerTimeMs,
  readServerVersion,
  serverVersionMin,
} from '../platform/postgres/condition.ts';
import { findsNoSpace, openDatabase, sqlState } from '../platform/postgres/database.ts';
import { findDurabilityProblems } from '../platform/postgres/durability.ts';
import { examineServingRoles, findUserKind } from '../platform/postgres/serving-role.ts';
import { examineTenantWall } from '../platform/postgres/tenant-wall.ts';
import { ForeignSchemaError, pendingMigrations } from '../platform/postgres/migrate.ts';
import { examineAlerts } from './alerts.ts';
import { examineChatAppAccounts } from './chat-app.ts';
import { examineAddressChecks, examineBounces, examineDirectDelivery } from './delivery.ts';
import { type Finding, ok, problem, warning } from './finding.ts';
import { examinePartitions } from './partitions.ts';
import { examinePostmaster } from './postmaster.ts';
import { examineAvailability, examineSetAside, examineWorkers } from './queue.ts';
import { openSecrets } from './secrets.ts';
import { createSecrets } from '../platform/secrets.ts';
import { wordFor } from '../platform/wording.ts';
import { createEmailProvider } from '../roles/providers/email.ts';
import { createChatAppProvider } from '../roles/providers/chatapp.ts';
import { createPushProvider, findPushShortcoming } from '../roles/providers/push.ts';
import { createSmsProvider } from '../roles/providers/sms.ts';
import { programName } from '../platform/program-name.ts';

/**
 * Looks at everything that an installation stands on. Never throws for what it finds: what cannot be looked at is
 * a finding itself. It changes nothing, but starts the embedded PostgreSQL for as long as it looks.
 */
export async function examine(
  environment: Readonly<Record<string, string | undefined>>,
  log: Log,
): Promise<Finding[]> {
  let config: Config;
  try {
    config = readConfig(environment);
  } catch (cause) {
    if (!(cause instanceof ConfigError)) throw cause;
    return [
      ...cause.message
        .split('\n')
        .map((found) =>
          problem('settings', found, 'Set it in the environment or in .env; see docs/settings.md.'),
        ),
      warning('database', 'not checked', 'Correct the settings first.'),
    ];
  }
  const findings = [...examineSettings(config), examineLinks(config)];
  if (config.databaseUrl === null) findings.push(...(await examineDataDirectory(config.dataDirectory)));
  if (!hasInstallation(config)) {
    findings.push(
      warning(
        'database',
        `there is no installation in ${config.dataDirectory} yet`,
        `Run doctor in the folder of the installation, or begin one with "${programName()} serve".`,
      ),
    );
    return findings;
  }

  let foundation: Foundation;
  try {
    foundation = await openFoundation(config, log, { migrate: false });
  } catch (cause) {
    return [...findings, unreachableDatabase(config, cause)];
  }
  // Providers are only asked whether they are there, for which no secret is needed: one that fits nothing will do.
  const installation: Installation = { ...foundation, secrets: createSecrets(generateSecret()) };
  try {
    const foreign = await findForeignSchema(installation);
    if (foreign !== null) return [...findings, foreign];
    findings.push(
      ...(await examineDatabase(installation)),
      await examineEmailProvider(installation),
      await examineSmsProvider(installation),
      await examinePushProvider(installation),
      await examineChatAppProvider(installation),
      ...(await examinePushSettings(installation)),
    );
    findings.push(
      ...(await tryToExamine('recipients', examineAddressChecks, installation)),
      ...(await tryToExamine('bounces', examineBounces, installation)),
    );
    if (emailProviders[config.emailProvider].isDirect)
      findings.push(...(await tryToExamine('delivery', examineDirectDelivery, installation)));
  } finally {
    await installation.close();
  }
  return findings;
}

function examineSettings(config: Config): Finding[] {
  return [
    ok('settings', describeSettings(config)),
    ...config.unknownSettings.map((name) =>
      warning(
        'settings',
        `there is no setting ${name} in this release: it changes nothing`,
        'Remove it; docs/settings.md lists all settings.',
      ),
    ),
  ];
}

function describeSettings(config: Config): string {
  const database =
    config.databaseUrl === null
      ? `the embedded PostgreSQL in ${config.dataDirectory}`
      : 'your own PostgreSQL';
  return `all are valid: ${database}, email through ${config.emailProvider}, texts through ${config.smsProvider}, pushes through ${config.pushProvider}, chat-app messages through ${config.chatAppProvider}`;
}

function examineLinks(config: Config): Finding {
  const found = `links in messages lead to ${publicUrlOf(config)}`;
  const isTriedOut =
    emailProviders[config.emailProvider].isSandbox &&
    smsProviders[config.smsProvider].isSandbox &&
    pushProviders[config.pushProvider].isSandbox &&
    chatAppProviders[config.chatAppProvider].isSandbox;
  if (config.publicUrl !== null || isTriedOut) return ok('links', found);
  return warning(
    'links',
    `${found}, which other machines cannot reach`,
    'Set POSTILLION_PUBLIC_URL to the URL at which recipients and providers reach this installation.',
  );
}

function unreachableDatabase(config: Config, cause: unknown): Finding {
  return problem(
    'database',
    `it cannot be reached: ${describeFailure(cause)}`,
    config.databaseUrl === null
      ? 'Do what it says; the log of PostgreSQL is in postgres/log below POSTILLION_DATA_DIR.'
      : 'Check DATABASE_URL, that PostgreSQL runs, and that it accepts connections from this machine.',
  );
}

/** Each answer by itself: one that fails must not hide the others. */
async function examineDatabase(installation: Installation): Promise<Finding[]> {
  const findings: Finding[] = [];
  try {
    findings.push(await examineVersion(installation));
  } catch (cause) {
    const { databaseUrl } = installation.config;
    const found = databaseUrl === null ? cause : await asDatabaseProblem(cause, databaseUrl);
    return [unreachableDatabase(installation.config, found)];
  }
  for (const [subject, examination] of databaseExaminations) {
    findings.push(...(await tryToExamine(subject, examination, installation)));
  }
  return findings;
}

const databaseExaminations: [subject: string, (installation: Installation) => Promise<Finding[]>][] = [
  ['durability', examineDurability],
  ['schema', examineSchema],
  ['secret', examineSecretHere],
  ['push keys', examinePushCredentials],
  ['chat-app accounts', examineChatAppAccounts],
  ['postmaster', examinePostmaster],
  ['alerts', examineAlerts],
  ['queue', examineSetAside],
  ['workers', examineWorkers],
  ['providers', examineAvailability],
  ['clock', examineClock],
];

async function examineSecretHere(installation: Installation): Promise<Finding[]> {
  const condition = await examineSecret(installation);
  switch (condition.kind) {
    case 'fits': {
      const { opened, sealed } = condition;
      const isRotating = sealed.length > 1;
      const found = `number ${opened.secretId}, the one that the database was used with`;
      return [
        isRotating
          ? warning(
              'secret',
              `${found}; it is being replaced, and ${sealed.map(({ secretId }) => secretId).join(' and ')} both fit`,
              `Once every process has the new one, run "${programName()} secret retire" with the number of the old one.`,
            )
          : ok('secret', found),
      ];
    }
    case 'unused':
      return [ok('secret', 'nothing was encrypted yet: the first start sets the secret')];
    case 'lost':
    case 'wrong':
      return [problem('secret', condition.problem, 'Nothing starts before that, and no secret is made.')];
  }
}

/** Five hundred each: the credentials of most installations. */
const credentialsBatchesMax = 20;
/** More of them have one cause. */
const faultyToldMax = 3;

/** Whether what organizations have at push services can be opened and used; whether it is good there, only a hand-off tells. */
async function examinePushCredentials(installation: Installation): Promise<Finding[]> {
  const { database } = installation;
  const secrets = await openSecrets(installation);
  if (secrets === null) return [];
  const { usable, faulty, isWhole } = await examineCredentials(database, secrets, credentialsBatchesMax);
  if (faulty.length === 0) {
    if (usable === 0) return [];
    return [
      ok(
        'push keys',
        `${isWhole ? '' : 'at least '}${usable} ${wordFor(usable, 'set')} of credentials can be used`,
      ),
    ];
  }
  const told = faulty.slice(0, faultyToldMax).map(({ organizationId, platform, problem: what }) => {
    const found = `the credentials of ${organizationId} for ${platform} cannot be used: ${what}`;
    return problem('push keys', found, `Give them again, with "${programName()} push credentials".`);
  });
  const more = faulty.length - told.length;
  return more === 0
    ? told
    : [
        ...told,
        problem('push keys', `${wordFor(more, 'so is', 'so are')} ${more} more`, 'Give them again as well.'),
      ];
}

async function examineVersion({ database }: Installation): Promise<Finding> {
  const { text, major } = await readServerVersion(database);
  if (await isReadOnly(database))
    return problem(
      'database',
      'it takes no writes: it is a standby, or was closed to them',
      'Have DATABASE_URL lead to the primary, or look whether its disk is full.',
    );
  if (await findsNoSpace(database))
    return problem(
      'database',
      'it takes no writes: the disk of its tables is full',
      'Free space on the disk of its data directory. What was accepted is not lost, and goes on by itself.',
    );
  if (major >= serverVersionMin) return ok('database', `reached, PostgreSQL ${text}`);
  const advice = `Upgrade it to ${serverVersionMin} or newer first.`;
  return problem('database', `PostgreSQL ${text} is too old`, advice);
}

async function examineDurability({ database }: Installation): Promise<Finding[]> {
  const problems = await findDurabilityProblems(database);
  if (problems.length === 0) return [ok('durability', 'committed data survives a crash')];
  return problems.map(({ setting, value, danger }) =>
    problem(
      'durability',
      `${setting} is ${value}: ${danger}`,
      `Set ${setting} = on in postgresql.conf and reload it.`,
    ),
  );
}

/** Null where it is none, and where that cannot be told, of which the other findings speak. */
async function findForeignSchema({ database }: Installation): Promise<Finding | null> {
  try {
    await pendingMigrations(database);
  } catch (cause) {
    if (cause instanceof ForeignSchemaError)
      return problem('schema', cause.message, 'Nothing else was examined.');
  }
  return null;
}

/** Where there is no schema yet, neither the wall nor partitions can be missing. */
async function examineSchema(installation: Installation): Promise<Finding[]> {
  const pending = await pendingMigrations(installation.database);
  const isEmpty = pending.some(({ version }) => version === 1);
  const schema =
    pending.length === 0
      ? ok('schema', 'up to date')
      : warning(
          'schema',
          isEmpty
            ? 'there is none yet'
            : `not up to date, missing ${pending.map(({ name }) => name).join(', ')}`,
          `Run "${programName()} migrate", or start the server, which does the same.`,
        );
  if (isEmpty) return [schema];
  return [
    schema,
    await examineWall(installation),
    await examineUserOfRequests(installation),
    ...(schema.level === 'ok' ? await examineDeletions(installation) : []),
    ...(await examinePartitions(installation, schema.level === 'ok')),
  ];
}

/** As who requests are served, and whether that is as little as it can be. */
async function examineUserOfRequests({ config, database }: Installation): Promise<Finding> {
  const subject = 'requests';
  const roles = await examineServingRoles(database);
  switch (roles.kind) {
    case 'missing':
      return warning(
        subject,
        'there are no roles postillion_request and postillion_serving: requests are served as a user that may do everything',
        `Run "${programName()} migrate" as a database user with createrole, or let an administrator make them: see "Your own PostgreSQL" in docs/operating.md.`,
      );
    case 'unreachable':
      return problem(
        subject,
        `they may not use ${roles.tables.join(', ')}: they will fail`,
        `Run "${programName()} migrate" as the owner of these tables, which grants what is missing.`,
      );
    case 'too_open':
      return warning(
        subject,
        `they may do more than they need with ${roles.tables.join(', ')}`,
        `Run "${programName()} migrate" as the owner of these tables, which takes it back.`,
      );
    case 'standing': {
      if (config.apiDatabaseUrl !== null) return examineNamedUser(config.apiDatabaseUrl);
      if (config.databaseUrl === null || (await findUserKind(database)) === 'serving')
        return ok(subject, servedByLeast);
      return warning(
        subject,
        'they are served as the owner of the database, so that whoever has them run a statement may change everything',
        `Run "create role postillion_api login password '…' in role postillion_serving" in the database, and name that user in POSTILLION_API_DATABASE_URL.`,
      );
    }
  }
}

const servedByLeast =
  'they are served as a database user that owns nothing and may do no more than they need';

async function examineNamedUser(url: string): Promise<Finding> {
  const subject = 'requests';
  const setting = 'POSTILLION_API_DATABASE_URL';
  const database = openDatabase({ address: { url }, connectionsMax: 1, servesRequests: true });
  try {
    switch (await findUserKind(database)) {
      case 'serving':
        return ok(subject, servedByLeast);
      case 'other':
      case null:
        return problem(
          subject,
          `the user of ${setting} is not a member of postillion_serving there, and requests will fail`,
          'Name the database of DATABASE_URL, and run "grant postillion_serving to" that user as its owner.',
        );
      case 'owner':
        return warning(
          subject,
          `the user of ${setting} owns the database, or is a superuser`,
          `Run "create role postillion_api login password '…' in role postillion_serving" in the database, and name that user instead.`,
        );
    }
  } catch (cause) {
    const found = await asDatabaseProblem(cause, url, setting);
    return problem(subject, `they cannot be served: ${describeFailure(found)}`, `Correct ${setting}.`);
  } finally {
    await database.close();
  }
}

/** More names than that would hide what else there is to say. */
const deletionsMax = 10;

async function examineDeletions({ database }: Installation): Promise<Finding[]> {
  const deletions = await listDeletions(database, deletionsMax);
  return deletions.map(({ id, name }) =>
    warning(
      'organizations',
      `${name} is being deleted`,
      `Unless the command is at work, run "${programName()} org delete --org ${id}" again: it goes on where it ended.`,
    ),
  );
}

async function examineWall({ database }: Installation): Promise<Finding> {
  if ((await findUserKind(database)) === 'serving')
    return ok('second wall', 'row-level security keeps organizations apart');
  const wall = await examineTenantWall(database);
  switch (wall.kind) {
    case 'standing':
      return ok('second wall', 'row-level security keeps organizations apart');
    case 'missing':
      return warning(
        'second wall',
        'there is no role postillion_tenant that the database user may enter: row-level security is off, and only the conditions of each statement keep organizations apart',
        `Run "${programName()} migrate" as a database user with createrole. If that user must not have it, let an administrator run "create role postillion_tenant nologin" and "grant postillion_tenant to" that user first.`,
      );
    case 'unreachable':
      return problem(
        'second wall',
        `the role postillion_tenant may not use ${wall.tables.join(', ')}: requests will fail`,
        `Run "${programName()} migrate" as the owner of these tables, which grants what is missing.`,
      );
  }
}

/** All goes by the database's clock; this machine's own tells whether that one is right, and judges certificates. */
const skewMsAccepted = 1_000;
const skewMsMax = 30_000;

async function examineClock({ database, clock }: Installation): Promise<Finding[]> {
  const askedAtMs = clock.nowMs();
  const serverMs = await readServerTimeMs(database);
  const skewMs = Math.round(serverMs - (askedAtMs + clock.nowMs()) / 2);
  const found = `this machine and the database are ${Math.abs(skewMs)} ms apart`;
  const advice =
    "Synchronise both machines by NTP. Messages, schedules and deletions by age use the database's clock.";
  if (Math.abs(skewMs) <= skewMsAccepted) return [ok('clock', found)];
  return [Math.abs(skewMs) <= skewMsMax ? warning('clock', found, advice) : problem('clock', found, advice)];
}

/** What the doctor needs of the provider of a channel. */
type Examined = {
  subject: string;
  /** As in `the sandbox keeps it`. */
  kept: string;
  name: string;
  providers: Readonly<Record<string, DescribedProvider>>;
  definition: DescribedProvider;
  create: () => Promise<{ probe: () => Promise<string | null>; close: () => Promise<void> }>;
};

function examineEmailProvider(installation: Installation): Promise<Finding> {
  const { emailProvider: name } = installation.config;
  return examineProvider({
    subject: 'email',
    kept: 'it',
    name,
    providers: emailProviders,
    definition: emailProviders[name],
    create: () => createEmailProvider(installation),
  });
}

function examineSmsProvider(installation: Installation): Promise<Finding> {
  const { smsProvider: name } = installation.config;
  return examineProvider({
    subject: 'sms',
    kept: 'them',
    name,
    providers: smsProviders,
    definition: smsProviders[name],
    create: () => createSmsProvider(installation),
  });
}

function examinePushProvider(installation: Installation): Promise<Finding> {
  const { pushProvider: name } = installation.config;
  return examineProvider({
    subject: 'push',
    kept: 'them',
    name,
    providers: pushProviders,
    definition: pushProviders[name],
    create: () => createPushProvider(installation),
  });
}

function examineChatAppProvider(installation: Installation): Promise<Finding> {
  const { chatAppProvider: name } = installation.config;
  return examineProvider({
    subject: 'chatapp',
    kept: 'them',
    name,
    providers: chatAppProviders,
    definition: chatAppProviders[name],
    create: () => createChatAppProvider(installation),
  });
}

async function examinePushSettings(installation: Installation): Promise<Finding[]> {
  const shortcoming = await findPushShortcoming(installation);
  return shortcoming === null ? [] : [warning('push', shortcoming.found, shortcoming.advice)];
}

async function examineProvider(examined: Examined): Promise<Finding> {
  const { subject, kept, name, providers, definition, create } = examined;
  const { advice } = definition.words;
  try {
    const provider = await create();
    try {
      const refusal = await provider.probe();
      if (refusal !== null) return problem(subject, `${name} cannot be used: ${refusal}`, advice);
    } finally {
      await provider.close();
    }
  } catch (cause) {
    return problem(subject, `${name} cannot be used: ${describeFailure(cause)}`, advice);
  }
  const choosing = choosingSettings(providers).join(' or ');
  const until = choosing === '' ? '' : ` until ${choosing} is set`;
  return definition.isSandbox
    ? ok(subject, `the sandbox keeps ${kept}: nothing leaves this machine${until}`)
    : ok(subject, `${name} can be reached`);
}

async function tryToExamine(
  subject: string,
  examination: (installation: Installation) => Promise<Finding[]>,
  installation: Installation,
): Promise<Finding[]> {
  try {
    return await examination(installation);
  } catch (cause) {
    // The schema is told of already.
    if (isMissing(cause) && (await pendingMigrations(installation.database)).length > 0) return [];
    const found = `could not be checked: ${describeFailure(cause)}`;
    return [problem(subject, found, 'Solve the other problems, and run doctor again.')];
  }
}

/** A table or a column that a pending migration makes. */
function isMissing(cause: unknown): boolean {
  return ['42P01', '42703'].includes(sqlState(cause) ?? '');
}

/** PostgreSQL stops taking rows when its disk is full; a gigabyte is some hours of warning under load. */
const freeBytesMin = 256 * 1_048_576;
const freeBytesAdvised = 2 * 1_073_741_824;

async function examineDataDirectory(directory: string): Promise<Finding[]> {
  const files = await findFilesElsewhere(directory).catch(() => null);
  if (files === null) return [await examineDisk(directory)];
  return [
    ok('data', `the files of the database are in ${files}: ${whyElsewhere(directory)}`),
    await examineDisk(files),
    await examineDisk(directory),
  ];
}

async function examineDisk(directory: string): Promise<Finding> {
  try {
    // Where nothing is yet, the folder in which it would be made tells.
    const there = await findNearest(directory);
    await access(there, constants.W_OK | constants.X_OK);
    const { bavail, bsize } = await statfs(there);
    const freeBytes = bavail * bsize;
    const found = `${showBytes(freeBytes)} are free in ${directory}`;
    const advice = 'Free space there, or move POSTILLION_DATA_DIR to a larger disk.';
    if (freeBytes < freeBytesMin) return problem('disk', found, advice);
    return freeBytes < freeBytesAdvised ? warning('disk', found, advice) : ok('disk', found);
  } catch (cause) {
    return problem(
      'disk',
      explainDataDirectory(cause, directory) ?? `${directory} cannot be used: ${describeFailure(cause)}`,
      'Allow the user that runs Postillion to create and write it.',
    );
  }
}

/** The directory itself, or the nearest above it that there is. Ends at the root. */
async function findNearest(directory: string): Promise<string> {
  try {
    await stat(directory);
    return directory;
  } catch (cause) {
    const isMissing = cause instanceof Error && 'code' in cause && cause.code === 'ENOENT';
    if (!isMissing || path.dirname(directory) === directory) throw cause;
    return findNearest(path.dirname(directory));
  }
}

function showBytes(bytes: number): string {
  const gibibytes = bytes / 1_073_741_824;
  return gibibytes >= 1 ? `${gibibytes.toFixed(1)} GiB` : `${Math.round(bytes / 1_048_576)} MiB`;
}
export type { Finding } from './finding.ts';
