import type { ChatAppProvider } from '../channels/chatapp/chatapp.ts';
import { readAccounts, type StoredAccount } from '../chat-templates/chat-templates.ts';
import type { Installation } from '../installation/installation.ts';
import { createChatAppProvider } from '../roles/providers/chatapp.ts';
import { type Finding, ok, problem, warning } from './finding.ts';
import { openSecrets } from './secrets.ts';

const subject = 'chat-app accounts';

/** Each takes a request to the provider. */
const examinedMax = 20;
/** More of them have one cause. */
const faultyToldMax = 3;

/** Whether the accounts of organizations can be opened, and are good at the provider where it has accounts. */
export async function examineChatAppAccounts(installation: Installation): Promise<Finding[]> {
  const secrets = await openSecrets(installation);
  if (secrets === null) return [];
  const { clock, database } = installation;
  const { accounts, isWhole } = await readAccounts({ secrets, clock }, database, examinedMax);
  if (accounts.length === 0) return [];
  const faults: Finding[] = [];
  const provider = await createChatAppProvider(installation);
  try {
    for (const account of accounts) faults.push(...(await examineAccount(provider, account)));
  } finally {
    await provider.close();
  }
  const told = faults.slice(0, faultyToldMax);
  const more = faults.length - told.length;
  if (more > 0) told.push(problem(subject, `so are ${more} more`, 'Mend them as well.'));
  return faults.length > 0
    ? told
    : [ok(subject, `${isWhole ? '' : 'the first '}${accounts.length} can be used`)];
}

async function examineAccount(
  provider: ChatAppProvider,
  { organizationId, account, campaignsHeld }: StoredAccount,
): Promise<Finding[]> {
  const of = `the account of ${organizationId}`;
  const advice = 'Give it again, with "bin/postillion chatapp credentials".';
  if (account === 'unreadable')
    return [problem(subject, `${of} was sealed under another secret, or is damaged`, advice)];
  const examination = await provider.examineAccount(account);
  if (examination.kind === 'examined') {
    if (campaignsHeld === null) return [];
    const { words, until } = campaignsHeld;
    return [
      warning(
        subject,
        `${of} may send no campaigns${until === null ? '' : ` until ${until.toISOString()}`}: ${words}`,
        until === null
          ? 'Mend it at the provider, then run "bin/postillion chatapp release".'
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
