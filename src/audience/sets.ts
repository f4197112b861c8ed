import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import { type Database, type Transaction, violatedIndex } from '../platform/postgres/database.ts';
import { insertContactChange } from './contact-store.ts';
import { logContacts } from './logged-events.ts';
import type { SetKind, SetPatch } from './schema.ts';
import * as store from './set-store.ts';

export type SetTools = { database: Database; clock: Clock; newId: NewId };

/** A list, or a tag, of a new name. */
export async function createSet(
  tools: SetTools,
  set: { organizationId: string; kind: 'list' | 'tag'; name: string; description: string | null },
): Promise<store.SetRow | 'taken'> {
  return orTaken(
    tools.database.asOrganizations([set.organizationId], (transaction) =>
      store.insertSet(transaction, { ...set, id: tools.newId(), isReady: true, at: now(tools.clock) }),
    ),
  );
}

export async function updateSet(
  tools: SetTools,
  set: store.SetKey & { patch: SetPatch },
): Promise<store.SetRow | 'taken' | 'not_found'> {
  return orTaken(
    tools.database.asOrganizations(
      [set.organizationId],
      async (transaction) =>
        (await store.updateSet(transaction, { ...set, at: now(tools.clock) })) ?? 'not_found',
    ),
  );
}

async function orTaken<Result>(work: Promise<Result>): Promise<Result | 'taken'> {
  try {
    return await work;
  } catch (cause) {
    if (violatedIndex(cause) === 'contact_sets_name') return 'taken';
    throw cause;
  }
}

/** Gone for everybody at once; its members are removed afterwards. */
export async function deleteSet(
  tools: SetTools,
  set: store.SetKey,
): Promise<'deleted' | 'not_found' | store.Holder> {
  return tools.database.asOrganizations([set.organizationId], (transaction) =>
    deleteSetWithin(transaction, set, now(tools.clock)),
  );
}

export async function deleteSetWithin(
  transaction: Transaction,
  set: store.SetKey,
  at: Date,
): Promise<'deleted' | 'not_found' | store.Holder> {
  if (!(await store.lockSet(transaction, set))) return 'not_found';
  const holder = await store.findHolder(transaction, set);
  if (holder !== null) return holder;
  await store.markSetDeleted(transaction, set, at);
  return 'deleted';
}

/** What became of the contacts that were to join or to leave. */
export type MembershipOutcome = { changed: number; unchanged: number; notFoundIds: string[] };

export async function changeMembers(
  tools: SetTools,
  set: store.SetKey & { kind: SetKind; contactIds: readonly string[]; change: 'join' | 'leave' },
): Promise<MembershipOutcome | 'not_found'> {
  const { organizationId } = set;
  const wanted = [...new Set(set.contactIds.map((id) => id.toLowerCase()))];
  return tools.database.asOrganizations([organizationId], async (transaction) => {
    if ((await store.findSet(transaction, set)) === null) return 'not_found';
    const change = set.change === 'join' ? store.insertMembers : store.deleteMembers;
    const done = await change(transaction, { organizationId, setId: set.id, contactIds: wanted });
    if (done === null) return 'not_found';
    const { found, changed } = done;
    if (changed.length > 0) {
      await Promise.all([
        insertContactChange(transaction, { organizationId, id: tools.newId(), contactIds: changed }),
        logContacts(transaction, { organizationId, at: now(tools.clock), updated: changed }),
      ]);
    }
    const there = new Set(found);
    return {
      changed: changed.length,
      unchanged: found.length - changed.length,
      notFoundIds: wanted.filter((id) => !there.has(id)),
    };
  });
}
