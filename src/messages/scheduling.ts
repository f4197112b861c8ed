import type { SendingChannel } from '../channels/channel.ts';
import { type Clock, now } from '../platform/clock.ts';
import { conflict, PublicError } from '../platform/http/errors.ts';
import type { NewId } from '../platform/ids.ts';
import { type Database, isDeadlock, type Transaction } from '../platform/postgres/database.ts';
import { continueByIndex } from '../platform/postgres/lookup.ts';
import type { MessageChannel, MessageChannels } from './channel.ts';
import { deleteFinishedAttachments } from './delivery/content-store.ts';
import { messageNotFound, type ReadHorizon } from './kept.ts';
import { type RecipientKey, uniqueMessages } from './keys.ts';
import { changeRecipients, type RecipientTools } from './recipients/recipients.ts';
import { findOutlasting, readSchedule } from './schedule.ts';
import * as store from './scheduling-store.ts';
import { lockMessagesOf } from './status-store.ts';

/**
 * Messages that are sent at a time of their own. Their jobs are in the queue from their acceptance on, due at that time, and
 * whatever else jobs wait for they wait for as well: there is no other clock that could miss them.
 *
 * Until the hand-off of a job is about to be announced, its row says that it may be **cancelled**. Who cancels deletes the
 * row, be it claimed; the worker clears the mark before it announces the hand-off (delivery/departure-store.ts). Both lock
 * the row, so that one of the two finds that the other was first: a recipient is cancelled or sent, never both and never
 * neither. A worker that dies in between leaves a job that has departed, which is sent by another one.
 *
 * A message is **moved** as long as nobody has claimed any of its jobs.
 */
export type SchedulingTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  readHorizon: ReadHorizon;
  /** Called after a commit that may have made something due earlier. */
  onQueued: (channel: SendingChannel) => void;
};

export type ScheduledMessage = { organizationId: string; id: string; channel: MessageChannel };

/** Whom a message does not reach any more, and whom it had left for, by their addresses. */
export type Cancellation = { cancelled: string[]; left: string[] };

/**
 * Cancels what has not left. May be repeated: the answer is the same. An error if there is nothing that was cancelled, now or
 * before. `nameOf` is given the address of a recipient.
 */
export async function cancelMessage(
  tools: SchedulingTools,
  message: ScheduledMessage,
  nameOf: (address: string) => string | null,
): Promise<Cancellation | PublicError> {
  const { organizationId, id, channel } = message;
  const at = now(tools.clock);
  return againAfterDeadlock(() =>
    tools.database.asOrganizationsByIndex([organizationId], async (transaction) => {
      const found = await lockScheduled(tools, transaction, message);
      if (found instanceof PublicError) return found;
      const ordinals = await store.deleteCancellable(transaction, message);
      const jobs = ordinals.map((ordinal) => ({ organizationId, messageId: id, ordinal }));
      await writeCancelled(tools, transaction, { jobs, channelOf: () => channel, at });
      const ends = await store.listEnds(transaction, message);
      const namesOf = (end: 'cancelled' | 'left') =>
        ends.flatMap((each) => (each.end === end ? (nameOf(each.address) ?? []) : []));
      return ends.some(({ end }) => end === 'cancelled')
        ? { cancelled: namesOf('cancelled'), left: namesOf('left') }
        : nothingToCancel(namesOf('left'));
    }),
  );
}

/** More would be a sentence that nobody reads. */
const namedMax = 50;

function nothingToCancel(left: readonly string[]): PublicError {
  if (left.length === 0) return new PublicError(conflict, 'There is nothing to cancel: nobody gets it.');
  const more = left.length > namedMax ? ` and ${left.length - namedMax} more` : '';
  return new PublicError(
    conflict,
    `It cannot be cancelled any more. It has left for ${left.slice(0, namedMax).join(', ')}${more}.`,
  );
}

