/**
 * Mail servers that others have written, as Debian packs them: each runs as root in a copy of the folder that
 * tools/mail-servers.mjs has filled, which is its whole file system. So it finds its files where it was built to look
 * for them and its users in a file of its own, and nothing of the machine is changed.
 */
import { execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { certificateForTests, privateKeyForTests } from '../certificate-for-tests.ts';

const fetched = path.resolve(import.meta.dirname, '../../../.mail-servers');

/** Null where the program can run, or else why not. */
export function whyNot(program: string): string | null {
  if (process.getuid?.() !== 0) return 'only root can give it a file system and users of its own';
  if (!existsSync(path.join(fetched, program))) return 'tools/mail-servers.mjs has not fetched it';
  return canMakeDevices() ? null : 'no devices can be made in the temporary folder';
}

/** Root of some containers may not, and some file systems have none. */
function canMakeDevices(): boolean {
  const folder = mkdtempSync(path.join(tmpdir(), 'postillion-mail-server-'));
  try {
    const made = path.join(folder, 'null');
    makeDevice(made, devices.null);
    writeFileSync(made, '');
    return true;
  } catch {
    return false;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Linux's numbers of its memory devices. */
const devices = { null: 3, urandom: 9 };

function makeDevice(at: string, number: number): void {
  execFileSync('mknod', ['-m', '666', at, 'c', '1', `${number}`], { stdio: 'pipe' });
}

/** Of the copy alone; the machine knows none of these numbers. */
const users = {
  root: 0,
  nobody: 65534,
  mail: 60_001,
  postfix: 60_002,
  postdrop: 60_003,
  'Debian-exim': 60_004,
  opensmtpd: 60_005,
  opensmtpq: 60_006,
  ann: 60_007,
} as const;

export type User = keyof typeof users;

export type Listening = { addresses: readonly string[]; port: number };

export type Root = {
  /** Where a path of the server's is on this machine. */
  at: (inside: string) => string;
  write: (inside: string, text: string, more?: { mode?: number; owner?: User }) => void;
  setMode: (inside: string, more: { mode?: number; owner?: User; group?: User }) => void;
  makeFolder: (inside: string, more?: { mode?: number; owner?: User }) => void;
  /** Runs a program that ends by itself, and resolves to what it says. */
  run: (program: string, ...words: string[]) => Promise<string>;
  /** Starts a program that stays in the foreground; resolves as soon as it listens at all of these addresses. */
  serve: (listening: Listening, program: string, ...words: string[]) => Promise<void>;
  /** What programs have said. */
  said: () => string;
  /** Ends what was started, and removes everything. */
  remove: () => Promise<void>;
};

export const certificatePath = '/etc/certificate.pem';
export const privateKeyPath = '/etc/private-key.pem';

/**
 * Its input ends when it is closed, or when this process ends, in whatever way: servers must not survive a test run that
 * was killed. The lines are the process groups to end; the argument is what to remove.
 */
const caretaker = `groups=
while read -r group; do groups="$groups -$group"; done
[ -z "$groups" ] || kill -KILL $groups
rm -rf "$1"`;

export function createRoot(): Root {
  const folder = mkdtempSync(path.join(tmpdir(), 'postillion-mail-server-'));
  const care = spawn('sh', ['-c', caretaker, 'sh', folder], {
    // So that it outlives whoever interrupts the whole group.
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  chmodSync(folder, 0o755);
  execFileSync('cp', ['-a', `${fetched}/.`, folder]);
  const at = (inside: string) => path.join(folder, inside);
  const setMode: Root['setMode'] = (inside, { mode, owner = 'root', group = owner }) => {
    chownSync(at(inside), users[owner], users[group]);
    if (mode !== undefined) chmodSync(at(inside), mode);
  };
  const write: Root['write'] = (inside, text, more = {}) => {
    mkdirSync(path.dirname(at(inside)), { recursive: true });
    writeFileSync(at(inside), text);
    setMode(inside, more);
  };
  const makeFolder: Root['makeFolder'] = (inside, more = {}) => {
    mkdirSync(at(inside), { recursive: true });
    setMode(inside, more);
  };

  makeFolder('/tmp', { mode: 0o1777 });
  makeFolder('/dev');
  makeDevice(at('/dev/null'), devices.null);
  makeDevice(at('/dev/urandom'), devices.urandom);
  const accounts = Object.entries(users);
  write(
    '/etc/passwd',
    accounts.map(([name, id]) => `${name}:x:${id}:${id}::/home/${name}:/bin/sh\n`).join(''),
  );
  write('/etc/group', accounts.map(([name, id]) => `${name}:x:${id}:\n`).join(''));
  write('/etc/hosts', '127.0.0.1 localhost\n');
  write('/etc/services', 'smtp 25/tcp\n');
  write(certificatePath, certificateForTests);
  write(privateKeyPath, privateKeyForTests, { mode: 0o600 });

  let said = '';
  return {
    at,
    write,
    setMode,
    makeFolder,
    run: async (program, ...words) => {
      const { stdout } = await promisify(execFile)('chroot', [folder, program, ...words], { env });
      return stdout;
    },
    serve: async (listening, program, ...words) => {
      const child = spawn('chroot', [folder, program, ...words], {
        env,
        // A process group of its own, with all that it starts.
        detached: true,
        stdio: ['ignore', 'pipe', 'pipe'],
      });
      care.stdin.write(`${child.pid}\n`);
      for (const stream of [child.stdout, child.stderr]) {
        stream.on('data', (chunk) => (said = `${said}${String(chunk)}`.slice(-saidCharsMax)));
      }
      await untilListening(listening, () => {
        if (child.exitCode !== null) throw new Error(`${program} ended: ${said}`);
      });
    },
    said: () => said,
    remove: async () => {
      care.stdin.end();
      await once(care, 'exit');
    },
  };
}

const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' };

const saidCharsMax = 100_000;

async function untilListening({ addresses, port }: Listening, check: () => void): Promise<void> {
  for (const address of addresses) {
    while (!(await canConnect(address, port))) {
      check();
      await delay(listeningPauseMs);
    }
  }
}

const listeningPauseMs = 20;

function canConnect(address: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, address);
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => {
      resolve(false);
    });
  });
}

/** The messages in a mailbox, oldest first, their line ends as they were on the wire. */
export async function readMaildir(root: Root, inside: string): Promise<Buffer[]> {
  const folder = path.join(root.at(inside), 'new');
  const names = existsSync(folder) ? (await readdir(folder)).sort() : [];
  const texts = await Promise.all(names.map((name) => readFile(path.join(folder, name), 'latin1')));
  return texts.map((text) => Buffer.from(text.replaceAll('\n', '\r\n'), 'latin1'));
}
