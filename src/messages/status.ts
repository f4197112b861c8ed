import { type Statement, statement } from '../platform/postgres/database.ts';
import { hasKeyOf } from '../platform/postgres/lookup.ts';
import type { RecipientStatus } from './schema.ts';

/**
 * Reports arrive late and out of order, so that a status never goes down in rank. `bounced` and `failed` stand above
 * `delivered`, because a server may take a message and return it afterwards; `complained` replaces everything.
 */
export const statusRanks: Readonly<Record<RecipientStatus, number>> = {
  sent: 0,
  delayed: 1,
  delivered: 2,
  bounced: 3,
  failed: 3,
  opened: 4,
  clicked: 5,
  unsubscribed: 6,
  complained: 7,
};

/** SQL for the rank of a status column; the names are those above, never text from outside. */
export function rankOf(column: string): string {
  const cases = Object.entries(statusRanks).map(([status, rank]) => `when '${status}' then ${rank}`);
  return `(case ${column} ${cases.join(' ')} end)`;
}

/**
 * The statement that brings the status of messages of a channel up to date. `statusOfRecipients` is SQL over the rows
 * of a message's recipients `r`, as an aggregate. Parameters: organizations, messages, the time.
 */
export function defineMessageStatus(channel: string, statusOfRecipients: string): Statement<unknown> {
  return statement(
    `messages_refresh_status_${channel}`,
    `update messages m
     set status = fresh.status, updated_at = $3
     from (
       select changed.organization_id, changed.message_id, of_recipients.status
       from unnest($1::uuid[], $2::uuid[]) as changed (organization_id, message_id)
       -- A limit keeps each of these a search by key, one for each message, whatever the planner takes the tables for.
       cross join lateral (
         select
         from messages of_class
         where ${hasKeyOf('of_class', 'changed', [['id', 'message_id']])}
           -- "= 'transactional'" would allow the index on their status, which is not made for this.
           and of_class.class <> 'campaign'
         limit 1
       ) of_class
       cross join lateral (
         select ${statusOfRecipients} as status
         from recipients r
         where ${hasKeyOf('r', 'changed', ['message_id'])}
         having count(*) > 0
       ) of_recipients
     ) fresh
     where ${hasKeyOf('m', 'fresh', [['id', 'message_id']])}`,
  );
}

/**
 * What became of one recipient of a campaign: its status, or why there is none. Whoever is `pending` or `delayed` is
 * not done; `sent` are those of whom nothing is known after the hand-off, or not even whether that took place.
 */
export type RecipientFate = RecipientStatus | 'pending' | 'dropped';

/** SQL for that, of the row of a recipient. */
export const fateOfRecipient = `
  case
    when drop_reason is not null then 'dropped'
    when status not in ('sent', 'delayed') then status
    when uncertain or (status = 'sent' and handed_off_at is not null) then 'sent'
    when status = 'delayed' then 'delayed'
    else 'pending'
  end`;
