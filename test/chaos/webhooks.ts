import { randomBytes } from 'node:crypto';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { eventTypes, type EventType } from '../../src/webhooks/webhooks.ts';
import type { Interval } from './campaign.ts';
import { tellEverything } from './end.ts';
import type { Installation, Sender } from './installation.ts';
import { checkAcceptance, type Expect, expectEmpty, expectInto } from './invariants.ts';
import { drawEmail } from './load.ts';
import {
  type MessagesReport,
  type OnStart,
  runOnInstallation,
  sendWhileKilling,
  startAll,
} from './messages.ts';
import { createRandom } from './random.ts';
import { findOwnEnds } from './servers.ts';
import { type Line, startWebhookReceivers, type WebhookReceivers } from './webhook-receivers.ts';

/**
 * Email, of which endpoints are told that misbehave, and a program of each organization that reads the log, while processes
 * are killed.
 *
 * What became of a recipient is in the log once, as the row of the recipient says it; the positions of the log have neither
 * gaps nor repetitions, for the program that reads it meanwhile too. Each endpoint is told all that it wants, to the octet as
 * the log says it; and again only what was under way when a process was killed: a round of each endpoint at most.
 */
export type WebhooksPlan = { seed: number; emails: number; kills: number };

export function runWebhooks(plan: WebhooksPlan, onStart: OnStart): Promise<MessagesReport> {
  const secret = `whsec_${randomBytes(24).toString('base64')}`;
  return runOnInstallation(
    onStart,
    async (directory) => ({
      remote: await startWebhookReceivers(path.join(directory, 'webhooks.log'), plan.seed, secret),
      settings: { POSTILLION_WEBHOOK_ALLOW_HOSTS: '127.0.0.1' },
    }),
    (installation, receivers) => killWhileTelling(installation, receivers, { ...plan, secret }),
  );
}

const perSecond = 60;

/** Of each organization. The one that is told of one event at a time must be told in order. */
const endpointKinds = [
  { name: 'all', events: ['*'], concurrency: 20 },
  { name: 'ordered', events: ['email.*'], concurrency: 1 },
  { name: 'few', events: ['email.bounced', 'email.dropped'], concurrency: 5 },
] as const;

type Endpoint = {
  sender: Sender;
  /** By which its lines are told from others. */
  path: string;
  kind: (typeof endpointKinds)[number];
};

async function killWhileTelling(
  installation: Installation,
  { port, readLog }: WebhookReceivers,
  { seed, emails, kills, secret }: WebhooksPlan & { secret: string },
): Promise<Omit<MessagesReport, 'evidence'>> {
  await startAll(installation);
  const endpoints = installation.senders.flatMap((sender) =>
    endpointKinds.map((kind) => ({ sender, kind, path: `/${sender.domain}/${kind.name}` })),
  );
  for (const { sender, kind, path: endpointPath } of endpoints) {
    const url = `http://127.0.0.1:${port}${endpointPath}`;
    const { events, concurrency } = kind;
    await post(installation, sender, '/webhooks', { kind: 'url', url, events, concurrency, secret });
  }
  const random = createRandom(seed, 'webhooks');
  const startedAtMs = performance.now();
  const over = new AbortController();
  const reading = Promise.all(
    installation.senders.map((sender) => readThroughout(installation, sender, over.signal)),
  );
  const draw = (name: string) => drawEmail(installation, name, random);
  const sent = await sendWhileKilling(
    installation,
    { name: 'webhooks', sends: emails, kills, perSecond, draw },
    { seed, random },
  );
  const hurried = await tellEverything(installation);
  over.abort();
  const logs = await reading;
  const seconds = Math.round((performance.now() - startedAtMs) / 1_000);

  const lines = await readLog();
  const violations: string[] = [];
  const expectNone = expectInto(violations);
  await checkAcceptance(installation, sent.ledger, expectNone);
  await checkLog(installation, logs, expectNone);
  const told = endpoints.map((endpoint) =>
    checkEndpoint(endpoint, {
      events: logs[installation.senders.indexOf(endpoint.sender)] ?? [],
      lines: lines.filter((line) => line.path === endpoint.path),
      disturbances: sent.intervals,
      expectNone,
    }),
  );
  expectNone(
    'not verified by the library of the standard',
    lines.filter(({ isVerified }) => !isVerified).map(({ path: of, id }) => `${of} ${id}`),
  );
  await expectEmpty(installation, emptyQueries, expectNone);
  violations.push(...findOwnEnds(installation));
  const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
  const repeats = sum(told.map((each) => each.repeats));
  return {
    ...sent,
    hurry: { ...sent.hurry, hurried: sent.hurry.hurried + hurried },
    counts: {
      accepted: sent.ledger.sends.filter(({ ids }) => ids.size > 0).length,
      events: sum(logs.map((events) => events.length)),
      'webhooks taken': lines.filter(({ kind }) => kind === 'taken').length,
      '… of which once more': repeats,
      '… the most after one kill, of one endpoint': Math.max(...told.map((each) => each.mostAtOnce)),
      'refused by receivers': lines.filter(({ kind }) => kind === 'refused').length,
      'cut by receivers': lines.filter(({ kind }) => kind === 'cut').length,
    },
    lost: sum(told.map((each) => each.lost)),
    repeats,
    seconds,
    violations,
  };
}

