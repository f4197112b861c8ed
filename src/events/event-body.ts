import { audienceFormats, type ContactReference } from '../audience/audience.ts';
import { parseTimestamp } from '../platform/clock.ts';
import type { BodyPreparation } from '../platform/http/body-threads.ts';
import { createValidation, type Validator } from '../platform/http/validation.ts';
import { eventBody, type EventBody, type Payload, payloadBytesMax } from './schema.ts';

/** An event as a request brings it, as far as its schema tells. */
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

export function readEvent({
  event: name,
  payload = {},
  occurred_at: occurredAt,
  ...reference
}: EventBody): ReadEvent {
  const text = JSON.stringify(payload);
  const payloadBytes = Buffer.byteLength(text);
  if (payloadBytes > payloadBytesMax)
    return { kind: 'invalid', issues: [`payload must be at most ${payloadBytesMax} bytes as JSON`] };
  // Numbers beyond the range of a double are read as infinite, and written as null.
  if (text.includes('null') && hasInfinity(payload))
    return { kind: 'invalid', issues: ['payload must not have numbers beyond the range of a double'] };
  return {
    kind: 'read',
    name,
    reference,
    payload,
    payloadBytes,
    occurredAtMs: occurredAt === undefined ? null : parseTimestamp(occurredAt),
  };
}

/** Recursive, and no deeper than bodies are. */
function hasInfinity(value: unknown): boolean {
  if (typeof value === 'number') return !Number.isFinite(value);
  return typeof value === 'object' && value !== null && Object.values(value).some(hasInfinity);
}

let validator: Validator | null = null;

/** Reads each event of a batch by itself. Large requests are read in the thread for large bodies. */
export function readEvents(events: readonly unknown[]): ReadEvent[] {
  const validate = (validator ??= createValidation(audienceFormats).compile(eventBody));
  return events.map((event) => {
    const issues = validate(event);
    // Its schema has checked it.
    return issues.length === 0 ? readEvent(event as EventBody) : { kind: 'invalid', issues };
  });
}

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const eventPreparations: Readonly<Record<string, BodyPreparation>> = {
  // The route's schema has checked it.
  'POST /events/send/batch': (body) => readEvents((body as { events: unknown[] }).events),
};
