import { readReport, type ReportedRecipient, readReturnPathToken } from '../channels/email/email.ts';
import { findReturnPathOwner } from '../domains/domains.ts';
import { emailChannel, emailRefusals } from './channel.ts';
import {
  applyReports,
  type FeedbackTools,
  type RecipientKey,
  type Report,
  toFailure,
} from '../messages/messages.ts';

/**
 * Bounces and complaints that come back as mail. Every copy has a return path of its own, signed by us, so that the
 * address alone says whose it was: what the report says of recipients, and who says it, needs not be believed.
 */
export type BounceTools = FeedbackTools;

/** Whether somebody's copy returns to this address. */
export async function acceptsReturnPath(tools: BounceTools, address: string): Promise<boolean> {
  return (await findCopy(tools, address)) !== null;
}

async function findCopy(tools: BounceTools, address: string): Promise<RecipientKey | null> {
  const at = address.lastIndexOf('@');
  const token = readReturnPathToken(address.slice(0, Math.max(at, 0)));
  if (token === null) return null;
  const organizationId = await findReturnPathOwner(tools.database, address.slice(at + 1).toLowerCase());
  if (organizationId === null || !token.isSignedFor(tools.secrets, organizationId)) return null;
  return { organizationId, ...token.reference };
}

/** Reads one mail that was sent to a return path, and writes down what it says of the copy. */
export async function takeBounce(
  tools: BounceTools,
  mail: { recipient: string; source: Uint8Array },
): Promise<void> {
  const job = await findCopy(tools, mail.recipient);
  if (job === null) return;
  const report = readReport(mail.source);
  tools.log.info(
    {
      organization_id: job.organizationId,
      message_id: job.messageId,
      ordinal: job.ordinal,
      kind: report.kind,
    },
    'mail at a return path',
  );
  switch (report.kind) {
    case 'delivery_status': {
      const reports = report.recipients.flatMap((recipient) => toReport(job, recipient));
      if (reports.length > 0) await applyReports(tools, emailChannel, reports);
      return;
    }
    case 'abuse':
      if (report.isComplaint)
        await applyReports(tools, emailChannel, [{ job, status: 'complained', failure: null }]);
      return;
    case 'automatic_reply':
    case 'unrecognised':
      return;
  }
}

function toReport(job: RecipientKey, recipient: ReportedRecipient): Report[] {
  const { action, type, failureClass, reply } = recipient;
  switch (action) {
    case 'failed':
      return [
        { job, status: emailRefusals[failureClass].status, failure: toFailure(type, failureClass, reply) },
      ];
    case 'delayed':
      return [{ job, status: 'delayed', failure: toFailure('soft', failureClass, reply) }];
    case 'delivered':
      return [{ job, status: 'delivered', failure: null }];
    // Passed on to where nobody reports from: nothing more is known than before.
    case 'relayed':
    case 'expanded':
      return [];
  }
}