async function post({ apiUrl }: Installation, sender: Sender, route: string, body: object): Promise<void> {
  const response = await fetch(`${apiUrl}/v1${route}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${sender.key}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${route} was answered ${response.status}: ${await response.text()}`);
}

type Told = {
  id: string;
  type: string;
  sequence: number;
  data: {
    id: string;
    recipient: { address: string; bounce: { diagnostic: string | null; remote_mta: string | null } | null };
  };
};

type EventPage = { data: Told[]; next: number; caught_up: boolean };

const waitSeconds = 2;
const pauseMs = 100;

/** As a program does that has no public address: it goes on where it stopped, whatever happens to the API. */
async function readThroughout({ apiUrl }: Installation, sender: Sender, over: AbortSignal): Promise<Told[]> {
  const read: Told[] = [];
  let from = 1;
  for (;;) {
    const isLast = over.aborted;
    const page = await fetch(`${apiUrl}/v1/webhook-events?from=${from}&limit=200&wait=${waitSeconds}`, {
      headers: { authorization: `Bearer ${sender.key}` },
    })
      .then(async (response) => (response.ok ? ((await response.json()) as EventPage) : null))
      .catch(() => null);
    if (page === null) {
      await delay(pauseMs);
      continue;
    }
    read.push(...page.data);
    from = page.next;
    if (isLast && page.caught_up) return read;
  }
}

type Recipient = {
  organization_id: string;
  message_id: string;
  address: string;
  status: string;
  drop_reason: string | null;
  uncertain: boolean;
};

/** What the log must say of a recipient at last. Nobody knows what became of one that is uncertain. */
function lastEventOf({ status, drop_reason, uncertain }: Recipient): EventType | null {
  if (drop_reason !== null) return 'email.dropped';
  return uncertain ? null : (eventTypes.find((type) => type === `email.${status}`) ?? null);
}

/** May come before the last, and more than once. */
const passing: readonly string[] = ['email.delayed', 'email.sent'];

async function checkLog(
  { ask, senders }: Installation,
  logs: readonly Told[][],
  expectNone: Expect,
): Promise<void> {
  const recipients = await ask<Recipient>(
    'select organization_id, message_id, address, status, drop_reason, uncertain from recipients',
  );
  for (const [index, events] of logs.entries()) {
    const { organizationId, domain } = senders[index]!; // There is a log of each.
    expectNone(
      'a position that is missing, or comes twice',
      events
        .filter(({ sequence }, place) => sequence !== place + 1)
        .slice(0, 1)
        .map(({ sequence }) => `${domain} ${sequence}`),
    );
    expectNone(
      'an id of two events',
      findRepeated(events.map(({ id }) => id)).map((id) => `${domain} ${id}`),
    );
    const expected = recipients
      .filter((recipient) => recipient.organization_id === organizationId)
      .flatMap((recipient) => {
        const last = lastEventOf(recipient);
        return last === null ? [] : [`${last} ${recipient.message_id} ${recipient.address}`];
      });
    const logged = events
      .filter(({ type }) => type.startsWith('email.') && !passing.includes(type))
      .map(({ type, data }) => `${type} ${data.id} ${data.recipient.address}`);
    expectNone('happened, and not logged', without(expected, logged));
    expectNone('logged, and did not happen', without(logged, expected));
    expectNone('logged twice', findRepeated(logged));
  }
}

