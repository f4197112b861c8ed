import { beforeEach, expect, test } from 'vitest';
import { createReviewer } from '../../test/support/chat-app-reviewer.ts';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { type Clock, dateOf, systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { listenForWakes } from '../platform/queue/wake.ts';
import { createSecrets } from '../platform/secrets.ts';
import { setAccount } from './account.ts';
import { findAccounts } from './account-store.ts';
import { endHolds, findCampaignsHeld, holdCampaigns } from './holding.ts';
import { startTemplateWork } from './jobs.ts';

let database: Database;
let clock: ManualClock;
const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
const hourMs = 3_600_000;

useTestDatabase({ connectionsMax: 8, hasNeighbour: true, isForEachTest: true }, (opened) => {
  database = opened.database;
});

beforeEach(() => {
  clock = createManualClock();
});

let accounts = 900_000;

/** An organization whose campaigns are held for so long; null: until somebody mends what is wrong. */
async function anOrganization(forMs: number | null): Promise<string> {
  const organizationId = newId();
  const content = { phoneNumberIds: ['1'], accessToken: 'x', ownApp: null };
  await setAccount({ database, clock, newId, secrets }, organizationId, {
    ...content,
    businessAccountId: `${(accounts += 1)}`,
  });
  await hold(organizationId, forMs);
  return organizationId;
}

const after = (ms: number) => dateOf(clock.nowMs() + ms);

const hold = (organizationId: string, forMs: number | null) =>
  database.asOrganizations([organizationId], (transaction) =>
    holdCampaigns(transaction, {
      organizationId,
      words: 'held',
      until: forMs === null ? null : after(forMs),
    }),
  );

/** Whether the rows say so, whatever time it is. */
const areHeld = async (...organizationIds: string[]) => {
  const rows = new Map(
    (await findAccounts(database, organizationIds)).map((row) => [row.organization_id, row]),
  );
  return organizationIds.map((id) => rows.get(id)?.campaigns_held_words === 'held');
};

const end = (areOfAnother = false) => endHolds({ database, clock }, { areOfAnother });

test('what holds campaigns ends at its time, of each account for itself', async () => {
  const [short, long, open] = [
    await anOrganization(hourMs),
    await anOrganization(2 * hourMs),
    await anOrganization(null),
  ];
  const [shortEnd, longEnd] = [after(hourMs), after(2 * hourMs)];
  expect(await end()).toEqual(shortEnd);
  clock.advance(hourMs - 1);
  expect(await end()).toEqual(shortEnd);
  expect(await areHeld(short, long, open)).toEqual([true, true, true]);
  clock.advance(1);
  expect(await end()).toEqual(longEnd);
  expect(await areHeld(short, long, open)).toEqual([false, true, true]);
  clock.advance(hourMs);
  expect(await end()).toBeNull();
  expect(await areHeld(short, long, open)).toEqual([false, false, true]);
});

test('what is over holds nothing, also where nobody has ended it', async () => {
  const organizationId = await anOrganization(hourMs);
  const isHeldAt = (at: Date) =>
    database.asOrganizations([organizationId], (transaction) =>
      findCampaignsHeld(transaction, organizationId, at),
    );
  expect(await isHeldAt(after(hourMs - 1))).toMatchObject({ words: 'held' });
  expect(await isHeldAt(after(hourMs))).toBeNull();
});

test('what another provider has said holds nothing where none needs an account', async () => {
  const [long, open] = [await anOrganization(hourMs), await anOrganization(null)];
  expect(await end(true)).toBeNull();
  expect(await areHeld(long, open)).toEqual([false, false]);
});

test('a worker with such a provider lets the campaigns of all accounts go on', async () => {
  const organizationId = await anOrganization(null);
  const campaigns = await listenToCampaigns();
  const areReleased = campaigns.next();
  const provider = createReviewer({ needsAccount: false });
  const working = startTemplateWork({ database, clock, secrets, provider, log: silentLog });
  try {
    await areReleased;
    expect(await areHeld(organizationId)).toEqual([false]);
  } finally {
    await Promise.all([working.stop(), campaigns.stop()]);
  }
});

/** Notifications of campaigns, by which they are looked at again. */
async function listenToCampaigns() {
  const stopping = new AbortController();
  let hear = (): void => undefined;
  const next = () =>
    new Promise<void>((resolve) => {
      hear = resolve;
    });
  // The first call says that it listens.
  const listens = next();
  const tools = { database, clock: systemClock, log: silentLog };
  const listening = listenForWakes(tools, 'campaigns', stopping.signal, () => {
    hear();
  });
  await listens;
  return {
    next,
    stop: async () => {
      stopping.abort();
      await listening;
    },
  };
}

/** The clock, and when somebody next sleeps by it for so long. */
function watchSleeps(): { watched: Clock; sleeps: (ms: number) => Promise<void> } {
  const sleeping = { ms: 0, begun: (): void => undefined };
  const sleeps = (ms: number) =>
    new Promise<void>((resolve) => {
      sleeping.begun = () => {
        if (sleeping.ms === ms) resolve();
      };
    });
  const watched: Clock = {
    ...clock,
    after: (ms, callback) => {
      sleeping.ms = ms;
      const cancel = clock.after(ms, callback);
      sleeping.begun();
      return cancel;
    },
  };
  return { watched, sleeps };
}

/** Locks the account until the result is called. */
async function lock(organizationId: string): Promise<() => Promise<void>> {
  let isLocked = (): void => undefined;
  let free = (): void => undefined;
  const locked = new Promise<void>((resolve) => {
    isLocked = resolve;
  });
  const freed = new Promise<void>((resolve) => {
    free = resolve;
  });
  const transaction = database.transaction(async (connection) => {
    await connection.rows(
      unpreparedStatement('select from chat_app_accounts where organization_id = $1 for update'),
      [organizationId],
    );
    isLocked();
    await freed;
  });
  await Promise.race([locked, transaction]);
  return () => {
    free();
    return transaction;
  };
}

test('what somebody else has locked at its time is looked at again after a pause, and ends once it is free', async () => {
  const organizationId = await anOrganization(hourMs);
  clock.advance(hourMs);
  const unlock = await lock(organizationId);
  const { watched, sleeps } = watchSleeps();
  const campaigns = await listenToCampaigns();
  const pauses = sleeps(100);
  const provider = createReviewer();
  const working = startTemplateWork({ database, clock: watched, secrets, provider, log: silentLog });
  try {
    await pauses;
    const pausesAgain = sleeps(100);
    clock.advance(100);
    await pausesAgain;
    expect(await areHeld(organizationId)).toEqual([true]);
    await unlock();
    const isOver = campaigns.next();
    clock.advance(100);
    await isOver;
    expect(await areHeld(organizationId)).toEqual([false]);
  } finally {
    await Promise.all([working.stop(), campaigns.stop(), unlock()]);
  }
});

test('campaigns hear of the end at its time, also if it was said while the work slept', async () => {
  const organizationId = await anOrganization(null);
  await end(true);
  const { watched, sleeps } = watchSleeps();
  const isIdle = sleeps(60_000);
  const provider = createReviewer();
  const working = startTemplateWork({ database, clock: watched, secrets, provider, log: silentLog });
  const campaigns = await listenToCampaigns();
  try {
    await isIdle;
    // Sooner than it would look by itself.
    const knowsTheEnd = sleeps(30_001);
    await hold(organizationId, 30_000);
    await knowsTheEnd;
    const isOver = campaigns.next();
    clock.advance(30_001);
    await isOver;
    expect(await areHeld(organizationId)).toEqual([false]);
  } finally {
    await Promise.all([working.stop(), campaigns.stop()]);
  }
});
