/** What other people's generators make of the description: clients that compile, and that know what they are given. */
import { createClient } from '@hey-api/openapi-ts';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import openapiTypescript, { astToString } from 'openapi-typescript';
import ts from 'typescript';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { describeApi } from '../../src/roles/api-description.ts';

let directory: string;

beforeAll(async () => {
  directory = await mkdtemp(path.join(os.tmpdir(), 'postillion-clients-'));
});

afterAll(() => rm(directory, { recursive: true, force: true }));

/** A program that uses both clients; lines that must not compile are marked. */
const usage = `
import type { components } from './openapi-typescript.ts';
import type { Condition, EmailRecipient, WebhookEvent } from './hey-api/types.gen.ts';
import { createSegment, getEmail, sendEmail } from './hey-api/sdk.gen.ts';

export const condition: Condition = {
  type: 'group',
  match: 'all',
  conditions: [
    { type: 'field', field: 'email', operator: 'ends_with', value: '@example.com' },
    {
      type: 'group',
      match: 'none',
      conditions: [
        { type: 'property', key: 'score', operator: 'between', value: [1, 5] },
        { type: 'message', channel: 'email', action: 'opened', within: { value: 30, unit: 'day' } },
      ],
    },
  ],
};
export const theOthers: components['schemas']['Condition'] = condition;
// @ts-expect-error -- a text is not within a period
export const wrong: Condition = { type: 'field', field: 'email', operator: 'within_last', value: 'x' };
// @ts-expect-error -- nor does the other generator take it for one
export const wrongToo: typeof theOthers = { type: 'field', field: 'email', operator: 'within_last', value: 'x' };
// @ts-expect-error -- no status of a recipient
export const status: EmailRecipient['status'] = 'arrived';

export function describe(given: Condition): string {
  switch (given.type) {
    case 'group':
      return given.conditions.map(describe).join(given.match);
    case 'field':
      return given.field;
    case 'property':
      return given.key;
    case 'list':
    case 'tag':
    case 'segment':
      return given.ids.join();
    case 'consent':
      return given.value;
    case 'device':
      return given.operator;
    case 'message':
      return given.action;
    case 'event':
      return given.event;
    default:
      return given satisfies never;
  }
}

export function hear(event: WebhookEvent): string | null | undefined {
  // @ts-expect-error -- of a webhook nobody was written to
  if (event.type === 'webhook.failing') return event.data.recipient?.bounce?.class;
  return event.type === 'email.bounced' ? event.data.recipient?.bounce?.class : event.id;
}
export type Posted = components['schemas']['EmailWebhookEvent']['type'];
// @ts-expect-error -- no type of an event
export const posted: Posted = 'email.arrived';

export async function use(): Promise<string> {
  const segment = await createSegment({ body: { name: 'Readers', conditions: condition } });
  if (segment.data === undefined) return segment.error.name;
  const sent = await sendEmail({ body: { from: 'a@example.com', from_name: 'A', to: ['b@example.com'] } });
  // @ts-expect-error -- no such field
  await sendEmail({ body: { from: 'a@example.com', from_name: 'A', to: ['b@example.com'], schedule: 'x' } });
  if (sent.data === undefined) return sent.error.message;
  const email = await getEmail({ path: { id: sent.data.id } });
  return email.data?.to[0]?.bounce?.diagnostic ?? segment.data.status;
}
`;

test('clients that two generators make compile, without a value of any type', async () => {
  const description = JSON.stringify(describeApi());
  await mkdir(path.join(directory, 'hey-api'));
  await Promise.all([
    openapiTypescript(description).then((nodes) =>
      writeFile(path.join(directory, 'openapi-typescript.ts'), astToString(nodes)),
    ),
    createClient({
      input: JSON.parse(description) as Record<string, unknown>, // OpenAPI is an object.
      output: path.join(directory, 'hey-api'),
      plugins: ['@hey-api/typescript', '@hey-api/sdk', '@hey-api/client-fetch'],
      logs: { level: 'silent' },
    }),
    writeFile(path.join(directory, 'usage.ts'), usage),
    writeFile(path.join(directory, 'package.json'), '{ "type": "module" }'),
  ]);
  const program = ts.createProgram([path.join(directory, 'usage.ts')], {
    strict: true,
    noUncheckedIndexedAccess: true,
    skipLibCheck: false,
    noEmit: true,
    module: ts.ModuleKind.NodeNext,
    target: ts.ScriptTarget.ES2022,
    lib: ['lib.es2023.d.ts', 'lib.dom.d.ts', 'lib.dom.iterable.d.ts'],
    types: [],
    allowImportingTsExtensions: true,
  });
  const complaints = ts
    .getPreEmitDiagnostics(program)
    .map(
      ({ file, messageText }) => `${file?.fileName}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`,
    );
  expect(complaints).toEqual([]);

  const types = ['openapi-typescript.ts', 'hey-api/types.gen.ts'].map((file) =>
    program.getSourceFile(path.join(directory, file)),
  );
  for (const file of types) {
    expect(file?.text).toContain('Condition');
    const code = file?.text.replaceAll(/\/\*.*?\*\//gs, '').replaceAll(/'[^']*'|"[^"]*"/g, "''");
    // Only headers that are not listed have no type, which may come with any response, and what events are told with.
    const untyped = code?.split('\n').filter((line) => /\b(any|unknown)\b/.test(line));
    expect(untyped?.filter((line) => !/\[(name|key): string\]: unknown;/.test(line))).toEqual([]);
  }
});
