/** What tests of sending and delivering texts have in common. */
import type { SmsRecord } from '../../src/sms/schema.ts';
import { addSender, approveSender } from '../../src/senders/senders.ts';
import { eventually } from './email-journey.ts';
import type { TestResponse, TestServer } from './server.ts';

/** Of a number, the long code; of anything else, an alphanumeric sender. */
export async function addApprovedSender(
  server: TestServer,
  name: string,
  organizationId = server.organizationId,
): Promise<string> {
  const outcome = await addSender(server.installation, { organizationId, name, type: null });
  if (outcome.kind !== 'added') throw new Error(`${name} is ${outcome.kind}`);
  const approval = await approveSender(server.installation, outcome.sender.id);
  if (approval.kind !== 'approved') throw new Error(`${name} is ${approval.kind}`);
  return outcome.sender.id;
}

/** A body of `POST /v1/sms/send` that is accepted; undefined takes a field out. */
export function anSms(more: Record<string, unknown> = {}): Record<string, unknown> {
  return { from: 'Acme', to: '+4915112345678', body: 'Hello', ...more };
}

export function postSms<Body = { id: string }>(
  server: TestServer,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): Promise<TestResponse<Body>> {
  return server.request('POST', '/v1/sms/send', body, headers);
}

export async function sendSms(server: TestServer, more: Record<string, unknown> = {}): Promise<string> {
  const response = await postSms(server, anSms(more));
  if (response.status !== 202) throw new Error(`not accepted: ${response.text}`);
  return response.body.id;
}

export async function readSms(server: TestServer, id: string): Promise<SmsRecord> {
  const response = await server.request<SmsRecord>('GET', `/v1/sms/${id}`);
  if (response.status !== 200) throw new Error(`not there: ${response.text}`);
  return response.body;
}

export function smsWithStatus(server: TestServer, id: string, status: string): Promise<SmsRecord> {
  return eventually(
    () => readSms(server, id),
    (sms) => sms.status === status,
  );
}
