import {
  addSuppressions,
  liftUnreachable,
  type SuppressingTools,
  type SuppressionTools,
} from '../audience/audience.ts';
import type { ChatAppFailure } from '../channels/chatapp/provider.ts';
import { findUnreachedAddresses } from '../messages/messages.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { lowestIdAt } from '../platform/ids.ts';

/**
 * Numbers that the chat app does not reach. Providers do not say why: there may be no such app, or its owner has not
 * accepted its terms, or has too old a version. Any of these may end, so that one refusal means nothing. A number that was
 * refused several times within a month, and to which nothing was ever delivered, is suppressed as `unreachable` for that
 * organization: each further message would be another refusal, by which providers judge a sender.
 *
 * It ends with the first sign that the number is reached: something is delivered after all, or its owner writes. It ends
 * as well when the organization says that the contact wants to be written to, or the operator removes it. Then one message
 * is tried: if that is refused too, as long as the others are of the last month, the number is marked again.
 */

type OfOrganization = { organizationId: string; addresses: readonly string[] };

const refusalsMin = 3;
const periodMs = 30 * 86_400_000;

/** Marks those of the numbers that were refused often enough. Behind the wall of their organization. */
export async function markUnreachable(
  transaction: Transaction,
  tools: SuppressingTools,
  { organizationId, addresses }: OfOrganization,
): Promise<void> {
  if (addresses.length === 0) return;
  const unreached = await findUnreachedAddresses(transaction, {
    organizationId,
    channel: 'chatapp',
    addressKeys: addresses,
    failureClass: 'unreachable' satisfies ChatAppFailure,
    fromId: lowestIdAt(tools.clock.nowMs() - periodMs),
    refusalsMin,
  });
  await addSuppressions(
    transaction,
    tools,
    'chatapp',
    unreached.map((address) => ({ organizationId, address, reason: 'unreachable' })),
  );
}

/** They were reached. Behind the wall of their organization. */
export function noteReached(
  transaction: Transaction,
  tools: SuppressionTools,
  { organizationId, addresses }: OfOrganization,
): Promise<void> {
  const numbers = addresses.map((address) => ({ organizationId, address }));
  return liftUnreachable(transaction, tools, 'chatapp', numbers);
}
