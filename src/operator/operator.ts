import type { Finding } from '../doctor/doctor.ts';
import type { Foundation, Installation } from '../installation/installation.ts';
import { type Command, Option } from 'commander';
import {
  type ApiKey,
  createApiKey,
  createOrganization,
  type GuardSuspension,
  listApiKeys,
  listOrganizations,
  type PlanChange,
  revokeApiKey,
} from '../accounts/accounts.ts';
import type { Channel } from '../channels/channel.ts';
import { addSuppressions, isPhoneNumber, readSuppression, removeSuppression } from '../audience/audience.ts';
import { parseAddress } from '../channels/email/email.ts';
import { readEnvironment } from '../config.ts';
import { verifyByOperator } from '../domains/domains.ts';
import { dateOf } from '../platform/clock.ts';
import { migrate } from '../platform/postgres/migrate.ts';
import { addChatAppCommands } from './chat-app.ts';
import { addContactCommands } from './contacts.ts';
import { addEventCommands } from './events.ts';
import { changePlan } from './plan.ts';
import { addPostmasterCommands } from './postmaster.ts';
import { addPushCommands } from './push.ts';
import { addSandboxCommands } from './sandbox.ts';
import { addSecretCommands } from './secret.ts';
import { onNamedOrganization, onOrganization, organizationHelp } from './organization.ts';
import { addSuppressionList } from './suppressions.ts';
import { addSenderCommands } from './senders.ts';
import {
  addCommand,
  type CommandOutcome,
  formatTable,
  onFoundation,
  onInstallation,
  runCommand,
} from './command.ts';
import {
  collectChannel,
  collectLimit,
  collectQuota,
  listScopes,
  parseChannel,
  parseInstant,
  parseKeptDays,
  parseKeyId,
  parseName,
  parseOrganization,
  parseOrganizationId,
  parsePageSize,
  parseScopes,
  parseWindowLimit,
} from './values.ts';

/** Adds every command that an operator runs beside the server, or without one. */
export function addOperatorCommands(program: Command): void {
  addOrganizationCommands(program.command('org').description('Organizations and their plans.'));
  addKeyCommands(program.command('key').description('API keys.'));
  addContactCommands(program);
  addEventCommands(program);
  addDomainCommands(program.command('domain').description('Sending domains.'));
  addSenderCommands(program.command('sender').description('Names and numbers that texts are sent from.'));
  addPushCommands(program.command('push').description('Push credentials of organizations.'));
  addChatAppCommands(
    program.command('chatapp').description('Accounts of organizations for chat-app messages.'),
  );
  addSandboxCommands(program.command('sandbox').description('The inbox of the sandbox.'));
  addSuppressionCommands(
    program.command('suppression').description('Addresses that must not be written to any more.'),
  );
  addPostmasterCommands(
    program.command('postmaster').description('What was written to the postmaster of the installation.'),
  );
  addSecretCommands(
    program.command('secret').description('The secret of the database, and its replacement.'),
  );
  addCommand(program, 'migrate', 'Bring the schema of the database up to date, as serve does too.').action(
    onFoundation(runMigrate, { schema: 'any', isLong: true }),
  );
  addCommand(
    program,
    'doctor',
    'Check everything that Postillion depends on, and say what to correct.',
  ).action(runDoctor);
}

const defaultPageSize = 100;

