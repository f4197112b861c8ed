import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { deleteOldRows } from '../platform/postgres/old-rows.ts';

export type SandboxMessage = {
  organizationId: string;
  id: string;
  channel: string;
  messageId: string;
  recipient: string;
  sender: string;
  outcome: string;
  createdAt: Date;
};

const insert = statement(
  'sandbox_insert',
  `insert into sandbox_messages
     (organization_id, id, channel, message_id, ordinal, recipient, sender, outcome, source, created_at)
   values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
);

export async function insertSandboxMessage(
  connection: Connection,
  message: SandboxMessage & { ordinal: number; source: Buffer },
): Promise<void> {
  await connection.rows(insert, [
    message.organizationId,
    message.id,
    message.channel,
    message.messageId,
    message.ordinal,
    message.recipient,
    message.sender,
    message.outcome,
    message.source,
    message.createdAt,
  ]);
}

type Row = {
  organization_id: string;
  id: string;
  channel: string;
  message_id: string;
  recipient: string;
  sender: string;
  outcome: string;
  created_at: Date;
  source: Buffer;
};

export type SandboxPage = {
  channel: string | null;
  /** The whole address, in whatever case. */
  recipient: string | null;
  after: string | null;
  limit: number;
};

/**
 * `source` has only the beginning of the message where `isTruncated`. One that is not `isLarge` is so only in a list
 * whose messages are too large together.
 */
export type ListedMessage = SandboxMessage & { source: Buffer; isTruncated: boolean; isLarge: boolean };

/** Sources larger than this are left out of lists: a megabyte of text costs the parser a third of a second. */
const listedSourceBytesMax = 1_048_576;
/** Of one list together; after that, every source is treated as a large one. */
const listedSourcesBytesMax = 8 * 1_048_576;
/** What is read of a large source: enough for its headers. */
const headBytes = 65_536;

/**
 * Newest first, of all organizations: the sandbox belongs to the operator of the installation. Relies on the index
 * sandbox_messages_newest, or sandbox_messages_recipient; the table is kept short.
 */
export async function listSandboxMessages(
  connection: Connection,
  page: SandboxPage,
): Promise<ListedMessage[]> {
  const rows = await connection.rows(
    unpreparedStatement<Row & { is_truncated: boolean; is_large: boolean }>(
      `with newest as (
         select organization_id, id, channel, message_id, recipient, sender, outcome, created_at, source,
           octet_length(source) > $5 as is_large
         from sandbox_messages
         where ($1::text is null or channel = $1)
           and ($2::text is null or lower(recipient) = lower($2))
           and ($3::uuid is null or id < $3)
         order by id desc
         limit $4
       ),
       weighed as (
         select newest.*,
           is_large
             or sum(case when is_large then 0 else octet_length(source) end) over (order by id desc) > $6
             as is_truncated
         from newest
       )
       select organization_id, id, channel, message_id, recipient, sender, outcome, created_at, is_truncated,
         is_large, case when is_truncated then substring(source for $7) else source end as source
       from weighed
       order by id desc`,
    ),
    [
      page.channel,
      page.recipient,
      page.after,
      page.limit,
      listedSourceBytesMax,
      listedSourcesBytesMax,
      headBytes,
    ],
  );
  return rows.map((row) => ({
    ...toMessage(row),
    source: row.source,
    isTruncated: row.is_truncated,
    isLarge: row.is_large,
  }));
}

export async function findSandboxMessage(
  connection: Connection,
  id: string,
): Promise<(SandboxMessage & { source: Buffer }) | null> {
  const [row] = await connection.rows(
    unpreparedStatement<Row>(
      `select organization_id, id, channel, message_id, recipient, sender, outcome, created_at, source
       from sandbox_messages
       where id = $1`,
    ),
    [id],
  );
  return row === undefined ? null : { ...toMessage(row), source: row.source };
}

/** All but what it says: an open page asks again and again whether a message is still there. */
export async function findSandboxEnvelope(
  connection: Connection,
  id: string,
): Promise<SandboxMessage | null> {
  const [row] = await connection.rows(
    unpreparedStatement<Omit<Row, 'source'>>(
      `select organization_id, id, channel, message_id, recipient, sender, outcome, created_at
       from sandbox_messages
       where id = $1`,
    ),
    [id],
  );
  return row === undefined ? null : toMessage(row);
}

/** Deletes what a page without limit would list; `ids` narrows it to these. Returns how many there were. */
export async function deleteListedMessages(
  connection: Connection,
  page: Pick<SandboxPage, 'channel' | 'recipient'> & { ids: readonly string[] | null },
): Promise<number> {
  const [row] = await connection.rows(
    unpreparedStatement<{ count: number }>(
      `with deleted as (
         delete from sandbox_messages
         where ($1::text is null or channel = $1)
           and ($2::text is null or lower(recipient) = lower($2))
           and ($3::uuid[] is null or id = any ($3))
         returning id
       )
       select count(*) as count from deleted`,
    ),
    [page.channel, page.recipient, page.ids],
  );
  return row?.count ?? 0;
}

/** Keeps the newest and forgets the others. */
export async function deleteOldSandboxMessages(
  connection: Connection,
  messagesMax: number,
  rowsMax?: number,
): Promise<void> {
  await deleteOldRows(connection, deleteOlder, messagesMax, rowsMax);
}

/** By sandbox_messages_newest. Skips what another node, or a person, is deleting. */
const deleteOlder = unpreparedStatement(
  `with older as (
     select organization_id, id
     from sandbox_messages
     where id < (select id from sandbox_messages order by id desc offset $1 limit 1)
     limit $2
     for update skip locked
   )
   delete from sandbox_messages m
   using older
   where m.organization_id = older.organization_id and m.id = older.id
   returning true as is_deleted`,
);

function toMessage(row: Omit<Row, 'source'>): SandboxMessage {
  return {
    organizationId: row.organization_id,
    id: row.id,
    channel: row.channel,
    messageId: row.message_id,
    recipient: row.recipient,
    sender: row.sender,
    outcome: row.outcome,
    createdAt: row.created_at,
  };
}

/** Looks at all that the inbox holds, which is not much. */
export async function deleteSandboxMessages(
  connection: Connection,
  organizationId: string,
  messageIds: readonly string[],
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      'delete from sandbox_messages where organization_id = $1 and message_id = any ($2::uuid[])',
    ),
    [organizationId, messageIds],
  );
}

/** Looks at all that the inbox holds. */
export async function deleteSandboxMessagesWithin(
  connection: Connection,
  { from, before }: { from: string | null; before: string },
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      'delete from sandbox_messages where message_id < $2 and ($1::uuid is null or message_id >= $1)',
    ),
    [from, before],
  );
}

export async function deleteSandboxCopies(
  connection: Connection,
  organizationId: string,
  copies: readonly { messageId: string; ordinal: number }[],
): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `delete from sandbox_messages m
       using unnest($2::uuid[], $3::integer[]) as copy (message_id, ordinal)
       where m.organization_id = $1 and m.message_id = copy.message_id and m.ordinal = copy.ordinal`,
    ),
    [organizationId, copies.map(({ messageId }) => messageId), copies.map(({ ordinal }) => ordinal)],
  );
}
