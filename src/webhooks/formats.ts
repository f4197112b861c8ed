import type { EventFormat, WebhookEvent } from './schema.ts';

/**
 * An event with nothing but where the record is of what it happened to, for whoever reads it there and wants nothing of it in
 * the logs on the way. `url` is a path of the API; null of what has no record, or none that can be found.
 */
export type ThinEvent = Omit<WebhookEvent, 'data'> & {
  related_object: { object: string; id: string; url: string | null };
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

export function inFormat(format: EventFormat, event: WebhookEvent | undefined): object | undefined {
  if (format === 'full' || event === undefined) return event;
  const { data, ...rest } = event;
  const { object, id, channel } = data as { object: string; id: string; channel?: string };
  const path = object === 'campaign' && channel !== undefined ? `/v1/${channel}/campaigns` : paths[object];
  return {
    ...rest,
    related_object: { object, id, url: path === undefined ? null : `${path}/${id}` },
  } satisfies ThinEvent;
}

/** Of an event as JSON, in bytes. Receivers and the queues behind them take so much; other services promise as much. */
const eventBytesMax = 20_000;

/** The same event, or one with the ids alone where it is too large to be told. */
export function fitEvent(event: WebhookEvent): WebhookEvent {
  if (Buffer.byteLength(JSON.stringify(event)) <= eventBytesMax) return event;
  const keys = Object.entries(event.data).filter(
    ([name]) => name === 'object' || name === 'id' || name.endsWith('_id'),
  );
  return { ...event, data: { ...Object.fromEntries(keys), data_truncated: true } };
}
