import { type Connection, unpreparedStatement } from '../platform/postgres/database.ts';
import type { RecipientStatus } from './schema.ts';
import type { Metadata } from './labels.ts';

/** A recipient of a message, or the message alone where the recipient is not kept any more. */
export type ToldRow = {
  place: number;
  id: string;
  channel: string;
  sender: string;
  subject: string | null;
  category: string | null;
  template_id: string | null;
  campaign_id: string | null;
  metadata: Metadata | null;
  tags: readonly string[] | null;
  created_at: Date;
  address: string | null;
  contact_id: string | null;
  device_id: string | null;
  status: RecipientStatus | null;
  diagnostic: string | null;
  remote: string | null;
};

/** `place` is that of a key among those given. */
export async function findTold(
  connection: Connection,
  {
    organizationId,
    keys,
    messagesFrom,
  }: {
    organizationId: string;
    keys: readonly { messageId: string; ordinal: number }[];
    /** Null where all messages are shown. */
    messagesFrom: string | null;
  },
): Promise<ToldRow[]> {
  return connection.rows(
    unpreparedStatement<ToldRow>(
      `select wanted.place::integer as place, m.id, m.channel, m.sender, m.subject, m.category, m.template_id, m.campaign_id,
         m.details -> 'metadata' as metadata, m.details -> 'tags' as tags, m.created_at, r.address, r.contact_id, r.device_id, r.status, r.diagnostic, r.remote
       from unnest($2::uuid[], $3::integer[]) with ordinality as wanted (message_id, ordinal, place)
       cross join lateral (
         select * from messages where organization_id = $1 and id = wanted.message_id limit 1
       ) m
       left join lateral (
         select *
         from recipients
         where organization_id = $1 and message_id = wanted.message_id and ordinal = wanted.ordinal
         limit 1
       ) r on true
       where $4::uuid is null or m.id >= $4`,
    ),
    [
      organizationId,
      keys.map(({ messageId }) => messageId),
      keys.map(({ ordinal }) => ordinal),
      messagesFrom,
    ],
  );
}
