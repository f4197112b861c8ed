import type { DescribeEvents, LoggedEvent } from '../webhooks/webhooks.ts';
import { findTold, type ToldRow } from './event-store.ts';
import type { ReadHorizon } from './kept.ts';
import type { RecipientFacts } from './recipients/told-programs.ts';

/** What programs are told of a recipient, on any channel: the message, and the recipient as the event left it. */
export function createRecipientDescriber(readHorizon: ReadHorizon): DescribeEvents {
  return async (connection, organizationId, events) => {
    const { messagesFrom } = await readHorizon(connection, organizationId);
    const rows = await findTold(connection, {
      organizationId,
      keys: events.map(({ subjectId, ordinal }) => ({ messageId: subjectId, ordinal: ordinal ?? 0 })),
      messagesFrom,
    });
    return new Map(
      rows.flatMap((row) => {
        const event = events[row.place - 1];
        return event === undefined ? [] : [[event, describe(event, row)]];
      }),
    );
  };
}

function describe(event: LoggedEvent, row: ToldRow): object {
  const { drop_reason: dropReason, actor, failure } = (event.facts ?? {}) as RecipientFacts; // As told-programs.ts made them.
  const what = event.type.slice(event.type.indexOf('.') + 1);
  return {
    object: row.channel,
    id: row.id,
    from: textOf(row.sender),
    subject: row.subject,
    category: row.category,
    template_id: row.template_id,
    campaign_id: row.campaign_id,
    metadata: row.metadata ?? {},
    tags: [...(row.tags ?? [])],
    created_at: row.created_at.toISOString(),
    recipient: {
      address: textOf(row.address),
      contact_id: row.contact_id,
      device_id: row.device_id,
      status: what,
      status_at: event.at.toISOString(),
      drop_reason: dropReason ?? null,
      bounce:
        failure === undefined
          ? null
          : {
              ...failure,
              // In the words of the other side, as far as they are kept; those of a later attempt are none of this one.
              diagnostic: row.status === 'delivered' ? null : row.diagnostic,
              remote_mta: row.status === 'delivered' ? null : row.remote,
            },
      ...(actor !== undefined && { actor }),
    },
  };
}

/** What was erased, and what there never was. */
function textOf(text: string | null): string | null {
  return text === '' ? null : text;
}
