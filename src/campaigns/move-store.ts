import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import { insertIntoOutbox, isEventWanted, wakeNumbering } from '../webhooks/webhooks.ts';
import type { CampaignKey } from './engine-store.ts';
import type { PauseReason } from './states.ts';

/**
 * Every statement that moves a campaign to another status. Each of them logs the event that is called like that status, so
 * that none can forget it. The row must be locked, or the statement locks it.
 */

/** Runs `update campaigns set …`, of which $4 and what follows are `values`. */
async function move(
  connection: Connection,
  { organizationId, id }: CampaignKey,
  at: Date,
  { set, from, values = [] }: { set: string; from?: 'queued'; values?: readonly unknown[] },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `with moved as (
         update campaigns
         set updated_at = $3, ${set}
         where organization_id = $1 and id = $2 ${from === undefined ? '' : `and status = '${from}'`}
         returning organization_id, id, 'campaign.' || status as type, pause_reason
       ), logged as (
         ${insertIntoOutbox(
           `select moved.organization_id, moved.type, $3, false, array[moved.id], null,
             case
               when moved.pause_reason is not null
                 then json_build_array(json_build_object('pause_reason', moved.pause_reason))
             end
           from moved
           where ${isEventWanted('moved.organization_id', 'moved.type', 'false')}`,
         )}
         returning true as is_logged
       )
       ${wakeNumbering('logged')}`,
    ),
    [organizationId, id, at, ...values],
  );
}

/** A worker queues the campaign when its time has come. */
export async function markScheduled(
  connection: Connection,
  campaign: CampaignKey,
  scheduledAt: Date,
  at: Date,
): Promise<void> {
  await move(connection, campaign, at, {
    set: "status = 'scheduled', scheduled_at = $4",
    values: [scheduledAt],
  });
}

/** From now on the content is that of its message, and the engine freezes its audience. */
export async function markQueued(
  connection: Connection,
  campaign: CampaignKey,
  queued: { scheduledAt: Date | null; messageId: string; variableNames: readonly string[] },
  at: Date,
): Promise<void> {
  await move(connection, campaign, at, {
    set: `status = 'queued', scheduled_at = $4, message_id = $5, variable_names = $6, queued_at = $3, pause_reason = null`,
    values: [queued.scheduledAt, queued.messageId, queued.variableNames],
  });
}

/** Does nothing to one that has started already. */
export async function markStarted(connection: Connection, campaign: CampaignKey, at: Date): Promise<void> {
  await move(connection, campaign, at, {
    set: "status = 'sending', started_at = coalesce(started_at, $3)",
    from: 'queued',
  });
}

export async function markSent(connection: Connection, campaign: CampaignKey, at: Date): Promise<void> {
  await move(connection, campaign, at, { set: "status = 'sent', completed_at = $3" });
}

export async function markFailed(
  connection: Connection,
  campaign: CampaignKey,
  reason: string,
  at: Date,
): Promise<void> {
  await move(connection, campaign, at, {
    set: "status = 'failed', failure_reason = $4, pause_reason = null, completed_at = $3",
    values: [reason],
  });
}

export async function markPaused(
  connection: Connection,
  campaign: CampaignKey,
  reason: PauseReason,
  at: Date,
): Promise<void> {
  await move(connection, campaign, at, {
    set: "status = 'paused', pause_reason = $4",
    values: [reason],
  });
}

/** Sets the status from before the pause: a campaign that had begun goes on. */
export async function markResumed(connection: Connection, campaign: CampaignKey, at: Date): Promise<void> {
  await move(connection, campaign, at, {
    set: "status = case when started_at is null then 'queued' else 'sending' end, pause_reason = null",
  });
}

export async function markCancelled(connection: Connection, campaign: CampaignKey, at: Date): Promise<void> {
  await move(connection, campaign, at, { set: "status = 'cancelled', cancelled_at = $3" });
}
