/** Of what programs are told besides the outcomes of messages. */
import type { Mutant } from '../mutant.ts';

const others = ['test/journeys/webhook-events-of-others.test.ts'];

export const webhookEvents: readonly Mutant[] = [
  {
    file: 'src/domains/verification.ts',
    from: 'if (isDegraded !== wasDegraded)',
    to: 'if (isDegraded || wasDegraded)',
    tests: others,
    named: 'a domain is told of when it is verified',
    harm: 'programs are told at every check that a domain lacks a record',
  },
  {
    file: 'src/domains/store.ts',
    from: "and id = $2 and status <> 'verified'\n",
    to: 'and id = $2\n',
    tests: others,
    named: 'a domain that the operator vouches for is told of once',
    harm: 'programs are told again and again that a domain is verified',
  },
  {
    file: 'src/accounts/store.ts',
    from: 'suspended: after.filter((channel) => !before.includes(channel)),',
    to: 'suspended: after,',
    tests: others,
    named: 'an organization is told on which channel it is suspended, once',
    harm: 'programs are told of suspensions that were there before',
  },
];
