import type { Connection } from '../platform/postgres/database.ts';
import { describeBy, logEvents } from '../webhooks/webhooks.ts';
import { type Credit, findConversions, type PendingConversion } from './conversion-store.ts';

/** Who converted: the conversion itself names nobody. */
type ConversionFacts = { contact_id: string };

/** Tells programs of conversions, in the transaction that credits them. */
export async function logConversions(
  connection: Connection,
  credited: readonly (PendingConversion & Credit)[],
): Promise<void> {
  await logEvents(
    connection,
    credited.map(({ organizationId, id, occurredAt, contactId }) => {
      const facts: ConversionFacts = { contact_id: contactId };
      return {
        organizationId,
        type: 'event.conversion' as const,
        at: occurredAt,
        ofCampaign: false,
        subjectId: id,
        ordinal: null,
        facts,
      };
    }),
  );
}

/** What programs are told of conversions: what the event was worth, and the message that it was credited to. */
export const describeConversions = describeBy(findConversions, (conversion, event) => {
  const { contact_id: contactId } = event.facts as ConversionFacts; // As logConversions made them.
  const { id, name, value, currency } = conversion;
  return {
    object: 'event',
    id,
    name,
    contact_id: contactId,
    occurred_at: event.at.toISOString(),
    value,
    currency,
    message_id: conversion.message_id,
    campaign_id: conversion.campaign_id,
    category: conversion.category,
  };
});
