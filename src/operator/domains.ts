import { type Command, InvalidArgumentError } from 'commander';
import { listDomains, verifyByOperator } from '../domains/domains.ts';
import type { Installation } from '../installation/installation.ts';
import { isUuid } from '../platform/ids.ts';
import { programName } from '../platform/program-name.ts';
import { addCommand, type CommandOutcome, done, formatTable, onInstallation, refuse } from './command.ts';
import { onNamedOrganization, onOrganization, organizationHelp, type Unresolved } from './organization.ts';
import { defaultPageSize, parseOrganization, parsePageSize } from './values.ts';

/** `domain`: sending domains. */
export function addDomainCommands(group: Command): void {
  addCommand(
    group,
    'list',
    'List the sending domains of an organization, newest first, whatever their status.',
  )
    .option('--org <org>', organizationHelp, parseOrganization)
    .option('--limit <number>', 'how many at most', parsePageSize, defaultPageSize)
    .option('--after <domain-id>', 'only those older than this one', parseDomainId)
    .action(
      onInstallation((installation, options: Unresolved<ListOptions>) =>
        onOrganization(installation, options.org, (org) => runDomainList(installation, { ...options, org })),
      ),
    );
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

type ListOptions = { org: string; limit: number; after?: string };

function parseDomainId(text: string): string {
  if (!isUuid(text))
    throw new InvalidArgumentError(`It must be an id as "${programName()} domain list" shows it.`);
  return text.toLowerCase();
}

async function runDomainList(
  { database }: Installation,
  { org: organizationId, limit, after }: ListOptions,
): Promise<CommandOutcome> {
  const found = await database.asOrganizations([organizationId], (transaction) =>
    listDomains(transaction, organizationId, { limit, after: after ?? null, before: null }),
  );
  const domains = found.slice(0, limit);
  const hasMore = found.length > limit;
  const table = formatTable(
    ['ID', 'NAME', 'STATUS', 'VERIFIED', 'LAST CHECKED'],
    domains.map((domain) => [
      domain.id,
      domain.name,
      domain.status,
      domain.verified_at?.toISOString() ?? '',
      domain.last_checked_at?.toISOString() ?? '',
    ]),
  );
  return done(
    {
      data: domains.map(({ id, name, status, verified_at, last_checked_at, created_at }) => ({
        id,
        name,
        status,
        verified_at,
        last_checked_at,
        created_at,
      })),
      has_more: hasMore,
    },
    hasMore ? `${table}\nThere are more: --after ${domains.at(-1)?.id ?? ''}` : table,
  );
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
