/** What endpoints are told of the log, and when they are looked at, by a sender that answers as a test says. */
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import type { WebhookAttempt, WebhookRequest, WebhookSender } from './attempt.ts';
import { createConnectionPlaces, endpointsMax } from './connection-places.ts';
import { startWebhookDelivery } from './delivering.ts';
import { findNextAttempt, findUntold } from './delivery-store.ts';
import { createRowId } from './event-id.ts';
import { createWebhook, enableWebhook, pauseWebhook } from './keeping.ts';
import type { EventDescribers } from './log.ts';
import { createLogPages, type LogPages } from './log-pages.ts';
import { appendEvents, lockEnd } from './log-store.ts';
import { replayEvents, retryDelivery } from './replaying.ts';
import type { WebhookBody } from './schema.ts';
import { insertReplayed, type WebhookKey } from './store.ts';
import { tellEndpoint } from './telling.ts';

const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
const secondMs = 1_000;
const minuteMs = 60 * secondMs;
const dayMs = 24 * 60 * minuteMs;

let database: Database;
let clock: ManualClock;
let organizationId: string;
let otherId: string;
let pages: LogPages;
/** How often each event was read, to be told. */
let described: Map<string, number>;

const describers: EventDescribers = {
  email: (_connection, of, events) => {
    for (const { position } of events) {
      const key = `${of} ${position}`;
      described.set(key, (described.get(key) ?? 0) + 1);
    }
    return Promise.resolve(
      new Map(events.map((event) => [event, { object: 'email', id: event.subjectId, of }])),
    );
  },
};

useTestDatabase({ connectionsMax: 6 }, (opened) => {
  database = opened.database;
});
beforeEach(() => {
  // Ids of events are of partitions that are there.
  clock = createManualClock(Date.now());
  [organizationId, otherId] = [newId(), newId()];
  described = new Map();
  pages = createLogPages({ database, clock, describers });
});

const toolsOfRoutes = () => ({ database, clock, newId, secrets, onUntold: () => undefined });

async function createEndpoint(more: Partial<WebhookBody> = {}, of = organizationId): Promise<WebhookKey> {
  const body: WebhookBody = { kind: 'url', url: 'https://hooks.example/', events: ['*'], ...more };
  const { webhook } = await createWebhook(toolsOfRoutes(), of, body);
  return { organizationId: of, id: webhook.id };
}

/** So many events at the end of the log, in rows of so many. */
async function log(count: number, { of = organizationId, ofCampaign = false, each = 1 } = {}): Promise<void> {
  await database.transaction(async (transaction) => {
    const { position, id: lastId } = await lockEnd(transaction, of);
    const atMs = clock.nowMs();
    const rows = Array.from({ length: Math.ceil(count / each) }, (_, place) => ({
      position: position + 1 + place * each,
      id: createRowId(atMs),
      events: Math.min(each, count - place * each),
      type: 'email.delivered' as const,
      happened_at: new Date(atMs),
      of_campaign: ofCampaign,
      subject_ids: [newId()],
      ordinals: Array.from({ length: Math.min(each, count - place * each) }, (_none, ordinal) => ordinal),
      facts: null,
    }));
    const [last] = [...rows.map(({ id }) => id), lastId ?? ''].sort().reverse();
    await appendEvents(transaction, of, { rows, day: null, end: { position: position + count, id: last! } });
  });
}

const delivered: WebhookAttempt = { kind: 'delivered', status: 200, ms: 1, answer: '' };
const failed: WebhookAttempt = {
  kind: 'failed',
  status: 500,
  ms: 1,
  answer: '',
  message: 'no',
  retryAfterMs: null,
};

type Told = { sequence: number; data?: { of: string }; related_object?: object };
const sequenceOf = ({ body }: WebhookRequest) => (JSON.parse(body.toString()) as Told).sequence;

/** Tells an endpoint until it has nothing more, and what it was told of, in this order. */
async function tell(
  key: WebhookKey,
  answer: (sequence: number) => WebhookAttempt | Promise<WebhookAttempt> = () => delivered,
  { stopping = new AbortController().signal, lost = new AbortController().signal } = {},
) {
  const told: number[] = [];
  const wanted: number[] = [];
  const bodies: Told[] = [];
  const restMs = await tellEndpoint(
    {
      ...toolsOfRoutes(),
      random: () => 0.5,
      describers,
      sender: {
        attempt: (request) => {
          told.push(sequenceOf(request));
          bodies.push(JSON.parse(request.body.toString()) as Told);
          return Promise.resolve(answer(sequenceOf(request)));
        },
        close: () => undefined,
      },
      pages,
      takeFurther: (count) => {
        wanted.push(count);
        return { count, release: () => undefined };
      },
    },
    key,
    { stopping, lost },
  );
  return { told, bodies, wanted, restMs };
}

