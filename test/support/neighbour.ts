/**
 * A hostile neighbour: an organization whose data clash with those of every test. For each row that another
 * organization inserts into a table of organizations, a twin of the neighbour's appears in the same statement: with
 * other ids, with the same addresses, numbers, names and keys, and with contrary facts: its contacts have opted out,
 * its properties are of another type, its mail has bounced. A statement that does not keep to its organization then
 * finds too much, or what it cannot read.
 *
 * The twins are made when a row is inserted and do not follow its changes. What the neighbour has is never due: the
 * workers serve every organization, and would deliver its mail among that of the tests.
 */
import { type Connection, unpreparedStatement } from '../../src/platform/postgres/database.ts';

/** Later than every id of a test, and so the first of a list that shows all organizations; of version 7. */
export const neighbourId = 'ffffffff-ffff-7fff-bfff-ffffffffffff';

/**
 * For each table of organizations, what is contrary in a twin: by the column, SQL over the row `i`. All other columns
 * are those of the row, its ids replaced. Or why there is no twin.
 */
const twins: Readonly<Record<string, Readonly<Record<string, string>> | { noTwin: string }>> = {
  alert_settings: { addresses: `array['alerts@neighbour.example']` },
  alert_watches: { due_at: `'2100-01-01'` },
  alerts: { waiting: '0', waiting_since: 'null', due_at: 'null', problem: 'null', last_told_at: 'now()' },
  api_keys: {
    key_sha256: 'sha256(i.key_sha256)',
    revoked_at: 'i.created_at',
  },
  attachment_contents: {},
  campaign_slices: {},
  campaigns: {
    status: `'cancelled'`,
    cancelled_at: 'i.created_at',
    scheduled_at: 'null',
    pause_reason: 'null',
    failure_reason: `'It is the neighbour''s.'`,
  },
  // A business account belongs to one organization; what is sealed for another id cannot be opened.
  chat_app_accounts: {
    business_account_id: `'9' || left(i.business_account_id, 31)`,
    callback_token: `md5(i.callback_token)`,
  },
  // Never due: the workers would submit them.
  chat_app_events: { noTwin: 'A queue: the workers would apply it.' },
  // Under the same numbers, and with the contrary said.
  chat_app_choices: { choice: `'stop'`, chosen_at: `'2100-01-01'` },
  chat_app_people: { address: `'+4915100000000'` },
  // Hardly anybody may be written to, and everybody was.
  chat_app_limits: { people_per_day_max: '1' },
  chat_app_reached_counts: { people: '1000000' },
  chat_app_reached_people: { period_before: 'i.period' },
  chat_templates: {
    category: `case i.category when 'marketing' then 'utility' else 'marketing' end`,
    status: `'rejected'`,
    rejection_reason: `'It is the neighbour''s.'`,
    reviewed_at: 'i.created_at',
    next_step: 'null',
    due_at: 'null',
  },
  consent_grants: { noTwin: 'Evidence that nothing reads but a command for one address.' },
  contact_changes: { noTwin: 'A queue: the workers would follow it.' },
  contact_erasures: { noTwin: 'A queue: the workers would erase it.' },
  contact_properties: {
    type: `case i.type when 'string' then 'number' when 'number' then 'string' when 'boolean' then 'date' else 'boolean' end`,
    name: `'The neighbour''s'`,
  },
  contact_sets: { description: `'The neighbour''s'` },
  contacts: {
    first_name: `'Neighbour'`,
    name_key: `'neighbour'`,
    // Under the same numbers, values that no other type can be made of.
    properties: `(select coalesce(jsonb_object_agg(key, 'of the neighbour'), '{}') from jsonb_object_keys(i.properties) key)`,
    unsubscribed_channels: `array(select unnest(array['email', 'sms', 'push', 'chatapp']) except select unnest(i.unsubscribed_channels))`,
  },
  // Worth another amount, of another message.
  conversion_sums: { conversions: '1000', value: '1000000' },
  conversions: { value: '1000000' },
  dead_device_tokens: { status: `case i.status when 'FAILED' then 'EXPIRED' else 'FAILED' end` },
  delivery_queue: { noTwin: 'A queue: the workers would deliver it.' },
  delivery_slices: { noTwin: 'A queue: the workers would deliver them.' },
  devices: {
    status: `'REVOKED'`,
    revoked_by: `'opt_out'`,
    opted_out: 'true',
    // Unique over all organizations.
    secret_sha256: 'sha256(i.secret_sha256)',
  },
  // It can be verified for one organization only.
  domains: { status: `'pending'`, verified_at: 'null', degraded_since: 'null', next_check_at: 'null' },
  erasures: { noTwin: 'A queue: the workers would erase it.' },
  event_definitions: {
    description: `'The neighbour''s'`,
    schema: `(select json_build_object('fields', coalesce(json_agg(json_build_object(
      'name', field ->> 'name',
      'type', case field ->> 'type' when 'string' then 'number' else 'string' end,
      'required', true
    )), '[]')) from json_array_elements(i.schema -> 'fields') field)`,
  },
  // Under the same fields, values that no other type can be made of.
  event_imports: {},
  events: {
    payload: `(select coalesce(jsonb_object_agg(key, 'of the neighbour'), '{}') from jsonb_object_keys(i.payload) key)`,
  },
  holds: {},
  idempotency_keys: { fingerprint: 'sha256(i.fingerprint)', response: `'{"id":"the neighbour''s"}'` },
  membership_counts: { noTwin: "The trigger that counts makes them of the neighbour's memberships." },
  memberships: {},
  message_contents: {},
  message_tags: {},
  pending_conversions: { noTwin: 'A queue: the workers would credit it.' },
  push_engagements: { clicked_at: 'now()', action_id: "'theirs'" },
  messages: { status: `'failed'`, sender: `'neighbour@neighbour.example'` },
  organizations: { noTwin: 'The neighbour is one.' },
  provider_ids: { noTwin: 'An id of a provider names one message of all organizations.' },
  // Sealed for another id: it cannot be opened.
  push_credentials: {},
  quota_usage: { used: '1000000000' },
  storage_usage: { bytes: '1000000000000' },
  recipient_changes: { noTwin: 'A queue: the workers would count it.' },
  recipient_counts: { handed_off: '1000', bounced: '1000', fates: `'{"bounced": 1000}'` },
  recipients: {
    status: `'bounced'`,
    drop_reason: 'null',
    handed_off_at: 'i.status_at',
    failure_type: `'hard'`,
    failure_class: `'invalid_recipient'`,
    diagnostic: `'550 of the neighbour'`,
    variables: 'null',
    provider_message_id: 'null',
  },
  reputation_counts: { sent: '1000', bounced: '1000', complained: '1000' },
  request_log: {
    message: `'Of the neighbour'`,
    api_key_name: `case when i.api_key_id is not null then 'Theirs' end`,
  },
  // Never computed: its conditions name sets that are not the neighbour's.
  segments: { status: `'ready'`, computed_at: 'null', compute_at: 'null' },
  // A number is approved for one organization only, and an answer to it goes to all that have it.
  senders: { status: `'rejected'`, approved_at: 'null' },
  suppressions: {
    // Each by another one, since an address has one of each; what only the last two can be stays among them.
    reason: `case i.reason when 'operator' then 'hard_bounce' when 'hard_bounce' then 'complaint'
      when 'complaint' then 'soft_bounces' when 'soft_bounces' then 'unreachable' when 'unreachable' then 'operator'
      when 'unsubscribe' then 'manual' else 'unsubscribe' end`,
    opted_out_at: `case when i.reason = 'manual' then i.created_at end`,
    expires_at: 'null',
  },
  templates: {
    subject: `'Of the neighbour'`,
    text: `case when i.text is not null then 'Of the neighbour' end`,
  },
  webhook_attempts: { answer: `'Of the neighbour'` },
  webhook_cursors: { next_position: '1', failing_since: 'null', next_try_at: 'null' },
  webhook_deliveries: { status: `'failed'`, due_at: 'null' },
  webhook_event_days: { first_position: '1' },
  webhook_events: { type: `'email.failed'`, facts: `'[{"drop_reason": "of the neighbour"}]'` },
  webhook_interests: {},
  webhook_outbox: { noTwin: 'A queue: the workers would number it.' },
  webhook_positions: { last_position: '1000000' },
  webhooks: { events: `array['email.failed']`, description: `'The neighbour''s'` },
};

