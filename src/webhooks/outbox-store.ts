import type { Connection } from '../platform/postgres/database.ts';
import { defineStatement } from '../platform/postgres/parameters.ts';
import { type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { notificationChannelOf } from '../platform/queue/wake.ts';
import { type EventType, patternsOf, progressType } from './event-types.ts';

/** Something that has happened, of which programs may be told. */
export type HappenedEvent = {
  organizationId: string;
  type: EventType;
  at: Date;
  /** Whether it is about a recipient of a campaign, or what was counted of its recipients. */
  ofCampaign: boolean;
  /** What it happened to: for a recipient, its message. */
  subjectId: string;
  /** Of a recipient; null of what is none. */
  ordinal: number | null;
  /** What is told besides what is read of the subject when it is told. Nothing of it may be personal: it stays as it is. */
  facts: object | null;
};

/**
 * SQL: whether a program of the organization wants to hear of events of this type. All are parameters, or columns with the
 * names of their tables. A type that is null is none.
 */
export function isEventWanted(organizationId: string, type: string, ofCampaign: string): Predicate {
  return toPredicate(
    `${type} is not null and exists (
       select
       from webhook_interests i
       where i.organization_id = ${organizationId} and i.of_campaigns = ${ofCampaign}
         and i.type_pattern in (${patternsOf(type)})
     )`,
  );
}

/** SQL: whether a program of the organization wants to be told what is counted of campaigns under way. */
export function isProgressWanted(organizationId: string): Predicate {
  return toPredicate(
    `exists (
       select
       from webhook_interests i
       where i.organization_id = ${organizationId} and i.of_campaigns and i.type_pattern = '${progressType}'
     )`,
  );
}

/**
 * SQL that inserts rows into the outbox; for `logged` of `wakeNumbering`. Whoever serves requests may not read them, so that
 * it returns nothing of them. `select` gives the columns `organization_id`, `type`, `happened_at`, `of_campaign`,
 * `subject_ids`, `ordinals` and `facts`.
 */
export function insertIntoOutbox(select: string): string {
  return `insert into webhook_outbox (organization_id, type, happened_at, of_campaign, subject_ids, ordinals, facts)
     ${select}`;
}

/**
 * SQL that wakes the numbering at the commit, once, if there is a row in `logged`. Whoever makes something happen need not
 * know whether anybody wants to hear of it.
 */
export function wakeNumbering(logged: string): string {
  return `select pg_notify('${notificationChannelOf('webhook_outbox')}', '') from ${logged} limit 1`;
}

const insertEvents = defineStatement<readonly HappenedEvent[]>('webhook_outbox_insert', ({ rows }) => {
  const events = rows((given) => given, {
    organization_id: ['uuid', ({ organizationId }) => organizationId],
    type: ['text', ({ type }) => type],
    happened_at: ['timestamptz', ({ at }) => at],
    of_campaign: ['boolean', ({ ofCampaign }) => ofCampaign],
    subject_id: ['uuid', ({ subjectId }) => subjectId],
    ordinal: ['integer', ({ ordinal }) => ordinal],
    facts: ['json', ({ facts }) => facts && JSON.stringify(facts)],
  });
  return `with logged as (
       ${insertIntoOutbox(
         `select organization_id, type, happened_at, of_campaign, array_agg(subject_id order by place),
         case when count(ordinal) > 0 then array_agg(ordinal order by place) end,
         case when count(facts) > 0 then json_agg(facts order by place) end
       from ${events('given', { numbered: 'place' })}
       where ${isEventWanted('given.organization_id', 'given.type', 'given.of_campaign')}
       group by organization_id, type, happened_at, of_campaign
       order by organization_id, min(place)`,
       )}
       returning true as is_logged
     )
     ${wakeNumbering('logged')}`;
});

/** Puts those of them that are wanted into the outbox, in the transaction in which they happen. */
export async function logEvents(connection: Connection, events: readonly HappenedEvent[]): Promise<void> {
  if (events.length === 0) return;
  const { statement, values } = insertEvents.bind(events);
  await connection.rows(statement, values);
}

/** What has happened to many things of an organization at once: an event for each of them, all in one row. */
export type HappenedTogether = {
  organizationId: string;
  type: EventType;
  at: Date;
  subjectIds: readonly string[];
  /** As those of `HappenedEvent`: an item for each of them, or one if it is the same for all. */
  facts: readonly (object | null)[] | null;
};

/** An import has thousands of ids, and most organizations want to hear of none: they are sent as one text. */
const insertTogether = defineStatement<readonly HappenedTogether[]>(
  'webhook_outbox_insert_together',
  ({ rows }) => {
    const happened = rows((given) => given, {
      organization_id: ['uuid', ({ organizationId }) => organizationId],
      type: ['text', ({ type }) => type],
      happened_at: ['timestamptz', ({ at }) => at],
      subject_ids: ['text', ({ subjectIds }) => `{${subjectIds.join(',')}}`],
      facts: ['json', ({ facts }) => facts && JSON.stringify(facts)],
    });
    return `with logged as (
       ${insertIntoOutbox(
         `select organization_id, type, happened_at, false, subject_ids::uuid[], null, facts
       from ${happened('given', { numbered: 'place' })}
       where ${isEventWanted('given.organization_id', 'given.type', 'false')}
       order by place`,
       )}
       returning true as is_logged
     )
     ${wakeNumbering('logged')}`;
  },
);

/** As `logEvents`, of what concerns no message. What happened to nothing is left out. */
export async function logTogether(
  connection: Connection,
  happened: readonly HappenedTogether[],
): Promise<void> {
  const events = happened.filter(({ subjectIds }) => subjectIds.length > 0);
  if (events.length === 0) return;
  const { statement, values } = insertTogether.bind(events);
  await connection.rows(statement, values);
}
