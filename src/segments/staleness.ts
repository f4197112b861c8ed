import { setReadiness } from '../audience/audience.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import * as store from './store.ts';

/** What they found with a segment that is not ready (any more) does not hold. */
export async function makeUsersStale(transaction: Transaction, segment: store.SegmentKey): Promise<void> {
  const { organizationId } = segment;
  const ids = await store.findUsers(transaction, segment);
  if (ids.length === 0) return;
  await setReadiness(transaction, { organizationId, ids, isReady: false });
  await store.markStale(transaction, organizationId, ids);
}
