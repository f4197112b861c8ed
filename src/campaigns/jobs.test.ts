import { afterEach, beforeEach, expect, test } from 'vitest';
import { eventually } from '../../test/support/email-journey.ts';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { dateOf, now, systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import type { RunningChore } from '../platform/queue/chore.ts';
import { emailChannel } from '../email/email.ts';
import type { CampaignChannel } from './channel.ts';
import { createSecrets } from '../platform/secrets.ts';
import { listUnderWay } from './engine-store.ts';
import { startCampaigns } from './jobs.ts';

const newId = createIds(systemClock);
let database: Database;
let organizationId: string;
/** Its campaigns stand after those of the first. */
let otherOrganizationId: string;
let clock: ManualClock;
let campaigns: RunningChore | null = null;
let transactions = 0;
/** Queries of the chores outside transactions, by which they look for work. */
let looks = 0;
let preparations: string[] = [];
/** Campaigns of which it cannot be said whether they may go on, and how often it was asked. */
const failing = new Set<string>();
let failures = 0;

useTestDatabase({ connectionsMax: 4 }, (opened) => {
  database = opened.database;
});
beforeEach(async () => {
  organizationId = newId();
  otherOrganizationId = newId();
  clock = createManualClock();
  transactions = 0;
  looks = 0;
  preparations = [];
  failing.clear();
  failures = 0;
  await run(
    `insert into organizations (id, name, email_quota, created_at, updated_at)
     select id, 'Test', 0, $2, $2 from unnest($1::uuid[]) id`,
    [[organizationId, otherOrganizationId], now(clock)],
  );
});
afterEach(async () => {
  await campaigns?.stop();
  campaigns = null;
  await run('delete from campaigns');
});

function run<Row>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
  return database.rows(unpreparedStatement<Row>(text), values);
}

/** Of the contract only what the chores ask for. */
const email = {
  messages: emailChannel,
  deliveredPerSecondMax: 8_000,
  reach: { kind: 'address', columns: { address: 'email', key: 'email_key' } },
  openMeter: null,
  findObstacle: (_transaction: unknown, { id }: { id: string }) => {
    if (!failing.has(id)) return Promise.resolve(null);
    failures += 1;
    return Promise.reject(new Error('there is no asking'));
  },
  prepare: (_transaction: unknown, { id }: { id: string }) => {
    preparations.push(id);
    return Promise.reject(new Error('there is no preparing it'));
  },
} as unknown as CampaignChannel;

/**
 * Each of the three chores waits for its next look, of which freezing has two places, and for another attempt at listening,
 * which none is let.
 */
const timersOfIdle = 7;

/** Each transaction takes a few milliseconds, as with a clock that goes on by itself. */
const transactionMs = 2;

async function start({
  campaignsMax,
  timers = timersOfIdle,
}: { campaignsMax?: number; timers?: number } = {}): Promise<void> {
  campaigns = startCampaigns({
    database: {
      ...database,
      rows: (statement, values) => {
        looks += 1;
        return database.rows(statement, values);
      },
      asOrganizations: (ids, work) => {
        transactions += 1;
        clock.advance(transactionMs);
        return database.asOrganizations(ids, work);
      },
      connectAlone: () => Promise.reject(new Error('nobody notifies')),
    },
    clock,
    log: silentLog,
    newId,
    secrets: createSecrets('a secret of the tests, and of nothing else'),
    channels: { email, sms: null, push: null, chatapp: null },
    onAdmitted: () => undefined,
    onFrozen: () => undefined,
    ...(campaignsMax !== undefined && { campaignsMax }),
  });
  await clock.whenWaiting(timers);
}

/** By so many seconds, a little at a time, so that whoever wakes looks around before the next. */
async function goOn(seconds: number): Promise<void> {
  const endMs = clock.monotonicMs() + seconds * 1_000;
  while (clock.monotonicMs() < endMs) {
    clock.advance(100);
    await clock.whenWaiting(timersOfIdle);
  }
}

async function insertCampaigns(
  count: number,
  more: Record<string, unknown>,
  owner = organizationId,
): Promise<string[]> {
  const ids = Array.from({ length: count }, () => newId());
  const columns = { message_id: null, status: 'draft', content: '{}', ...more };
  const names = Object.keys(columns);
  for (const id of ids) {
    await run(
      `insert into campaigns
         (organization_id, id, channel, name, name_key, created_at, updated_at, ${names.join(', ')})
       values ($1, $2, 'email', 'News', 'news', $3, $3, ${names.map((_name, index) => `$${index + 4}`).join(', ')})`,
      [
        owner,
        id,
        now(clock),
        ...Object.values({ ...columns, message_id: columns.status === 'scheduled' ? null : id }),
      ],
    );
  }
  return ids;
}

