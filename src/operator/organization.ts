import { type DeletionState, findOrganizations, listOrganizations } from '../accounts/accounts.ts';
import type { Installation } from '../installation/installation.ts';
import { programName } from '../platform/program-name.ts';
import { type CommandOutcome, refuse } from './command.ts';

/** Of the option `--org`, which every command has that works on one organization. */
export const organizationHelp = 'id or name of the organization; may be left out where there is only one';

/** Options before it is known which organization is meant. */
export type Unresolved<Options extends { org: string }> = Omit<Options, 'org'> & { org?: string };

/** As it is found by its id or name. */
export type NamedOrganization = { id: string; name: string };

/**
 * Carries out `work` on the organization that is meant by its id, or by its name if only one is called so. Where none is
 * named, the only one is meant. One that is being deleted is refused.
 */
export async function onOrganization(
  installation: Installation,
  reference: string | undefined,
  work: (organizationId: string) => Promise<CommandOutcome>,
): Promise<CommandOutcome> {
  const found =
    reference === undefined ? await findOnly(installation) : await findNamed(installation, reference);
  if ('problem' in found) return found;
  return found.deletion === null
    ? work(found.id)
    : refuse(
        `The organization ${found.name} is being deleted. "${programName()} org delete --org ${found.id}" goes on with it.`,
      );
}

/** The same for its deletion, for which it has to be named. */
export async function onOrganizationToDelete(
  installation: Installation,
  reference: string,
  work: (organization: NamedOrganization) => Promise<CommandOutcome>,
): Promise<CommandOutcome> {
  const found = await findNamed(installation, reference);
  return 'problem' in found ? found : work(found);
}

type Found = NamedOrganization & { deletion: DeletionState };
type Refused = ReturnType<typeof refuse>;

async function findNamed({ database }: Installation, reference: string): Promise<Found | Refused> {
  const found = await findOrganizations(database, reference);
  const [only, ...others] = found;
  if (only === undefined)
    return refuse(`There is no organization ${reference}. "${programName()} org list" shows them.`);
  if (others.length > 0) {
    const ids = found.map(({ id }) => id).join(', ');
    return refuse(
      `Several organizations are called ${reference}. Give the id of the one that you mean: ${ids}`,
    );
  }
  return only;
}

async function findOnly({ database }: Installation): Promise<Found | Refused> {
  const [only, other] = await listOrganizations(database, { after: null, limit: 2 });
  if (only === undefined)
    return refuse(`There is no organization yet. "${programName()} org create --name NAME" makes one.`);
  return other === undefined
    ? only
    : refuse(
        `There are several organizations: name one with --org. "${programName()} org list" shows their ids.`,
      );
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
  if (others.length > 0) return refuse('Name one organization, either by --org or as the argument.');
  return onOrganization(installation, reference, work);
}