const positions = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, n) => from + n);

const isLookedAt = async (afterMs = 0) => {
  const at = new Date(clock.nowMs() + afterMs);
  return (await findUntold(database, { at, after: null, limit: 1_000 })).includes(organizationId);
};

async function cursorOf({ id }: WebhookKey) {
  const [row] = await database.rows(
    unpreparedStatement<{
      next_position: number;
      rounds: number;
      next_try_at: Date | null;
      failing_since: Date | null;
    }>('select next_position, rounds, next_try_at, failing_since from webhook_cursors where webhook_id = $1'),
    [id],
  );
  return row!;
}

/** As the chore does that finds nobody with anything to be told. */
const noteAllTold = async () => {
  await database.rows(
    unpreparedStatement('update webhook_positions set is_untold = false where organization_id = $1'),
    [organizationId],
  );
};

describe('an organization is looked at', () => {
  test('when what an endpoint did not take is due, and not before or after', async () => {
    const key = await createEndpoint();
    await log(3);
    await tell(key, (sequence) => (sequence === 2 ? failed : delivered));
    await noteAllTold();
    expect(await isLookedAt()).toBe(false);
    expect(await findNextAttempt(database, new Date(clock.nowMs()))).toEqual(
      new Date(clock.nowMs() + 5 * secondMs),
    );
    expect(await isLookedAt(6 * secondMs)).toBe(true);
    clock.advance(6 * secondMs);
    expect((await tell(key)).told).toEqual([2]);
    expect(await isLookedAt(dayMs)).toBe(false);
    expect((await cursorOf(key)).next_try_at).toBeNull();
  });

  test('for the first of several that are due at different times', async () => {
    const key = await createEndpoint();
    await log(2);
    await tell(key, (sequence) => (sequence === 1 ? failed : delivered));
    clock.advance(6 * secondMs);
    // The first is due in five minutes from now on, and the third in five seconds.
    await log(1);
    await tell(key, () => failed);
    await noteAllTold();
    expect(await isLookedAt(4 * secondMs)).toBe(false);
    expect(await isLookedAt(6 * secondMs)).toBe(true);
    clock.advance(6 * secondMs);
    expect((await tell(key)).told).toEqual([3]);
    expect(await isLookedAt(4 * minuteMs)).toBe(false);
    expect(await isLookedAt(5 * minuteMs)).toBe(true);
  });

  test('for none that is paused, whatever is due, asked for or replayed there', async () => {
    const key = await createEndpoint();
    await log(3);
    await tell(key, () => failed);
    clock.advance(minuteMs);
    await noteAllTold();
    expect(await isLookedAt()).toBe(true);
    await pauseWebhook(toolsOfRoutes(), key);
    expect(await isLookedAt(dayMs)).toBe(false);
    await replayEvents(toolsOfRoutes(), key, { from: 1, to: 3, onlyFailed: false });
    const [first] = await database.rows(
      unpreparedStatement<{ event_id: string }>(
        'select event_id from webhook_deliveries where webhook_id = $1',
      ),
      [key.id],
    );
    await retryDelivery(toolsOfRoutes(), key, first!.event_id);
    expect(await isLookedAt(dayMs)).toBe(false);
    await enableWebhook(toolsOfRoutes(), key, { fromNow: false });
    await noteAllTold();
    expect(await isLookedAt()).toBe(true);
    expect((await tell(key)).told.sort()).toEqual([1, 2, 3]);
    expect(await isLookedAt(dayMs)).toBe(false);
  });

  test('for one that is paused while it is told, not for what it does not take then', async () => {
    const key = await createEndpoint();
    await log(1);
    await tell(key, async () => {
      await pauseWebhook(toolsOfRoutes(), key);
      return failed;
    });
    await noteAllTold();
    expect(await isLookedAt(dayMs)).toBe(false);
  });

  test('for one that fails at its own times, however much is due there', async () => {
    const key = await createEndpoint();
    await log(40);
    await tell(key, () => failed);
    expect((await cursorOf(key)).failing_since).not.toBeNull();
    await noteAllTold();
    clock.advance(6 * secondMs);
    expect((await tell(key, () => failed)).told).toEqual([1]);
    // The next try is in five minutes; what was not taken before is due since a second ago.
    expect(await isLookedAt(4 * minuteMs)).toBe(false);
    expect(await isLookedAt(5 * minuteMs)).toBe(true);
    await replayEvents(toolsOfRoutes(), key, { from: 1, to: 40, onlyFailed: false });
    expect(await isLookedAt(4 * minuteMs)).toBe(false);
  });

  test('at once for one that has taken something again, even if its worker dies then', async () => {
    const key = await createEndpoint({ concurrency: 1 });
    await log(40);
    await tell(key, () => failed);
    clock.advance(6 * secondMs);
    await noteAllTold();
    const stopping = new AbortController();
    const answer = () => {
      stopping.abort();
      return delivered;
    };
    expect((await tell(key, answer, { stopping: stopping.signal })).told).toEqual([1]);
    expect(await isLookedAt()).toBe(true);
    const next = (await cursorOf(key)).next_position;
    expect((await tell(key)).told).toEqual(positions(next, 40));
  });

  test('no more for what is not kept any more', async () => {
    const key = await createEndpoint();
    await log(1);
    await tell(key, () => failed);
    await noteAllTold();
    clock.advance(6 * secondMs);
    await database.rows(unpreparedStatement('delete from webhook_deliveries where webhook_id = $1'), [
      key.id,
    ]);
    expect(await isLookedAt()).toBe(true);
    expect((await tell(key)).told).toEqual([]);
    expect(await isLookedAt(dayMs)).toBe(false);
  });
});

