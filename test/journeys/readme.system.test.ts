/** The README as a newcomer uses it: its blocks of commands, from top to bottom, pasted into a shell as they stand. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, cp, mkdtemp, readFile, rm, symlink } from 'node:fs/promises';
import { createServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { databasesDirectory } from '../support/temporary-directory.ts';

const checkout = path.resolve(import.meta.dirname, '../..');
/** What a clone has, but for tests and generated pages. */
const cloned = [
  ...['README.md', 'package.json', 'package-lock.json', 'tsconfig.json', 'openapi.json', '.env.example'],
  ...['bin', 'src', 'clients', 'tools', 'schema', 'gallery', 'examples', 'docs/api-examples.json'],
];

let clone: string;
beforeAll(async () => {
  clone = await mkdtemp(path.join(databasesDirectory(), 'postillion-readme-'));
  // As root, PostgreSQL runs as another user, who has to pass here.
  await chmod(clone, 0o711);
  for (const name of cloned) await cp(path.join(checkout, name), path.join(clone, name), { recursive: true });
  // Nothing is fetched.
  await symlink(path.join(checkout, 'node_modules'), path.join(clone, 'node_modules'));
});
const started: ChildProcess[] = [];
afterAll(async () => {
  for (const child of started) {
    const exit = once(child, 'close');
    // npm passes no signal on: the group has all that it has started, but for PostgreSQL, which outlives nobody here.
    process.kill(-child.pid!, 'SIGINT');
    await exit;
  }
  await rm(clone, { recursive: true, force: true });
});

/** Blocks of commands, in their order. */
function blocksOf(text: string): string[] {
  return [...text.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, block = '']) => block);
}

/** Those that leave the machine, or take an hour. */
const notTried = /smtp:\/\/user:password@|PUSH_PROVIDER=direct|^npm test/m;

async function findFreePort(): Promise<number> {
  const listener = createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address() as AddressInfo;
  listener.close();
  await once(listener, 'close');
  return port;
}

/** A shell that reads what is pasted, with nothing of this process's environment but where programs are. */
function openShell(environment: Readonly<Record<string, string>>): ChildProcess {
  const child = spawn('bash', [], {
    cwd: clone,
    env: { PATH: process.env.PATH, HOME: clone, ...environment },
    detached: true,
  });
  started.push(child);
  return child;
}

/** Resolves with all that was printed before the match, and with what its group has matched. */
function untilPrinted(
  { stdout }: ChildProcess,
  pattern: RegExp,
): Promise<{ printed: string; found: string | undefined }> {
  let printed = '';
  return new Promise((resolve, reject) => {
    const take = (chunk: Buffer) => {
      printed += chunk.toString();
      const found = pattern.exec(printed);
      if (found === null) return;
      stdout!.off('data', take);
      resolve({ printed: printed.slice(0, found.index), found: found[1] });
    };
    stdout!.on('data', take);
    stdout!.once('end', () => {
      reject(new Error(`it ended: ${printed}`));
    });
  });
}

test('every command of the README works when it is pasted, from top to bottom', async () => {
  const blocks = blocksOf(await readFile(path.join(clone, 'README.md'), 'utf8'));
  const [start = '', ...rest] = blocks.filter((block) => !notTried.test(block));
  expect(start).toBe('npm ci\nnpm start\n');
  expect(blocks.filter((block) => notTried.test(block))).toHaveLength(3);

  // Another one may use the port of the README.
  const port = await findFreePort();
  const server = openShell({ PORT: `${port}`, LOG_LEVEL: 'silent' });
  const greeted = untilPrinted(server, /-d '\{"from"/);
  server.stdin!.write(start.replace('npm ci\n', ''));
  expect((await greeted).printed).toContain(`Postillion serves http://127.0.0.1:${port}/v1`);

  const shell = openShell({});
  shell.stderr!.resume();
  let all = '';
  for (const [index, block] of rest.entries()) {
    const end = `block ${index} ended: `;
    const over = untilPrinted(shell, new RegExp(`${end}(\\d+)\\n`));
    // Line by line, as a terminal has it.
    shell.stdin!.write(`${block.replaceAll('127.0.0.1:8025', `127.0.0.1:${port}`)}\necho "${end}$?"\n`);
    const { printed, found } = await over;
    expect(found, printed).toBe('0');
    expect(printed, block).not.toMatch(/"status_code":|undefined|error/i);
    all += printed;
  }
  expect(rest).toHaveLength(5);
  expect(all).toMatch(/\bexample\.com is verified for the organization /);
  expect(all).toMatch(/^ok +database +reached/m);
  expect(all).toContain('"status":"approved"');
  expect(all).toMatch(/"name":"March","status":"(queued|sending|sent)"/);
});
