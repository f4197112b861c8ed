import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { groupBy } from '../../src/platform/grouping.ts';
import { emptyQueue } from './end.ts';
import { chatTemplates, type Installation, type Sender } from './installation.ts';
import { expectEmpty, expectInto, queueLeftovers } from './invariants.ts';
import { type OnStart, runOnInstallation, startAll } from './messages.ts';
import { startPeer } from './peer.ts';
import { findOwnEnds } from './servers.ts';
import { composeNumber, prepareWhatsApp } from './whatsapp.ts';

/**
 * An organization, and strangers with it, that do at once whatever is dear to everybody else (neighbour-process.ts),
 * beside one that sends, reads, and follows what becomes of it. The second one does the same twice, alone and beside the
 * first: nothing of it may be refused or lost, and its slowest requests may take twice as long.
 */
export type NeighbourPlan = {
  /** How long each of the two parts takes. */
  seconds: number;
};

export type NeighbourReport = {
  deeds: DeedTimes[];
  /** What the first organization and the strangers were answered. */
  neighbour: readonly Line[];
  accepted: number;
  lost: number;
  /** A sentence each, with an example. */
  violations: string[];
  /** A sentence for each deed that takes too long. Apart, since a busy machine says so as well. */
  slow: string[];
  evidence: string | null;
};

export type DeedTimes = { deed: Deed; alone: Times; beside: Times };
export type Times = { count: number; medianMs: number; p99Ms: number };

/** What the process is given. */
export type NeighbourTarget = {
  apiUrl: string;
  key: string;
  /** Where reports of the organization's own app come in, and the bodies of strangers. */
  callbackUrl: string;
  strangersUrl: string;
  appSecret: string;
  businessAccountId: string;
  phoneNumberId: string;
};
export type ToNeighbour = 'attack' | 'stop';
export type FromNeighbour = 'ready' | 'attacking' | { stopped: Line[] };
export type Line = { what: string; count: number };

export function runNeighbour(plan: NeighbourPlan, onStart: OnStart): Promise<NeighbourReport> {
  return runOnInstallation(onStart, prepareWhatsApp, (installation) => compareParts(installation, plan));
}

async function compareParts(
  installation: Installation,
  { seconds }: NeighbourPlan,
): Promise<Omit<NeighbourReport, 'evidence'>> {
  await startAll(installation);
  const hostile = installation.senders.at(-1) ?? installation.senders[0];
  const [sender] = installation.senders;
  // The plan of everybody, and not the one without limits that loads have.
  await installation.ask(
    'update organizations set requests_per_window = 600, events_per_window = 30000 where id = $1',
    [hostile.organizationId],
  );
  const neighbour = await startNeighbour(installation, hostile);
  try {
    await emptyQueue(installation);
    const alone = await doDeeds(installation, sender, `alone`, seconds);
    await neighbour.order('attack');
    const beside = await doDeeds(installation, sender, `beside`, seconds);
    const stopped = await neighbour.order('stop');
    const ids = [...alone.mailIds, ...beside.mailIds];
    const { lost, violations } = await compare(installation, sender, ids);
    const times = deeds.map((deed) => ({
      deed,
      alone: summarize(alone.msOf[deed]),
      beside: summarize(beside.msOf[deed]),
    }));
    return {
      deeds: times,
      neighbour: typeof stopped === 'object' ? stopped.stopped : [],
      accepted: ids.length,
      lost,
      violations: [...describeRefusals(alone), ...describeRefusals(beside), ...violations],
      slow: times.flatMap(describeIfSlow),
    };
  } finally {
    await neighbour.stop();
  }
}

async function startNeighbour({ apiUrl, directory }: Installation, { key, chatApp }: Sender) {
  const target: NeighbourTarget = {
    apiUrl,
    key,
    callbackUrl: `${apiUrl}${chatApp.callbackPath}`,
    strangersUrl: `${apiUrl}/callbacks/whatsapp`,
    appSecret: chatApp.appSecret,
    businessAccountId: chatApp.businessAccountId,
    phoneNumberId: chatApp.phoneNumberId,
  };
  const peer = await startPeer<FromNeighbour, never>('neighbour', path.join(directory, 'neighbour.log'), [
    JSON.stringify(target),
  ]);
  return { order: (order: ToNeighbour) => peer.ask({ order }), stop: () => peer.stop() };
}

/** What the second organization does, and how often in a second. */
const deedsPerSecond = {
  send: 10,
  'send 100 kB': 2,
  list: 5,
  read: 10,
  'segment ready': 0.5,
  'chat-app message delivered': 1,
} as const;
type Deed = keyof typeof deedsPerSecond;
const deeds = Object.keys(deedsPerSecond) as Deed[];

type Done = { msOf: Record<Deed, number[]>; mailIds: string[]; refusals: string[] };

