import type { Connection } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { defineStatement } from '../../platform/postgres/parameters.ts';
import { toPredicate } from '../../platform/postgres/predicate.ts';
import { columnsOfKey, type RecipientKey, recipientKey, textOfKey, toKey } from '../keys.ts';
import type { RecipientStatus } from '../schema.ts';
import { rankOf } from '../status.ts';
import {
  type ChangedRecipient,
  type ChangedRow,
  columnsOfFailure,
  type Failure,
  type Happened,
  toChanged,
} from './store.ts';

export type ReportedChange = {
  job: RecipientKey;
  status: RecipientStatus;
  failure: Failure | null;
};

/** `status` is the one that it has now. */
type ReportedRow = ChangedRow & { status: RecipientStatus };

type Reported = { reports: readonly ReportedChange[]; at: Date; isDeliveryFinal: boolean };

const applyReports = defineStatement<Reported, ReportedRow>('recipients_apply_reports', ({ value, rows }) => {
  const reports = rows(({ reports: each }: Reported) => each, {
    ...columnsOfKey(({ job }: ReportedChange) => job),
    status: ['text', ({ status }) => status],
    ...columnsOfFailure(({ failure }: ReportedChange) => failure),
  });
  const at = value((reported) => reported.at);
  const isDeliveryFinal = toPredicate(`${value((reported) => reported.isDeliveryFinal)}::boolean`);
  return `update recipients r
   set
     status = case when report.status = 'sent' and r.status <> 'delayed' then r.status else report.status end,
     status_at = case when report.status = 'sent' and r.status <> 'delayed' then r.status_at else ${at} end,
     -- A delay does not tell whether a hand-off that was cut off took place.
     uncertain = r.uncertain and report.status = 'delayed',
     -- A report may arrive before the outcome of its hand-off is written.
     handed_off_at = coalesce(r.handed_off_at, ${at}),
     delivered_at = case
       when report.status in ('delivered', 'opened', 'clicked') then coalesce(r.delivered_at, ${at})
       else r.delivered_at
     end,
     opened_at = case when report.status in ('opened', 'clicked') then coalesce(r.opened_at, ${at}) else r.opened_at end,
     clicked_at = case when report.status = 'clicked' then coalesce(r.clicked_at, ${at}) else r.clicked_at end,
     failure_type = coalesce(report.failure_type, r.failure_type),
     failure_class = coalesce(report.failure_class, r.failure_class),
     smtp_code = coalesce(report.smtp_code, r.smtp_code),
     enhanced_code = coalesce(report.enhanced_code, r.enhanced_code),
     -- Remote servers often repeat the address, which may have been erased here.
     diagnostic = case when r.address <> '' then coalesce(report.diagnostic, r.diagnostic) end,
     remote = case when r.address <> '' then coalesce(report.remote, r.remote) end
   from ${reports('report')}
   where ${hasKeyOf('r', 'report', recipientKey)}
     and r.drop_reason is null
     and (
       (
         ${rankOf('report.status')} > ${rankOf('r.status')}
         and not (${isDeliveryFinal} and report.status = 'failed' and r.status = 'delivered')
       )
       or (${isDeliveryFinal} and report.status = 'delivered' and r.status = 'failed')
       -- "sent" says that a hand-off took place that was uncertain, or whose outcome is not written yet.
       or (report.status = 'sent' and r.status in ('sent', 'delayed') and (r.uncertain or r.handed_off_at is null))
     )
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key, r.status`;
});

/**
 * Applies reports to recipients and returns those that changed. Dropped recipients do not change. `isDeliveryFinal`: what
 * was delivered has not failed, whichever is reported first.
 */
export async function raiseStatuses(
  connection: Connection,
  reports: readonly ReportedChange[],
  { at, isDeliveryFinal = false }: { at: Date; isDeliveryFinal?: boolean },
): Promise<ChangedRecipient[]> {
  const { statement, values } = applyReports.bind({ reports, at, isDeliveryFinal });
  const rows = await connection.rows(statement, values);
  const reportOf = new Map(reports.map((report) => [textOfKey(report.job), report]));
  return rows.map((row) => toChanged(row, happenedBy(reportOf.get(textOfKey(toKey(row))), row.status, at)));
}

/** A report of a lower rank changes what else is known of a recipient: nothing that is told. */
function happenedBy(
  report: ReportedChange | undefined,
  status: RecipientStatus,
  at: Date,
): readonly Happened[] {
  if (report === undefined || (report.status !== status && report.status !== 'sent')) return [];
  return [{ what: report.status, at, failure: report.failure }];
}
