import type { Command } from 'commander';
import { verifyByOperator } from '../domains/domains.ts';
import type { Installation } from '../installation/installation.ts';
import { addCommand, type CommandOutcome, done, onInstallation, refuse } from './command.ts';
import { onNamedOrganization, organizationHelp } from './organization.ts';
import { parseOrganization } from './values.ts';

/** `domain`: sending domains. */
export function addDomainCommands(group: Command): void {
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
