import { type Connection, statement, unpreparedStatement } from '../platform/postgres/database.ts';
import { isNotDeleted } from '../platform/postgres/deleted-organizations.ts';

export type AccountRow = {
  organization_id: string;
  id: string;
  business_account_id: string;
  content_sealed: Buffer;
  callback_token: string;
  problem: string | null;
  campaigns_held_words: string | null;
  campaigns_held_until: Date | null;
  created_at: Date;
  updated_at: Date;
};

const accountColumns = `a.organization_id, a.id, a.business_account_id, a.content_sealed, a.callback_token, a.problem,
  a.campaigns_held_words, a.campaigns_held_until, a.created_at, a.updated_at`;

const selectAccounts = statement<AccountRow>(
  'chat_app_accounts_select',
  `select ${accountColumns}
   from chat_app_accounts a
   where a.organization_id = any ($1::uuid[])`,
);

/** Those that there are, by the primary key. */
export async function findAccounts(
  connection: Connection,
  organizationIds: readonly string[],
): Promise<AccountRow[]> {
  return connection.rows(selectAccounts, [organizationIds]);
}

const selectPresence = statement<{ is_there: boolean }>(
  'chat_app_accounts_select_presence',
  'select true as is_there from chat_app_accounts where organization_id = $1',
);

export async function hasAccount(connection: Connection, organizationId: string): Promise<boolean> {
  const rows = await connection.rows(selectPresence, [organizationId]);
  return rows.length > 0;
}

const selectHolders = statement<{ business_account_id: string; organization_id: string }>(
  'chat_app_accounts_select_holders',
  `select business_account_id, organization_id
   from chat_app_accounts
   where business_account_id = any ($1::text[])`,
);

/** Of all organizations, by the index chat_app_accounts_business_account. */
export async function findHolders(
  connection: Connection,
  businessAccountIds: readonly string[],
): Promise<Map<string, string>> {
  const rows = await connection.rows(selectHolders, [businessAccountIds]);
  return new Map(rows.map((row) => [row.business_account_id, row.organization_id]));
}

const selectByCallbackToken = statement<AccountRow>(
  'chat_app_accounts_select_by_callback_token',
  `select ${accountColumns}
   from chat_app_accounts a
   where a.callback_token = $1 and ${isNotDeleted('a.organization_id')}`,
);

/** Of all organizations, by the index chat_app_accounts_callback_token. */
export async function findAccountByCallbackToken(
  connection: Connection,
  callbackToken: string,
): Promise<AccountRow | null> {
  const [row] = await connection.rows(selectByCallbackToken, [callbackToken]);
  return row ?? null;
}

export type NewAccount = {
  organizationId: string;
  id: string;
  businessAccountId: string;
  contentSealed: Buffer;
  /** For one that has none yet. */
  callbackToken: string;
  at: Date;
};

/**
 * Puts it in the place of the one that there was. Throws a unique violation of chat_app_accounts_business_account if
 * another organization has the business account.
 */
export async function upsertAccount(transaction: Connection, account: NewAccount): Promise<AccountRow> {
  const [row] = await transaction.rows(
    unpreparedStatement<AccountRow>(
      `insert into chat_app_accounts as a
         (organization_id, id, business_account_id, content_sealed, callback_token, submissions, created_at, updated_at)
       values ($1, $2, $3, $4, $5, '{}', $6, $6)
       on conflict (organization_id) do update
       set id = excluded.id, business_account_id = excluded.business_account_id,
         content_sealed = excluded.content_sealed, problem = null, campaigns_held_words = null,
         campaigns_held_until = null, marketing_refused_words = null, marketing_refused_at = null,
         updated_at = excluded.updated_at
       returning ${accountColumns}`,
    ),
    [
      account.organizationId,
      account.id,
      account.businessAccountId,
      account.contentSealed,
      account.callbackToken,
      account.at,
    ],
  );
  if (row === undefined) throw new Error('an upsert returned no row');
  return row;
}

/** Of all organizations, in the order of the primary key, those after `after`; for an operator. */
export async function readAccountsBatch(
  connection: Connection,
  after: string | null,
  limit: number,
): Promise<AccountRow[]> {
  return connection.rows(
    unpreparedStatement<AccountRow>(
      `select ${accountColumns}
       from chat_app_accounts a
       where $1::uuid is null or a.organization_id > $1
       order by a.organization_id
       limit $2`,
    ),
    [after, limit],
  );
}

