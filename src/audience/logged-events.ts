import { type Channel, channels } from '../channels/channel.ts';
import { groupBy } from '../platform/grouping.ts';
import type { Connection } from '../platform/postgres/database.ts';
import { type EventType, logTogether } from '../webhooks/webhooks.ts';
import type { ConsentState, SuppressionReason, SuppressionScope } from './schema.ts';
import type { StoredSuppression } from './suppression-store.ts';

/**
 * What programs are told of the audience (told-events.ts reads it). Whoever changes contacts or suppressions says so here,
 * in the transaction that does: of each only what has changed, and once for all of them.
 */

/** Contacts by what has become of them. Of one that is new, or gone, nothing else is told. */
export type ChangedContacts = {
  organizationId: string;
  at: Date;
  created?: readonly string[];
  /** Fields, properties, lists or tags. */
  updated?: readonly string[];
  deleted?: readonly string[];
  consents?: readonly ChangedConsent[];
};

export type ChangedConsent = { id: string; consent: ConsentChange };

/** What is said now, on the channels on which it was something else. */
export type ConsentChange = Readonly<Partial<Record<Channel, ConsentState>>>;

/** Null if they are the same. */
export function findConsentChange(
  unsubscribedBefore: readonly Channel[],
  unsubscribedNow: readonly Channel[],
): ConsentChange | null {
  const changed = channels.filter(
    (channel) => unsubscribedBefore.includes(channel) !== unsubscribedNow.includes(channel),
  );
  if (changed.length === 0) return null;
  return Object.fromEntries(
    changed.map((channel) => [channel, unsubscribedNow.includes(channel) ? 'unsubscribed' : 'subscribed']),
  );
}

/** Of a contact of which this much may have changed; for `consents`. */
export function listConsentChange(
  id: string,
  unsubscribedBefore: readonly Channel[],
  unsubscribedNow: readonly Channel[],
): ChangedConsent[] {
  const consent = findConsentChange(unsubscribedBefore, unsubscribedNow);
  return consent === null ? [] : [{ id, consent }];
}

/** What is told of `contact.consent_changed` besides the contact. */
export type ConsentFacts = { consent: ConsentChange };

export async function logContacts(
  connection: Connection,
  { organizationId, at, created = [], updated = [], deleted = [], consents = [] }: ChangedContacts,
): Promise<void> {
  const of = (
    type: EventType,
    subjectIds: readonly string[],
    facts: readonly ConsentFacts[] | null = null,
  ) => ({
    organizationId,
    type,
    at,
    subjectIds,
    facts,
  });
  await logTogether(connection, [
    of('contact.created', created),
    of('contact.updated', updated),
    of(
      'contact.consent_changed',
      consents.map(({ id }) => id),
      consents.map(({ consent }) => ({ consent })),
    ),
    of('contact.deleted', deleted),
  ]);
}

/** What is told of a suppression besides its record, which may be gone by then. */
export type SuppressionFacts = { channel: Channel; reason: SuppressionReason; scope: SuppressionScope };

export type SuppressionEvent = 'suppression.created' | 'suppression.deleted';

export async function logSuppressions(
  connection: Connection,
  type: SuppressionEvent,
  suppressions: readonly StoredSuppression[],
  atOf: (suppression: StoredSuppression) => Date,
): Promise<void> {
  const together = groupBy(suppressions, (one) => `${one.organizationId} ${atOf(one).getTime()}`);
  await logTogether(
    connection,
    [...together.values()].flatMap((those) => {
      const [first] = those;
      return first === undefined
        ? []
        : [
            {
              organizationId: first.organizationId,
              type,
              at: atOf(first),
              subjectIds: those.map(({ id }) => id),
              facts: those.map(({ channel, reason, scope }): SuppressionFacts => ({
                channel,
                reason,
                scope,
              })),
            },
          ];
    }),
  );
}
