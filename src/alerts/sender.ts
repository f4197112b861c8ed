import { foreseeQuota, holdQuota, loadSendingPlans } from '../accounts/accounts.ts';
import { findAlertDomains, findVerifiedOwner } from '../domains/domains.ts';
import { prepareEmail } from '../email/email.ts';
import { insertMessages } from '../messages/messages.ts';
import { PublicError } from '../platform/http/errors.ts';
import type { NewId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { AlertMail } from './mail.ts';
import type { AlertProblem } from './schema.ts';

/**
 * Who sends an alert, in this order:
 *
 * 1. the organization itself, from one of its verified domains that lacks no record, as any mail that it sends: it counts
 *    towards its quota, and a suspended organization sends none;
 * 2. the installation, from the address that the operator gave for it, in the name of the organization that its domain is
 *    verified for. That one's plan counts, and not that of the organization which is told, so that its suspension and the end
 *    of its quota can be told at all;
 * 3. the organization itself, from a domain that lacks records: better than nothing.
 *
 * If none of them can, the alert waits, and says why.
 */
export type SendingTools = {
  newId: NewId;
  /** From which the installation alerts; null where it does not. */
  alertsFrom: { address: string; domain: string } | null;
};

export type AlertSending = {
  organizationId: string;
  addresses: readonly string[];
  mail: AlertMail;
  at: Date;
};

/** Within a transaction outside of the wall. Null once it is accepted: with the commit it is on its way. */
export async function sendAlert(
  tools: SendingTools,
  transaction: Transaction,
  sending: AlertSending,
): Promise<AlertProblem | null> {
  const { organizationId } = sending;
  const domains = await transaction.asOrganizations([organizationId], () =>
    findAlertDomains(transaction, organizationId),
  );
  const [sound, lacking] = [domains.find(({ isDegraded }) => !isDegraded), domains[0]];
  const fromOwn = (domain: { name: string } | undefined) =>
    domain === undefined
      ? Promise.resolve<AlertProblem>('no_domain')
      : accept(tools, transaction, { ...sending, senderId: organizationId, from: `alerts@${domain.name}` });
  const own = await fromOwn(sound);
  if (own === null) return null;
  const installations = await sendAsInstallation(tools, transaction, sending);
  if (installations === null) return null;
  return sound === undefined && lacking !== undefined ? fromOwn(lacking) : own;
}

async function sendAsInstallation(
  tools: SendingTools,
  transaction: Transaction,
  sending: AlertSending,
): Promise<AlertProblem | null> {
  const { alertsFrom } = tools;
  if (alertsFrom === null) return 'no_domain';
  const senderId = await findVerifiedOwner(transaction, alertsFrom.domain);
  if (senderId === null) return 'no_domain';
  return accept(tools, transaction, { ...sending, senderId, from: alertsFrom.address });
}

async function accept(
  { newId }: SendingTools,
  transaction: Transaction,
  { senderId, from, addresses, mail, at }: AlertSending & { senderId: string; from: string },
): Promise<AlertProblem | null> {
  return transaction.asOrganizations([senderId], async () => {
    const [plan] = await loadSendingPlans(transaction, [senderId], 'email');
    if (plan === undefined || plan.isSuspended) return 'suspended';
    const { variables, ...content } = mail;
    const submission = prepareEmail({
      organizationId: senderId,
      body: {
        ...content,
        variables,
        from,
        from_name: 'Postillion',
        to: [...addresses],
        category: alertCategory,
        // Nobody's automatic reply is wanted (RFC 3834 §5).
        headers: { 'Auto-Submitted': 'auto-generated' },
      },
      template: null,
      idempotencyKey: null,
    });
    if (submission instanceof PublicError) throw submission;
    const demands = [{ organizationId: senderId, amount: submission.quotaUnits, limit: plan.quota }];
    const wanted = { channel: 'email', at, demands } as const;
    // Nothing is held in vain: the quota of another organization may be held next.
    const foreseen = await foreseeQuota(transaction, wanted);
    if (foreseen.fits[0] !== true) return 'quota_used_up';
    const held = await holdQuota(transaction, wanted);
    if (held.fits[0] !== true) return 'quota_used_up';
    await held.count();
    await insertMessages(
      transaction,
      [{ id: newId(), submission, sealedAttachments: [], traceId: null }],
      at,
    );
    return null;
  });
}

/** By which alerts are found among messages. */
const alertCategory = 'alert';
