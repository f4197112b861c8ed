import { toPredicate } from '../../platform/postgres/predicate.ts';
import { rankOf } from '../status.ts';

/** The provider has taken the message after a delay: `sent` ranks below `delayed`, but follows it here. */
const isTakenAtLast = toPredicate(`s.status = 'sent' and r.status = 'delayed'`);

const isRaised = toPredicate(`${rankOf('s.status')} > ${rankOf('r.status')} or ${isTakenAtLast}`);

/**
 * A report has set a status of a higher rank in the meantime, which stays, or the hand-off was cut off and says
 * nothing.
 */
const isOvertaken = toPredicate(
  `s.status is null or (${rankOf('s.status')} < ${rankOf('r.status')} and not ${isTakenAtLast})`,
);

const failureColumns = [
  'failure_type',
  'failure_class',
  'smtp_code',
  'enhanced_code',
  'diagnostic',
  'remote',
] as const;

/**
 * SQL: what the outcome `s` of a hand-off sets of its recipient `r`, whichever statement writes it. `failure` is SQL for
 * a column of its failure, and null of outcomes that are none: of most recipients nothing has failed before, and nothing
 * is compared for them.
 */
export function columnsOfOutcome(at: string, failure: ((column: string) => string) | null): string {
  const setFailure = (column: string) =>
    failure === null
      ? `case when r.${column} is not null and ${isOvertaken} then r.${column} end`
      : `case when ${isOvertaken} then r.${column} else ${failure(column)} end`;
  return `status = case when ${isRaised} then s.status else r.status end,
     status_at = case when ${isRaised} then ${at} else r.status_at end,
     provider_message_id = coalesce(s.provider_message_id, r.provider_message_id),
     ${failureColumns.map((column) => `${column} = ${setFailure(column)}`).join(',\n     ')}`;
}
