import { type Command, Option } from 'commander';
import {
  createOrganization,
  type GuardSuspension,
  listOrganizations,
  measureStorage,
  type Plan,
  type PlanChange,
  renameOrganization,
  type StorageUsage,
} from '../accounts/accounts.ts';
import type { Channel } from '../channels/channel.ts';
import {
  composeFirstRequest,
  createSandboxOrganization,
  type Installation,
  publicUrlOf,
  SandboxDomainTaken,
} from '../installation/installation.ts';
import { formatBytes } from '../platform/bytes.ts';
import { programName } from '../platform/program-name.ts';
import { addCommand, type CommandOutcome, done, formatTable, onInstallation, refuse } from './command.ts';
import { addOrganizationDeletion } from './organization-deletion.ts';
import { onNamedOrganization, onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { interruptedExitCode, listenForInterruption } from './progress.ts';
import {
  collectChannel,
  collectLimit,
  collectQuota,
  defaultPageSize,
  parseKeptDays,
  parseMessagesKeptDays,
  parseName,
  parseOrganization,
  parseOrganizationId,
  parsePageSize,
  parseStorageLimit,
  parseWindowLimit,
} from './values.ts';

/** `org`: organizations and their plans. */
export function addOrganizationCommands(group: Command): void {
  addCommand(group, 'create', 'Create an organization.')
    .requiredOption('--name <name>', 'its name', parseName)
    .option(
      '--sandbox',
      'with a key, a verified domain, a sender and push credentials, as the first start makes one; needs no DNS',
    )
    .action(onInstallation(runOrganizationCreate, { schema: 'begins', isLong: false }));
  addCommand(group, 'update', 'Change the plan of an organization.')
    .argument('[org]', 'the same as --org', parseOrganization)
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--requests-per-window <number>', 'requests in 60 seconds', parseWindowLimit)
    .option('--events-per-window <number>', 'events in 60 seconds', parseWindowLimit)
    .option(
      '--quota <channel=number>',
      'monthly quota of a channel, or email=unlimited; repeatable',
      collectQuota,
    )
    .option('--limit <noun=number>', 'limit of domains, segments or events; repeatable', collectLimit)
    .option('--storage-limit <size>', 'how much it may store, such as 20GB, or unlimited', parseStorageLimit)
    .option(
      '--events-kept-days <number>',
      'delete events so many days after they happened, or never: unlimited',
      parseKeptDays,
    )
    .option(
      '--messages-kept-days <number>',
      'keep messages so many days, or as long as the installation does: unlimited',
      parseMessagesKeptDays,
    )
    .option(
      '--content-kept-days <number>',
      'keep what messages say so many days, or as long as the installation does: unlimited',
      parseKeptDays,
    )
    .option('--suspend <channel>', 'suspend sending on a channel; repeatable', collectChannel)
    .option('--resume <channel>', 'resume sending on a channel; repeatable', collectChannel)
    .addOption(
      new Option(
        '--reputation-guard <switch>',
        'whether too many bounces or complaints suspend it for email automatically',
      ).choices(['on', 'off']),
    )
    .addOption(
      new Option('--request-log <switch>', 'whether its requests are logged for it').choices(['on', 'off']),
    )
    .option(
      '--alerts <addresses>',
      'whom to tell by email of what goes wrong, with commas between them, or none',
    )
    .action(
      onInstallation((installation, named: string | undefined, options: PlanOptions & { org?: string }) =>
        onNamedOrganization(installation, [named, options.org], (id) =>
          runOrganizationUpdate(installation, id, options),
        ),
      ),
    );
  addCommand(group, 'rename', 'Give an organization another name.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .requiredOption('--name <name>', 'its new name', parseName)
    .action(
      onInstallation((installation, options: Unresolved<{ org: string; name: string }>) =>
        onOrganization(installation, options.org, (id) =>
          runOrganizationRename(installation, id, options.name),
        ),
      ),
    );
  addOrganizationDeletion(group);
  addCommand(group, 'list', 'List organizations, newest first.')
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .option('--after <org>', 'only those older than this one', parseOrganizationId)
    .action(onInstallation(runOrganizationList));
  addCommand(
    group,
    'measure',
    'Measure now what organizations store, as workers do every hour. "org list" shows it.',
  ).action(onInstallation(runOrganizationMeasure, { schema: 'current', isLong: true }));
}

async function runOrganizationMeasure(installation: Installation): Promise<CommandOutcome> {
  const interruption = listenForInterruption();
  try {
    const kind = await measureStorage(installation, interruption.signal);
    if (kind === 'measured')
      return done(
        { measured: true },
        `Measured what organizations store: "${programName()} org list" shows it.`,
      );
    process.exitCode = interruptedExitCode;
    return { kind: 'failed', json: { measured: false, interrupted: true }, text: 'Interrupted.' };
  } finally {
    interruption.ignore();
  }
}

async function runOrganizationCreate(
  installation: Installation,
  options: { name: string; sandbox?: boolean },
): Promise<CommandOutcome> {
  if (options.sandbox === true) return runSandboxCreate(installation, options.name);
  const { id, name } = await createOrganization(installation, options.name, installation.config);
  return done({ id, name }, `Created the organization ${name}: ${id}`);
}

async function runSandboxCreate(installation: Installation, name: string): Promise<CommandOutcome> {
  try {
    const made = await createSandboxOrganization(installation, name);
    const { organizationId: id, key, domain, sender } = made;
    return done(
      { id, name, key, domain, sender },
      [
        `Created the organization ${name}: ${id}`,
        `API key:    ${key}`,
        `Domain:     ${domain} (verified)`,
        `SMS sender: ${sender} (approved)`,
        'The key is not shown again. Send a first email:',
        '',
        ...composeFirstRequest(publicUrlOf(installation.config), made),
      ].join('\n'),
    );
  } catch (cause) {
    if (cause instanceof SandboxDomainTaken) return refuse(cause.message);
    throw cause;
  }
}

async function runOrganizationRename(
  installation: Installation,
  id: string,
  name: string,
): Promise<CommandOutcome> {
  const former = await renameOrganization(installation, id, name);
  return former === null
    ? refuse(`There is no organization ${id}. "${programName()} org list" shows them.`)
    : done({ id, name, former_name: former }, `${former} is called ${name} now: ${id}`);
}

type PlanOptions = Pick<PlanChange, 'requestsPerWindow' | 'eventsPerWindow' | 'suspend' | 'resume'> & {
  storageLimit?: number | 'unlimited';
  eventsKeptDays?: number | 'unlimited';
  messagesKeptDays?: number | 'unlimited';
  contentKeptDays?: number | 'unlimited';
  quota?: NonNullable<PlanChange['quotas']>;
  limit?: NonNullable<PlanChange['limits']>;
  reputationGuard?: 'on' | 'off';
  requestLog?: 'on' | 'off';
  alerts?: string;
};

async function runOrganizationUpdate(
  installation: Installation,
  id: string,
  options: PlanOptions,
): Promise<CommandOutcome> {
  const { requestsPerWindow, eventsPerWindow, quota, limit, suspend, resume } = options;
  const { reputationGuard, requestLog } = options;
  const storageLimitBytes = limitOf(options.storageLimit);
  const eventsKeptDays = limitOf(options.eventsKeptDays);
  const messagesKeptDays = limitOf(options.messagesKeptDays);
  const contentKeptDays = limitOf(options.contentKeptDays);
  const change: PlanChange = {
    ...(requestsPerWindow !== undefined && { requestsPerWindow }),
    ...(eventsPerWindow !== undefined && { eventsPerWindow }),
    ...(quota !== undefined && { quotas: quota }),
    ...(limit !== undefined && { limits: limit }),
    ...(storageLimitBytes !== undefined && { storageLimitBytes }),
    ...(eventsKeptDays !== undefined && { eventsKeptDays }),
    ...(messagesKeptDays !== undefined && { messagesKeptDays }),
    ...(contentKeptDays !== undefined && { contentKeptDays }),
    ...(suspend !== undefined && { suspend }),
    ...(resume !== undefined && { resume }),
    ...(reputationGuard !== undefined && { hasReputationGuard: reputationGuard === 'on' }),
    ...(requestLog !== undefined && { hasRequestLog: requestLog === 'on' }),
  };
  if (Object.keys(change).length === 0 && options.alerts === undefined)
    return refuse('Nothing to change. Add --help to see the options.');
  const both = suspend?.filter((channel) => resume?.includes(channel)) ?? [];
  if (both.length > 0) return refuse(`Either suspend or resume ${both.join(', ')}, not both.`);
  // What a plan changes beyond its own row takes half of the program, which the other commands here need not load.
  const { changePlan, findIneffective, readAlertAddresses, saveAlertAddresses } = await import('./plan.ts');
  const alerts = options.alerts === undefined ? undefined : readAlertAddresses(options.alerts);
  if (typeof alerts === 'string') return refuse(alerts);
  if (Object.keys(change).length > 0) await changePlan(installation, id, change);
  if (alerts !== undefined) await saveAlertAddresses(installation, id, alerts);
  const warnings = await findIneffective(installation, id, change);
  return done(
    {
      id,
      ...(requestsPerWindow !== undefined && { requests_per_window: requestsPerWindow }),
      ...(eventsPerWindow !== undefined && { events_per_window: eventsPerWindow }),
      ...(quota !== undefined && { quotas: quota }),
      ...(limit !== undefined && { limits: limit }),
      ...(storageLimitBytes !== undefined && { storage_limit_bytes: storageLimitBytes }),
      ...(eventsKeptDays !== undefined && { events_kept_days: eventsKeptDays }),
      ...(messagesKeptDays !== undefined && { messages_kept_days: messagesKeptDays }),
      ...(contentKeptDays !== undefined && { content_kept_days: contentKeptDays }),
      ...(suspend !== undefined && { suspended: suspend }),
      ...(resume !== undefined && { resumed: resume }),
      ...(reputationGuard !== undefined && { reputation_guard: reputationGuard }),
      ...(requestLog !== undefined && { request_log: requestLog }),
      ...(alerts !== undefined && { alerts }),
      ...(warnings.length > 0 && { warnings }),
    },
    [`Changed the organization ${id}.`, ...warnings].join('\n'),
  );
}

async function runOrganizationList(
  { database }: Installation,
  options: { limit: number; after?: string },
): Promise<CommandOutcome> {
  const { limit, after = null } = options;
  const found = await listOrganizations(database, { after, limit: limit + 1 });
  const organizations = found.slice(0, limit);
  const hasMore = found.length > limit;
  const table = formatTable(
    ['ID', 'NAME', 'REQUESTS/MIN', 'EMAIL', 'SMS', 'PUSH', 'CHATAPP', 'STORED', 'DAYS KEPT', 'SUSPENDED'],
    organizations.map(({ id, name, requestsPerWindow, quotas, suspendedChannels, ...organization }) => [
      id,
      name,
      `${requestsPerWindow}`,
      ...[quotas.email, quotas.sms, quotas.push, quotas.chatapp].map((quota) => `${quota ?? 'unlimited'}`),
      showStored(organization),
      showKept(organization),
      organization.deletion === null
        ? suspendedChannels.map((channel) => showSuspended(channel, organization.guardSuspension)).join(', ')
        : 'being deleted',
    ]),
  );
  return done(
    {
      data: organizations.map((organization) => ({
        id: organization.id,
        name: organization.name,
        deletion: organization.deletion,
        requests_per_window: organization.requestsPerWindow,
        events_per_window: organization.eventsPerWindow,
        quotas: organization.quotas,
        limits: organization.limits,
        storage: organization.storage && {
          bytes: organization.storage.bytes,
          bytes_by_kind: organization.storage.bytesByKind,
          measured_at: organization.storage.measuredAt,
        },
        storage_limit_bytes: organization.storageLimitBytes,
        events_kept_days: organization.eventsKeptDays,
        messages_kept_days: organization.messagesKeptDays,
        content_kept_days: organization.contentKeptDays,
        suspended_channels: organization.suspendedChannels,
        guard_suspension: organization.guardSuspension,
        reputation_guard: organization.hasReputationGuard ? 'on' : 'off',
        reputation_warned_at: organization.reputationWarnedAt,
        request_log: organization.hasRequestLog ? 'on' : 'off',
        created_at: organization.createdAt,
      })),
      has_more: hasMore,
    },
    hasMore ? `${table}\nThere are more: --after ${organizations.at(-1)?.id ?? ''}` : table,
  );
}

function limitOf(option: number | 'unlimited' | undefined): number | null | undefined {
  return option === 'unlimited' ? null : option;
}

/** Empty where it was not measured yet. */
function showStored({
  storage,
  storageLimitBytes: limit,
}: Pick<Plan, 'storageLimitBytes'> & { storage: StorageUsage | null }): string {
  const stored = storage === null ? '' : formatBytes(storage.bytes);
  return limit === null ? stored : `${stored} of ${formatBytes(limit)}`.trim();
}

/** Those alone that the plan limits: as a rule the cell is empty, or short. */
function showKept({
  eventsKeptDays: events,
  messagesKeptDays: messages,
  contentKeptDays: content,
}: Pick<Plan, 'eventsKeptDays' | 'messagesKeptDays' | 'contentKeptDays'>): string {
  return Object.entries({ events, messages, content })
    .filter(([, days]) => days !== null)
    .map(([what, days]) => `${what} ${days}`)
    .join(', ');
}

/** The reputation guard suspends for email alone; all else is the operator's own doing. */
function showSuspended(channel: Channel, guardSuspension: GuardSuspension | null): string {
  return channel === 'email' && guardSuspension !== null ? 'email (by the reputation guard)' : channel;
}
