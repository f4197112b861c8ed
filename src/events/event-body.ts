import { audienceFormats, type ContactReference } from '../audience/audience.ts';
import { dateOf, parseTimestamp } from '../platform/clock.ts';
import type { BodyPreparation } from '../platform/http/body-threads.ts';
import { createValidation, defineRule, type RuleFacts, type Validator } from '../platform/http/validation.ts';
import { eventRules } from './rules.ts';
import { eventBody, type EventBody, type Payload } from './schema.ts';

/** An event as a request brings it, as far as its schema and rules tell. */
export type ReadEvent =
  | {
      kind: 'read';
      name: string;
      reference: ContactReference;
      payload: Payload;
      payloadBytes: number;
      /** Null where it happened when it arrived. */
      occurredAtMs: number | null;
    }
  | { kind: 'invalid'; issues: readonly string[] };

/** Of a body that its schema and rules let through. */
export function readEvent({
  event: name,
  payload = {},
  occurred_at: occurredAt,
  ...reference
}: EventBody): ReadEvent {
  return {
    kind: 'read',
    name,
    reference,
    payload,
    payloadBytes: Buffer.byteLength(JSON.stringify(payload)),
    occurredAtMs: occurredAt === undefined ? null : parseTimestamp(occurredAt),
  };
}

/** Reads each event of a batch by itself. Large requests are read in the thread for large bodies. */
export const readEvents = createReader(eventRules);

/** An event of a file, which may have happened long ago. */
export function readPastEvent(event: unknown): ReadEvent[] {
  return readPast([event], { at: dateOf(0), settings: {} });
}

const readPast = createReader({ ...eventRules, 'event-time': defineRule(() => []) });

function createReader(rules: typeof eventRules) {
  let validator: Validator | null = null;
  return (events: readonly unknown[], facts: RuleFacts): ReadEvent[] => {
    const validate = (validator ??= createValidation(audienceFormats, rules).compile(eventBody));
    return events.map((event) => {
      const issues = validate(event, facts);
      // Its schema has checked it.
      return issues.length === 0 ? readEvent(event as EventBody) : { kind: 'invalid', issues };
    });
  };
}

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const eventPreparations: Readonly<Record<string, BodyPreparation>> = {
  // The route's schema has checked it.
  'POST /events/send/batch': (body, facts) => readEvents((body as { events: unknown[] }).events, facts),
};
