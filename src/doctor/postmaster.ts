import { countPostmasterMail } from '../email/email.ts';
import type { Installation } from '../installation/installation.ts';
import { type Finding, ok, problem, warning } from './finding.ts';
import { programName } from '../platform/program-name.ts';

const subject = 'postmaster';
const adviceOf = () =>
  `Read it with "${programName()} postmaster list" and "show", and delete it with "${programName()} postmaster delete".`;

/** Whether somebody has written to the operator, who sees it nowhere else. */
export async function examinePostmaster({ database, config }: Installation): Promise<Finding[]> {
  const { mail, complaints, isFull } = await countPostmasterMail(database);
  const findings: Finding[] = [];
  if (isFull)
    findings.push(
      problem(
        subject,
        `${mail} mails are kept and no more are taken: senders are told to try later`,
        adviceOf(),
      ),
    );
  else if (mail > 0)
    findings.push(warning(subject, `mail is kept that waits to be read: ${mail}`, adviceOf()));
  if (complaints > 0)
    findings.push(
      warning(
        subject,
        `complaints are kept that name no message by its return path or id, and changed nothing: ${complaints}`,
        `See what their feedback loop leaves out; docs/domains.md says what a complaint needs. ${adviceOf()}`,
      ),
    );
  if (findings.length > 0 || config.bounceListener === null) return findings;
  return [ok(subject, 'no mail waits to be read')];
}