/** Each deed is begun at its rate, whether the one before is over or not; resolves when all are over. */
async function doDeeds(
  { apiUrl }: Installation,
  sender: Sender,
  part: string,
  seconds: number,
): Promise<Done> {
  const done: Done = {
    msOf: Object.fromEntries(deeds.map((deed) => [deed, [] as number[]])) as Done['msOf'],
    mailIds: [],
    refusals: [],
  };
  const ask = createAsk(apiUrl, sender.key);
  const send = async (text: string, number: number) => {
    const { id } = await ask('/v1/email/send', {
      from: `hello@${sender.domain}`,
      from_name: 'Chaos',
      to: [`${part}-${number}@example.com`],
      subject: `${part} ${number}`,
      text,
    });
    done.mailIds.push(String(id));
  };
  const doOne: Record<Deed, (number: number) => Promise<unknown>> = {
    send: (number) => send('It is small.', number),
    'send 100 kB': (number) => send('It is large. '.repeat(8_000), number),
    list: () => ask('/v1/email?limit=20'),
    read: () => ask(done.mailIds.length === 0 ? '/v1/email' : `/v1/email/${done.mailIds.at(-1)}`),
    'segment ready': async (number) => {
      const condition = { type: 'field', field: 'email', operator: 'is_set' };
      const { id } = await ask('/v1/segments', { name: `${part} ${number}`, conditions: condition });
      await untilIts(() => ask(`/v1/segments/${String(id)}`), 'ready');
    },
    'chat-app message delivered': async (number) => {
      const { id } = await ask('/v1/chatapp/send', {
        to: composeNumber('accepted', 'delivered', (part === 'alone' ? 0 : 1_000_000) + number),
        template: chatTemplates.notice,
        language: 'en_US',
        parameters: { order_number: '1', first_name: 'Ana', track_id: 'a' },
      });
      await untilIts(() => ask(`/v1/chatapp/${String(id)}`), 'delivered');
    },
  };
  const doAll = async (deed: Deed) => {
    const pauseMs = 1_000 / deedsPerSecond[deed];
    const underWay: Promise<void>[] = [];
    for (let number = 0; number * pauseMs < seconds * 1_000; number += 1) {
      const beganAtMs = performance.now();
      underWay.push(
        doOne[deed](number).then(
          () => void done.msOf[deed].push(performance.now() - beganAtMs),
          (error: unknown) => void done.refusals.push(`${part}, ${deed}: ${String(error)}`),
        ),
      );
      await delay(pauseMs);
    }
    await Promise.all(underWay);
  };
  await Promise.all(deeds.map(doAll));
  return done;
}

const answerLimitMs = 30_000;

/** Asks with the key, and rejects whatever is not a success. */
function createAsk(apiUrl: string, key: string) {
  return async (requestPath: string, body?: unknown): Promise<Record<string, unknown>> => {
    const response = await fetch(`${apiUrl}${requestPath}`, {
      method: body === undefined ? 'GET' : 'POST',
      headers: {
        authorization: `Bearer ${key}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(answerLimitMs),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${response.status} ${text}`);
    return JSON.parse(text) as Record<string, unknown>;
  };
}

const lookEveryMs = 50;
const statusLimitMs = 120_000;

async function untilIts(look: () => Promise<Record<string, unknown>>, status: string): Promise<void> {
  const beganAtMs = performance.now();
  while ((await look()).status !== status) {
    if (performance.now() - beganAtMs > statusLimitMs)
      throw new Error(`it is not ${status} after two minutes`);
    await delay(lookEveryMs);
  }
}

async function compare(
  installation: Installation,
  { organizationId }: Sender,
  mailIds: readonly string[],
): Promise<{ lost: number; violations: string[] }> {
  const violations: string[] = [];
  const expectNone = expectInto(violations);
  await emptyQueue(installation);
  const delivered = await installation.ask<{ message_id: string }>(
    `select message_id from recipients where organization_id = $1 and status = 'delivered'`,
    [organizationId],
  );
  const arrived = new Set((await installation.sink.readDeliveries()).map(({ messageId }) => messageId));
  const known = new Set(delivered.map(({ message_id }) => message_id));
  const lost = mailIds.filter((id) => !known.has(id) || !arrived.has(id));
  expectNone('accepted, and not delivered', lost);
  await expectEmpty(installation, queueLeftovers, expectNone);
  violations.push(...findOwnEnds(installation));
  return { lost: lost.length, violations };
}

function describeRefusals({ refusals }: Done): string[] {
  const violations: string[] = [];
  const expectNone = expectInto(violations);
  for (const [what, examples] of groupBy(refusals, (each) => each.split(':')[0] ?? ''))
    expectNone(`refused, or without an answer: ${what}`, examples);
  return violations;
}

function summarize(ms: readonly number[]): Times {
  const sorted = [...ms].sort((first, second) => first - second);
  const at = (share: number) => Math.round(sorted[Math.ceil(share * sorted.length) - 1] ?? NaN);
  return { count: sorted.length, medianMs: at(0.5), p99Ms: at(0.99) };
}

/** Below, a difference is noise. */
const slowFromMs = 100;

function describeIfSlow({ deed, alone, beside }: DeedTimes): string[] {
  const limitMs = Math.max(2 * alone.p99Ms, slowFromMs);
  return beside.p99Ms <= limitMs ? [] : [`${deed}: p99 ${beside.p99Ms} ms, and not ${limitMs}`];
}
