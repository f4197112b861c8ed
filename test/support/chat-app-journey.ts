/** What tests of chat-app messages have in common: templates that a provider has approved, and messages made of them. */
import { findTemplate, insertTemplate } from '../../src/chat-templates/store.ts';
import type { TemplateCategory, TemplateContent } from '../../src/channels/chatapp/template.ts';
import type { ChatAppRecord } from '../../src/chatapp/schema.ts';
import { now } from '../../src/platform/clock.ts';
import { eventually, rowsOf } from './email-journey.ts';
import type { TestResponse, TestServer } from './server.ts';

export type ATemplate = {
  name?: string;
  language?: string;
  category?: TemplateCategory;
  content?: TemplateContent;
  organizationId?: string;
};

let templates = 0;

/** Of this body, with a header, a footer and buttons only where they are given. */
export function written(
  body: string,
  more: Extract<TemplateContent, { kind: 'written' }>['components'] = [],
) {
  return { kind: 'written', components: [...more, { type: 'body', text: body }], examples: {} } as const;
}

export const codeTemplate = {
  kind: 'code',
  addSecurityRecommendation: true,
  codeExpirationMinutes: 10,
  buttonText: 'Copy',
} as const satisfies TemplateContent;

/** A template that was approved, without its review. */
export async function addChatTemplate(
  { installation, organizationId: own }: TestServer,
  template: ATemplate = {},
): Promise<{ id: string; name: string; language: string }> {
  templates += 1;
  const {
    name = `notice_${templates}`,
    language = 'en_US',
    organizationId = own,
    category = 'utility',
  } = template;
  const {
    content = category === 'authentication'
      ? codeTemplate
      : written('Hello {{first_name}}, it is on its way.'),
  } = template;
  const { database, newId, clock } = installation;
  const at = now(clock);
  const id = newId();
  await insertTemplate(database, { organizationId, id, name, language, category, content, at });
  await setTemplate(
    installation,
    id,
    `status = 'approved', provider_state = 'approved', provider_template_id = id,
    reviewed_at = created_at, next_step = null, due_at = null`,
  );
  const row = await findTemplate(database, organizationId, { id });
  if (row?.status !== 'approved') throw new Error(`${name} is not approved`);
  return { id, name, language };
}

/** Changes a template behind the back of the program. */
export async function setTemplate(
  installation: TestServer['installation'],
  id: string,
  assignments: string,
): Promise<void> {
  await rowsOf({ installation } as TestServer, `update chat_templates set ${assignments} where id = $1`, [
    id,
  ]);
}

export function postChatApp<Body = { id: string; name: string; message: string }>(
  server: TestServer,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): Promise<TestResponse<Body>> {
  return server.request('POST', '/v1/chatapp/send', body, headers);
}

export async function sendChatApp(server: TestServer, body: Record<string, unknown>): Promise<string> {
  const response = await postChatApp(server, body);
  if (response.status !== 202) throw new Error(`not accepted: ${response.text}`);
  return response.body.id;
}

export async function readChatApp(server: TestServer, id: string): Promise<ChatAppRecord> {
  const response = await server.request<ChatAppRecord>('GET', `/v1/chatapp/${id}`);
  if (response.status !== 200) throw new Error(`not there: ${response.text}`);
  return response.body;
}

export function chatAppWithStatus(server: TestServer, id: string, status: string): Promise<ChatAppRecord> {
  return eventually(
    () => readChatApp(server, id),
    (message) => message.status === status,
  );
}
