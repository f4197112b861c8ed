import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';
import { organizationsDue } from '../platform/queue/turns.ts';

/**
 * An address of a deleted contact, until nothing contains it any more. This room only stores it; the rooms that have
 * the address in their own rows read it from here.
 */
export type AddressErasure = { organizationId: string; address: string; requestedAt: Date };

/** A contact that was deleted, until nothing that was sent to it can be read, at whatever address. A trigger notes it. */
export type ContactErasure = { organizationId: string; contactId: string; requestedAt: Date };

export type Erasure = AddressErasure | ContactErasure;

const findDueOfAddresses = statement<{ organization_id: string }>(
  'erasures_find_due',
  organizationsDue({ table: 'erasures', due: 'due_at <= $1' }),
);
const findDueOfContacts = statement<{ organization_id: string }>(
  'contact_erasures_find_due',
  organizationsDue({ table: 'contact_erasures', due: 'due_at <= $1' }),
);

/** Organizations with erasures that are due, after `after`, in the order of their ids. */
export async function findErasingOrganizations(
  connection: Connection,
  { at, after, limit }: { at: Date; after: string | null; limit: number },
): Promise<string[]> {
  const found = await Promise.all(
    [findDueOfAddresses, findDueOfContacts].map((find) => connection.rows(find, [at, after, limit])),
  );
  const ids = found.flat().map(({ organization_id: organizationId }) => organizationId);
  return [...new Set(ids)].sort().slice(0, limit);
}

type TakingErasure = { organizationId: string; at: Date };

/**
 * The one of the organization that has been due for longest; another node that asks before the transaction ends gets another
 * one.
 */
export async function takeDueAddress(
  transaction: Connection,
  { organizationId, at }: TakingErasure,
): Promise<AddressErasure | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ organization_id: string; address: string; requested_at: Date }>(
      `select organization_id, address, requested_at
       from erasures
       where organization_id = $1 and due_at <= $2
       order by due_at
       limit 1
       for update skip locked`,
    ),
    [organizationId, at],
  );
  return row === undefined
    ? null
    : { organizationId: row.organization_id, address: row.address, requestedAt: row.requested_at };
}

/** As `takeDueAddress`. */
export async function takeDueContact(
  transaction: Connection,
  { organizationId, at }: TakingErasure,
): Promise<ContactErasure | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ organization_id: string; contact_id: string; requested_at: Date }>(
      `select organization_id, contact_id, requested_at
       from contact_erasures
       where organization_id = $1 and due_at <= $2
       order by due_at
       limit 1
       for update skip locked`,
    ),
    [organizationId, at],
  );
  return row === undefined
    ? null
    : { organizationId: row.organization_id, contactId: row.contact_id, requestedAt: row.requested_at };
}

/** The first instant after this one at which an erasure is due. */
export async function findNextErasureAt(connection: Connection, after: Date): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ due_at: Date | null }>(
      `select least(
         (select due_at from erasures where due_at > $1 and ${isNotDeleted('organization_id')} order by due_at limit 1),
         (select due_at from contact_erasures where due_at > $1 and ${isNotDeleted('organization_id')} order by due_at limit 1)
       ) as due_at`,
    ),
    [after],
  );
  return row?.due_at ?? null;
}

export async function postponeErasure(transaction: Connection, erasure: Erasure, dueAt: Date): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      'address' in erasure
        ? 'update erasures set due_at = $3 where organization_id = $1 and address = $2'
        : 'update contact_erasures set due_at = $3 where organization_id = $1 and contact_id = $2',
    ),
    [...keyOf(erasure), dueAt],
  );
}

export async function finishErasure(transaction: Connection, erasure: Erasure): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      'address' in erasure
        ? 'delete from erasures where organization_id = $1 and address = $2'
        : 'delete from contact_erasures where organization_id = $1 and contact_id = $2',
    ),
    keyOf(erasure),
  );
}

function keyOf(erasure: Erasure): [string, string] {
  return [erasure.organizationId, 'address' in erasure ? erasure.address : erasure.contactId];
}
