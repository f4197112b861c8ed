import { createApiKey, createOrganization, hasOrganization, hasOrganizations } from '../accounts/accounts.ts';
import { makeSandboxCredentials, platforms, setCredentials } from '../devices/devices.ts';
import { sandboxDomain, verifyByOperator } from '../domains/domains.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { lockName } from '../platform/postgres/name-locks.ts';
import { addSender, approveSender, sandboxSender } from '../senders/senders.ts';
import { type Installation, whileRestarting } from './opening.ts';

/** An organization with all that is needed to send on each channel, as long as messages stay in the sandbox. */
export type SandboxOrganization = {
  organizationId: string;
  name: string;
  /** Shown once: only its digest is stored. */
  key: string;
  domain: string;
  sender: string;
};

const firstName = 'My organization';

/**
 * Creates the first organization with its key, or returns that there are organizations already. Several nodes may start
 * at once; one of them creates it. It is one transaction: if it fails before the key was shown, nothing is left.
 */
export async function createFirstOrganization(
  installation: Installation,
): Promise<SandboxOrganization | 'exists'> {
  const { database, config } = installation;
  let made: SandboxOrganization | null = null;
  return whileRestarting(config, async () => {
    // The answer to a commit may have been lost with the connection.
    if (made !== null && (await hasOrganization(database, made.organizationId))) return made;
    if (await hasOrganizations(database)) return 'exists';
    return database.transaction(async (transaction) => {
      await lockName(transaction, 'postillion first start');
      if (await hasOrganizations(transaction)) return 'exists';
      made = await insert({ ...installation, database: within(database, transaction) }, firstName);
      return made;
    });
  });
}

/** Another organization has the domain of the sandbox, which only one can have. */
export class SandboxDomainTaken extends Error {
  override readonly name = 'SandboxDomainTaken';
}

/** Creates one at any time, whole or not at all. Throws a SandboxDomainTaken. */
export async function createSandboxOrganization(
  installation: Installation,
  name: string,
): Promise<SandboxOrganization> {
  const { database } = installation;
  return database.transaction((transaction) =>
    insert({ ...installation, database: within(database, transaction) }, name),
  );
}

/** For functions that open a transaction of their own: they take part in this one instead. */
function within(database: Database, transaction: Transaction): Database {
  return { ...database, rows: transaction.rows, transaction: (work) => work(transaction) };
}

async function insert(installation: Installation, name: string): Promise<SandboxOrganization> {
  const { id: organizationId } = await createOrganization(installation, name, installation.config);
  const { key } = await createApiKey(installation, {
    organizationId,
    name: 'First key',
    scopes: ['full_access'],
    expiresAt: null,
  });
  const verified = await verifyByOperator(installation, { organizationId, name: sandboxDomain });
  if (verified.kind !== 'verified')
    throw new SandboxDomainTaken(
      `Another organization has ${sandboxDomain}, which only one can have: create this one without --sandbox, and verify a domain for it.`,
    );
  const added = await addSender(installation, { organizationId, name: sandboxSender, type: null });
  if (added.kind === 'added') await approveSender(installation, added.sender.id);
  for (const platform of platforms) {
    const credentials = await makeSandboxCredentials(platform);
    await setCredentials(installation, organizationId, credentials, { replacesPair: false });
  }
  return { organizationId, name, key, domain: sandboxDomain, sender: sandboxSender };
}

/** A first email of it, to paste into a shell. `url` is where the API is. */
export function composeFirstRequest(url: string, { key, domain }: SandboxOrganization): string[] {
  return [
    `KEY=${key}`,
    `curl -X POST ${url}/v1/email/send \\`,
    `  -H "Authorization: Bearer $KEY" \\`,
    `  -H 'Content-Type: application/json' \\`,
    `  -d '{"from":"hello@${domain}","from_name":"Hello","to":["you@example.com"],"subject":"It works","html":"<h1>It works</h1>"}'`,
  ];
}
