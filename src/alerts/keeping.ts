import { type Clock, now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { lockName } from '../platform/postgres/name-locks.ts';
import { beginAlerts, setAlertTypes } from '../webhooks/webhooks.ts';
import { alertKinds } from './kinds.ts';
import * as store from './store.ts';

/** What an organization's alerts are: whom they are sent to, and what waits to be told. */
export type Alerts = { addresses: string[]; waiting: store.AlertRow[] };

export async function readAlerts(
  { database }: { database: Database },
  organizationId: string,
): Promise<Alerts> {
  return database.asOrganizations([organizationId], (transaction) => loadAlerts(transaction, organizationId));
}

async function loadAlerts(transaction: Transaction, organizationId: string): Promise<Alerts> {
  const settings = await store.findSettings(transaction, organizationId);
  return {
    addresses: settings?.addresses ?? [],
    waiting: await store.listWaiting(transaction, organizationId),
  };
}

/** From now on these are told of what happens, and nobody else; with none, what waits is told nobody. */
export async function saveAlertAddresses(
  { database, clock }: { database: Database; clock: Clock },
  organizationId: string,
  addresses: readonly string[],
): Promise<Alerts> {
  return database.asOrganizations([organizationId], async (transaction) => {
    // The row may not be there to be locked.
    await lockName(transaction, `alerts ${organizationId}`);
    if (addresses.length === 0) {
      await setAlertTypes(transaction, organizationId, []);
      await store.deleteSettings(transaction, organizationId);
      return { addresses: [], waiting: [] };
    }
    const at = now(clock);
    // Before the end of the log, as the chore does, which holds both.
    if ((await store.lockSettings(transaction, organizationId)) === null) {
      await setAlertTypes(transaction, organizationId, alertKinds);
      const nextPosition = await beginAlerts(transaction, organizationId);
      await store.insertSettings(transaction, { organizationId, addresses, nextPosition, at });
    } else await store.saveAddresses(transaction, { organizationId, addresses, at });
    return loadAlerts(transaction, organizationId);
  });
}