describe('what several endpoints are told of at one time', () => {
  const timesDescribed = () => [...new Set(described.values())];

  test('is read once for those that want the same, wherever they stand', async () => {
    const keys = [await createEndpoint(), await createEndpoint({ concurrency: 1 }), await createEndpoint()];
    await log(430);
    const all = await Promise.all(keys.map((key) => tell(key)));
    expect(all.map(({ told }) => told)).toEqual(keys.map(() => positions(1, 430)));
    expect([described.size, timesDescribed()]).toEqual([430, [1]]);
    // One that is a little behind.
    const late = await createEndpoint();
    await log(20);
    await tell(keys[0]!);
    await tell(late);
    expect([described.size, timesDescribed()]).toEqual([450, [1]]);
  });

  test('is read anew a second later', async () => {
    const keys = [await createEndpoint(), await createEndpoint()];
    await log(3);
    await tell(keys[0]!);
    clock.advance(999);
    await tell(keys[1]!);
    expect(timesDescribed()).toEqual([1]);
    const third = await createEndpoint();
    await log(2);
    await tell(keys[0]!);
    clock.advance(1_000);
    expect((await tell(third)).told).toEqual([4, 5]);
    expect([...described.values()]).toEqual([1, 1, 1, 2, 2]);
  });

  test('is not what others want: of campaigns, of few types, thin, or of another organization', async () => {
    const key = await createEndpoint();
    const ofCampaigns = await createEndpoint({ campaign_events: 'all' });
    const thin = await createEndpoint({ format: 'thin' });
    const few = await createEndpoint({ events: ['email.bounced'] });
    const theirs = await createEndpoint({}, otherId);
    await log(2);
    await log(2, { ofCampaign: true });
    await log(2);
    await log(3, { of: otherId });
    expect((await tell(key)).told).toEqual([1, 2, 5, 6]);
    expect((await tell(ofCampaigns)).told).toEqual(positions(1, 6));
    expect((await tell(few)).told).toEqual([]);
    const ofThin = (await tell(thin)).bodies;
    expect(ofThin.map(({ data, related_object: related }) => [data, typeof related])).toEqual(
      Array.from({ length: 4 }, () => [undefined, 'object']),
    );
    expect((await tell(theirs)).bodies.map(({ data }) => data?.of)).toEqual(Array(3).fill(otherId));
  });

  test('may lack what was numbered since, which each is told of after it', async () => {
    const keys = [await createEndpoint(), await createEndpoint()];
    expect((await tell(keys[0]!)).told).toEqual([]);
    await log(3);
    expect((await tell(keys[0]!)).told).toEqual([1, 2, 3]);
    await log(3);
    expect((await tell(keys[1]!)).told).toEqual(positions(1, 6));
    expect((await tell(keys[0]!)).told).toEqual([4, 5, 6]);
    expect(timesDescribed()).toEqual([1]);
  });
});

test('what an endpoint does not want of campaigns is passed over in pieces', async () => {
  const key = await createEndpoint();
  const wantsAll = await createEndpoint({ campaign_events: 'all', concurrency: 20 });
  await log(25_000, { ofCampaign: true, each: 500 });
  await log(2);
  expect((await tell(key)).told).toEqual([25_001, 25_002]);
  expect(await cursorOf(key)).toMatchObject({ next_position: 25_003, rounds: 3 });
  expect((await tell(wantsAll)).told.length).toBe(25_002);
});

