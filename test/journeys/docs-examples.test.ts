/**
 * The examples of the documentation, run as a reader would run them: what each language sends is what was recorded, and
 * a running server takes it.
 */
import { execFile, spawnSync } from 'node:child_process';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { promisify } from 'node:util';
import { transform } from 'esbuild';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readApiReference } from '../../src/documentation/api-reference.ts';
import { exampleOf, languages } from '../../src/documentation/request-examples.ts';
import { describeApi, readExamples } from '../../src/roles/api-description.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

const recorded = readExamples();
const reference = readApiReference(describeApi(), recorded);
const operations = reference.resources.flatMap((resource) => resource.operations);

type Language = (typeof languages)[number]['name'];

/** Programs that run many examples, one after the other, and end with the first that fails. */
const programs: Record<
  Language,
  { command: string; compose: (codes: readonly string[]) => Promise<string[]> }
> = {
  curl: { command: 'sh', compose: async (codes) => ['-ec', codes.join('\n')] },
  typescript: {
    command: process.execPath,
    compose: async (codes) => {
      const module = codes.map((code) => `{\n${code}\n}`).join('\n');
      const { code } = await transform(module, { loader: 'ts', format: 'esm', target: 'node20' });
      return ['--input-type=module', '--eval', code];
    },
  },
  python: {
    command: 'python3',
    // Each by itself, as a file would be.
    compose: async (codes) => ['-c', codes.map((code) => `exec(${JSON.stringify(code)}, {})`).join('\n')],
  },
};

const isInstalled = (program: string) => spawnSync(program, ['--version']).error === undefined;
const installed = languages.filter(
  ({ name }) => name === 'typescript' || isInstalled(name === 'curl' ? 'curl' : programs[name].command),
);

/** Resolves with what they have printed. */
async function runExamples(
  language: (typeof languages)[number],
  operationIds: readonly string[],
  environment: Record<string, string>,
): Promise<string> {
  const codes = operationIds.map((operationId) => {
    const operation = operations.find((one) => one.operationId === operationId);
    if (operation === undefined) throw new Error(`there is no operation ${operationId}`);
    return language.write(exampleOf(operation, reference));
  });
  const { command, compose } = programs[language.name];
  const { stdout } = await promisify(execFile)(command, await compose(codes), {
    env: { ...process.env, ...environment },
  });
  return stdout;
}

type Received = { method: string; path: string; authorization: string; body: unknown };

describe('what an example sends', () => {
  let server: Server;
  let url: string;
  let received: Received[] = [];

  beforeAll(async () => {
    server = createServer((request, response) => {
      void readAll(request).then((text) => {
        const { method = '', url: path = '', headers } = request;
        const { authorization = '' } = headers;
        received.push({ method, path, authorization, body: text === '' ? undefined : JSON.parse(text) });
        response.writeHead(200, { 'content-type': 'application/json' }).end('{}');
      });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });

  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });

  test.each(installed)('in $title is what was recorded of every operation', async (language) => {
    received = [];
    const ids = operations.map(({ operationId }) => operationId);
    await runExamples(language, ids, { URL: url, KEY: 'a key', DEVICE_SECRET: 'a secret' });
    expect(received).toEqual(
      operations.map(({ operationId, method, security }) => {
        const { path, body } = recorded[operationId]!.find(({ status }) => status < 400)!;
        const isByDevice = security.some((one) => 'deviceSecret' in one);
        return { method, path, authorization: `Bearer ${isByDevice ? 'a secret' : 'a key'}`, body };
      }),
    );
  });
});

async function readAll(stream: AsyncIterable<Buffer>): Promise<string> {
  const blocks: Buffer[] = [];
  for await (const block of stream) blocks.push(block);
  return Buffer.concat(blocks).toString();
}

describe('a running server', () => {
  let server: TestServer;

  beforeAll(async () => {
    server = await startTestServer();
  });

  afterAll(() => server.stop());

  test.each(installed)('takes the examples in $title, and what it answers is printed', async (language) => {
    const asked = ['sendEmail', 'listEmails', 'createTemplate', 'listTemplates'];
    const printed = await runExamples(language, asked, { URL: server.url, KEY: server.key });
    const { body } = await server.request<{ data: { id: string; subject: string }[] }>('GET', '/v1/email');
    // The same request in each language, under the same idempotency key: all get the response to the first.
    expect(body.data).toMatchObject([{ subject: 'It works' }]);
    expect(printed).toContain(body.data[0]!.id);
    expect(printed).toContain('Welcome, {{first_name}}');
  });

  test.each(installed.filter(({ name }) => name !== 'curl'))(
    'refuses an example in $title with a wrong key, and the program fails with its words',
    async (language) => {
      const refused = runExamples(language, ['listEmails'], { URL: server.url, KEY: 'wrong' });
      await expect(refused).rejects.toThrow(/401/);
    },
  );
});
