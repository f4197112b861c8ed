import type { ProviderReport, ReportedStatus } from '../channels/report.ts';
import type { SmsReceipt } from '../channels/sms/sms.ts';

const statuses: Readonly<Record<SmsReceipt['status'], ReportedStatus>> = {
  sent: 'sent',
  delivered: 'delivered',
  undelivered: 'bounced',
  failed: 'failed',
  expired: 'failed',
};

/** A receipt in the words that reports on all channels have. */
export function toProviderReport({
  status,
  failure,
  finding: _finding,
  ...receipt
}: SmsReceipt): ProviderReport {
  return { ...receipt, status: statuses[status], failure: status === 'expired' ? 'expired' : failure };
}