test('fifty campaigns that wait for their quota or for room in the queue are looked at once a second at most', async () => {
  const frozen = { frozen_at: now(clock), content_bytes: 100 };
  await insertCampaigns(45, {
    ...frozen,
    status: 'paused',
    pause_reason: 'quota_exceeded',
    audience: 1,
    expanded: 1,
  });
  const waiting = await insertCampaigns(5, {
    ...frozen,
    status: 'sending',
    audience: 8_001,
    expanded: 8_001,
    admitted: 8_000,
  });
  await run(
    `insert into delivery_queue
       (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, content_bytes)
     select $1, id, ordinal, 'email', 1, $3, $3, 100
     from unnest($2::uuid[]) id
     cross join generate_series(0, 7999) ordinal`,
    [organizationId, waiting, now(clock)],
  );
  await start();
  const before = transactions;
  const seconds = 10;
  await goOn(seconds);
  const steps = transactions - before;
  expect(steps).toBeLessThanOrEqual(seconds * 50);
  expect(steps).toBeGreaterThanOrEqual(seconds * 5);
});

test('fifty campaigns that wait for their quota alone are looked at once a minute', async () => {
  await insertCampaigns(50, {
    frozen_at: now(clock),
    content_bytes: 100,
    status: 'paused',
    pause_reason: 'quota_exceeded',
    audience: 1,
    expanded: 1,
  });
  await start();
  const before = transactions;
  await goOn(2.5 * 60);
  const steps = transactions - before;
  expect(steps).toBeGreaterThanOrEqual(100);
  expect(steps).toBeLessThanOrEqual(150);
});

test('a campaign whose time has come and that cannot be queued is tried again every five seconds', async () => {
  const [id] = (await insertCampaigns(1, { status: 'scheduled', scheduled_at: now(clock) })) as [string];
  await start();
  expect(preparations).toEqual([id]);
  await goOn(60);
  expect(new Set(preparations)).toEqual(new Set([id]));
  expect(preparations.length).toBeGreaterThan(9);
  expect(preparations.length).toBeLessThan(14);
  // Nobody looks for it in between.
  expect(looks).toBeLessThan(100);
});

test('a campaign that waits for its segments is looked at every second, also where another has a time', async () => {
  const segment = newId();
  await run(
    `insert into contact_sets (organization_id, id, kind, name, name_key, is_ready, created_at, updated_at)
     values ($1, $2, 'segment', 'Some', 'some', false, $3, $3)`,
    [organizationId, segment, now(clock)],
  );
  await insertCampaigns(1, { status: 'queued', queued_at: now(clock), segment_ids: [segment] });
  await insertCampaigns(1, { status: 'scheduled', scheduled_at: dateOf(clock.nowMs() + 3_600_000) });
  await start();
  const before = transactions;
  await goOn(10);
  expect(transactions - before).toBeGreaterThanOrEqual(9);
  expect(transactions - before).toBeLessThanOrEqual(11);
});

test('a campaign that goes on after a pause keeps nobody looking', async () => {
  const [id] = (await insertCampaigns(1, {
    ...allAdmitted,
    frozen_at: now(clock),
    status: 'paused',
    pause_reason: 'sending_suspended',
  })) as [string];
  await start({ timers: timersOfIdle - 1 });
  await eventually(
    async () => clock.countWaiting(),
    (timers) => timers === timersOfIdle,
  );
  expect(await statusesOf([id])).toEqual(['sent']);
});

test('a campaign whose audience is frozen in part is frozen on, and sent to meanwhile', async () => {
  const frozen = { status: 'sending', frozen_at: now(clock), audience: 1_000 };
  const [whole] = await insertCampaigns(1, frozen);
  const [part] = await insertCampaigns(1, { ...frozen, frozen_through: newId() });
  const [none] = await insertCampaigns(1, { status: 'queued' });
  const list = async (wanted: 'to_freeze' | 'frozen') => {
    const exceptIds: string[] = [];
    const campaigns = await listUnderWay(database, { organizationId, part: wanted, exceptIds, limit: 10 });
    return campaigns.map(({ id }) => id);
  };
  expect(await list('to_freeze')).toEqual([part, none]);
  expect(await list('frozen')).toEqual([whole, part]);
});

