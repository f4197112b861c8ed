import type { EventFormat, WebhookEvent } from './schema.ts';

/**
 * An event with nothing but where the record is of what it happened to, for whoever reads it there and wants nothing of it in
 * the logs on the way. `url` is a path of the API; null of what has no record, or none that can be found.
 */
export type ThinEvent = Omit<WebhookEvent, 'data'> & {
  related_object: { object: string; id: string; url: string | null };
  /** Of an event that did not happen. */
  test?: true;
};

/** Where records are, by their `object`. Those of campaigns are with their channels. */
const paths: Readonly<Record<string, string>> = {
  email: '/v1/email',
  sms: '/v1/sms',
  push: '/v1/push',
  chatapp: '/v1/chatapp',
  chatapp_template: '/v1/chatapp/templates',
  contact: '/v1/contacts',
  segment: '/v1/segments',
  suppression: '/v1/suppressions',
  domain: '/v1/email/domains',
  webhook: '/v1/webhooks',
};

export function inFormat(format: EventFormat, event: WebhookEvent): WebhookEvent | ThinEvent {
  if (format === 'full') return event;
  const { data, ...rest } = event;
  const { object, id, channel, test } = data as TellingData;
  const path = object === 'campaign' && channel !== undefined ? `/v1/${channel}/campaigns` : paths[object];
  return {
    ...rest,
    related_object: { object, id, url: path === undefined ? null : `${path}/${id}` },
    ...(test === true && { test }),
  };
}

/** What every event has in its data, and what some have. */
type TellingData = { object: string; id: string; channel?: string; test?: true };

/** Of an event as JSON, in bytes. Receivers and the queues behind them take so much; other services promise as much. */
const eventBytesMax = 20_000;

/** The body of a request that tells of an event: with the ids alone where it is too large to be told. */
export function writeEvent(format: EventFormat, event: WebhookEvent): Buffer {
  const body = toBody(inFormat(format, event));
  return body.length <= eventBytesMax ? body : toBody(inFormat(format, shorten(event)));
}

function toBody(event: WebhookEvent | ThinEvent): Buffer {
  return Buffer.from(JSON.stringify(event));
}

/** The same event, or one with the ids alone where it is too large to be told. */
export function fitEvent(event: WebhookEvent): WebhookEvent {
  return Buffer.byteLength(JSON.stringify(event)) <= eventBytesMax ? event : shorten(event);
}

function shorten(event: WebhookEvent): WebhookEvent {
  return { ...event, data: { ...idsOf(event.data), data_truncated: true } };
}

/** Whom an event is about besides what it happened to. Other parts may have names of the organization's own. */
const persons = ['recipient', 'contact'];

function idsOf(data: object): object {
  return Object.fromEntries(
    Object.entries(data).flatMap(([name, value]: [string, unknown]) => {
      if (name === 'object' || name === 'id' || name.endsWith('_id')) return [[name, value]];
      const isPerson = persons.includes(name) && typeof value === 'object' && value !== null;
      return isPerson ? [[name, idsOf(value)]] : [];
    }),
  );
}