/** Rows that get no twin, although others of their table do. */
const except: Readonly<Record<string, string>> = {
  // Texts that come in for a number go to every organization that has it.
  senders: `i.type = 'alphanumeric'`,
};

/**
 * What the neighbour has besides, by the table in which the rows `inserted` come: it has suppressed everybody, and all
 * tokens of devices are dead.
 */
const besides: Readonly<Record<string, string>> = {
  contacts: suppress(
    `select 'email' as channel, email_key as address from inserted union select 'sms', phone_number from inserted`,
  ),
  devices: `insert into dead_device_tokens (organization_id, platform, token_sha256, status, reason, created_at)
    select '${neighbourId}', platform, token_sha256, 'FAILED', 'of the neighbour', now()
    from inserted
    where token_sha256 is not null
    on conflict do nothing;`,
  recipients: suppress(
    `select case when address_key like '+%' then 'sms' else 'email' end as channel, address_key as address from inserted`,
  ),
};

function suppress(addresses: string): string {
  return `insert into suppressions
      (organization_id, id, channel, address_hash, address, reason, source_type, created_at)
    select '${neighbourId}', gen_random_uuid(), channel, sha256(convert_to(address, 'UTF8')), address, 'operator',
      'operator', now()
    from (${addresses}) given
    where address <> ''
    on conflict do nothing;`;
}