test('a campaign is queued at its time although another one fails', async () => {
  await insertCampaigns(1, { status: 'scheduled', scheduled_at: now(clock) });
  const scheduled_at = dateOf(clock.nowMs() + 1_500);
  const [later] = await insertCampaigns(1, { status: 'scheduled', scheduled_at }, otherOrganizationId);
  await start();
  await goOn(1);
  expect(preparations).not.toContain(later);
  await goOn(1);
  expect(preparations).toContain(later);
});

test('a campaign that fails keeps no other from its end, and is tried every five seconds, however often somebody wakes', async () => {
  const [bad, good] = (await insertCampaigns(2, {
    frozen_at: now(clock),
    content_bytes: 100,
    status: 'sending',
    audience: 1,
    expanded: 1,
    admitted: 1,
  })) as [string, string];
  failing.add(bad);
  await start();
  for (let second = 0; second < 30; second += 1) {
    campaigns?.wake();
    await goOn(1);
  }
  const statuses = await run<{ id: string; status: string }>('select id, status from campaigns');
  expect(new Map(statuses.map(({ id, status }) => [id, status]))).toEqual(
    new Map([
      [bad, 'sending'],
      [good, 'sent'],
    ]),
  );
  expect(failures).toBeGreaterThan(4);
  expect(failures).toBeLessThan(9);
  // Nobody wakes any more.
  await goOn(30);
  expect(failures).toBeGreaterThan(9);
  expect(failures).toBeLessThan(16);
  failing.clear();
  await goOn(6);
  expect(await statusesOf([bad])).toEqual(['sent']);
  const before = looks;
  await goOn(30);
  expect(looks - before).toBeLessThan(15);
});

const waitingForQuota = {
  content_bytes: 100,
  status: 'paused',
  pause_reason: 'quota_exceeded',
  audience: 1,
  expanded: 1,
};
const allAdmitted = { content_bytes: 100, status: 'sending', audience: 1, expanded: 1, admitted: 1 };

async function statusesOf(ids: readonly string[]): Promise<(string | undefined)[]> {
  const rows = await run<{ id: string; status: string }>('select id, status from campaigns');
  const statuses = new Map(rows.map(({ id, status }) => [id, status]));
  return ids.map((id) => statuses.get(id));
}

test('a campaign whose last recipients are still being counted when it is looked at ends once they are', async () => {
  const [id] = (await insertCampaigns(1, { ...allAdmitted, frozen_at: now(clock) })) as [string];
  await run('insert into recipient_counts (organization_id, message_id, slice) values ($1, $2, 0)', [
    organizationId,
    id,
  ]);
  await run(
    'insert into recipient_changes (organization_id, id, message_id, slices) values ($1, $2, $3, array[0])',
    [organizationId, newId(), id],
  );
  const isWaitedFor = async () => {
    const waiting = await run(
      'select from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0',
    );
    return waiting.length > 0;
  };
  await database.transaction(async (holder) => {
    await holder.rows(unpreparedStatement('select from recipient_counts where message_id = $1 for update'), [
      id,
    ]);
    // One of the three counts, and the others have nothing to do; nobody wakes them any more.
    await start({ timers: timersOfIdle - 1 });
    await eventually(isWaitedFor, (isIt) => isIt);
    expect(await statusesOf([id])).toEqual(['sending']);
  });
  await eventually(
    () => statusesOf([id]),
    ([status]) => status === 'sent',
  );
});

test('a round that shows two campaigns comes to those after four that wait, of whatever organization', async () => {
  const frozen_at = now(clock);
  await insertCampaigns(4, { ...waitingForQuota, frozen_at });
  const last = [
    ...(await insertCampaigns(1, { ...allAdmitted, frozen_at })),
    ...(await insertCampaigns(1, { ...allAdmitted, frozen_at }, otherOrganizationId)),
  ];
  await start({ campaignsMax: 2 });
  expect(await statusesOf(last)).toEqual(['sent', 'sent']);
});

test('a look that shows two campaigns comes to those after four whose time has come and that cannot be queued', async () => {
  const scheduled_at = now(clock);
  const ids = [
    ...(await insertCampaigns(4, { status: 'scheduled', scheduled_at })),
    ...(await insertCampaigns(1, { status: 'scheduled', scheduled_at }, otherOrganizationId)),
  ];
  await start({ campaignsMax: 2 });
  await goOn(60);
  for (const id of ids) {
    const tries = preparations.filter((prepared) => prepared === id).length;
    expect(tries).toBeGreaterThan(9);
    expect(tries).toBeLessThan(14);
  }
});
