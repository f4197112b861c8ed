/** Of alerts, and of what is told of quotas. */
import type { Mutant } from '../mutant.ts';

const alerts = ['test/journeys/alerts.test.ts'];
const quotas = ['test/journeys/quota-events.test.ts'];

export const alertMutants: readonly Mutant[] = [
  {
    file: 'src/alerts/store.ts',
    from: "due_at = coalesce(a.due_at, greatest(excluded.due_at, a.last_told_at + $7 * interval '1 millisecond'))",
    to: "due_at = coalesce(a.due_at, excluded.due_at + $7 * interval '0')",
    tests: alerts,
    named: 'of a kind there is one email an hour',
    harm: 'a domain that comes and goes sends an email each time',
  },
  {
    file: 'src/alerts/jobs.ts',
    from: 'dueAt: dateOf(event.at.getTime() + (failingStages[0]?.afterMs ?? 0))',
    to: 'dueAt: event.at',
    tests: alerts,
    named: 'an endpoint that fails is told after',
    harm: 'an endpoint that is started anew gets somebody out of bed',
  },
  {
    file: 'src/alerts/jobs.ts',
    from: 'name: webhook.description ?? hostOf(webhook.url)',
    to: 'name: webhook.description ?? webhook.url',
    tests: alerts,
    named: 'an endpoint that fails is told after',
    harm: 'a token in the URL of an endpoint is mailed around',
  },
  {
    file: 'src/alerts/words.ts',
    from: "    .replaceAll(/[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}\\s]+/gu, ' ')\n",
    to: '',
    tests: alerts,
    named: 'a campaign that is paused is told with its name',
    harm: 'a name writes lines of its own into the mail, or turns around what stands after it',
  },
  {
    file: 'src/alerts/keeping.ts',
    from: 'await setAlertTypes(transaction, organizationId, []);',
    to: '',
    tests: alerts,
    named: 'addresses are read and changed',
    harm: 'what nobody reads is logged for ever',
  },
  {
    file: 'src/webhooks/store.ts',
    from: "where i.organization_id = $1 and i.reader = 'webhooks'",
    to: 'where i.organization_id = $1',
    tests: alerts,
    named: 'what webhooks want and what alerts want are apart',
    harm: 'whoever deletes a webhook is not alerted any more',
  },
  {
    file: 'src/messages/told-organizations.ts',
    from: 'percent > toldPercent && percent <= crossedPercent',
    to: 'percent >= toldPercent && percent <= crossedPercent',
    tests: quotas,
    named: 'with four fifths of it used',
    harm: 'the warning comes once more with the end of the quota',
  },
  {
    file: 'src/accounts/accounts.ts',
    from: '  await looked.changed();\n',
    to: '',
    tests: quotas,
    named: 'a plan that changes is looked at at once',
    harm: 'a smaller quota refuses messages before anybody was told',
  },
];
