import { formatBytes } from '../platform/bytes.ts';
import type { Installation } from '../installation/installation.ts';
import { limitKept, listMessageTables } from '../messages/messages.ts';
import { findLongestKeptDays } from '../accounts/accounts.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import { findMissingPartitions, measureTables, partitionsAhead } from '../platform/postgres/partitions.ts';
import { wordFor } from '../platform/wording.ts';
import { messageChannels } from '../roles/channels.ts';
import { type Finding, ok, problem, warning } from './finding.ts';
import { programName } from '../platform/program-name.ts';

/** Whether there is room for what comes, and how much there is of what was. Without the schema of this release, nothing is known. */
export async function examinePartitions(installation: Installation, isCurrent: boolean): Promise<Finding[]> {
  if (!isCurrent) return [];
  return [await examineRoom(installation), await examineKept(installation)];
}

/** Housekeeping makes partitions earlier than they are needed, so that it has failed for long if one is missing. */
async function examineRoom({ database, clock, config }: Installation): Promise<Finding> {
  const size = config.partitionSize;
  const missing = await findMissingPartitions(database, now(clock), size);
  const ahead = partitionsAhead[size].needed - 1;
  if (missing.length === 0) return ok('partitions', `they exist for the next ${ahead} ${size}s`);
  return problem(
    'partitions',
    `missing ${missing.join(', ')}`,
    'A running worker creates them within an hour: start one, and search its log for "housekeeping was interrupted".',
  );
}

const dayMs = 86_400_000;
/** Housekeeping drops within an hour what nothing keeps. */
const lateMs = dayMs;
/** A search by address takes a millisecond for each. */
const partitionsMax = 200;

/** What messages take on disk, since when they are there, and whether they go as they should. */
async function examineKept({ database, clock, config }: Installation): Promise<Finding> {
  const [extents, plans] = await Promise.all([
    measureTables(database, listMessageTables(messageChannels)),
    findLongestKeptDays(database),
  ]);
  const kept = limitKept(config.keptDays, plans);
  const sizes = extents.map(({ table, bytes }) => `${table} ${formatBytes(bytes)}`).join(', ');
  const partitions = Math.max(...extents.map((extent) => extent.partitions));
  const found = `${sizes}, in up to ${partitions} ${wordFor(partitions, 'partition')} each; kept for ${showDays(kept.messages)}, what messages say for ${showDays(kept.content)}`;
  const late = extents
    .filter(({ table, oldestEndsAt }) => {
      const days = table === 'message_contents' ? kept.content : kept.messages;
      return days !== null && isLate(clock, oldestEndsAt, days);
    })
    .map(({ table, oldestEndsAt }) => `${table} up to ${oldestEndsAt.toISOString().slice(0, 10)}`);
  if (late.length === 0 && partitions <= partitionsMax) return ok('messages', found);
  if (late.length === 0)
    return warning(
      'messages',
      found,
      'With so many partitions, pages of organizations with little mail and searches by address take long: keep messages for less time (POSTILLION_MESSAGES_KEPT_DAYS), or make larger partitions (POSTILLION_PARTITIONS).',
    );
  return warning(
    'messages',
    `${found}; still there: ${late.join(', ')}`,
    `Campaigns that are not over and jobs in the queue keep their partitions: see "${programName()} queue list", and campaigns with the status paused. If there are none, search the log of a worker for "housekeeping was interrupted".`,
  );
}

function isLate(clock: Clock, oldestEndsAt: Date, days: number): boolean {
  return oldestEndsAt < dateOf(clock.nowMs() - days * dayMs - lateMs);
}

function showDays(days: number | null): string {
  return days === null ? 'ever' : `${days} ${wordFor(days, 'day')}`;
}
