import { type DkimSigner, openDkimSigner, parseDomain } from '../channels/email/email.ts';
import { now } from '../platform/clock.ts';
import { type Connection, DatabaseUnavailableError } from '../platform/postgres/database.ts';
import { type Secrets, UnknownKeyError } from '../platform/secrets.ts';
import { createSealedKeyPair, openPrivateKey } from './key-pair.ts';
import { hasRoomForReturnPath, returnPathHost, trackingHost } from './records.ts';
import type { DomainTools } from './registration.ts';
import * as store from './store.ts';
import type { DomainName } from './store.ts';
import { logDomain } from './told-events.ts';

export type { InstanceHosts } from './records.ts';
export { domainRules, ownHostsSetting } from './rules.ts';
export { domainFormats } from './schema.ts';
export { createDomainDescriber } from './told-events.ts';
export { examineVerifiedDomains } from './verification.ts';
export {
  type DomainName,
  findAlertDomains,
  findReturnPathOwner,
  findTracking,
  findVerifiedOwner,
  isVerifiedDomain,
  listDomains,
} from './store.ts';

/** The domain that every fresh installation may send from, as long as mail stays in the sandbox. */
export const sandboxDomain = 'postillion.test';

/** Which of these names are verified for the organization that asks; sub-domains count only by themselves. */
export type VerifiedDomains = { has: (domain: DomainName) => boolean };

export async function loadVerifiedDomains(
  connection: Connection,
  wanted: readonly DomainName[],
): Promise<VerifiedDomains> {
  const verified = new Set((await store.findVerified(connection, wanted)).map(keyOf));
  return { has: (domain) => verified.has(keyOf(domain)) };
}

function keyOf({ organizationId, name }: DomainName): string {
  return `${organizationId} ${name}`;
}

/** What a verified domain gives to the mail that is sent from it. */
export type SendingDomain = DomainName & {
  returnPathHost: string;
  /** Its MX record was found, or the operator vouches for it: nobody has ever looked. */
  isReturnPathPublished: boolean;
  /** What of its transactional mail is tracked; a campaign says so for itself. */
  tracking: { opens: boolean; clicks: boolean };
  /** Where its links lead to, if that name was found to point to this installation. */
  trackingHost: string | null;
  /** Null for a domain from before there were keys: its mail goes unsigned. */
  signer: DkimSigner | null | 'unreadable';
  /** Whether it is unreadable because this process does not know the key that it is sealed under, and others may. */
  isKeyUnknown: boolean;
};

/**
 * Those of the domains that may be sent from; one that was deleted is missing. A key that cannot be read, because it
 * was sealed under another secret for instance, is its own domain's trouble. Parses keys, so keep what it returns.
 */
export async function loadSendingDomains(
  tools: { secrets: Secrets },
  connection: Connection,
  wanted: readonly DomainName[],
): Promise<SendingDomain[]> {
  const rows = await store.findSendingDomains(connection, wanted);
  const toDomain = async (row: (typeof rows)[number]): Promise<SendingDomain> => {
    const { organizationId, name, isReturnPathPublished, trackingSubdomain, dkim } = row;
    return {
      ...(dkim === null
        ? { signer: null, isKeyUnknown: false }
        : await openSigner(tools.secrets, name, dkim)),
      organizationId,
      name,
      isReturnPathPublished,
      returnPathHost: returnPathHost(row),
      tracking: { opens: row.openTracking, clicks: row.clickTracking },
      trackingHost:
        trackingSubdomain !== null && row.isTrackingPublished ? trackingHost(name, trackingSubdomain) : null,
    };
  };
  return Promise.all(rows.map(toDomain));
}

async function openSigner(
  secrets: Secrets,
  domain: string,
  dkim: { selector: string; privateKeySealed: Buffer },
): Promise<Pick<SendingDomain, 'signer' | 'isKeyUnknown'>> {
  try {
    const privateKey = await openPrivateKey(secrets, dkim);
    return {
      signer: openDkimSigner({ domain, selector: dkim.selector, privateKey }),
      isKeyUnknown: false,
    };
  } catch (cause) {
    // Of the look for new keys: it says nothing of this one.
    if (cause instanceof DatabaseUnavailableError) throw cause;
    return { signer: 'unreadable', isKeyUnknown: cause instanceof UnknownKeyError };
  }
}

export type VerificationOutcome =
  { kind: 'verified'; id: string; name: string } | { kind: 'invalid_name' } | { kind: 'taken'; by: string };

/** Marks a domain as verified by the operator's word, registering it if need be. Its DNS is never looked at. */
export async function verifyByOperator(tools: DomainTools, wanted: DomainName): Promise<VerificationOutcome> {
  const name = parseDomain(wanted.name);
  if (name === null || !hasRoomForReturnPath({ name, returnPathSubdomain: 'send' }))
    return { kind: 'invalid_name' };
  const domain = { organizationId: wanted.organizationId, name };
  return tools.database.transaction(async (transaction) => {
    await store.lockVerification(transaction);
    const [related] = await store.findRelatedVerified(transaction, domain);
    if (related !== undefined) return { kind: 'taken', by: related };
    const at = now(tools.clock);
    const { id } =
      (await keepHeldDomain(tools, transaction, domain)) ??
      (await store.insertDomain(transaction, {
        ...domain,
        id: tools.newId(),
        returnPathSubdomain: 'send',
        trackingSubdomain: null,
        openTracking: false,
        clickTracking: false,
        dkim: await createSealedKeyPair(tools),
        nextCheckAt: null,
        createdAt: at,
      }));
    const key = { organizationId: domain.organizationId, id };
    if (await store.markVerified(transaction, key, at))
      await logDomain(transaction, key, 'domain.verified', at);
    return { kind: 'verified', id, name };
  });
}

/** One from before there were keys gets its own. */
async function keepHeldDomain(
  tools: DomainTools,
  transaction: Connection,
  domain: DomainName,
): Promise<store.DomainRow | null> {
  const held = await store.findDomainByName(transaction, domain);
  if (held?.dkim_selector === null) {
    const key = { organizationId: domain.organizationId, id: held.id };
    await store.setKeyPair(transaction, key, await createSealedKeyPair(tools));
  }
  return held;
}