test('one that takes nothing is told by one connection, until it takes something', async () => {
  const key = await createEndpoint({ concurrency: 7 });
  await log(1);
  expect((await tell(key)).wanted).toEqual([0]);
  await log(45);
  const rounds = (await tell(key, (sequence) => (sequence > 46 - 6 ? failed : delivered))).wanted;
  expect(rounds).toEqual([6]);
  await log(60);
  // Twenty of these after the failure, and the others as before.
  expect((await tell(key)).wanted).toEqual([0, 6]);
});

test('one that refuses everything is left alone for five seconds while it may be starting anew', async () => {
  const key = await createEndpoint();
  await log(320);
  expect((await tell(key, (sequence) => (sequence > 20 ? failed : delivered))).restMs).toBe(5_000);
  expect((await cursorOf(key)).failing_since).toBeNull();
  expect((await tell(key, () => failed)).told.length).toBe(20);
});

test('a replay that is asked for again changes nothing', async () => {
  const key = await createEndpoint();
  await log(300);
  const replay = () => replayEvents(toolsOfRoutes(), key, { from: 1, to: 300, onlyFailed: false });
  const versions = () =>
    database.rows(
      unpreparedStatement<{ xmin: string; due_at: Date }>(
        'select xmin::text, due_at from webhook_deliveries where webhook_id = $1 order by position',
      ),
      [key.id],
    );
  expect(await replay()).toEqual({ count: 300, next: null });
  const before = await versions();
  clock.advance(minuteMs);
  expect(await replay()).toEqual({ count: 300, next: null });
  expect(await versions()).toEqual(before);
  // What was told since is told again.
  await tell(key);
  await replay();
  expect((await tell(key)).told.length).toBe(300);
});

test('what waits to be tried again is tried by its positions where the endpoint wants order', async () => {
  const key = await createEndpoint({ concurrency: 1 });
  await log(230);
  await tell(key);
  const events = await database.rows(
    unpreparedStatement<{ id: string; position: number; type: string }>(
      'select id, position, type from webhook_events where organization_id = $1 order by position desc',
    ),
    [organizationId],
  );
  // The later ones are due for longer.
  for (const event of events) {
    await insertReplayed(database, key, [event], new Date(clock.nowMs()));
    clock.advance(secondMs);
  }
  await replayEvents(toolsOfRoutes(), key, { from: 1, to: 1, onlyFailed: false });
  expect((await tell(key)).told).toEqual(positions(1, 230));
});

describe('of twenty endpoints of which nineteen hang', () => {
  test('the twentieth is told, and another organization has all its connections', async () => {
    const hanging = new Set<string>();
    const told = new Map<string, number[]>();
    const underWay = { now: 0, most: 0 };
    let onTold = () => undefined as void;
    const sender: WebhookSender = {
      attempt: async (request) => {
        if (hanging.has(request.endpointId)) return new Promise(() => undefined);
        const isTheirs = request.url.includes('theirs');
        if (isTheirs) underWay.most = Math.max(underWay.most, (underWay.now += 1));
        await new Promise(setImmediate);
        if (isTheirs) underWay.now -= 1;
        told.set(request.endpointId, [...(told.get(request.endpointId) ?? []), sequenceOf(request)]);
        onTold();
        return delivered;
      },
      close: () => undefined,
    };
    for (let count = 0; count < 19; count += 1) hanging.add((await createEndpoint({ concurrency: 20 })).id);
    const good = await createEndpoint();
    const theirs = await createEndpoint({ url: 'https://theirs.example/', concurrency: 20 }, otherId);
    await log(250);
    await log(250, { of: otherId });
    const allTold = new Promise<void>((resolve) => {
      onTold = () => {
        if ([good, theirs].every(({ id }) => told.get(id)?.length === 250)) resolve();
      };
    });
    const chore = startWebhookDelivery({
      ...toolsOfRoutes(),
      clock: systemClock,
      log: silentLog,
      random: () => 0.5,
      describers: {},
      sender,
    });
    // What hangs never ends, and so the chore does not either.
    onTestFinished(() => void chore.stop());
    await allTold;
    expect(told.get(good.id)!.sort((one, two) => one - two)).toEqual(positions(1, 250));
    expect(underWay.most).toBe(20);
  });

  test('places are left to others, and what is given back can be had again', () => {
    const places = createConnectionPlaces();
    const first = Array.from({ length: endpointsMax }, () => places.takeFirst('acme'));
    expect(first.filter((place) => place !== null).length).toBe(endpointsMax / 2);
    expect(places.takeFirst('globex')).not.toBeNull();
    const further = Array.from({ length: 30 }, () => places.takeFurther('acme', 19));
    expect(further.reduce((sum, { count }) => sum + count, 0)).toBe(100);
    expect(places.takeFurther('globex', 19).count).toBe(19);
    for (const { release } of further) release();
    expect(places.takeFurther('acme', 19).count).toBe(19);
  });
});
