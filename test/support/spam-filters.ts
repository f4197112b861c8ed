/** Real spam filters for tests, wherever the machine has them: rspamd and SpamAssassin, with rules that need no network. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import path from 'node:path';
import { promisify } from 'node:util';
import { describe } from 'vitest';
import { eventually } from './email-journey.ts';
import type { SinkMessage } from './smtp-sink.ts';
import { databasesDirectory } from './temporary-directory.ts';

/** The scores of the rules that a message meets, by their names. */
export type Verdict = Record<string, number>;

/** Where mail comes from. */
export type Hop = { ip: string; host: string };

const rspamd = { executable: '/usr/bin/rspamd', settings: '/etc/rspamd' };
const spamAssassin = '/usr/bin/spamassassin';

/** Tests that need both filters. Where one is missing they are skipped, and it says so. */
export function describeWithSpamFilters(name: string, defineTests: () => void): void {
  const missing = [rspamd.executable, rspamd.settings, spamAssassin].filter((file) => !existsSync(file));
  if (missing.length > 0) console.log(`Skipped, because there is no ${missing.join(' and no ')}: ${name}`);
  describe.skipIf(missing.length > 0)(name, defineTests);
}

export type Rspamd = {
  judge: (message: SinkMessage, hop: Hop) => Promise<Verdict>;
  stop: () => Promise<void>;
};

/** With a folder, a socket and name servers of its own. */
export async function startRspamd(dnsAddress: string): Promise<Rspamd> {
  const folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-rspamd-'));
  await mkdir(path.join(folder, 'local.d'));
  for (const name of modulesOff)
    await writeFile(path.join(folder, 'local.d', `${name}.conf`), 'enabled = false;\n');
  await writeFile(path.join(folder, 'suffixes'), 'com\nexample\n');
  const file = path.join(folder, 'rspamd.conf');
  await writeFile(file, configure(folder));
  await writeFile(path.join(folder, 'local.d', 'options.inc'), configureOptions(folder, dnsAddress));
  const places = ['DBDIR', 'RUNDIR', 'LOGDIR', 'LOCAL_CONFDIR'].map((name) => `--var=${name}=${folder}`);
  // `-i`: containers run tests as root.
  const child = spawn(
    rspamd.executable,
    ['-f', '-i', '-c', file, `--var=CONFDIR=${rspamd.settings}`, ...places],
    { cwd: folder, stdio: ['ignore', 'ignore', 'pipe'] },
  );
  let errors = '';
  child.stderr.on('data', (chunk) => (errors += String(chunk)));
  const socketPath = path.join(folder, 'socket');
  const stop = async () => {
    await end(child);
    await rm(folder, { recursive: true, force: true });
  };
  try {
    await eventually(
      () => ask(socketPath, '/ping', {}, '').catch(() => null),
      (answer) => {
        if (child.exitCode !== null) throw new Error(`rspamd ended: ${errors}`);
        return answer !== null;
      },
    );
  } catch (cause) {
    await stop();
    throw cause;
  }
  return {
    stop,
    judge: async ({ content, envelopeFrom, recipients }, { ip, host }) => {
      const headers = { from: envelopeFrom, rcpt: recipients[0] ?? '', ip, helo: host, hostname: host };
      const answer = JSON.parse(await ask(socketPath, '/checkv2', headers, content)) as {
        symbols: Record<string, { score: number }>;
      };
      return Object.fromEntries(Object.entries(answer.symbols).map(([name, { score }]) => [name, score]));
    },
  };
}

/** What asks servers of others or keeps what it learns. `phishing` is left, but asks for no lists. */
const modulesOff = [
  ...['asn', 'bimi', 'clickhouse', 'dcc', 'elastic', 'fuzzy_check', 'greylist', 'history_redis', 'mx_check'],
  ...['neural', 'ratelimit', 'rbl', 'redis', 'replies', 'reputation', 'surbl', 'url_redirector'],
];

function configure(folder: string): string {
  return `.include "$CONFDIR/common.conf"
options {
  .include "$CONFDIR/options.inc"
  .include(priority=1,duplicate=merge) "$LOCAL_CONFDIR/local.d/options.inc"
}
logging { type = "console"; level = "error"; }
worker "normal" { bind_socket = "${folder}/socket mode=0600"; count = 1; }
`;
}

/** The list of all public suffixes takes half a minute to compile. */
function configureOptions(folder: string, dnsAddress: string): string {
  return `url_tld = "${folder}/suffixes";
disable_hyperscan = true;
pidfile = "${folder}/pid";
dns { nameserver = ["${dnsAddress}"]; }
`;
}

async function ask(
  socketPath: string,
  target: string,
  headers: Record<string, string>,
  body: Buffer | string,
): Promise<string> {
  const request = http.request({ socketPath, path: target, method: 'POST', headers });
  request.end(body);
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  return (await response.toArray()).join('');
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGTERM');
  await once(child, 'exit');
}

/** In the order of the messages, all in one process: it takes longer to start than to judge. */
export async function judgeBySpamAssassin(messages: readonly { content: Buffer }[]): Promise<Verdict[]> {
  const folder = await mkdtemp(path.join(databasesDirectory(), 'postillion-spamassassin-'));
  try {
    const preferences = path.join(folder, 'preferences');
    await writeFile(preferences, 'use_bayes 0\nadd_header all Scores _TESTSSCORES(,)_\nfold_headers 0\n');
    const files = messages.map((_message, index) => path.join(folder, `${index}.eml`));
    for (const [index, { content }] of messages.entries()) await writeFile(files[index] ?? '', content);
    const { stdout } = await promisify(execFile)(spamAssassin, ['-L', '-t', '-p', preferences, ...files], {
      env: { ...process.env, HOME: folder },
      maxBuffer: 2 ** 27,
    });
    const verdicts = [...stdout.matchAll(/^X-Spam-Scores: (.*)$/gm)].map(([, scores = '']) =>
      Object.fromEntries(
        scores
          .trim()
          .split(',')
          .map((score) => score.split('='))
          .map(([name = '', score]) => [name, Number(score)]),
      ),
    );
    if (verdicts.length !== messages.length) throw new Error(`${verdicts.length} verdicts`);
    return verdicts;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
