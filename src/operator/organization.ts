import { findOrganizations } from '../accounts/accounts.ts';
import type { Installation } from '../installation/installation.ts';
import type { CommandOutcome } from './command.ts';

/** Of the option `--org`, which every command has that works on one organization. */
export const organizationHelp = 'id or name of the organization';

/** Carries out `work` on the organization that is meant by its id, or by its name if only one is called so. */
export async function onOrganization(
  installation: Installation,
  reference: string,
  work: (organizationId: string) => Promise<CommandOutcome>,
): Promise<CommandOutcome> {
  const found = await findOrganizations(installation.database, reference);
  const [only, ...others] = found;
  if (only === undefined)
    return refuse(`There is no organization ${reference}. "bin/postillion org list" shows them.`);
  if (others.length > 0) {
    const ids = found.map(({ id }) => id).join(', ');
    return refuse(
      `Several organizations are called ${reference}. Give the id of the one that you mean: ${ids}`,
    );
  }
  return work(only.id);
}

/**
 * The same where the organization may also be given as an argument, as it had to be before. `names` are all that was
 * said of it.
 */
export async function onNamedOrganization(
  installation: Installation,
  names: readonly (string | undefined)[],
  work: (organizationId: string) => Promise<CommandOutcome>,
): Promise<CommandOutcome> {
  const [reference, ...others] = new Set(names.filter((name) => name !== undefined));
  if (reference === undefined) return refuse('Name the organization: --org with its id or name.');
  if (others.length > 0) return refuse('Name one organization, either by --org or as the argument.');
  return onOrganization(installation, reference, work);
}

function refuse(problem: string): CommandOutcome {
  return { kind: 'refused', problem };
}
