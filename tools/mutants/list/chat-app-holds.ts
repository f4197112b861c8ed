import type { Mutant } from '../mutant.ts';

const webhooks = ['test/journeys/chat-app-webhooks.test.ts'];

const holding = ['src/chat-templates/holding.test.ts'];

/** Chat-app campaigns that must wait for their template or their account. */
export const chatAppHolds: readonly Mutant[] = [
  {
    file: 'src/chatapp/campaigns.ts',
    from: "isStoppedForGood(reason) ? null : 'template_paused'",
    to: "'template_paused'",
    tests: webhooks,
    named: 'one that is disabled meanwhile fails it',
    harm: 'a campaign whose template was disabled waits for ever, and nobody is told',
  },
  {
    file: 'src/chatapp/campaigns.ts',
    from: "  if (held !== null) return 'account_held';\n",
    to: '',
    tests: webhooks,
    named: 'a campaign waits while the account may send none',
    harm: 'a campaign of a restricted account stays queued without a reason',
  },
  {
    file: 'src/chatapp/delivery.ts',
    from: '  if (!isCampaign) return false;\n',
    to: '',
    tests: webhooks,
    named: 'which single messages do not',
    harm: 'codes and notices wait because campaigns may not leave',
  },
  {
    file: 'src/messages/delivery/settlement-writer.ts',
    from: '(isGivenBack(settlement) || changed.has(textOfKey(settlement.job)))',
    to: 'changed.has(textOfKey(settlement.job))',
    tests: webhooks,
    named: 'complaints hold campaigns for an hour',
    harm: 'a campaign of an account whose payment is due is tried again and again',
  },
  {
    file: 'src/chat-templates/holding.ts',
    from: '(until !== null && until <= at)',
    to: 'until === undefined',
    tests: holding,
    named: 'what is over holds nothing',
    harm: 'campaigns stay held after the hour for which they were',
  },
  {
    file: 'src/chatapp/events.ts',
    from: '    else await releaseCampaigns(transaction, organizationId);\n',
    to: '',
    tests: webhooks,
    named: 'a campaign waits while the account may send none',
    harm: 'campaigns stay held after the account was reinstated',
  },
  {
    file: 'src/chat-templates/holding.ts',
    from: 'areOfAnother ? null : at',
    to: 'at',
    tests: holding,
    named: 'what another provider has said',
    harm: 'in the sandbox campaigns stay paused for a bill that WhatsApp once told of',
  },
  {
    file: 'src/chat-templates/jobs.ts',
    from: 'areOfAnother: !tools.provider.needsAccount',
    to: 'areOfAnother: false',
    tests: holding,
    named: 'a worker with such a provider',
    harm: 'whoever goes back from WhatsApp to the sandbox finds campaigns paused, and cannot release them',
  },
  {
    file: 'src/chat-templates/jobs.ts',
    from: 'again !== null && again < nextHoldEndAt ? again : nextHoldEndAt',
    to: 'again',
    tests: holding,
    named: 'campaigns hear of the end',
    harm: 'campaigns go on up to a minute after the hour that complaints have held them for',
  },
  {
    file: 'src/chat-templates/account-store.ts',
    from: '($1::timestamptz is null or campaigns_held_until <= $1)',
    to: 'true',
    tests: holding,
    named: 'of each account for itself',
    harm: 'a campaign goes on while its account is restricted, and the provider closes the account',
  },
];
