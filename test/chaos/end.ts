import { setTimeout as delay } from 'node:timers/promises';
import type { Installation } from './installation.ts';

/** What was done to spare the run hours of waiting. */
export type Hurry = {
  /** Retries that were made due early. */
  hurried: number;
  /** Jobs that had taken down three workers, here by no fault of theirs, and that were replayed. */
  replayed: number;
};

const pauseMs = 50;
const standstillMsMax = 30_000;

/** Resolves when no work is left that would ever be done, or when it has not become less for half a minute. */
export async function emptyQueue(installation: Installation): Promise<Hurry> {
  const { ask } = installation;
  const hurry: Hurry = { hurried: 0, replayed: 0 };
  let fewest = Infinity;
  let progressAtMs = performance.now();
  for (;;) {
    const [queue] = await ask<{ jobs: number }>(countLiving);
    const jobs = queue?.jobs ?? 0;
    if (jobs === 0) return hurry;
    if (jobs < fewest) {
      fewest = jobs;
      progressAtMs = performance.now();
    }
    if (performance.now() - progressAtMs > standstillMsMax) return hurry;
    hurry.replayed += (await ask(replay)).length;
    hurry.hurried += (await ask(bringForward)).length;
    await ask("select pg_notify('postillion_deliveries', '')");
    await delay(pauseMs);
  }
}

/** A claim of a worker that no longer exists is a violation: there is no point in waiting for it. */
const countLiving = `
  select count(*) + coalesce((
    select sum(recipients)
    from delivery_slices
    where claimed_by is null or claimed_by in (select epoch from workers)
  ), 0)::bigint as jobs
  from delivery_queue
  where claimed_by is null or claimed_by in (select epoch from workers)`;

const replay = `
  update delivery_queue
  set set_aside_at = null, crashes = 0
  where set_aside_at is not null
  returning message_id`;

const bringForward = `
  update delivery_queue
  set due_at = now()
  where claimed_by is null and due_at > now() + interval '2 seconds'
  returning message_id`;

/** Where what providers tell waits until it is applied; work on it is woken by the name of the table. */
const toldTables = ['sms_events', 'provider_events', 'chat_app_events'];

/**
 * Resolves when everything that providers have told is applied, or when what is left has not become less for half a
 * minute. By now all hand-offs are written down, so that another look at an event finds nothing new.
 */
export async function applyEverythingTold({ ask }: Installation): Promise<void> {
  let fewest = Infinity;
  let progressAtMs = performance.now();
  for (;;) {
    const sums = toldTables.map((table) => `(select count(*) from ${table})`).join(' + ');
    const [events] = await ask<{ count: number }>(`select ${sums} as count`);
    const count = events?.count ?? 0;
    if (count === 0) return;
    if (count < fewest) {
      fewest = count;
      progressAtMs = performance.now();
    }
    if (performance.now() - progressAtMs > standstillMsMax) return;
    for (const table of toldTables) {
      await ask(`update ${table} set due_at = now() where due_at > now() + interval '2 seconds'`);
      await ask(`select pg_notify('postillion_${table}', '')`);
    }
    await delay(pauseMs);
  }
}

/** All that is to be told, and has not been yet: what waits to be numbered, for endpoints, and to be tried again. */
const countUntold = `
  select (select count(*) from webhook_outbox)
    + (select count(*) from webhook_deliveries where due_at is not null)
    + (select coalesce(sum(greatest(p.last_position - c.next_position + 1, 0)), 0)::bigint
       from webhook_cursors c
       join webhook_positions p using (organization_id)) as count`;

/** Resolves with how many retries were made due early, when everything was told or nothing has been for half a minute. */
export async function tellEverything({ ask }: Installation): Promise<number> {
  let hurried = 0;
  let fewest = Infinity;
  let progressAtMs = performance.now();
  for (;;) {
    const [untold] = await ask<{ count: number }>(countUntold);
    const count = untold?.count ?? 0;
    if (count === 0) return hurried;
    if (count < fewest) {
      fewest = count;
      progressAtMs = performance.now();
    }
    if (performance.now() - progressAtMs > standstillMsMax) return hurried;
    const brought = await Promise.all([
      ask(
        `update webhook_deliveries set due_at = now()
         where due_at > now() + interval '2 seconds'
         returning event_id`,
      ),
      ask(
        `update webhook_cursors set next_try_at = now()
         where next_try_at > now() + interval '2 seconds'
         returning webhook_id`,
      ),
    ]);
    hurried += brought.flat().length;
    for (const topic of ['webhook_outbox', 'webhook_events'])
      await ask(`select pg_notify('postillion_${topic}', '')`);
    await delay(pauseMs);
  }
}
