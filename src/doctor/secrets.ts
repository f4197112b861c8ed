import { examineSecret, type Installation } from '../installation/installation.ts';
import { pendingMigrations } from '../platform/postgres/migrate.ts';
import { createKeyRing, type Secrets } from '../platform/secrets.ts';

/** What opens what is stored; null where nothing does, of which the doctor says enough elsewhere. */
export async function openSecrets(installation: Installation): Promise<Secrets | null> {
  if ((await pendingMigrations(installation.database)).length > 0) return null;
  const condition = await examineSecret(installation);
  return condition.kind === 'fits' ? createKeyRing(condition.opened.keys, () => 0) : null;
}
