import { createHmac } from 'node:crypto';
import os from 'node:os';
import type { Command } from 'commander';
import { readEnvironment } from '../config.ts';
import { type Clock, sleep, stayUntil, systemClock } from '../platform/clock.ts';
import { programName } from '../platform/program-name.ts';
import { parseUrl } from '../platform/url.ts';
import { isWebhookSecret, type WebhookEvent } from '../webhooks/webhooks.ts';
import { type CommandOutcome, escapeControls, refuse, runCommand } from './command.ts';
import { forwardEvent, type ForwardingAttempt, type Receiver } from './forwarding.ts';
import { ApiFailure, ApiRefusal, type ListeningApi, openListeningApi } from './listening-api.ts';
import { listenForInterruption } from './progress.ts';

/**
 * `listen`: brings events to a program on the machine of whoever develops it, which needs no public address for that. It
 * uses the API alone, so that the server may be anywhere.
 *
 * 1. A webhook of the kind `poll` is made, since the log holds what some webhook asks for. It has the name of this process,
 *    so that several may listen beside each other; those that a process of this machine has left behind are removed.
 * 2. The log is read from its end, or from where the caller says, and what comes is waited for.
 * 3. Each event is posted until the program has taken it, one after the other: the place in the log is the event that is
 *    under way, and moves when it was taken. A server that is away is asked again.
 * 4. At the end the webhook is removed, and the place is said.
 */

export type ListenOptions = {
  forward: string;
  url?: string;
  key?: string;
  events: string;
  campaigns?: boolean;
  from?: string;
  secret?: string;
  json?: boolean;
};

type Listening = {
  clock: Clock;
  signal: AbortSignal;
  api: ListeningApi;
  receiver: Receiver;
  types: string;
  say: Say;
};

/** What is told while it runs: a sentence for people, or an object. */
type Say = (text: string, json: Record<string, unknown>) => void;

const keyName = 'POSTILLION_KEY';
const urlName = 'POSTILLION_URL';

/** While the server is away. Shorter loads one that is about to start. */
const serverPauseMs = 2_000;
/** For what is to be removed once the command was told to end. */
const removalMs = 5_000;

export async function runListen(options: ListenOptions, command: Command): Promise<void> {
  await runCommand(command, { isLong: true }, () => stayUntil(listen(options)));
}

async function listen(options: ListenOptions): Promise<CommandOutcome> {
  const { forward, events, campaigns = false, from = 'now', json = false } = options;
  const environment = readEnvironment(process.env);
  const key = options.key ?? environment[keyName]?.trim() ?? '';
  const url = options.url ?? environment[urlName]?.trim() ?? `http://127.0.0.1:${environment.PORT ?? '8025'}`;
  const secret = options.secret ?? secretOf(key);
  const problem = findProblem({ forward, url, key, secret });
  if (problem !== null) return refuse(problem);

  const server = { url: url.replace(/\/+$/, '').replace(/\/v1$/, ''), key };
  const interruption = listenForInterruption();
  const { signal } = interruption;
  const listening: Listening = {
    clock: systemClock,
    signal,
    api: openListeningApi(server, signal),
    receiver: { url: forward, secret },
    types: events,
    say: createSay(json),
  };
  let webhookId: string | null = null;
  const place: Place = { next: from };
  let isListening = false;
  try {
    webhookId = await subscribe(listening.api, events, campaigns);
    // Read once before it says that it listens: what happens from then on is not missed.
    const page = await listening.api.readEvents({ from, types: events });
    if (from !== 'now' && page.oldest !== null && Number(from) < page.oldest)
      listening.say(`What came before position ${page.oldest} is not kept any more.`, {
        oldest: page.oldest,
      });
    if (from === 'now') place.next = String(page.next);
    introduce(listening, server.url, place);
    isListening = true;
    await follow(listening, place);
    return { kind: 'written' };
  } catch (cause) {
    if (signal.aborted) return { kind: 'written' };
    if (cause instanceof ApiRefusal || cause instanceof ApiFailure) return refuse(cause.message);
    throw cause;
  } finally {
    if (webhookId !== null) await unsubscribe(server, webhookId, listening.say);
    if (isListening)
      listening.say(`Ended before position ${place.next}: --from ${place.next} goes on there.`, {
        ended: true,
        next: Number(place.next),
      });
    interruption.ignore();
  }
}

/** Of the event that comes next. */
type Place = { next: string };

/** Of a key, the same at every start: the program that is developed keeps it among its settings. It tells nothing of the key. */
function secretOf(key: string): string {
  return `whsec_${createHmac('sha256', key).update('postillion listen').digest('base64')}`;
}