/** What the operator must mend of an account; null for nothing. */
export async function setProblem(
  transaction: Connection,
  organizationId: string,
  problem: string | null,
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      `update chat_app_accounts
       set problem = $2
       where organization_id = $1 and problem is distinct from $2`,
    ),
    [organizationId, problem],
  );
}

/**
 * Returns whether anything changed. What holds longer stays; and so does what ends a minute before, since all messages
 * of a campaign that are under way find out the same, and each would write the row again.
 */
export async function saveCampaignsHeld(
  transaction: Connection,
  organizationId: string,
  { words, until }: { words: string; until: Date | null },
): Promise<boolean> {
  const rows = await transaction.rows(
    unpreparedStatement(
      `update chat_app_accounts
       set campaigns_held_words = $2, campaigns_held_until = $3
       where organization_id = $1 and (
         campaigns_held_words is null
         or campaigns_held_until is not null
           and ($3::timestamptz is null or campaigns_held_until < $3::timestamptz - interval '1 minute')
       )
       returning organization_id`,
    ),
    [organizationId, words, until],
  );
  return rows.length > 0;
}

/** Returns whether they were held. */
export async function clearCampaignsHeld(transaction: Connection, organizationId: string): Promise<boolean> {
  const rows = await transaction.rows(
    unpreparedStatement(
      `update chat_app_accounts
       set campaigns_held_words = null, campaigns_held_until = null
       where organization_id = $1 and campaigns_held_words is not null
       returning organization_id`,
    ),
    [organizationId],
  );
  return rows.length > 0;
}

/**
 * Of all organizations; accounts are few, one of each at most. Null ends those that have not reached their end as well.
 * Returns how many there were.
 */
export async function clearEndedHolds(
  transaction: Connection,
  at: Date | null,
  limit: number,
): Promise<number> {
  const rows = await transaction.rows(
    unpreparedStatement(
      `with ended as (
         select organization_id
         from chat_app_accounts
         where campaigns_held_words is not null and ($1::timestamptz is null or campaigns_held_until <= $1)
         limit $2
         for no key update skip locked
       )
       update chat_app_accounts a
       set campaigns_held_words = null, campaigns_held_until = null
       from ended
       where a.organization_id = ended.organization_id
       returning true as is_ended`,
    ),
    [at, limit],
  );
  return rows.length;
}

/** Of all organizations; null where nothing holds, or not until a known time. */
export async function findNextHoldEnd(connection: Connection): Promise<Date | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ ends_at: Date | null }>(
      'select min(campaigns_held_until) as ends_at from chat_app_accounts',
    ),
  );
  return row?.ends_at ?? null;
}

/**
 * When templates of the account were submitted lately, the oldest first. Until the transaction ends, nobody else submits
 * any. Null without an account.
 */
export async function lockSubmissions(
  transaction: Connection,
  organizationId: string,
): Promise<Date[] | null> {
  const [row] = await transaction.rows(
    unpreparedStatement<{ submissions: Date[] }>(
      'select submissions from chat_app_accounts where organization_id = $1 for no key update',
    ),
    [organizationId],
  );
  return row?.submissions ?? null;
}

/** The account must be locked. */
export async function saveSubmissions(
  transaction: Connection,
  organizationId: string,
  submissions: readonly Date[],
): Promise<void> {
  await transaction.rows(
    unpreparedStatement(
      'update chat_app_accounts set submissions = $2::timestamptz[] where organization_id = $1',
    ),
    [organizationId, submissions],
  );
}

export async function findMarketingRefusal(
  connection: Connection,
  organizationId: string,
): Promise<{ words: string; at: Date } | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ words: string | null; at: Date | null }>(
      `select marketing_refused_words as words, marketing_refused_at as at
       from chat_app_accounts
       where organization_id = $1`,
    ),
    [organizationId],
  );
  const { words = null, at = null } = row ?? {};
  return words === null || at === null ? null : { words, at };
}

/** Returns whether it was written: all copies that are under way find out the same, of which one a minute is enough. */
export async function saveMarketingRefusal(
  transaction: Connection,
  organizationId: string,
  { words, at }: { words: string; at: Date },
): Promise<boolean> {
  const rows = await transaction.rows(
    unpreparedStatement(
      `update chat_app_accounts
       set marketing_refused_words = $2, marketing_refused_at = $3
       where organization_id = $1
         and (marketing_refused_at is null or marketing_refused_at < $3::timestamptz - interval '1 minute')
       returning organization_id`,
    ),
    [organizationId, words, at],
  );
  return rows.length > 0;
}
