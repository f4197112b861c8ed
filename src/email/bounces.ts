import {
  readReport,
  type ReportedRecipient,
  readReturnPathToken,
  type ReturnPathToken,
} from '../channels/email/email.ts';
import { findReturnPathOwner } from '../domains/domains.ts';
import { emailChannel, emailRefusals } from './channel.ts';
import type { InboundAddress, Mailbox } from './mailbox.ts';
import {
  applyReports,
  type FeedbackTools,
  findAddressKeys,
  type RecipientKey,
  type Report,
  toFailure,
} from '../messages/messages.ts';

/**
 * Bounces and complaints that come back as mail. Every copy has a return path of its own, signed by us, so the address
 * alone identifies the recipient. Neither the sender of a report nor what it says of its recipients has to be trusted.
 */
export type BounceTools = FeedbackTools;

/** The return paths of all copies. */
export const returnPaths: Mailbox<BounceTools> = async (tools, address) => {
  const job = await findCopy(tools, address);
  return job && ((source) => takeBounce(tools, job, source));
};

/** The copy that an address is written for, its return path or another one; null if it is none that we have written. */
export async function findCopy(
  tools: Pick<BounceTools, 'database' | 'secrets'>,
  { localPart, host }: InboundAddress,
  readToken: (localPart: string) => ReturnPathToken | null = readReturnPathToken,
): Promise<RecipientKey | null> {
  const token = readToken(localPart);
  if (token === null) return null;
  const organizationId = await findReturnPathOwner(tools.database, host);
  if (organizationId === null || !token.isSignedFor(tools.secrets, organizationId)) return null;
  return { organizationId, ...token.reference };
}

/** Reads one mail that was sent to a return path, and applies what it reports of the copy. */
async function takeBounce(tools: BounceTools, job: RecipientKey, source: Uint8Array): Promise<void> {
  const report = readReport(source);
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
      const addressKey = await findAddressKey(tools, job);
      if (addressKey === null) return;
      const reports = chooseOwn(report.recipients, addressKey).flatMap((recipient) =>
        toReport(job, addressKey, recipient),
      );
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

/** Null for a recipient that does not exist any more. */
async function findAddressKey({ database }: BounceTools, job: RecipientKey): Promise<string | null> {
  const [recipient] = await database.asOrganizations([job.organizationId], (transaction) =>
    findAddressKeys(transaction, [job]),
  );
  return recipient?.addressKey ?? null;
}

/**
 * A report may be about several recipients, where a server on the way has added some. Those that name ours decide, if any
 * does.
 */
function chooseOwn(
  recipients: readonly ReportedRecipient[],
  addressKey: string,
): readonly ReportedRecipient[] {
  const own = recipients.filter(({ address, finalAddress }) =>
    [address, finalAddress].some(
      (named) => named !== null && emailChannel.reports.isSameAddress(addressKey, named),
    ),
  );
  return own.length > 0 ? own : recipients;
}

function toReport(job: RecipientKey, addressKey: string, recipient: ReportedRecipient): Report[] {
  const { action, finalAddress, failureClass, reply } = recipient;
  // The address that we wrote to exists, or its server would not have passed the message on. Its owner may mend where it
  // leads to; after a run of such bounces it is suppressed all the same.
  const isElsewhere = finalAddress !== null && !emailChannel.reports.isSameAddress(addressKey, finalAddress);
  const type = isElsewhere || recipient.isAliasTarget ? 'soft' : recipient.type;
  switch (action) {
    case 'failed':
      return [
        { job, status: emailRefusals[failureClass].status, failure: toFailure(type, failureClass, reply) },
      ];
    case 'delayed':
      return [{ job, status: 'delayed', failure: toFailure('soft', failureClass, reply) }];
    case 'delivered':
      return [{ job, status: 'delivered', failure: null }];
    // The message was passed on to a server that sends no reports, so nothing new is known.
    case 'relayed':
    case 'expanded':
      return [];
  }
}
