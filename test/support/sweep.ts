/**
 * What must be true at the end of every test: nothing that was held, claimed, announced or taken is left, and counts
 * are what a recount gives. Every server of a test is swept when it has stopped (server.ts), and the test
 * fails over what is found.
 */
import { type Connection, unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { workerLockClass } from '../../src/platform/queue/lease.ts';
import { neighbourId } from './neighbour.ts';

/** The neighbour's rows are twins that no worker processes. */
const isSwept = (table: string) => `${table}.organization_id <> '${neighbourId}'`;

/** Each violation, and the SQL that finds it, as text. */
const violations = {
  campaignHolds: {
    what: 'a hold of a campaign that is over, or that is not there',
    found: `
      select h::text from holds h
      where ${isSwept('h')} and h.holder_kind = 'campaign' and not exists (
        select from campaigns c
        where c.organization_id = h.organization_id and c.id = h.holder_id and c.deleted_at is null
          and c.status not in ('sent', 'failed', 'cancelled')
      )`,
  },
  segmentHolds: {
    what: 'a hold of a segment that is not there',
    found: `
      select h::text from holds h
      where ${isSwept('h')} and h.holder_kind = 'segment' and not exists (
        select from contact_sets s
        where s.organization_id = h.organization_id and s.id = h.holder_id and s.deleted_at is null
      )`,
  },
  events: {
    what: 'an event of a contact that is not there, and is not to be erased',
    found: `
      select e.id::text from events e
      where ${isSwept('e')}
        and not exists (select from contacts c where c.organization_id = e.organization_id and c.id = e.contact_id)
        and not exists (
          select from contact_erasures x
          where x.organization_id = e.organization_id and x.contact_id = e.contact_id
        )`,
  },
  pendingConversions: {
    what: 'a conversion that is pending although it was credited, or although its event is not there',
    found: `
      select p.id::text from pending_conversions p
      where exists (select from conversions v where v.organization_id = p.organization_id and v.id = p.id)
        or exists (select from contacts c where c.organization_id = p.organization_id and c.id = p.contact_id)
          and not exists (
            select from events e
            where e.organization_id = p.organization_id and e.contact_id = p.contact_id and e.id = p.id
          )`,
  },
  conversionSums: {
    what: 'a sum of conversions that is not what a recount gives',
    found: `
      select organization_id || ' ' || grouped_by || ' ' || group_id || ' ' || currency
      from (
        select organization_id, definition_number, grouped_by, group_id, currency, conversions, value
        from conversion_sums s
        where ${isSwept('s')}
      ) summed
      full join (
        select organization_id, definition_number, grouped_by,
          coalesce(group_id, '00000000-0000-0000-0000-000000000000') as group_id, coalesce(currency, '') as currency,
          count(*) as conversions, sum(value) as value
        from conversions v
        cross join lateral (
          values ('campaign_id', campaign_id), ('message_id', message_id),
            ('category', (select max(s.group_id::text)::uuid from conversion_sums s where s.organization_id = v.organization_id and s.category = v.category))
        ) as grouped (grouped_by, group_id)
        where ${isSwept('v')}
        group by 1, 2, 3, 4, 5
      ) recounted using (organization_id, definition_number, grouped_by, group_id, currency)
      where (summed.conversions, summed.value) is distinct from (recounted.conversions, recounted.value)`,
  },
  logPositions: {
    what: 'an event of the log whose position is not the next one',
    found: `
      select organization_id || ' ' || position
      from (
        select e.organization_id, e.position,
          lag(e.position + e.events) over (partition by e.organization_id order by e.position) as expected
        from webhook_events e
        where ${isSwept('e')}
      ) numbered
      where position <> expected`,
  },
  logEnds: {
    what: 'an end of a log that is not behind its last event',
    found: `
      select p::text from webhook_positions p
      where ${isSwept('p')} and p.last_position <> (
        select max(e.position + e.events - 1) from webhook_events e where e.organization_id = p.organization_id
      )`,
  },
  nextTries: {
    what: 'an endpoint that is not tried when the first of what it did not take is due, or is tried for nothing',
    found: `
      select c::text
      from webhook_cursors c
      join webhooks w on w.organization_id = c.organization_id and w.id = c.webhook_id
      where ${isSwept('c')} and case
        when w.status <> 'enabled' then c.next_try_at is not null
        when c.failing_since is not null then c.next_try_at is null
        else c.next_try_at is distinct from (
          select min(d.due_at)
          from webhook_deliveries d
          where d.organization_id = c.organization_id and d.webhook_id = c.webhook_id
        )
      end`,
  },
  interests: {
    what: 'an interest that no webhook has, nor alerts',
    found: `
      select i::text from webhook_interests i
      where ${isSwept('i')} and (i.reader = 'webhooks' or not exists (
        select from alert_settings a where a.organization_id = i.organization_id
      )) and not exists (
        select from webhooks w
        where i.reader = 'webhooks' and w.organization_id = i.organization_id and (
          (i.type_pattern = any (w.events) and (not i.of_campaigns or w.campaign_events = 'all'))
            or (i.of_campaigns and i.type_pattern = 'campaign.progress' and w.campaign_events = 'summary')
        )
      )`,
  },
  claims: {
    what: 'a claim of a worker that is no more',
    found: `
      select q::text from delivery_queue q
      where ${isSwept('q')} and q.claimed_by is not null and q.claimed_by not in (select epoch from workers)`,
  },
  sliceClaims: {
    what: 'a slice of a worker that is no more',
    found: `
      select s::text from delivery_slices s
      where ${isSwept('s')} and s.claimed_by is not null and s.claimed_by not in (select epoch from workers)`,
  },
  announcements: {
    what: 'an announcement of a worker that is no more',
    found: 'select h::text from hand_offs h where h.epoch not in (select epoch from workers)',
  },
  leases: {
    // Its lock is its sign of life (src/platform/queue/lease.ts).
    what: 'a lease of a worker that is no more',
    found: `
      select w::text from workers w
      where not exists (
        select from pg_locks
        where locktype = 'advisory' and classid = ${workerLockClass} and objid = w.epoch and granted
          and database = (select oid from pg_database where datname = current_database())
      )`,
  },
  attachments: {
    what: 'an attachment of a message of which nothing is in the queue',
    found: `
      select a.organization_id || ' ' || a.message_id from attachment_contents a
      where ${isSwept('a')} and not exists (
        select from delivery_queue q where q.organization_id = a.organization_id and q.message_id = a.message_id
      )`,
  },
  memberCounts: {
    what: 'a count of members that is not what a recount gives',
    found: `
      select set_id || ' ' || coalesce(counted.contacts, 0) || ' instead of ' || coalesce(recounted.contacts, 0)
      from (select organization_id, set_id, sum(contacts) as contacts from membership_counts group by 1, 2) counted
      full join (select organization_id, set_id, count(*) as contacts from memberships group by 1, 2) recounted
        using (organization_id, set_id)
      where organization_id <> '${neighbourId}'
        and coalesce(counted.contacts, 0) <> coalesce(recounted.contacts, 0)`,
  },
  // What is to be counted again stands in recipient_changes: of a message that it names, nothing is sure yet.
  recipientCounts: {
    what: "a count of a campaign's recipients that is not what a recount gives",
    found: `
      select n::text
      from recipient_counts n
      join campaigns c on c.organization_id = n.organization_id and c.message_id = n.message_id
      cross join lateral (
        select count(r.handed_off_at) as handed_off,
          count(*) filter (where r.drop_reason is not null) as dropped,
          count(*) filter (where r.status = 'bounced') as bounced,
          count(*) filter (where r.status = 'failed') as failed,
          count(*) filter (where r.status = 'complained') as complained,
          count(*) filter (where r.status = 'unsubscribed') as unsubscribed,
          count(r.opened_at) as opened,
          count(r.clicked_at) as clicked, count(*) as recipients
        from recipients r
        where r.organization_id = n.organization_id and r.message_id = n.message_id and r.ordinal / 1000 = n.slice
      ) recounted
      where ${isSwept('n')}
        -- Counts outlive recipients that are too old to be kept.
        and recounted.recipients > 0
        and (n.handed_off, n.dropped, n.bounced, n.failed, n.complained, n.unsubscribed, n.opened, n.clicked)
          <> (recounted.handed_off, recounted.dropped, recounted.bounced, recounted.failed, recounted.complained,
              recounted.unsubscribed, recounted.opened, recounted.clicked)
        and not exists (
          select from recipient_changes x where x.organization_id = n.organization_id and x.message_id = n.message_id
        )`,
  },
  reachedPeople: {
    what: 'a count of people on a chat app that is less than those who are counted',
    found: `
      select p.organization_id || ' ' || p.period
      from chat_app_reached_people p
      left join chat_app_reached_counts c on c.organization_id = p.organization_id and c.period = p.period
      where ${isSwept('p')}
      group by p.organization_id, p.period, c.people
      having coalesce(c.people, 0) < count(*)`,
  },
  uncountedRecipients: {
    what: 'a recipient of a campaign who was written to and is not counted',
    found: `
      select r.message_id || ' ' || r.ordinal
      from campaigns c
      join recipients r on r.organization_id = c.organization_id and r.message_id = c.message_id
      where ${isSwept('r')} and r.handed_off_at is not null
        and not exists (
          select from recipient_counts n
          where n.organization_id = r.organization_id and n.message_id = r.message_id and n.slice = r.ordinal / 1000
        )
        and not exists (
          select from recipient_changes x where x.organization_id = r.organization_id and x.message_id = r.message_id
        )`,
  },
} satisfies Record<string, { what: string; found: string }>;

export type Violation = keyof typeof violations;

/**
 * What a test has made by itself, such as the claim of a worker that it did not start: all of a kind, or the rows of
 * that kind in which an id stands.
 */
export type MadeByHand = Violation | { violation: Violation; id: string };

/** More than a test makes by hand of a kind, so that those do not hide others. */
const foundMax = 100;
const toldMax = 3;

/** In one statement, since it is run after each server. */
const sweeping = Object.entries(violations)
  .map(
    ([name, { found }]) =>
      `(select '${name}' as name, example from (${found}) found (example) limit ${foundMax})`,
  )
  .join('\nunion all\n');

/** A sentence for each thing that must not be, up to three of a kind, but for what was `madeByHand`. */
export async function sweepDatabase(
  connection: Connection,
  madeByHand: readonly MadeByHand[] = [],
): Promise<string[]> {
  const rows = await connection.rows(unpreparedStatement<{ name: Violation; example: string }>(sweeping));
  const told = new Map<Violation, number>();
  return rows.flatMap(({ name, example }) => {
    const count = told.get(name) ?? 0;
    if (count === toldMax || madeByHand.some((made) => isMadeByHand(made, name, example))) return [];
    told.set(name, count + 1);
    return [`${violations[name].what} (${name}): ${example}`];
  });
}

function isMadeByHand(made: MadeByHand, violation: Violation, example: string): boolean {
  if (typeof made === 'string') return made === violation;
  return made.violation === violation && example.includes(made.id);
}

/** A sentence for each limit of which something is still held, or was given back twice. */
export function findHeld(held: Readonly<Record<string, number>>): string[] {
  return Object.entries(held)
    .filter(([, amount]) => amount !== 0)
    .map(([limit, amount]) => `of ${limit} there are ${amount} held when all is over`);
}
