/** What journeys with events share: definitions, and events that are sent. */
import { expect } from 'vitest';
import type { DefinitionRecord, OccurrenceRecord } from '../../src/events/schema.ts';
import type { List } from '../../src/platform/http/pagination.ts';
import { authorize, type Sender } from './email-journey.ts';
import type { TestResponse, TestServer } from './server.ts';

let made = 0;

/** Defines an event and returns it; `more` has its schema and conversion. */
export async function defineEvent(
  server: TestServer,
  more: object = {},
  sender?: Sender,
): Promise<DefinitionRecord> {
  const body = { name: `event.${(made += 1)}`, ...more };
  const response = await server.request<DefinitionRecord>('POST', '/v1/events', body, authorize(sender));
  expect([response.status, response.text]).toEqual([201, expect.anything()]);
  return response.body;
}

/** A text is sent as it is. */
export function trySendEvent<Body = { id: string }>(
  server: TestServer,
  event: object | string,
  { sender, key }: { sender?: Sender | undefined; key?: string } = {},
): Promise<TestResponse<Body>> {
  const headers = { ...authorize(sender), ...(key !== undefined && { 'idempotency-key': key }) };
  return server.request('POST', '/v1/events/send', event, headers);
}

/** Sends an event and returns its id. */
export async function sendEvent(server: TestServer, event: object, sender?: Sender): Promise<string> {
  const response = await trySendEvent(server, event, { sender });
  expect([response.status, response.text]).toEqual([202, expect.anything()]);
  return response.body.id;
}

/** What a contact did, newest first. */
export async function timelineOf(
  server: TestServer,
  contactId: string,
  sender?: Sender,
): Promise<OccurrenceRecord[]> {
  const path = `/v1/contacts/${contactId}/events?limit=100`;
  const response = await server.request<List<OccurrenceRecord>>('GET', path, undefined, authorize(sender));
  expect(response.status).toBe(200);
  return response.body.data;
}
