import { setReadiness } from '../audience/audience.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import * as store from './store.ts';

/** Marks the segments that use this one as not ready: while it is not ready, their members may be wrong. */
export async function makeUsersStale(transaction: Transaction, segment: store.SegmentKey): Promise<void> {
  const { organizationId } = segment;
  const ids = await store.findUsers(transaction, segment);
  if (ids.length === 0) return;
  await setReadiness(transaction, { organizationId, ids, isReady: false });
  await store.markStale(transaction, organizationId, ids);
}