/** Gives a message another time, in ISO 8601 as the request says it. Returns that time. */
export async function rescheduleMessage(
  tools: SchedulingTools,
  message: ScheduledMessage,
  text: string,
): Promise<Date | PublicError> {
  const { organizationId, channel } = message;
  const at = now(tools.clock);
  const moved = await againAfterDeadlock(() =>
    tools.database.asOrganizationsByIndex([organizationId], async (transaction) => {
      const found = await lockScheduled(tools, transaction, message);
      if (found instanceof PublicError) return found;
      const scheduledAt = readSchedule(text, at);
      if (scheduledAt instanceof PublicError) return scheduledAt;
      const { days } = await tools.readHorizon(transaction, organizationId);
      const outlasting = findOutlasting(days, { acceptedAt: found.created_at, scheduledAt });
      if (outlasting !== null) return outlasting;
      if (found.status !== 'scheduled' || !(await store.lockWaiting(transaction, message)))
        return new PublicError(
          conflict,
          found.status === 'cancelled'
            ? 'It was cancelled, and cannot be given another time. Send a new one.'
            : 'Its time has come, and it cannot be given another one. What has not left can be cancelled.',
        );
      await store.moveMessage(transaction, message, { scheduledAt, at });
      return scheduledAt;
    }),
  );
  if (!(moved instanceof PublicError)) tools.onQueued(channel.name);
  return moved;
}

/** One that lies beyond the horizon is found all the same: it may have been kept for longer when it was accepted. */
async function lockScheduled(
  { readHorizon }: SchedulingTools,
  transaction: Transaction,
  { organizationId, id, channel }: ScheduledMessage,
): Promise<store.ScheduledRow | PublicError> {
  const found = await store.lockMessage(transaction, { organizationId, id, channel: channel.name });
  if (found === null) return messageNotFound(await readHorizon(transaction, organizationId), id);
  return found.scheduled_at === null
    ? new PublicError(
        conflict,
        'It was sent at once: only what has a scheduled_at can be cancelled or moved.',
      )
    : found;
}

/** Of jobs that were taken out of the queue, by messages that are locked. */
async function writeCancelled(
  tools: RecipientTools,
  transaction: Transaction,
  cancelled: {
    jobs: readonly RecipientKey[];
    channelOf: (recipient: RecipientKey) => MessageChannel;
    at: Date;
  },
): Promise<void> {
  const { jobs, channelOf, at } = cancelled;
  if (jobs.length === 0) return;
  // No condition of a segment asks about what nobody got.
  await changeRecipients(transaction, tools, {
    at,
    write: { kind: 'cancellation', recipients: jobs },
    channelOf,
    told: { contacts: [] },
  });
  await deleteFinishedAttachments(transaction, uniqueMessages(jobs));
}

/**
 * Cancels what waits for its time for an address that is to be erased: it would be kept until then. So many recipients at
 * most; returns whether there may be more.
 */
export async function cancelScheduledOf(
  tools: RecipientTools & { channels: MessageChannels },
  transaction: Transaction,
  wanted: { organizationId: string; addressKey: string; beforeMessageId: string },
  { at, limit }: { at: Date; limit: number },
): Promise<boolean> {
  const found = await store.listScheduledOf(transaction, wanted, limit);
  if (found.length === 0) return false;
  await continueByIndex(transaction);
  await lockMessagesOf(transaction, uniqueMessages(found));
  const channelNames = new Map(found.map(({ messageId, channel }) => [messageId, channel]));
  const jobs = await store.deleteJobs(transaction, wanted.organizationId, found);
  await writeCancelled(tools, transaction, {
    jobs,
    channelOf: ({ messageId }) => {
      const name = channelNames.get(messageId);
      if (name === undefined) throw new Error('a message was cancelled that was not found');
      return tools.channels[name];
    },
    at,
  });
  return found.length === limit;
}

const deadlocksMax = 3;

/** A worker that began to settle a job between two of our statements may wait for us, while we wait for it. */
async function againAfterDeadlock<Result>(work: () => Promise<Result>, deadlocks = 0): Promise<Result> {
  try {
    return await work();
  } catch (cause) {
    if (!isDeadlock(cause) || deadlocks >= deadlocksMax) throw cause;
    return againAfterDeadlock(work, deadlocks + 1);
  }
}
