import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import type { DropReason, Horizon, MessageRow, RecipientKey, RecipientStatus } from '../messages/messages.ts';

/** The parts of a text apart from its message: its content and its one recipient. */
export type SmsParts = {
  message_id: string;
  /** Null once it was erased, or is too old. */
  content: unknown;
  address: string;
  recipient_status: RecipientStatus;
  status_at: Date;
  drop_reason: DropReason | null;
  handed_off_at: Date | null;
  uncertain: boolean;
  failure_class: string | null;
  diagnostic: string | null;
};

/** A text with all its parts. */
export type SmsRow = MessageRow & SmsParts;

/** By the id of their message. */
export async function loadSmsParts(
  connection: Connection,
  {
    organizationId,
    messageIds,
    horizon,
  }: { organizationId: string; messageIds: readonly string[]; horizon: Horizon },
): Promise<Map<string, SmsParts>> {
  const rows = await connection.rows(
    unpreparedStatement<SmsParts>(
      `select r.message_id, c.content, r.address, r.status as recipient_status, r.status_at, r.drop_reason,
         r.handed_off_at, r.uncertain, r.failure_class, r.diagnostic
       from recipients r
       left join message_contents c
         on c.organization_id = r.organization_id and c.message_id = r.message_id
         and ($3::uuid is null or c.message_id >= $3)
       where r.organization_id = $1 and r.message_id = any ($2::uuid[]) and r.ordinal = 0`,
    ),
    [organizationId, messageIds, horizon.contentFrom],
  );
  return new Map(rows.map((parts) => [parts.message_id, parts]));
}

/** Answers to a number with ids after `sinceMessageId`. No message need have this id. */
export type AnswerSearch = { organizationId: string; address: string; sinceMessageId: string };

/** How many texts of a number were answered since then, counted up to `most`. Uses the index recipients_address. */
export async function countRecentAnswers(
  connection: Connection,
  wanted: AnswerSearch & { most: number },
): Promise<number> {
  const rows = await connection.rows(
    unpreparedStatement(
      `select
       from recipients
       where organization_id = $1 and address_key = $2 and message_id > $3 and field = 'answer'
       limit $4`,
    ),
    [wanted.organizationId, wanted.address, wanted.sinceMessageId, wanted.most],
  );
  return rows.length;
}

/** Whether a number was answered with this text from this sender since then. Uses the index recipients_address. */
export async function hasRecentAnswer(
  connection: Connection,
  wanted: AnswerSearch & { sender: string; text: string },
): Promise<boolean> {
  const rows = await connection.rows(
    unpreparedStatement(
      `select
       from recipients r
       join messages m on m.organization_id = r.organization_id and m.id = r.message_id
       join message_contents c on c.organization_id = r.organization_id and c.message_id = r.message_id
       where r.organization_id = $1 and r.address_key = $2 and r.message_id > $3 and r.field = 'answer'
         and m.sender = $4 and c.content ->> 'text' = $5
       limit 1`,
    ),
    [wanted.organizationId, wanted.address, wanted.sinceMessageId, wanted.sender, wanted.text],
  );
  return rows.length > 0;
}

/** Planned at each run: a plan made for an empty partition would read all recipients of the organization. */
const selectUncertain = unpreparedStatement<{
  position: number;
  organization_id: string;
  message_id: string;
  ordinal: number;
}>(
  `select wanted.position, cut_off.organization_id, cut_off.message_id, cut_off.ordinal
   from unnest($1::text[], $2::text[]) with ordinality as wanted (number, sender, position)
   join senders s on s.name = wanted.sender
   cross join lateral (
     select r.organization_id, r.message_id, r.ordinal
     from recipients r
     join messages m on m.organization_id = r.organization_id and m.id = r.message_id
     where r.organization_id = s.organization_id and r.address_key = wanted.number and r.uncertain
       and r.handed_off_at >= $3 and m.sender = wanted.sender
     limit 2
   ) cut_off`,
);

/**
 * The hand-offs from a sender to a number that were cut off since the given time, by the index of the question. They
 * may be of any organization, since several may share a sender's name. At most two for each question. Uses the index
 * recipients_address.
 */
export async function findCutOffTexts(
  connection: Connection,
  wanted: readonly { to: string; sender: string }[],
  since: Date,
): Promise<Map<number, RecipientKey[]>> {
  const rows = await connection.rows(selectUncertain, [
    wanted.map(({ to }) => to),
    wanted.map(({ sender }) => sender),
    since,
  ]);
  const jobs = new Map<number, RecipientKey[]>();
  for (const { position, organization_id: organizationId, message_id: messageId, ordinal } of rows) {
    const job = { organizationId, messageId, ordinal };
    jobs.set(position - 1, [...(jobs.get(position - 1) ?? []), job]);
  }
  return jobs;
}