function addOrganizationCommands(group: Command): void {
  addCommand(group, 'create', 'Create an organization.')
    .requiredOption('--name <name>', 'its name', parseName)
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
    .option(
      '--events-kept-days <number>',
      'delete events so many days after they happened, or never: unlimited',
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
    .action(
      onInstallation((installation, named: string | undefined, options: PlanOptions & { org?: string }) =>
        onNamedOrganization(installation, [named, options.org], (id) =>
          runOrganizationUpdate(installation, id, options),
        ),
      ),
    );
  addCommand(group, 'list', 'List organizations, newest first.')
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .option('--after <org>', 'only those older than this one', parseOrganizationId)
    .action(onInstallation(runOrganizationList));
}

function addKeyCommands(group: Command): void {
  addCommand(group, 'create', 'Create an API key and show it. It cannot be shown again.')
    .requiredOption('--org <org>', organizationHelp, parseOrganization)
    .option('--name <name>', 'what it is for', parseName, 'API key')
    .option('--scopes <scopes>', 'separated by commas; see below', parseScopes, ['full_access'])
    .option('--expires-at <time>', 'RFC 3339 with an offset; without it, it never expires', parseInstant)
    .addHelpText('after', `\n${listScopes()}`)
    .action(
      onInstallation((installation, options: KeyOptions) =>
        onOrganization(installation, options.org, (org) => runKeyCreate(installation, { ...options, org })),
      ),
    );
  addCommand(group, 'list', 'List the API keys of an organization, newest first.')
    .requiredOption('--org <org>', organizationHelp, parseOrganization)
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .action(
      onInstallation((installation, options: { org: string; limit: number }) =>
        onOrganization(installation, options.org, (org) => runKeyList(installation, { ...options, org })),
      ),
    );
  addCommand(group, 'revoke', 'Revoke an API key; every node refuses it within five seconds.')
    .argument('<key-id>', 'its id, not the key itself', parseKeyId)
    .action(onInstallation(runKeyRevoke));
}

function addDomainCommands(group: Command): void {
  addCommand(group, 'verify', 'Mark a domain as verified by the operator, without checking its DNS.')
    .usage('--org <org> <domain>')
    .option('--org <org>', organizationHelp, parseOrganization)
    .argument('<domain>', 'for example mail.example.com')
    .argument('[domain-after-org]', 'the domain, if the organization is the first argument instead of --org')
    .action(
      onInstallation((installation, first: string, second: string | undefined, options: { org?: string }) =>
        onNamedOrganization(
          installation,
          [options.org, second === undefined ? undefined : first],
          (organizationId) => runDomainVerify(installation, organizationId, second ?? first),
        ),
      ),
    );
}

function addSuppressionCommands(group: Command): void {
  const add = (name: string, description: string, run: SuppressionCommand) =>
    addCommand(group, name, description)
      .requiredOption('--org <org>', organizationHelp, parseOrganization)
      .requiredOption('--channel <channel>', 'email, sms or chatapp', parseChannel)
      .requiredOption('--address <address>', 'the email address, or the phone number in E.164')
      .action(
        onInstallation(async (installation, options: SuppressionOptions) => {
          const { channel } = options;
          const addresses = addressesOf[channel];
          if (addresses === null)
            return refuse(`Suppressions of ${channel} are not supported yet; use email, sms or chatapp.`);
          const address = addresses.normalise(options.address);
          if (address === null) return refuse(`${options.address} is not ${addresses.noun}.`);
          return onOrganization(installation, options.org, (organizationId) =>
            run(installation, { organizationId, channel, address }),
          );
        }),
      );
  add('add', 'Suppress an address: nothing more is sent to it.', runSuppressionAdd);
  add(
    'remove',
    'Remove the suppression of an address, so that messages can be sent to it again.',
    runSuppressionRemove,
  );
  add('show', 'Show whether an address is suppressed, since when and why.', runSuppressionShow);
  addSuppressionList(group);
}

type Addresses = { noun: string; normalise: (text: string) => string | null };

const phoneNumbers: Addresses = {
  noun: 'a phone number in E.164',
  normalise: (text) => (isPhoneNumber(text) ? text : null),
};

/** What an address is on each channel; null where it is nothing that a person could name. */
const addressesOf: Readonly<Record<Channel, Addresses | null>> = {
  email: { noun: 'an email address', normalise: (text) => parseAddress(text)?.normalised ?? null },
  sms: phoneNumbers,
  push: null,
  chatapp: phoneNumbers,
};

function refuse(problem: string): CommandOutcome {
  return { kind: 'refused', problem };
}

function done(json: Record<string, unknown>, text: string): CommandOutcome {
  return { kind: 'done', json, text };
}

async function runOrganizationCreate(
  installation: Installation,
  options: { name: string },
): Promise<CommandOutcome> {
  const { id, name } = await createOrganization(installation, options.name);
  return done({ id, name }, `Created the organization ${name}: ${id}`);
}

type PlanOptions = Pick<PlanChange, 'requestsPerWindow' | 'eventsPerWindow' | 'suspend' | 'resume'> & {
  eventsKeptDays?: number | 'unlimited';
  quota?: NonNullable<PlanChange['quotas']>;
  limit?: NonNullable<PlanChange['limits']>;
  reputationGuard?: 'on' | 'off';
};

async function runOrganizationUpdate(
  installation: Installation,
  id: string,
  options: PlanOptions,
): Promise<CommandOutcome> {
  const { requestsPerWindow, eventsPerWindow, quota, limit, suspend, resume, reputationGuard } = options;
  const eventsKeptDays = options.eventsKeptDays === 'unlimited' ? null : options.eventsKeptDays;
  const change: PlanChange = {
    ...(requestsPerWindow !== undefined && { requestsPerWindow }),
    ...(eventsPerWindow !== undefined && { eventsPerWindow }),
    ...(quota !== undefined && { quotas: quota }),
    ...(limit !== undefined && { limits: limit }),
    ...(eventsKeptDays !== undefined && { eventsKeptDays }),
    ...(suspend !== undefined && { suspend }),
    ...(resume !== undefined && { resume }),
    ...(reputationGuard !== undefined && { hasReputationGuard: reputationGuard === 'on' }),
  };
  if (Object.keys(change).length === 0) return refuse('Nothing to change. Add --help to see the options.');
  const both = suspend?.filter((channel) => resume?.includes(channel)) ?? [];
  if (both.length > 0) return refuse(`Either suspend or resume ${both.join(', ')}, not both.`);
  await changePlan(installation, id, change);
  return done(
    {
      id,
      ...(requestsPerWindow !== undefined && { requests_per_window: requestsPerWindow }),
      ...(eventsPerWindow !== undefined && { events_per_window: eventsPerWindow }),
      ...(quota !== undefined && { quotas: quota }),
      ...(limit !== undefined && { limits: limit }),
      ...(eventsKeptDays !== undefined && { events_kept_days: eventsKeptDays }),
      ...(suspend !== undefined && { suspended: suspend }),
      ...(resume !== undefined && { resumed: resume }),
      ...(reputationGuard !== undefined && { reputation_guard: reputationGuard }),
    },
    `Changed the organization ${id}.`,
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
    ['ID', 'NAME', 'REQUESTS/MIN', 'EMAIL', 'SMS', 'PUSH', 'CHATAPP', 'SUSPENDED'],
    organizations.map(({ id, name, requestsPerWindow, quotas, suspendedChannels, guardSuspension }) => [
      id,
      name,
      `${requestsPerWindow}`,
      ...[quotas.email, quotas.sms, quotas.push, quotas.chatapp].map((quota) => `${quota ?? 'unlimited'}`),
      suspendedChannels.map((channel) => showSuspended(channel, guardSuspension)).join(', '),
    ]),
  );
  return done(
    {
      data: organizations.map((organization) => ({
        id: organization.id,
        name: organization.name,
        requests_per_window: organization.requestsPerWindow,
        events_per_window: organization.eventsPerWindow,
        quotas: organization.quotas,
        limits: organization.limits,
        events_kept_days: organization.eventsKeptDays,
        suspended_channels: organization.suspendedChannels,
        guard_suspension: organization.guardSuspension,
        reputation_guard: organization.hasReputationGuard ? 'on' : 'off',
        reputation_warned_at: organization.reputationWarnedAt,
        created_at: organization.createdAt,
      })),
      has_more: hasMore,
    },
    hasMore ? `${table}\nThere are more: --after ${organizations.at(-1)?.id ?? ''}` : table,
  );
}

/** The reputation guard suspends for email alone; all else is the operator's own doing. */
function showSuspended(channel: Channel, guardSuspension: GuardSuspension | null): string {
  return channel === 'email' && guardSuspension !== null ? 'email (by the reputation guard)' : channel;
}

type KeyOptions = { org: string; name: string; scopes: string[]; expiresAt?: number };

async function runKeyCreate(installation: Installation, options: KeyOptions): Promise<CommandOutcome> {
  const { org: organizationId, name, scopes, expiresAt: expiresAtMs } = options;
  if (expiresAtMs !== undefined && expiresAtMs <= installation.clock.nowMs()) {
    return refuse('The time of --expires-at is in the past.');
  }
  const expiresAt = expiresAtMs === undefined ? null : dateOf(expiresAtMs);
  const { id, key } = await createApiKey(installation, { organizationId, name, scopes, expiresAt });
  return done({ id, key }, `Id:  ${id}\nKey: ${key}\nThe key is not shown again.`);
}

async function runKeyList(
  installation: Installation,
  options: { org: string; limit: number },
): Promise<CommandOutcome> {
  const { org: organizationId, limit } = options;
  const found = await listApiKeys(installation.database, organizationId, limit + 1);
  const keys = found.slice(0, limit);
  const table = formatTable(
    ['ID', 'KEY', 'NAME', 'SCOPES', 'EXPIRES', 'LAST USED', 'STATE'],
    keys.map((key) => [
      key.id,
      `${key.prefix}…`,
      key.name,
      key.scopes.join(','),
      key.expiresAt?.toISOString() ?? 'never',
      key.lastUsedAt?.toISOString() ?? 'never',
      stateOf(key, installation.clock.nowMs()),
    ]),
  );
  return done(
    {
      data: keys.map((key) => ({
        id: key.id,
        name: key.name,
        prefix: key.prefix,
        scopes: key.scopes,
        state: stateOf(key, installation.clock.nowMs()),
        expires_at: key.expiresAt,
        revoked_at: key.revokedAt,
        last_used_at: key.lastUsedAt,
        created_at: key.createdAt,
      })),
      has_more: found.length > limit,
    },
    found.length > limit ? `${table}\nThere are more: give a larger --limit.` : table,
  );
}

function stateOf(key: ApiKey, nowMs: number): 'active' | 'expired' | 'revoked' {
  if (key.revokedAt !== null) return 'revoked';
  return key.expiresAt !== null && key.expiresAt.getTime() <= nowMs ? 'expired' : 'active';
}

async function runKeyRevoke(installation: Installation, id: string): Promise<CommandOutcome> {
  return (await revokeApiKey(installation, id))
    ? done({ id, revoked: true }, `Revoked the key ${id}: every node refuses it within five seconds.`)
    : refuse(`There is no key ${id}. "bin/postillion key list" shows those of an organization.`);
}

async function runDomainVerify(
  installation: Installation,
  organizationId: string,
  domain: string,
): Promise<CommandOutcome> {
  const outcome = await verifyByOperator(installation, { organizationId, name: domain });
  switch (outcome.kind) {
    case 'verified':
      return done(
        { id: outcome.id, name: outcome.name, status: 'verified' },
        `${outcome.name} is verified for the organization ${organizationId}.`,
      );
    case 'invalid_name':
      return refuse(`${domain} is not a domain name.`);
    case 'taken':
      return refuse(`Another organization has verified ${outcome.by}.`);
  }
}

type SuppressionOptions = { org: string; channel: Channel; address: string };

type Suppressed = { organizationId: string; channel: Channel; address: string };

type SuppressionCommand = (installation: Installation, suppressed: Suppressed) => Promise<CommandOutcome>;

async function runSuppressionAdd(
  installation: Installation,
  suppressed: Suppressed,
): Promise<CommandOutcome> {
  const { organizationId, channel, address } = suppressed;
  await addSuppressions(installation.database, installation, channel, [
    { organizationId, address, reason: 'operator' },
  ]);
  return runSuppressionShow(installation, suppressed);
}

async function runSuppressionRemove(
  installation: Installation,
  suppressed: Suppressed,
): Promise<CommandOutcome> {
  const { channel, address } = suppressed;
  const wasSuppressed = await removeSuppression(installation.database, installation, channel, suppressed);
  const left = await readSuppression(installation.database, installation, channel, suppressed);
  if (left !== null) {
    return done(
      { channel, address, suppressed: true, removed: wasSuppressed, reason: left.reason },
      `${address} is still suppressed: its owner opted out on ${left.createdAt.toISOString()}. Repeat the command to remove that too.`,
    );
  }
  return done(
    { channel, address, suppressed: false, removed: wasSuppressed },
    wasSuppressed ? `Messages can be sent to ${address} again.` : `${address} was not suppressed.`,
  );
}

async function runSuppressionShow(
  installation: Installation,
  suppressed: Suppressed,
): Promise<CommandOutcome> {
  const { channel, address } = suppressed;
  const found = await readSuppression(installation.database, installation, channel, suppressed);
  if (found === null) return done({ channel, address, suppressed: false }, `${address} is not suppressed.`);
  return done(
    { channel, address, suppressed: true, reason: found.reason, created_at: found.createdAt },
    `${address} has been suppressed since ${found.createdAt.toISOString()} (${found.reason}).`,
  );
}

async function runMigrate({ database }: Foundation): Promise<CommandOutcome> {
  const applied = (await migrate(database)).map(({ name }) => name);
  return done(
    { applied },
    applied.length === 0 ? 'The schema was up to date.' : `Applied ${applied.join(', ')}.`,
  );
}

async function runDoctor(_options: unknown, command: Command): Promise<void> {
  await runCommand(command, { isLong: false }, async (log) => {
    // It knows every provider, and the other commands would wait a quarter of a second for them.
    const { examine } = await import('../doctor/doctor.ts');
    const findings = await examine(readEnvironment(process.env), log);
    const isHealthy = findings.every(({ level }) => level !== 'problem');
    return {
      kind: isHealthy ? 'done' : 'failed',
      json: { healthy: isHealthy, findings },
      text: formatFindings(findings),
    };
  });
}

/** Wider than any level. */
const levelWidth = 8;

function formatFindings(findings: readonly Finding[]): string {
  const subjectWidth = Math.max(...findings.map(({ subject }) => subject.length));
  const indent = ' '.repeat(levelWidth + subjectWidth + 2);
  return findings
    .map(({ level, subject, found, advice }) => {
      const line = `${level.padEnd(levelWidth)} ${subject.padEnd(subjectWidth)} ${found}`;
      return advice === null ? line : `${line}\n${indent}→ ${advice}`;
    })
    .join('\n');
}