function without(names: readonly string[], others: readonly string[]): string[] {
  const known = new Set(others);
  return names.filter((name) => !known.has(name));
}

function findRepeated(names: readonly string[]): string[] {
  const seen = new Set<string>();
  return names.filter((name) => seen.size === seen.add(name).size);
}

/** `itemsMax` of a round. */
const eventsOfRoundMax = 200;
/** What was sent as a process was killed is read a little later on a busy machine. */
const readingMs = 1_000;

function checkEndpoint(
  { path: endpointPath, kind }: Endpoint,
  {
    events,
    lines,
    disturbances,
    expectNone,
  }: {
    events: readonly Told[];
    lines: readonly Line[];
    disturbances: readonly Interval[];
    expectNone: Expect;
  },
): { lost: number; repeats: number; mostAtOnce: number } {
  const isWanted = ({ type }: Told) =>
    kind.events.some(
      (pattern) => pattern === type || pattern === '*' || pattern === `${type.split('.')[0] ?? ''}.*`,
    );
  const wanted = new Map(events.filter(isWanted).map((event) => [event.id, event]));
  const takenAtMs = new Map<string, number[]>();
  const firstTaken: string[] = [];
  for (const { kind: what, id, atMs } of lines) {
    if (what !== 'taken') continue;
    const times = takenAtMs.get(id) ?? [];
    if (times.length === 0) firstTaken.push(id);
    takenAtMs.set(id, [...times, atMs]);
  }
  const nameOf = (id: string) => `${endpointPath} ${id}`;
  const lost = [...wanted.keys()].filter((id) => !takenAtMs.has(id));
  expectNone('in the log, and not told', lost.map(nameOf));
  expectNone('told, and not in the log', [...takenAtMs.keys()].filter((id) => !wanted.has(id)).map(nameOf));
  expectNone(
    'told in other words than the log has',
    lines
      .filter(
        ({ id, body }) =>
          wanted.has(id) &&
          withoutDiagnostic(JSON.parse(body) as Told) !== withoutDiagnostic(wanted.get(id)!),
      )
      .map(({ id }) => nameOf(id)),
  );
  if (kind.concurrency === 1) {
    const positions = firstTaken.map((id) => wanted.get(id)?.sequence ?? 0);
    expectNone(
      'told before what happened earlier',
      firstTaken.filter((_id, place) => place > 0 && positions[place]! < positions[place - 1]!).map(nameOf),
    );
  }

  /** How many events came once more because of each disturbance. */
  const repeatsOf = new Map<Interval, number>();
  const unexplained: string[] = [];
  let repeats = 0;
  for (const [id, times] of takenAtMs) {
    for (const [place, againMs] of times.slice(1).entries()) {
      repeats += 1;
      const beforeMs = times[place]!;
      const cause = disturbances.find(
        ({ beganAtMs, endedAtMs }) => beganAtMs <= againMs && beforeMs <= endedAtMs + readingMs,
      );
      if (cause === undefined) unexplained.push(id);
      else repeatsOf.set(cause, (repeatsOf.get(cause) ?? 0) + 1);
    }
  }
  expectNone('told twice, and no process was killed in between', unexplained.map(nameOf));
  const mostAtOnce = Math.max(0, ...repeatsOf.values());
  expectNone(
    'more told twice after one kill than was under way',
    mostAtOnce > eventsOfRoundMax ? [`${endpointPath} ${mostAtOnce}`] : [],
  );
  return { lost: lost.length, repeats, mostAtOnce };
}

/** What the other side said last is told only while it is the last. */
function withoutDiagnostic(event: Told): string {
  return JSON.stringify(event, (key, value: unknown) =>
    key === 'diagnostic' || key === 'remote_mta' ? null : value,
  );
}

/** Each returns what must not be. */
const emptyQueries: Readonly<Record<string, string>> = {
  'not numbered': 'select organization_id, number from webhook_outbox',
  'a position that no event has, or two have': `
    select p.organization_id, p.last_position, sum(e.events) as events
    from webhook_positions p
    left join webhook_events e using (organization_id)
    group by p.organization_id, p.last_position
    having p.last_position <> sum(e.events)`,
  'not told of all': `
    select c.webhook_id, c.next_position, p.last_position
    from webhook_cursors c
    join webhook_positions p using (organization_id)
    where c.next_position <= p.last_position`,
  'not told again': "select webhook_id, event_id, status from webhook_deliveries where status <> 'delivered'",
};
