import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const root = path.resolve(import.meta.dirname, '..');
const rules = path.join(root, '.dependency-cruiser.cjs');
const program = path.join(root, 'node_modules/dependency-cruiser/bin/dependency-cruise.mjs');

let directory: string;

beforeAll(async () => {
  directory = await realpath(await mkdtemp(path.join(os.tmpdir(), 'postillion-arrows-')));
  await writeFile(path.join(directory, 'tsconfig.json'), '{"compilerOptions":{"module":"NodeNext"}}');
  for (const name of ['pg', 'fastify']) {
    const place = path.join(directory, 'node_modules', name);
    await mkdir(place, { recursive: true });
    await writeFile(path.join(place, 'package.json'), `{"name":"${name}","main":"index.js"}`);
    await writeFile(path.join(place, 'index.js'), '');
  }
});

afterAll(() => rm(directory, { recursive: true, force: true }));

/** The imports that break a rule, each as `rule: from → to`. */
function cruise(place: string): Promise<string[]> {
  return new Promise((resolve, reject) => {
    const options = ['--config', rules, '--output-type', 'json', 'src'];
    const limits = { cwd: place, maxBuffer: 50 * 1_048_576 };
    execFile(process.execPath, [program, ...options], limits, (_error, output, errors) => {
      try {
        const { summary } = JSON.parse(output) as {
          summary: { violations: { rule: { name: string }; from: string; to: string }[] };
        };
        resolve(summary.violations.map(({ rule, from, to }) => `${rule.name}: ${from} → ${to}`).sort());
      } catch (cause) {
        reject(new Error(errors, { cause }));
      }
    });
  });
}

/** A tree of files of which each imports the others that are given. */
async function plant(files: Readonly<Record<string, readonly string[]>>): Promise<void> {
  await rm(path.join(directory, 'src'), { recursive: true, force: true });
  const imported = Object.values(files).flat();
  const planted = new Set([...Object.keys(files), ...imported.filter((name) => name.endsWith('.ts'))]);
  for (const file of planted) {
    const place = path.join(directory, 'src', file);
    await mkdir(path.dirname(place), { recursive: true });
    const lines = (files[file] ?? []).map((target, index) => {
      const relative = path.posix.relative(path.posix.dirname(file), target);
      const from = !target.endsWith('.ts') ? target : relative.startsWith('.') ? relative : `./${relative}`;
      return `import { a as a${index} } from '${from}';\nvoid a${index};\n`;
    });
    await writeFile(place, `${lines.join('')}export const a = 1;\n`);
  }
}

/** Every wrong import, all planted in one tree since each look at a tree takes seconds. */
const wrongImports: readonly (readonly [what: string, file: string, target: string, rule: string])[] = [
  ['upwards', 'platform/clock.ts', 'messages/messages.ts', 'arrow-from-platform'],
  ['from a room to the roles', 'messages/messages.ts', 'roles/api.ts', 'arrow-from-messages'],
  ['to a sibling', 'domains/domains.ts', 'templates/templates.ts', 'arrow-from-domains'],
  ['through the back door', 'messages/accept.ts', 'accounts/store.ts', 'front-door-only'],
  [
    'of a role through the back door',
    'roles/api.ts',
    'messages/store.ts',
    'roles-mount-front-doors-routes-and-jobs',
  ],
  [
    'of delivery from feedback',
    'messages/delivery/retry.ts',
    'messages/feedback/feedback.ts',
    'delivery-knows-no-feedback',
  ],
  ['of a room from the settings', 'accounts/accounts.ts', 'config.ts', 'config-is-a-leaf'],
  [
    'of a channel from the database',
    'channels/email/email.ts',
    'platform/postgres/database.ts',
    'channels-take-values-and-give-values',
  ],
  [
    'of a channel from the queue',
    'channels/sms/sms.ts',
    'platform/queue/lease.ts',
    'channels-take-values-and-give-values',
  ],
  [
    'of a provider past its registry',
    'roles/worker.ts',
    'channels/email/providers/smtp/smtp.ts',
    'providers-are-known-by-their-registry',
  ],
  [
    'of a provider from its own channel',
    'channels/sms/sms.ts',
    'channels/sms/providers/smpp/url.ts',
    'providers-are-known-by-their-registry',
  ],
  [
    'of a statement that changes recipients from outside',
    'messages/delivery/deliver.ts',
    'messages/recipients/settlement-store.ts',
    'recipients-are-changed-in-one-place',
  ],
  [
    'of those who change recipients from these',
    'messages/recipients/recipients.ts',
    'messages/delivery/settlement.ts',
    'recipients-know-nobody-who-changes-them',
  ],
  ['of a channel from pg', 'channels/email/email.ts', 'pg', 'channels-take-values-and-give-values'],
  [
    'of a channel from fastify',
    'channels/email/providers/smtp/smtp.ts',
    'fastify',
    'channels-take-values-and-give-values',
  ],
];

const cycle = ['messages/accept.ts', 'messages/store.ts', 'messages/status.ts'] as const;

describe('of the wrong imports', () => {
  let violations: string[];

  beforeAll(async () => {
    const files: Record<string, string[]> = {};
    for (const [, file, target] of wrongImports) (files[file] ??= []).push(target);
    cycle.forEach((file, index) => (files[file] ??= []).push(cycle[(index + 1) % cycle.length]!));
    await plant(files);
    violations = await cruise(directory);
  });

  test.each(wrongImports)('the one %s is reported: %s → %s', (_what, file, target, rule) => {
    const place = target.endsWith('.ts') ? `src/${target}` : `node_modules/${target}/index.js`;
    expect(violations).toContain(`${rule}: src/${file} → ${place}`);
  });

  test('a cycle is reported, also one that no single file shows', () => {
    const cycles = violations.filter((line) => line.startsWith('no-cycles: '));
    expect(cycles).toHaveLength(1);
    expect(cycles[0]).toMatch(
      /src\/messages\/(accept|store|status)\.ts → src\/messages\/(accept|store|status)\.ts$/,
    );
  });
});

test('imports along the arrows, through front doors and within a room, are not reported', async () => {
  await plant({
    'main.ts': ['roles/api.ts', 'config.ts'],
    'roles/api.ts': ['messages/messages.ts', 'messages/routes.ts', 'messages/jobs.ts', 'config.ts'],
    'messages/messages.ts': ['messages/store.ts', 'accounts/accounts.ts', 'channels/email/email.ts'],
    'accounts/accounts.ts': ['accounts/store.ts', 'platform/postgres/database.ts'],
    'channels/email/email.ts': ['platform/clock.ts'],
    'roles/worker.ts': ['channels/email/providers/registry.ts'],
    'channels/email/providers/registry.ts': ['channels/email/providers/mx/definition.ts'],
    'channels/email/providers/mx/mx.ts': ['channels/email/providers/smtp/pool.ts'],
    'platform/postgres/database.ts': ['pg'],
  });
  expect(await cruise(directory)).toEqual([]);
});

test('the sources break none of the rules', async () => {
  expect(await cruise(root)).toEqual([]);
});
