import type { AccountExamination, ChatAppProvider } from '../channels/chatapp/chatapp.ts';
import {
  type Budget,
  isUsedUp,
  loadBudgets,
  readAccounts,
  type StoredAccount,
} from '../chat-templates/chat-templates.ts';
import type { Installation } from '../installation/installation.ts';
import { createChatAppProvider } from '../roles/providers/chatapp.ts';
import { wordFor } from '../platform/wording.ts';
import { type Finding, ok, problem, warning } from './finding.ts';
import { openSecrets } from './secrets.ts';
import { programName } from '../platform/program-name.ts';

const subject = 'chat-app accounts';

/** Each takes a request to the provider. */
const examinedMax = 20;
/** More of them have one cause. */
const faultyToldMax = 3;

/** "chatapp list" shows those of the others. */
const limitsToldMax = 3;

/** Whether the accounts of organizations can be opened, and are good at the provider where it has accounts. */
export async function examineChatAppAccounts(installation: Installation): Promise<Finding[]> {
  const secrets = await openSecrets(installation);
  if (secrets === null) return [];
  const { clock, database } = installation;
  const { accounts, isWhole } = await readAccounts({ secrets, clock }, database, examinedMax);
  if (accounts.length === 0) return [];
  const budgets = await loadBudgets(
    { clock },
    database,
    accounts.map(({ organizationId }) => organizationId),
  );
  const findings: Finding[] = [];
  const provider = await createChatAppProvider(installation);
  try {
    for (const account of accounts) {
      const budget = budgets.get(account.organizationId) ?? null;
      findings.push(...(await examineAccount(provider, account, budget)));
    }
  } finally {
    await provider.close();
  }
  const faults = findings.filter(({ level }) => level !== 'ok');
  const told = faults.slice(0, faultyToldMax);
  const more = faults.length - told.length;
  if (more > 0) told.push(problem(subject, `so are ${more} more`, 'Mend them as well.'));
  return faults.length > 0
    ? told
    : [
        ok(subject, `${isWhole ? '' : 'the first '}${accounts.length} can be used`),
        ...findings.slice(0, limitsToldMax),
      ];
}

async function examineAccount(
  provider: ChatAppProvider,
  { organizationId, account, campaignsHeld }: StoredAccount,
  budget: Budget | null,
): Promise<Finding[]> {
  const of = `the account of ${organizationId}`;
  const advice = `Give it again, with "${programName()} chatapp credentials".`;
  if (account === 'unreadable')
    return [problem(subject, `${of} was sealed under another secret, or is damaged`, advice)];
  const examination = await provider.examineAccount(account);
  if (examination.kind === 'examined') {
    if (campaignsHeld === null) return [describeLimit(of, examination, budget)];
    const { words, until } = campaignsHeld;
    return [
      warning(
        subject,
        `${of} may send no campaigns${until === null ? '' : ` until ${until.toISOString()}`}: ${words}`,
        until === null
          ? `Mend it at the provider, then run "${programName()} chatapp release".`
          : 'They go on by themselves; fewer complaints keep it from happening again.',
      ),
    ];
  }
  return [
    examination.isAccountAtFault
      ? problem(subject, `${of} cannot be used: ${examination.words}`, advice)
      : warning(subject, `${of} could not be asked for: ${examination.words}`, 'Run doctor again later.'),
  ];
}

const numbers = new Intl.NumberFormat('en');

type Examined = Extract<AccountExamination, { kind: 'examined' }>;

/** To how many people it may write. */
function describeLimit(of: string, { peoplePerDayMax: limit }: Examined, budget: Budget | null): Finding {
  if (budget !== null && isUsedUp(budget))
    return warning(
      subject,
      `${of} has written to ${numbers.format(budget.reached)} ${wordFor(budget.reached, 'person', 'people')} in 24 hours, and may write to ${numbers.format(budget.peopleMax)}`,
      'Its campaigns wait, and go on by themselves. Better quality, and a verified business, raise the limit.',
    );
  if (limit === null)
    return ok(subject, `${of} has no limit that the provider tells: its campaigns are held to none`);
  if (limit === 'unlimited') return ok(subject, `${of} may write to as many people as it likes`);
  const reached = budget === null ? '' : `, and has written to ${numbers.format(budget.reached)}`;
  return ok(
    subject,
    `${of} may write to ${numbers.format(limit)} ${wordFor(limit, 'person', 'people')} in 24 hours${reached}`,
  );
}
