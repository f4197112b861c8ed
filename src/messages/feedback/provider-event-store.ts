import type { SendingChannel } from '../../channels/channel.ts';
import type { ProviderReport } from '../../channels/report.ts';
import { isUuid } from '../../platform/ids.ts';
import { type Connection, statement } from '../../platform/postgres/database.ts';
import { isNotDeleted } from '../../platform/postgres/deleted-organizations.ts';
import { dueInTurns } from '../../platform/queue/turns.ts';

/** A report that is not applied yet. */
export type ProviderEvent = {
  id: string;
  channel: SendingChannel;
  /** By its name in the registry. */
  provider: string;
  report: ProviderReport;
  /** Whose messages it may speak of; null where the installation has one account at the provider. */
  organizationId: string | null;
  /** For `keepFindings`; null for nothing. */
  finding: unknown;
  attempts: number;
};

export type DueProviderEvent = ProviderEvent & { dueAt: Date };

/** An account at the provider may be that of all organizations: whose message it is says whose turn the report is. */
const insertAll = statement(
  'provider_events_insert',
  `insert into provider_events
     (id, channel, provider, report, due_at, attempts, of_organization, finding, turn_of)
   select id, channel, provider, report::json, due_at, attempts, of_organization, finding::json,
     coalesce(
       of_organization,
       referred_to,
       (
         select p.organization_id
         from provider_ids p
         where p.channel = told.channel and p.provider_message_id = told.provider_message_id
         order by p.created_at desc
         limit 1
       ),
       '00000000-0000-0000-0000-000000000000'
     )
   from unnest(
     $1::uuid[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::smallint[], $7::uuid[], $8::text[],
     $9::uuid[], $10::text[]
   ) as told (
     id, channel, provider, report, due_at, attempts, of_organization, finding, referred_to, provider_message_id
   )`,
);

export async function insertProviderEvents(
  connection: Connection,
  events: readonly DueProviderEvent[],
): Promise<void> {
  if (events.length === 0) return;
  await connection.rows(insertAll, [
    events.map(({ id }) => id),
    events.map(({ channel }) => channel),
    events.map(({ provider }) => provider),
    events.map(({ report }) => JSON.stringify(report)),
    events.map(({ dueAt }) => dueAt),
    events.map(({ attempts }) => attempts),
    events.map(({ organizationId }) => organizationId),
    events.map(({ finding }) => (finding === null ? null : JSON.stringify(finding))),
    events.map(({ report: { reference } }) =>
      reference !== null && isUuid(reference.organizationId) ? reference.organizationId : null,
    ),
    events.map(({ report }) => report.providerMessageId),
  ]);
}

/** By the index provider_events_turns. Other nodes take others at the same time. */
const takeAll = statement<ProviderEvent>(
  'provider_events_take',
  `with recursive ${dueInTurns({
    table: 'provider_events',
    of: 'turn_of',
    columns: ['id'],
    order: ['due_at', 'id'],
    among: 'channel = $3',
    due: 'due_at <= $1',
    limit: '$2',
  })}, taken as (
     delete from provider_events e
     using due
     where e.id = due.id
     returning e.*
   )
   select id, channel, provider, report, attempts, of_organization as "organizationId", finding
   from taken
   order by id`,
);

/** Takes due events of a channel, in turns of those whose they are. Those that are not applied must be put back. */
export async function takeDueProviderEvents(
  connection: Connection,
  channel: SendingChannel,
  at: Date,
  eventsMax: number,
): Promise<ProviderEvent[]> {
  return connection.rows(takeAll, [at, eventsMax, channel]);
}

const countPutBack = statement<{ count: number }>(
  'provider_events_count_put_back',
  `select count(*)::integer as count
   from (
     select
     from provider_events
     where of_organization = $1 and attempts > 0
     limit $2
   ) put_back`,
);

/**
 * How many events that may speak of this organization alone were put back, counting no further than `countMax`. By the
 * index provider_events_put_back.
 */
export async function countPutBackEvents(
  connection: Connection,
  organizationId: string,
  countMax: number,
): Promise<number> {
  const [row] = await connection.rows(countPutBack, [organizationId, countMax]);
  return row?.count ?? 0;
}

const selectNext = statement<{ due_at: Date }>(
  'provider_events_next',
  `select due_at
   from unnest($1::text[]) as known (channel)
   cross join lateral (
     select due_at
     from provider_events e
     where e.channel = known.channel and ${isNotDeleted('e.turn_of')}
     order by due_at
     limit 1
   ) first
   order by due_at
   limit 1`,
);

/** When the next event of these channels is due. Newer nodes may store events of others. */
export async function findNextProviderEventAt(
  connection: Connection,
  channels: readonly SendingChannel[],
): Promise<Date | null> {
  const [row] = await connection.rows(selectNext, [channels]);
  return row?.due_at ?? null;
}
