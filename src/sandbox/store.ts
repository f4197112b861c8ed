import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';

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
     (organization_id, id, channel, message_id, recipient, sender, outcome, source, created_at)
   values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
);

export async function insertSandboxMessage(
  connection: Connection,
  message: SandboxMessage & { source: Buffer },
): Promise<void> {
  await connection.rows(insert, [
    message.organizationId,
    message.id,
    message.channel,
    message.messageId,
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
  source: Buffer | null;
};

export type SandboxPage = {
  channel: string | null;
  recipient: string | null;
  after: string | null;
  limit: number;
};

/** Sources larger than this are left out of lists. */
export const listedSourceBytesMax = 1_048_576;

/** Newest first, of all organizations: the sandbox belongs to whoever runs the installation. */
export async function listSandboxMessages(
  connection: Connection,
  page: SandboxPage,
): Promise<(SandboxMessage & { source: Buffer | null })[]> {
  const rows = await connection.rows(
    unpreparedStatement<Row>(
      `select organization_id, id, channel, message_id, recipient, sender, outcome, created_at,
         case when octet_length(source) <= $5 then source end as source
       from sandbox_messages
       where ($1::text is null or channel = $1)
         and ($2::text is null or recipient = $2)
         and ($3::uuid is null or id < $3)
       order by id desc
       limit $4`,
    ),
    [page.channel, page.recipient, page.after, page.limit, listedSourceBytesMax],
  );
  return rows.map((row) => ({ ...toMessage(row), source: row.source }));
}

export async function findSandboxMessage(
  connection: Connection,
  id: string,
): Promise<(SandboxMessage & { source: Buffer }) | null> {
  const [row] = await connection.rows(
    unpreparedStatement<Row & { source: Buffer }>(
      `select organization_id, id, channel, message_id, recipient, sender, outcome, created_at, source
       from sandbox_messages
       where id = $1`,
    ),
    [id],
  );
  return row === undefined ? null : { ...toMessage(row), source: row.source };
}

/** Keeps the newest and forgets the others. */
export async function deleteOldSandboxMessages(connection: Connection, messagesMax: number): Promise<void> {
  await connection.rows(
    unpreparedStatement(
      `delete from sandbox_messages
       where id < (select id from sandbox_messages order by id desc offset $1 limit 1)`,
    ),
    [messagesMax],
  );
}

function toMessage(row: Row): SandboxMessage {
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
