import { type TObject, type TSchema, Type } from 'typebox';
import type { DescribedWebhook, Schema } from '../platform/http/openapi.ts';
import { literals } from '../platform/http/shapes.ts';
import { eventSubjects, type EventType, eventTypes, subjectOf } from './event-types.ts';
import { webhookEvent } from './schema.ts';

/**
 * Events in the description of the API: every type is one of its webhooks, and the types of a subject share a schema, so that a
 * program that looks at `type` knows what `data` is.
 */

/** What an event is told with of which nothing more is said, and all that is left of what was erased. */
const subject = Type.Object(
  {
    object: Type.String({ description: 'What it is: the type without its last part.' }),
    id: Type.String({ format: 'uuid' }),
  },
  {
    title: 'WebhookEventSubject',
    additionalProperties: true,
    description: 'What it happened to: its record, or what is left of one that is gone.',
  },
);

/** By what events happen to. */
export type EventSchemas = Readonly<Record<string, TObject>>;

export function describeEventWebhooks(tag: string, data: EventSchemas): DescribedWebhook[] {
  return eventTypes.map((type) => ({
    type,
    tag,
    summary: `\`${type}\` has happened`,
    body: toSchema(eventOf(subjectOf(type), data)),
  }));
}

/** For `schemas` of the description: an event of the log is one of those of all subjects. */
export function describeEvents(data: EventSchemas): Record<string, Schema> {
  return {
    WebhookEvent: {
      oneOf: eventSubjects.map((name) => toSchema(eventOf(name, data))),
      description: 'There may be further types with every release: leave out what you do not know.',
    },
  };
}

function eventOf(name: string, data: EventSchemas): TSchema {
  const types = eventTypes.filter((type) => subjectOf(type) === name);
  return Type.Object(
    { ...webhookEvent.properties, type: literals<EventType[]>(types), data: data[name] ?? subject },
    { title: `${nameOf(name)}WebhookEvent` },
  );
}

/** `chatapp` is written as everywhere in the description. */
function nameOf(name: string): string {
  const words = name.split(/[._]/).flatMap((word) => (word === 'chatapp' ? ['chat', 'app'] : word));
  return words.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join('');
}

/** Plain JSON: what TypeBox keeps beside a schema is dropped. */
function toSchema(schema: TSchema): Schema {
  return JSON.parse(JSON.stringify(schema)) as Schema;
}
