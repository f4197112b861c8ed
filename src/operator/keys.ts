import type { Command } from 'commander';
import { type ApiKey, createApiKey, listApiKeys, revokeApiKey } from '../accounts/accounts.ts';
import type { Installation } from '../installation/installation.ts';
import { dateOf } from '../platform/clock.ts';
import { addCommand, type CommandOutcome, done, formatTable, onInstallation, refuse } from './command.ts';
import { onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import {
  collectNetwork,
  defaultPageSize,
  listScopes,
  parseInstant,
  parseKeyId,
  parseName,
  parseOrganization,
  parsePageSize,
  parseScopes,
} from './values.ts';
import { programName } from '../platform/program-name.ts';

/** `key`: API keys. */
export function addKeyCommands(group: Command): void {
  addCommand(group, 'create', 'Create an API key and show it. It cannot be shown again.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--name <name>', 'what it is for', parseName, 'API key')
    .option('--scopes <scopes>', 'separated by commas; see below', parseScopes, ['full_access'])
    .option('--expires-at <time>', 'RFC 3339 with an offset; without it, it never expires', parseInstant)
    .option(
      '--allow-ip <address>',
      'may be used from this address or CIDR range alone; may be given several times',
      collectNetwork,
    )
    .addHelpText('after', `\n${listScopes()}`)
    .action(
      onInstallation((installation, options: Unresolved<KeyOptions>) =>
        onOrganization(installation, options.org, (org) => runKeyCreate(installation, { ...options, org })),
      ),
    );
  addCommand(group, 'list', 'List the API keys of an organization, newest first.')
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .action(
      onInstallation((installation, options: Unresolved<{ org: string; limit: number }>) =>
        onOrganization(installation, options.org, (org) => runKeyList(installation, { ...options, org })),
      ),
    );
  addCommand(group, 'revoke', 'Revoke an API key; every node refuses it within five seconds.')
    .argument('<key-id>', 'its id, not the key itself', parseKeyId)
    .action(onInstallation(runKeyRevoke));
}

type KeyOptions = { org: string; name: string; scopes: string[]; expiresAt?: number; allowIp?: string[] };

async function runKeyCreate(installation: Installation, options: KeyOptions): Promise<CommandOutcome> {
  const {
    org: organizationId,
    name,
    scopes,
    expiresAt: expiresAtMs,
    allowIp: allowedNetworks = null,
  } = options;
  if (expiresAtMs !== undefined && expiresAtMs <= installation.clock.nowMs()) {
    return refuse('The time of --expires-at is in the past.');
  }
  const expiresAt = expiresAtMs === undefined ? null : dateOf(expiresAtMs);
  const { id, key } = await createApiKey(installation, {
    organizationId,
    name,
    scopes,
    expiresAt,
    allowedNetworks,
  });
  const isWide = scopes.includes('full_access');
  return done(
    { id, key },
    [
      `Id:  ${id}`,
      `Key: ${key}`,
      'The key is not shown again.',
      ...(isWide ? ['It may do everything. A program that only sends needs --scopes email:send.'] : []),
    ].join('\n'),
  );
}

async function runKeyList(
  installation: Installation,
  options: { org: string; limit: number },
): Promise<CommandOutcome> {
  const { org: organizationId, limit } = options;
  const found = await listApiKeys(installation.database, organizationId, limit + 1);
  const keys = found.slice(0, limit);
  const table = formatTable(
    ['ID', 'KEY', 'NAME', 'SCOPES', 'FROM', 'EXPIRES', 'LAST USED', 'BY', 'STATE'],
    keys.map((key) => [
      key.id,
      `${key.prefix}…`,
      key.name,
      key.scopes.join(','),
      key.allowedNetworks?.join(',') ?? 'anywhere',
      key.expiresAt?.toISOString() ?? 'never',
      key.lastUsedAt?.toISOString() ?? 'never',
      key.lastUsedAddress ?? '',
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
        allowed_networks: key.allowedNetworks,
        last_used_at: key.lastUsedAt,
        last_used_address: key.lastUsedAddress,
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
    : refuse(`There is no key ${id}. "${programName()} key list" shows those of an organization.`);
}
