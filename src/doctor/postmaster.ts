import { countPostmasterMail } from '../email/email.ts';
import type { Installation } from '../installation/installation.ts';
import { type Finding, ok, problem, warning } from './finding.ts';

const subject = 'postmaster';
const advice =
  'Read it with "bin/postillion postmaster list" and "show", and delete it with "bin/postillion postmaster delete".';

/** Whether somebody has written to the operator, who sees it nowhere else. */
export async function examinePostmaster({ database, config }: Installation): Promise<Finding[]> {
  const { mail, complaints, isFull } = await countPostmasterMail(database);
  const findings: Finding[] = [];
  if (isFull)
    findings.push(
      problem(subject, `${mail} mails are kept and no more are taken: senders are told to try later`, advice),
    );
  else if (mail > 0) findings.push(warning(subject, `mail is kept that waits to be read: ${mail}`, advice));
  if (complaints > 0)
    findings.push(
      warning(
        subject,
        `complaints are kept that name no message by its return path or id, and changed nothing: ${complaints}`,
        `See what their feedback loop leaves out; docs/domains.md says what a complaint needs. ${advice}`,
      ),
    );
  if (findings.length > 0 || config.bounceListener === null) return findings;
  return [ok(subject, 'no mail waits to be read')];
}
