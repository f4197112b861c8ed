import { findUnsubscribedAddresses } from '../audience/audience.ts';
import { type Connection, statement } from '../platform/postgres/database.ts';

const selectStopped = statement<{ position: number }>(
  'chat_app_choices_select_stopped',
  `select wanted.position
   from unnest($1::uuid[], $2::text[]) with ordinality as wanted (organization_id, address, position)
   join chat_app_choices c on c.organization_id = wanted.organization_id and c.address = wanted.address
   where c.subject = 'marketing' and c.choice = 'stop'`,
);

/**
 * Those of the numbers, as indexes, whose person wants no marketing: they have set so in the app itself, or the contact
 * that has the number has unsubscribed. Asked where a message that is no campaign's is charged as marketing.
 */
export async function findUnwillingForMarketing(
  connection: Connection,
  numbers: readonly { organizationId: string; address: string }[],
): Promise<Set<number>> {
  if (numbers.length === 0) return new Set();
  const stopped = await connection.rows(selectStopped, [
    numbers.map(({ organizationId }) => organizationId),
    numbers.map(({ address }) => address),
  ]);
  const unsubscribed = await findUnsubscribedAddresses(
    connection,
    'chatapp',
    numbers.map(({ organizationId, address }) => ({ organizationId, addressKey: address })),
  );
  return new Set([...stopped.map(({ position }) => position - 1), ...unsubscribed]);
}
