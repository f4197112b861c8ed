import type { RecipientStatus } from './schema.ts';

/**
 * Reports arrive late and out of order, so a report never lowers the rank of a status, except that `sent` can end
 * `delayed`. `bounced` and `failed` rank above `delivered`, because a server may take a message and return it
 * afterwards. `complained` replaces everything.
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
  // Nothing left, so that nothing is reported.
  cancelled: 8,
};

/** SQL for the rank of a status column; the names are those above, never text from outside. */
export function rankOf(column: string): string {
  const cases = Object.entries(statusRanks).map(([status, rank]) => `when '${status}' then ${rank}`);
  return `(case ${column} ${cases.join(' ')} end)`;
}

/**
 * What became of one recipient of a campaign: its status, or `pending` or `dropped` if it was never handed off.
 * Recipients that are `pending` or `delayed` are not done. `sent` means that nothing was heard after the hand-off, or
 * that it is not even known whether the hand-off took place.
 */
export type RecipientFate = RecipientStatus | 'pending' | 'dropped';

/** SQL for the fate, over the row of a recipient `r`. */
export const fateOfRecipient = `
  case
    when drop_reason is not null then 'dropped'
    when status not in ('sent', 'delayed') then status
    when uncertain or (status = 'sent' and handed_off_at is not null) then 'sent'
    when status = 'delayed' then 'delayed'
    else 'pending'
  end`;
