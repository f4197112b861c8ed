import type { Columns } from '../platform/postgres/parameters.ts';
import { toPredicate } from '../platform/postgres/predicate.ts';
import type { DeliverySlice } from './channel.ts';

/** The key of a slice after the organization. */
export const sliceKey = ['message_id', 'first_ordinal'] as const;

export function sliceColumns(
  slices: readonly Pick<DeliverySlice, 'organizationId' | 'messageId' | 'firstOrdinal'>[],
): [string[], string[], number[]] {
  return [
    slices.map(({ organizationId }) => organizationId),
    slices.map(({ messageId }) => messageId),
    slices.map(({ firstOrdinal }) => firstOrdinal),
  ];
}

/** The same for statements that are defined with their parameters. */
export function columnsOfSlice<Item>(sliceOf: (item: Item) => DeliverySlice): Columns<Item> {
  return {
    organization_id: ['uuid', (item) => sliceOf(item).organizationId],
    message_id: ['uuid', (item) => sliceOf(item).messageId],
    first_ordinal: ['integer', (item) => sliceOf(item).firstOrdinal],
  };
}

/** Whether a recipient `r` is in a slice, so that it is still to be written to, or is being written to. */
export const isInSlice = toPredicate(
  `exists (
     select
     from delivery_slices slice
     where slice.organization_id = r.organization_id and slice.message_id = r.message_id
       and slice.first_ordinal <= r.ordinal and slice.last_ordinal >= r.ordinal
   )`,
);
