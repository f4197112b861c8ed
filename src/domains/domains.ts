import { parseDomain } from '../channels/email/email.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import type { Connection, Database } from '../platform/postgres/database.ts';
import {
  type DomainName,
  findRelatedVerified,
  findVerified,
  lockVerification,
  upsertVerifiedDomain,
} from './store.ts';

export type { DomainName } from './store.ts';

/** The domain that every fresh installation may send from, as long as mail stays in the sandbox. */
export const sandboxDomain = 'postillion.test';

/** Which of these names are verified for the organization that asks; sub-domains count only by themselves. */
export type VerifiedDomains = { has: (domain: DomainName) => boolean };

export async function loadVerifiedDomains(
  connection: Connection,
  wanted: readonly DomainName[],
): Promise<VerifiedDomains> {
  const verified = new Set((await findVerified(connection, wanted)).map(keyOf));
  return { has: (domain) => verified.has(keyOf(domain)) };
}

function keyOf({ organizationId, name }: DomainName): string {
  return `${organizationId} ${name}`;
}

export type VerificationOutcome =
  { kind: 'verified'; id: string; name: string } | { kind: 'invalid_name' } | { kind: 'taken'; by: string };

/** Marks a domain as verified by the operator's word, registering it if need be. */
export async function verifyByOperator(
  tools: { database: Database; clock: Clock; newId: NewId },
  wanted: DomainName,
): Promise<VerificationOutcome> {
  const name = parseDomain(wanted.name);
  if (name === null) return { kind: 'invalid_name' };
  return tools.database.transaction(async (transaction) => {
    await lockVerification(transaction);
    const domain = { organizationId: wanted.organizationId, name };
    const [related] = await findRelatedVerified(transaction, domain);
    if (related !== undefined) return { kind: 'taken', by: related };
    const id = await upsertVerifiedDomain(transaction, {
      ...domain,
      id: tools.newId(),
      verifiedAt: now(tools.clock),
    });
    return { kind: 'verified', id, name };
  });
}
