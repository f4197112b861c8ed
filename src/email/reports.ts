import type { EmailIntake, EmailReport } from '../channels/email/email.ts';
import type { ProviderReport } from '../channels/report.ts';
import type { ReportIntake } from '../messages/messages.ts';
import { emailRefusals } from './channel.ts';

/** Stores what a provider of email reports; rejects if it cannot be stored. */
export function createEmailIntake(take: ReportIntake, provider: string): EmailIntake {
  return {
    takeReport: (report) => take({ channel: 'email', provider, report: toProviderReport(report) }),
  };
}

/** Whether it has bounced or failed is decided by its reason, as for a refusal of the hand-off. */
function toProviderReport(report: EmailReport): ProviderReport {
  if (report.status !== 'bounced' && report.status !== 'failed') return report;
  const failure = report.failure ?? 'other';
  const status = emailRefusals[failure].status === 'bounced' ? 'bounced' : 'failed';
  return { ...report, status, failure };
}
