import { type Connection, statement } from '../../platform/postgres/database.ts';
import { hasKeyOf } from '../../platform/postgres/lookup.ts';
import { keyColumns, type RecipientKey, recipientKey } from '../keys.ts';
import type { RecipientStatus } from '../schema.ts';
import { rankOf } from '../status.ts';
import { type ChangedRecipient, type ChangedRow, type Failure, toChanged } from './store.ts';

export type ReportedChange = {
  job: RecipientKey;
  status: RecipientStatus;
  failure: Failure | null;
};

const applyReports = statement<ChangedRow>(
  'recipients_apply_reports',
  `update recipients r
   set
     status = case when report.status = 'sent' and r.status <> 'delayed' then r.status else report.status end,
     status_at = case when report.status = 'sent' and r.status <> 'delayed' then r.status_at else $4 end,
     -- A delay does not tell whether a hand-off that was cut off took place.
     uncertain = r.uncertain and report.status = 'delayed',
     -- A report may arrive before the outcome of its hand-off is written.
     handed_off_at = coalesce(r.handed_off_at, $4),
     delivered_at = case
       when report.status in ('delivered', 'opened', 'clicked') then coalesce(r.delivered_at, $4)
       else r.delivered_at
     end,
     opened_at = case when report.status in ('opened', 'clicked') then coalesce(r.opened_at, $4) else r.opened_at end,
     clicked_at = case when report.status = 'clicked' then coalesce(r.clicked_at, $4) else r.clicked_at end,
     failure_type = coalesce(report.failure_type, r.failure_type),
     failure_class = coalesce(report.failure_class, r.failure_class),
     smtp_code = coalesce(report.smtp_code, r.smtp_code),
     enhanced_code = coalesce(report.enhanced_code, r.enhanced_code),
     -- Remote servers often repeat the address, which may have been erased here.
     diagnostic = case when r.address <> '' then coalesce(report.diagnostic, r.diagnostic) end,
     remote = case when r.address <> '' then coalesce(report.remote, r.remote) end
   from unnest(
     $1::uuid[], $2::uuid[], $3::integer[], $5::text[], $6::text[], $7::text[], $8::smallint[], $9::text[],
     $10::text[], $11::text[]
   ) as report (
     organization_id, message_id, ordinal, status, failure_type, failure_class, smtp_code, enhanced_code,
     diagnostic, remote
   )
   where ${hasKeyOf('r', 'report', recipientKey)}
     and r.drop_reason is null
     and (
       (
         ${rankOf('report.status')} > ${rankOf('r.status')}
         and not ($12::boolean and report.status = 'failed' and r.status = 'delivered')
       )
       or ($12::boolean and report.status = 'delivered' and r.status = 'failed')
       -- "sent" says that a hand-off took place that was uncertain, or whose outcome is not written yet.
       or (report.status = 'sent' and r.status in ('sent', 'delayed') and (r.uncertain or r.handed_off_at is null))
     )
   returning r.organization_id, r.message_id, r.ordinal, r.contact_id, r.address_key`,
);

/**
 * Applies reports to recipients and returns those that changed. Dropped recipients do not change. `isDeliveryFinal`: what
 * was delivered has not failed, whichever is reported first.
 */
export async function raiseStatuses(
  connection: Connection,
  reports: readonly ReportedChange[],
  { at, isDeliveryFinal = false }: { at: Date; isDeliveryFinal?: boolean },
): Promise<ChangedRecipient[]> {
  const rows = await connection.rows(applyReports, [
    ...keyColumns(reports.map(({ job }) => job)),
    at,
    reports.map(({ status }) => status),
    reports.map(({ failure }) => failure?.type),
    reports.map(({ failure }) => failure?.class),
    reports.map(({ failure }) => failure?.smtpCode),
    reports.map(({ failure }) => failure?.enhancedCode),
    reports.map(({ failure }) => failure?.diagnostic),
    reports.map(({ failure }) => failure?.remote),
    isDeliveryFinal,
  ]);
  return rows.map(toChanged);
}
