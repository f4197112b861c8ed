import type { ChatAppPerson } from '../channels/chatapp/provider.ts';
import { type Connection, statement } from '../platform/postgres/database.ts';

/**
 * Who is meant by what a provider calls a person. A message goes to a number, which the provider may write otherwise
 * (Brazil and Mexico have two ways), or not tell at all. The first status of a message says both, so that a person who
 * later says stop is found by either.
 */

export type KnownPerson = { organizationId: string; knownAs: string; address: string };

const upsertAll = statement(
  'chat_app_people_upsert',
  `insert into chat_app_people (organization_id, known_as, address, seen_at)
   select distinct on (organization_id, known_as) organization_id, known_as, address, $4
   from unnest($1::uuid[], $2::text[], $3::text[]) as known (organization_id, known_as, address)
   order by organization_id, known_as
   on conflict (organization_id, known_as) do update
   set address = excluded.address, seen_at = excluded.seen_at
   where chat_app_people.address <> excluded.address or chat_app_people.seen_at < excluded.seen_at - interval '1 day'`,
);

/** What is written of a person a day. */
export async function keepPeople(
  connection: Connection,
  people: readonly KnownPerson[],
  at: Date,
): Promise<void> {
  if (people.length === 0) return;
  await connection.rows(upsertAll, [
    people.map(({ organizationId }) => organizationId),
    people.map(({ knownAs }) => knownAs),
    people.map(({ address }) => address),
    at,
  ]);
}

/** Longer ones are not by the documented form, and are not kept. */
const knownAsLengthMax = 200;

/** What is worth keeping of how the provider calls the person with this number. */
export function listNamesOf({ waId, userId }: ChatAppPerson, address: string): string[] {
  return [waId, userId].flatMap((name) =>
    name === null || name === '' || name.length > knownAsLengthMax || `+${name}` === address ? [] : [name],
  );
}

const selectAddresses = statement<{ address: string }>(
  'chat_app_people_select',
  `select distinct address
   from chat_app_people
   where organization_id = $1 and known_as = any ($2::text[])`,
);

/**
 * The numbers that a person may have been written to at: those that were, or else the one that the provider tells. None
 * if it hides the number, and no message to the person is known.
 */
export async function findAddresses(
  connection: Connection,
  organizationId: string,
  { waId, userId }: ChatAppPerson,
): Promise<string[]> {
  const names = [waId, userId].flatMap((name) => (name === null ? [] : [name]));
  const rows = await connection.rows(selectAddresses, [organizationId, names]);
  const told = waId !== null && /^[1-9][0-9]{5,14}$/.test(waId) ? [`+${waId}`] : [];
  return [...new Set([...rows.map(({ address }) => address), ...told])].sort();
}
