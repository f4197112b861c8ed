import { parseTimestamp } from '../platform/clock.ts';
import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import {
  aheadMsMax,
  backMsMax,
  type DefinitionBody,
  type EventBody,
  type Payload,
  payloadBytesMax,
} from './schema.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const eventRules: Record<'event-payload' | 'event-time' | 'event-fields', FieldRule> = {
  'event-payload': defineRule<EventBody>(({ payload }) =>
    payload === undefined ? [] : findPayloadIssues(payload),
  ),
  // A repetition is answered as it was the first time, however long ago that was.
  'event-time': defineRule<EventBody>(
    ({ occurred_at: occurredAt }, _isGiven, { at }) => {
      const atMs = occurredAt === undefined ? null : parseTimestamp(occurredAt);
      return atMs === null || isTimely(atMs, at, backMsMax) ? [] : [untimely(backMsMax)];
    },
    { isLeftToRoute: true },
  ),
  'event-fields': defineRule<NonNullable<DefinitionBody['schema']>>(({ fields = [] }) =>
    fields.flatMap(({ name }, index) =>
      fields.findIndex((field) => field.name === name) < index
        ? [`fields[${index}].name ${name} is there twice`]
        : [],
    ),
  ),
};

function findPayloadIssues(payload: Payload): string[] {
  return Buffer.byteLength(JSON.stringify(payload)) > payloadBytesMax
    ? [`payload must be at most ${payloadBytesMax} bytes as JSON`]
    : [];
}

/** Whether an event may have happened then, if it is told now. */
export function isTimely(occurredAtMs: number, at: Date, backMs: number): boolean {
  const aheadMs = occurredAtMs - at.getTime();
  return aheadMs <= aheadMsMax && -aheadMs <= backMs;
}

/** What is said of an event that is not timely. */
export function untimely(backMs: number): string {
  return `occurred_at must be ${backMs === Infinity ? '' : 'at most 30 days ago and '}at most 5 minutes ahead`;
}
