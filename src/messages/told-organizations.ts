import { findCrossedQuotas, type QuotaCrossing, takeCrossedQuotas } from '../accounts/accounts.ts';
import type { Channel } from '../channels/channel.ts';
import { now } from '../platform/clock.ts';
import type { Connection } from '../platform/postgres/database.ts';
import type { ChoreTools, RunningChore } from '../platform/queue/chore.ts';
import { startTurns } from '../platform/queue/turns.ts';
import { type DescribeEvents, type EventType, type HappenedEvent, logEvents } from '../webhooks/webhooks.ts';

/** `reputation`: by the guard, because of bounces or complaints. */
export type SuspensionFacts = { channel: Channel; reason: 'operator' | 'reputation' };

/** Tells programs that the organization may not send any more on these channels, or may again, in the transaction of it. */
export async function logSuspensions(
  connection: Connection,
  {
    organizationId,
    channels,
    isSuspended,
    reason,
    at,
  }: {
    organizationId: string;
    channels: readonly Channel[];
    isSuspended: boolean;
    reason: SuspensionFacts['reason'];
    at: Date;
  },
): Promise<void> {
  const type = isSuspended ? 'organization.sending_suspended' : 'organization.sending_resumed';
  await logEvents(
    connection,
    channels.map((channel) =>
      happenedTo(organizationId, { type, at, facts: { channel, reason } satisfies SuspensionFacts }),
    ),
  );
}

/** What of a month's quota of a channel is used: `used` is as much as when it was told, and may be more by now. */
export type QuotaFacts = { channel: Channel; month: string; quota: number; used: number; renews_on: string };

/** More would be one page of all organizations. */
const organizationsMax = 100;

/**
 * Tells programs that most of a month's quota is used, or all of it. What is used notes by itself that it has crossed a
 * threshold (`note_quota_crossing` in the schema), so that no request waits for this.
 */
export function startTellingOfQuotas(tools: ChoreTools): RunningChore {
  const { database, clock } = tools;
  return startTurns(tools, {
    name: 'telling of quotas',
    topic: 'quotas',
    slicesMs: [null],
    organizationsMax,
    find: (after, limit) => findCrossedQuotas(database, { at: now(clock), after, limit }),
    work: (organizationId) =>
      database.asOrganizations([organizationId], async (transaction) => {
        const crossings = await takeCrossedQuotas(transaction, organizationId);
        const at = now(clock);
        await logEvents(
          transaction,
          crossings.flatMap((crossing) =>
            typesOf(crossing).map((type) =>
              happenedTo(organizationId, { type, at, facts: factsOf(crossing) }),
            ),
          ),
        );
        return null;
      }),
  });
}

/** Whoever uses all of it at once has used most of it too. */
function typesOf({ crossedPercent, toldPercent }: QuotaCrossing): EventType[] {
  const thresholds = [
    [80, 'organization.quota_warning'],
    [100, 'organization.quota_reached'],
  ] as const;
  return thresholds.flatMap(([percent, type]) =>
    percent > toldPercent && percent <= crossedPercent ? [type] : [],
  );
}

function factsOf({ channel, month, quota, used, renewsOn }: QuotaCrossing): QuotaFacts {
  return { channel, month, quota, used, renews_on: renewsOn };
}

function happenedTo(
  organizationId: string,
  event: Pick<HappenedEvent, 'type' | 'at' | 'facts'>,
): HappenedEvent {
  return { ...event, organizationId, ofCampaign: false, subjectId: organizationId, ordinal: null };
}

/** What programs are told of their organization: what the event says of it. */
export const describeOrganizationEvents: DescribeEvents = (_connection, _organizationId, events) =>
  Promise.resolve(
    new Map(events.map((event) => [event, { object: 'organization', id: event.subjectId, ...event.facts }])),
  );
