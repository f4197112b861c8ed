/** A real nginx for tests, wherever the machine has one. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { accessSync, constants } from 'node:fs';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { connect } from 'node:net';
import path from 'node:path';
import { describe } from 'vitest';
import { eventually } from './email-journey.ts';
import { databasesDirectory } from './temporary-directory.ts';

const usualPlaces = [
  '/usr/sbin/nginx',
  '/usr/local/sbin/nginx',
  '/usr/local/bin/nginx',
  '/opt/homebrew/bin/nginx',
];

/** The executable that NGINX_PATH names, or else the first of the usual ones; null where there is none. */
function findNginx(): string | null {
  const { NGINX_PATH: named } = process.env;
  const candidates = named === undefined || named === '' ? usualPlaces : [named];
  return candidates.find(isExecutable) ?? null;
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

export type Nginx = {
  /** Asks nginx as a client from outside would. */
  request: (
    path: string,
    options?: { method?: string; headers?: Readonly<Record<string, string>> },
  ) => Promise<{ status: number; headers: http.IncomingHttpHeaders; body: string }>;
  stop: () => Promise<void>;
};

/** Tests that need nginx. Where there is none they are skipped, and it says so. */
export function describeWithNginx(
  name: string,
  defineTests: (start: (location: string) => Promise<Nginx>) => void,
): void {
  const executable = findNginx();
  if (executable === null)
    console.log(`Skipped, because no nginx was found (NGINX_PATH can name one): ${name}`);
  describe.skipIf(executable === null)(name, () => {
    defineTests((location) => startNginx(executable ?? '', location));
  });
}

/** `location` is what stands between the braces of `location / { … }`. It listens on a socket in a folder of its own. */
async function startNginx(executable: string, location: string): Promise<Nginx> {
  const folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-nginx-'));
  await chmod(folder, 0o711);
  const socketPath = path.join(folder, 'socket');
  const file = path.join(folder, 'nginx.conf');
  await writeFile(file, configuration(folder, socketPath, location));
  const child = spawn(executable, ['-p', folder, '-c', file, '-e', 'stderr'], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let errors = '';
  child.stderr.on('data', (chunk) => (errors += String(chunk)));
  const stop = async () => {
    await end(child);
    await rm(folder, { recursive: true, force: true });
  };
  try {
    await eventually(
      () => canConnect(socketPath),
      (isUp) => {
        if (child.exitCode !== null) throw new Error(`nginx ended: ${errors}`);
        return isUp;
      },
    );
  } catch (cause) {
    await stop();
    throw cause;
  }
  return { stop, request: (target, options = {}) => ask(socketPath, target, options) };
}

/** Only root can give its workers another user, and has to, as every distribution does. */
export const hasOwnUser = process.getuid?.() === 0;

/** Writes into its folder only. */
function configuration(folder: string, socketPath: string, location: string): string {
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((name) => `${name}_temp_path ${folder}/${name};`)
    .join('\n');
  return `daemon off;
worker_processes 1;
${hasOwnUser ? 'user www-data;\n' : ''}pid ${folder}/pid;
events {}
http {
access_log off;
${temporary}
server {
listen unix:${socketPath};
location / { ${location} }
}
}
`;
}

async function ask(
  socketPath: string,
  target: string,
  { method = 'GET', headers = {} }: { method?: string; headers?: Readonly<Record<string, string>> },
) {
  const request = http.request({
    socketPath,
    path: target,
    method,
    headers: { host: 'mail.example.com', ...headers },
  });
  request.end();
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  const body = (await response.toArray()).join('');
  return { status: response.statusCode ?? 0, headers: response.headers, body };
}

function canConnect(socketPath: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(socketPath);
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => {
      resolve(false);
    });
  });
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  // Not SIGKILL, which would leave the workers.
  child.kill('SIGTERM');
  await once(child, 'exit');
}
