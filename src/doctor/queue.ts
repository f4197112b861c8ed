import type { Installation } from '../installation/installation.ts';
import { countQueued, countSetAside, findOldestDue, listOpenBreakers } from '../messages/messages.ts';
import { dateOf } from '../platform/clock.ts';
import { countLivingWorkers } from '../platform/queue/lease.ts';
import { wordFor } from '../platform/wording.ts';
import { describeBreaker, lateMs } from '../roles/monitoring/readiness.ts';
import { type Finding, ok, problem, warning } from './finding.ts';
import { programName } from '../platform/program-name.ts';

/** More are told as so many: beyond it they are not counted. */
const setAsideMax = 10_000;
const queuedMax = 10_000;

/** Jobs that no worker tries any more. */
export async function examineSetAside({ database }: Installation): Promise<Finding[]> {
  const counts = await countSetAside(database, setAsideMax);
  if (counts.size === 0) return [ok('queue', 'no job was set aside')];
  const jobs = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const byChannel = [...counts].map(([channel, count]) => `${channel}: ${count}`).join(', ');
  return [
    problem(
      'queue',
      `${jobs === setAsideMax ? 'at least ' : ''}${jobs} ${wordFor(jobs, 'job was', 'jobs were')} set aside and ${wordFor(jobs, 'is', 'are')} tried no more (${byChannel})`,
      `See "${programName()} queue list"; once the cause is mended, run "${programName()} queue retry --all".`,
    ),
  ];
}

/** Whether somebody delivers what is due. */
export async function examineWorkers({
  database,
  clock,
}: Pick<Installation, 'database' | 'clock'>): Promise<Finding[]> {
  const nowMs = clock.nowMs();
  const [workers, oldestDueAt] = await Promise.all([
    countLivingWorkers(database),
    findOldestDue(database, dateOf(nowMs)),
  ]);
  if (workers === 0) {
    const advice = `Start a worker: "${programName()} serve", with or without --role worker.`;
    // Whatever is in the queue: those that died may have claimed it.
    const queued = await countQueued(database, queuedMax);
    if (queued === 0) return [warning('workers', 'no worker runs, and nothing waits to be sent', advice)];
    const count = `${queued === queuedMax ? 'at least ' : ''}${queued}`;
    return [
      problem('workers', `no worker runs, and recipients or slices of campaigns wait: ${count}`, advice),
    ];
  }
  const living = `${workers} ${wordFor(workers, 'worker runs', 'workers run')}`;
  if (oldestDueAt === null) return [ok('workers', `${living}, and no job is due`)];
  const found = `${living}, and jobs have been due since ${oldestDueAt.toISOString()}`;
  if (nowMs - oldestDueAt.getTime() < lateMs) return [ok('workers', found)];
  return [
    problem(
      'workers',
      found,
      'See in the logs of the workers whether a provider is not available. If all are, run more workers.',
    ),
  ];
}

/** Providers that workers have found to be away, and accounts at them; nothing is said where all can be used. */
export async function examineAvailability({ database }: Pick<Installation, 'database'>): Promise<Finding[]> {
  const open = await listOpenBreakers(database);
  return open.map((breaker) => {
    const { message } = describeBreaker(breaker);
    return breaker.accounts === null
      ? problem(
          'providers',
          message,
          'See in the logs of the workers what it answers. Delivery goes on by itself.',
        )
      : warning(
          'providers',
          message,
          'See in the logs of the workers whose they are, and what the provider answers.',
        );
  });
}