function findProblem(given: { forward: string; url: string; key: string; secret: string }): string | null {
  for (const [option, text] of [
    ['--forward', given.forward],
    ['--url', given.url],
  ] as const) {
    if (!/^https?:$/.test(parseUrl(text)?.protocol ?? ''))
      return `${option} must be a URL such as http://localhost:3000/hooks.`;
  }
  if (given.key === '')
    return `Give an API key with the scopes webhooks:read and webhooks:write, by --key or in ${keyName}. "${programName()} key create" makes one.`;
  return isWebhookSecret(given.secret) ? null : '--secret must be whsec_ and 24 to 64 bytes in base64.';
}

const ownName = 'postillion listen';

function nameOfProcess(pid: number): string {
  return `${ownName}, process ${pid} on ${os.hostname().slice(0, 200)}`;
}

/** Returns the id of the webhook for which the log has events kept. */
async function subscribe(api: ListeningApi, events: string, withCampaigns: boolean): Promise<string> {
  for (const { id, description } of await api.listWebhooks()) {
    const pid = Number(/^postillion listen, process (\d{1,10}) on /.exec(description ?? '')?.[1] ?? 0);
    const isOfThisMachine = pid !== 0 && description === nameOfProcess(pid);
    if (isOfThisMachine && (pid === process.pid || !isRunning(pid))) await api.deleteWebhook(id);
  }
  const { id } = await api.createWebhook({
    kind: 'poll',
    events: events.split(','),
    campaign_events: withCampaigns ? 'all' : 'none',
    description: nameOfProcess(process.pid),
  });
  return id;
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (cause) {
    // One of another user may be asked nothing, and is there.
    return cause instanceof Error && 'code' in cause && cause.code === 'EPERM';
  }
}

/** The signal that ends the command has aborted all requests of its own. */
async function unsubscribe(server: { url: string; key: string }, id: string, say: Say): Promise<void> {
  try {
    await openListeningApi(server, AbortSignal.timeout(removalMs)).deleteWebhook(id);
  } catch {
    say(`The webhook ${id} was left behind: the next start on this machine removes it.`, { left_behind: id });
  }
}

function introduce({ receiver, types, say }: Listening, url: string, { next }: Place): void {
  say(
    [
      `Secret:   ${receiver.secret}`,
      `Events:   ${types}`,
      `From:     position ${next} of the log of ${url}`,
      `Calling:  ${receiver.url}`,
      'Ctrl-C ends it.',
    ].join('\n'),
    {
      listening: true,
      secret: receiver.secret,
      events: types,
      next: Number(next),
      url,
      forward: receiver.url,
    },
  );
}

/** Ends when the signal aborts, or with an ApiRefusal. */
async function follow(listening: Listening, place: Place): Promise<never> {
  const { clock, signal, api, types, say } = listening;
  let isAway = false;
  for (;;) {
    try {
      const page = await api.readEvents({ from: place.next, types, wait: '25' });
      if (isAway) say('The server is there again.', { server: 'there' });
      isAway = false;
      for (const event of page.data) {
        await forwardEvent(listening, listening.receiver, event, createTelling(event, say));
        place.next = String(event.sequence + 1);
      }
      place.next = String(page.next);
    } catch (cause) {
      if (!(cause instanceof ApiFailure)) throw cause;
      if (!isAway) say(`${cause.message} Trying again.`, { server: 'away', problem: cause.message });
      isAway = true;
      await sleep(clock, serverPauseMs, signal);
    }
  }
}

/** A line when an event was taken, and one when it was not for another reason than the time before. */
function createTelling({ id, type }: WebhookEvent, say: Say): (attempt: ForwardingAttempt) => void {
  let told: string | null = null;
  return ({ status, ms, problem }) => {
    const reason = problem ?? String(status);
    if (reason === told) return;
    told = reason;
    const isTaken = status !== null && status >= 200 && status < 300;
    const line = `${type}  ${id}  ${status ?? 'no answer'}  ${ms} ms`;
    const remark = problem === null ? 'trying until it is taken' : `${problem}; trying until it is taken`;
    say(isTaken ? line : `${line}  (${remark})`, {
      type,
      id,
      status,
      ms,
      ...(problem !== null && { problem }),
    });
  };
}

function createSay(isJson: boolean): Say {
  return (text, json) => {
    process.stdout.write(`${escapeControls(isJson ? JSON.stringify(json) : text)}\n`);
  };
}
