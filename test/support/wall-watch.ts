/**
 * Watches the second wall: every statement of the API and the workers that names a table of organizations and is run
 * outside of their role must stand in the list below, with the reason why it cannot be run behind the wall. So a new
 * statement is run as its organization, or its author says here why not.
 */
import {
  type Connection,
  type Database,
  type Statement,
  type Transaction,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';

const whose = 'It finds out to which organization a row belongs.';
const whoHasWork = 'Finds which organizations have work, or when one will have, and nothing else.';
const housekeeping = 'Deletes what is old, of all organizations.';
const putForward = 'Brings forward what a clock that was ahead put off, of all organizations.';
const claimed =
  'For a batch of hand-offs that were claimed together, of any organizations: named by their keys.';
const settled = 'Settles a batch of hand-offs of any organizations: named by their keys, in one round trip.';

const measured =
  'Tells the operator counts and ages of all organizations together, and nothing of any of them.';

/** Why a statement is run outside of the wall, by its name or by how its text begins. */
export const outsideTheWall: Readonly<Record<string, string>> = {
  accounts_select_grant: whose,
  'update api_keys k set last_used_at':
    'Notes the use of keys of any organizations, some seconds of it at once.',
  'update organizations set suspended_channels':
    'An organization must not lift its suspension: it has no right to write its row.',
  'update organizations set reputation_warned_at': 'It has no right to write its row.',

  'select id, name from organizations where deletion is null':
    'The page of webhooks in the sandbox, which belongs to the operator, lets one choose.',

  'with recursive changed (organization_id)': whoHasWork,
  'with due as materialized ( select organization_id from segments where compute_at': whoHasWork,
  'with due as materialized ( select organization_id from segments where windows_due_at': whoHasWork,
  'select compute_at as due_at from segments': whoHasWork,
  'select windows_due_at as due_at from segments': whoHasWork,
  campaigns_select_under_way: whoHasWork,
  campaigns_select_due: whoHasWork,
  campaigns_find_due: whoHasWork,
  campaigns_find_under_way: whoHasWork,
  'select scheduled_at as next_at from campaigns': whoHasWork,
  contact_sets_find_deleted: whoHasWork,
  contact_properties_find_deleted: whoHasWork,
  'select deleted_at from contact_properties': whoHasWork,
  erasures_find_due: whoHasWork,
  contact_erasures_find_due: whoHasWork,
  'select organization_id, address, requested_at from erasures where organization_id = $1 and due_at':
    whoHasWork,
  'select organization_id, contact_id, requested_at from contact_erasures where organization_id = $1 and due_at':
    whoHasWork,
  'select least( (select due_at from erasures': whoHasWork,
  domains_take_asked: whoHasWork,
  domains_take_due: whoHasWork,
  'select next_check_at from domains': whoHasWork,
  'select min(checking_until) as until from domains': whoHasWork,
  'select id, events_kept_days from organizations where events_kept_days is not null': whoHasWork,
  'select case when bool_and(events_kept_days is not null)': housekeeping,
  'select id as "organizationId", messages_kept_days as messages': whoHasWork,
  'select case when bool_and(messages_kept_days is not null)': housekeeping,
  'with kept_messages as (select': 'Whether a partition may go, which has messages of all.',
  'select from recipient_changes where message_id < $2':
    'Whether a partition may go, which has messages of all.',
  chat_templates_find_due: whoHasWork,
  'select due_at from chat_templates where due_at': whoHasWork,
  'with ended as ( select organization_id from chat_app_accounts':
    'Ends what holds campaigns, of all at once.',
  'select min(campaigns_held_until) as ends_at from chat_app_accounts': whoHasWork,
  'with over as ( select organization_id, id from chat_templates':
    'Ends what pauses templates, of all at once.',
  'select paused_until from chat_templates where': whoHasWork,
  recipient_changes_take: whoHasWork,
  conversions_take_due:
    'Takes what is credited next, of any organizations; they are credited behind the wall.',
  conversions_next_due: whoHasWork,

  "select organization_id, public_part from push_credentials where platform = 'web'":
    'Whose page it is on which a person tries a push out; it asks nothing else without the wall.',

  'with recursive active (channel, lane': measured,
  'select known.channel, lanes.lane': measured,
  'select channel, count(*) as jobs from (select channel from delivery_queue where set_aside_at': measured,
  'select status, count(*) as campaigns': measured,
  'with recursive oldest (organization_id, id)': measured,

  'select name from domains where organization_id <> $1':
    'A domain is verified for one organization alone: it asks the others.',
  'select organization_id from domains where status': whose,
  provider_ids_select: whose,
  senders_select_by_number: whose,
  chat_app_accounts_select_holders: whose,
  chat_app_accounts_select_by_callback_token: whose,
  devices_select_by_secret: whose,
  'select wanted.position, cut_off.organization_id': whose,
  provider_ids_insert: 'The ids of what was handed off, of any organizations.',
  provider_events_insert: whose,
  provider_events_take:
    'Takes what is applied next, in turns, and leaves out what organizations have that are being deleted.',
  provider_events_next: whoHasWork,

  'with expired as ( select organization_id, endpoint, key from idempotency_keys': housekeeping,
  'delete from organizations where deletion': housekeeping,
  'select organization_id as "organizationId", sum(':
    'Measures what is stored, of all organizations at once.',
  'insert into storage_usage': 'Keeps what was measured, of all organizations at once.',
  'with expired as ( select organization_id, id from suppressions': housekeeping,
  'with old as ( select organization_id, hour, shard from reputation_counts': housekeeping,
  'with old as ( select channel, provider_message_id, organization_id from provider_ids': housekeeping,
  'with old as ( select organization_id, person from chat_app_reached_people': housekeeping,
  'with old as ( select organization_id, period from chat_app_reached_counts': housekeeping,
  'select organization_id, message_id, ordinal, claimed_by is null and': putForward,
  'with ahead as': putForward,

  chat_app_events_insert: 'What was told of any organizations, in one round trip.',
  chat_app_events_take:
    'Takes what is applied next, of all organizations in turns; it is applied behind the wall.',
  chat_app_events_next: whoHasWork,

  queue_claim_due: 'Claims for all organizations in turns.',
  slices_claim: 'Claims for all organizations in turns.',
  slices_select_recipients: claimed,
  slices_settle_taken: settled,
  queue_settle_taken: settled,
  webhook_outbox_insert:
    'Tells what has happened to recipients that were changed together, of any organizations.',
  webhook_outbox_insert_together:
    'Tells which addresses were suppressed by what has happened to recipients, of any organizations.',
  quota_usage_find_untold: whoHasWork,
  webhook_outbox_find_organizations: whoHasWork,
  webhook_positions_find_untold: whoHasWork,
  webhook_positions_find_alerts: whoHasWork,
  alerts_find_due: whoHasWork,
  alert_watches_find_due: whoHasWork,
  'select least( (select due_at from alerts where': whoHasWork,
  'select count(distinct organization_id)::integer as count from alerts': measured,
  webhook_cursors_find_due: whoHasWork,
  'select next_try_at as next_at from webhook_cursors': whoHasWork,
  'delete from webhook_event_days where first_id': housekeeping,
  'with claimant as': 'Claims what is tried alone, of any organization.',
  'with announced as': 'What a worker that died had announced, of any organizations.',
  'select distinct channel from delivery_queue where claimed_by':
    'On which channels a worker that died had claims, of any organizations.',
  accounts_select_sending_plans: claimed,
  audience_select_barred_: claimed,
  audience_select_unwilling: claimed,
  audience_select_suppressed: claimed,
  domains_select_sending: claimed,
  senders_select_approved: claimed,
  messages_select_deliverable: claimed,
  messages_select_stopped: claimed,
  queue_settle: settled,
  'update delivery_queue q set crashed_at': settled,
  slices_settle: settled,
  slices_delete: settled,
  slices_select_unsettled: 'What a worker that died had not settled, of any organizations.',
  'select organization_id, message_id, first_ordinal':
    'What a worker that died had claimed, of any organizations.',
  devices_retire: settled,
  audience_insert_change: settled,
  messages_lock: settled,
  recipients_lock: settled,
  recipients_select_reported: settled,
  'select wanted.position from unnest($1::uuid[], $2::text[]) with ordinality': settled,
  messages_refresh_status: settled,
  messages_delete_attachments: settled,
  recipient_changes_insert: settled,
  audience_select_message_readers: settled,
  audience_insert_recipient_changes: settled,
  audience_upsert_suppressions: settled,
  reputation_add: settled,
  'select coalesce(sum(sent), 0)::integer as sent': 'After a settlement or a report, whether to suspend.',
};

export type WallWatch = {
  /** The database as the program is to have it. */
  database: Database;
  /** What was run outside of the wall and is not in the list, each once. */
  breaches: () => string[];
};

let wallPattern: Promise<RegExp> | undefined;

/** The tables are those of the template: the same in each test of a process. */
export async function watchTenantWall(database: Database): Promise<WallWatch> {
  wallPattern ??= patternOf(database);
  const namesWalledTable = await wallPattern;
  const breaches = new Set<string>();
  const note = ({ name, text }: Statement<unknown>) => {
    const bare = bareTextOf(text);
    if (!namesWalledTable.test(bare)) return;
    const isKnown = Object.keys(outsideTheWall).some((known) => (name ?? bare).startsWith(known));
    if (!isKnown) breaches.add(name ?? bare);
  };
  const watchConnection = (connection: Connection): Connection => ({
    rows: (statement, values) => {
      note(statement);
      return connection.rows(statement, values);
    },
  });
  const watchTransaction = (transaction: Transaction): Transaction => {
    let behindWall = 0;
    const watched = watchConnection(transaction);
    return {
      ...transaction,
      rows: (statement, values) => (behindWall > 0 ? transaction : watched).rows(statement, values),
      asOrganizations: (organizationIds, work) =>
        transaction.asOrganizations(organizationIds, async () => {
          behindWall += 1;
          try {
            return await work();
          } finally {
            behindWall -= 1;
          }
        }),
    };
  };
  return {
    // All else, also what a test puts into its place later, is that of the database.
    database: Object.assign(Object.create(database) as Database, {
      ...watchConnection(database),
      transaction: (work) => database.transaction((transaction) => work(watchTransaction(transaction))),
      transactionByIndex: (work) =>
        database.transactionByIndex((transaction) => work(watchTransaction(transaction))),
      together: (organizationIds, statements) => {
        if (organizationIds === null) for (const { statement } of statements) note(statement);
        return database.together(organizationIds, statements);
      },
    } satisfies Partial<Database>),
    breaches: () => [...breaches],
  };
}

/** A table after a word that is followed by one, so that columns of the same name are none. */
async function patternOf(database: Database): Promise<RegExp> {
  const tables = await database.rows(
    unpreparedStatement<{ name: string }>(
      `select relname as name
       from pg_class
       where relrowsecurity and relnamespace = current_schema()::regnamespace and not relispartition`,
    ),
  );
  const names = tables.map(({ name }) => name).join('|');
  return new RegExp(`\\b(?:from|join|into|update|using|only) (?:${names})\\b`);
}

/** Without comments, on one line. */
export function bareTextOf(sql: string): string {
  return sql.replaceAll(/--.*$/gm, '').replaceAll(/\s+/g, ' ').trim();
}