/** Gives a migrated database its neighbour. Throws if a table of organizations is not spoken of above. */
export async function plantNeighbour(connection: Connection): Promise<void> {
  const run = (text: string) => connection.rows(unpreparedStatement(text));
  await run(`insert into organizations (id, name, created_at, updated_at)
    values ('${neighbourId}', 'Neighbour', now(), now())`);
  // Of the same moment, so that it falls into the same month.
  await run(`create function twin_of(id uuid) returns uuid language sql immutable strict parallel safe
    as $$ select (left(id::text, 24) || translate(right(id::text, 12), '0123456789abcdef', 'fedcba9876543210'))::uuid $$`);
  await run(`create function twins_of(ids uuid[]) returns uuid[] language sql immutable strict parallel safe
    as $$ select coalesce(array_agg(twin_of(id) order by position), '{}') from unnest(ids) with ordinality as given (id, position) $$`);
  for (const { name, columns } of await listTables(connection)) {
    const contrary = twins[name];
    if (contrary === undefined) throw new Error(`neighbour.ts does not say what a twin in ${name} is`);
    if ('noTwin' in contrary) continue;
    const unknown = Object.keys(contrary).filter((column) => !columns.some((known) => known.name === column));
    if (unknown.length > 0) throw new Error(`${name} has no ${unknown.join(', ')}`);
    const values = columns.map(({ name: column, type }) => contrary[column] ?? valueOfTwin(column, type));
    await run(`create function plant_twins_in_${name}() returns trigger language plpgsql security definer
      set search_path = public, pg_temp
      as $twin$
      begin
        if exists (select from inserted where organization_id <> '${neighbourId}') then
          insert into ${name} (${columns.map((column) => column.name).join(', ')})
          select ${values.join(', ')}
          from inserted i
          where i.organization_id <> '${neighbourId}' and ${except[name] ?? 'true'}
          on conflict do nothing;
          ${besides[name] ?? ''}
        end if;
        return null;
      end
      $twin$`);
    await run(`create trigger plant_twins after insert on ${name}
      referencing new table as inserted
      for each statement execute function plant_twins_in_${name}()`);
  }
}

function valueOfTwin(column: string, type: string): string {
  if (column === 'organization_id') return `'${neighbourId}'`;
  if (type === 'uuid') return `twin_of(i.${column})`;
  return type === 'uuid[]' ? `twins_of(i.${column})` : `i.${column}`;
}

async function listTables(
  connection: Connection,
): Promise<{ name: string; columns: { name: string; type: string }[] }[]> {
  return connection.rows(
    unpreparedStatement<{ name: string; columns: { name: string; type: string }[] }>(
      `select c.relname as name,
         json_agg(json_build_object('name', a.attname, 'type', format_type(a.atttypid, null)) order by a.attnum) as columns
       from pg_class c
       join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
       where c.relrowsecurity and not c.relispartition and c.relnamespace = current_schema()::regnamespace
       group by c.relname
       order by c.relname`,
    ),
  );
}
