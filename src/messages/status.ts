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
 * SQL for an email's status, over the rows of its recipients `r`. An address given twice counts once; one that was
 * dropped counts as failed.
 */
export const emailStatusOfRecipients = `
  case
    when bool_and(r.drop_reason is not null or r.status in ('bounced', 'failed'))
      filter (where r.drop_reason is distinct from 'duplicate') then 'failed'
    when bool_and(r.drop_reason is null and r.status in ('delivered', 'opened', 'clicked', 'complained', 'unsubscribed'))
      filter (where r.drop_reason is distinct from 'duplicate') then 'delivered'
    when bool_or(r.status in ('delivered', 'opened', 'clicked', 'complained', 'unsubscribed'))
      and bool_or(r.drop_reason is distinct from 'duplicate'
        and (r.drop_reason is not null or r.status in ('bounced', 'failed'))) then 'partially_delivered'
    when bool_or(r.handed_off_at is not null) then 'sent'
    else 'queued'
  end`;

/** SQL for a text's status, over the row of its one recipient `r`. */
export const smsStatusOfRecipients = `
  min(case
    when r.drop_reason is not null then 'failed'
    when r.status = 'bounced' then 'undelivered'
    when r.status = 'failed' and r.failure_class = 'expired' then 'expired'
    when r.status in ('delivered', 'failed') then r.status
    when r.uncertain or r.status = 'delayed' then 'sending'
    when r.handed_off_at is not null then 'sent'
    else 'queued'
  end)`;

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
