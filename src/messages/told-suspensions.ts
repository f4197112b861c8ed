import type { Channel } from '../channels/channel.ts';
import type { Connection } from '../platform/postgres/database.ts';
import { type DescribeEvents, logEvents } from '../webhooks/webhooks.ts';

/** `reputation`: by the guard, because of bounces or complaints. */
type SuspensionFacts = { channel: Channel; reason: 'operator' | 'reputation' };

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
  await logEvents(
    connection,
    channels.map((channel) => {
      const facts: SuspensionFacts = { channel, reason };
      return {
        organizationId,
        type: isSuspended ? 'organization.sending_suspended' : 'organization.sending_resumed',
        at,
        ofCampaign: false,
        subjectId: organizationId,
        ordinal: null,
        facts,
      };
    }),
  );
}

/** What programs are told of their organization. */
export const describeSuspensions: DescribeEvents = (_connection, _organizationId, events) =>
  Promise.resolve(
    new Map(
      events.map((event) => {
        const { channel, reason } = event.facts as SuspensionFacts; // As logSuspensions made them.
        return [event, { object: 'organization', id: event.subjectId, channel, reason }];
      }),
    ),
  );
