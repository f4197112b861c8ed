import { countWaitingInVain } from '../alerts/alerts.ts';
import { findVerifiedOwner } from '../domains/domains.ts';
import type { Installation } from '../installation/installation.ts';
import { wordFor } from '../platform/wording.ts';
import { type Finding, ok, problem, warning } from './finding.ts';

const subject = 'alerts';

/** Whether customers who cannot send by themselves are told what goes wrong. */
export async function examineAlerts({ database, config }: Installation): Promise<Finding[]> {
  const { alertsFrom } = config;
  const sender = alertsFrom && (await findVerifiedOwner(database, alertsFrom.domain));
  if (alertsFrom !== null && sender === null)
    return [
      problem(
        subject,
        `nothing can be sent from ${alertsFrom.address}: ${alertsFrom.domain} is verified for no organization`,
        'Verify the domain for an organization of yours, or correct POSTILLION_ALERTS_FROM.',
      ),
    ];
  const waiting = await countWaitingInVain(database);
  if (waiting > 0)
    return [
      warning(
        subject,
        `${waiting} ${wordFor(waiting, 'organization has', 'organizations have')} alerts that cannot be sent, and wait`,
        alertsFrom === null
          ? 'Set POSTILLION_ALERTS_FROM, from which customers are told who cannot send by themselves; see docs/alerts.md.'
          : 'The organization of POSTILLION_ALERTS_FROM may not send at present: look at its quota, and whether it is suspended.',
      ),
    ];
  return alertsFrom === null ? [] : [ok(subject, `sent from ${alertsFrom.address} where nobody else can`)];
}
