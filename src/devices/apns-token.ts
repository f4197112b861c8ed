import { type Clock, now } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { type ApnsTokenRow, type CredentialsKey, findApnsToken, saveApnsToken } from './credential-store.ts';

/**
 * The token under which a team speaks to APNs. Apple refuses one that is older than an hour, and for a while everything
 * of a team that makes a new one more often than every 20 minutes. So all nodes share one, which is stored beside the
 * credentials: whoever finds it older than 50 minutes and gets the lock of its row makes the next, and the others wait
 * and take that. A token that APNs calls expired is made anew only if it is 20 minutes old: else the clock is wrong,
 * and another token would be refused as well.
 */
const renewedAfterMs = 50 * 60_000;
const refusedAfterMs = 20 * 60_000;

export type ApnsToken = { token: string; madeAt: Date };

/**
 * Returns null once the credentials were replaced. `sign` makes a token whose `iat` is the given time. `refused` is the
 * token that APNs has just called expired: the answer may be the same one. Rejects as `decryptInSteps` does.
 */
export async function shareApnsToken(
  tools: { database: Database; clock: Clock; secrets: Secrets },
  credentials: CredentialsKey,
  sign: (at: Date) => string,
  refused: string | null = null,
): Promise<ApnsToken | null> {
  const { database, clock, secrets } = tools;
  const read = async (row: ApnsTokenRow): Promise<ApnsToken | null> => {
    if (row.apns_token_sealed === null || row.apns_token_made_at === null) return null;
    const opened = await secrets.decryptInSteps(row.apns_token_sealed, sealContext(credentials.id));
    return { token: opened.toString('utf8'), madeAt: row.apns_token_made_at };
  };
  /** A clock that was put back far finds tokens of the future, which APNs takes for invalid. */
  const isGood = ({ token, madeAt }: ApnsToken) => {
    const ageMs = now(clock).getTime() - madeAt.getTime();
    return ageMs > -refusedAfterMs && ageMs < (token === refused ? refusedAfterMs : renewedAfterMs);
  };
  return database.asOrganizations([credentials.organizationId], async (transaction) => {
    const found = await findApnsToken(transaction, credentials, { isLocked: false });
    if (found === null) return null;
    const present = await read(found);
    if (present !== null && isGood(present)) return present;

    const locked = await findApnsToken(transaction, credentials, { isLocked: true });
    if (locked === null) return null;
    const shared = await read(locked);
    if (shared !== null && isGood(shared)) return shared;
    const madeAt = now(clock);
    const token = sign(madeAt);
    const sealed = secrets.encrypt(Buffer.from(token), sealContext(credentials.id));
    await saveApnsToken(transaction, { ...credentials, sealed, madeAt });
    return { token, madeAt };
  });
}

function sealContext(id: string): string {
  return `apns token ${id}`;
}
