/** Of rounds, in which endpoints are told of events, and of what is written of them. */
import type { Mutant } from '../mutant.ts';

const rounds = ['src/webhooks/round.test.ts'];
const overtaken = ['src/webhooks/overtaken.test.ts'];

export const webhookRounds: readonly Mutant[] = [
  {
    file: 'src/webhooks/delivery-store.ts',
    from: 'where organization_id = $1 and webhook_id = $2 and rounds = $3',
    to: 'where organization_id = $1 and webhook_id = $2 and $3::bigint is not null',
    tests: overtaken,
    named: 'the first to write it',
    harm: 'a worker that was taken for dead says that an endpoint failed, long after another has told it all',
  },
  {
    file: 'src/webhooks/store.ts',
    from: 'rounds = case when $3 or failing_since is not null then rounds + 1 else rounds end',
    to: 'rounds = case when $3 then rounds + 1 else rounds end',
    tests: overtaken,
    named: 'a probe that fails while its endpoint is enabled',
    harm: 'whoever enables an endpoint while it is tried finds it failing, or disabled, at once',
  },
  {
    file: 'src/webhooks/store.ts',
    from: 'rounds = case when $3 or failing_since is not null then rounds + 1 else rounds end',
    to: 'rounds = case when failing_since is not null then rounds + 1 else rounds end',
    tests: overtaken,
    named: 'skips to now',
    harm: 'an endpoint that is to be told from now on is told of all that it had missed',
  },
  {
    file: 'src/webhooks/round.ts',
    from: ' || clock.monotonicMs() >= endMs',
    to: '',
    tests: rounds,
    named: 'after ten seconds nothing more is begun',
    harm: 'an endpoint that was deleted is called for half an hour, if it answers slowly',
  },
  {
    file: 'src/webhooks/round.ts',
    from: 'if (isOrdered || (outcome',
    to: 'if ((outcome',
    tests: rounds,
    named: 'told in order is failing at the first failure',
    harm: 'a program that asked for order is told of what came after an event that it did not take',
  },
  {
    file: 'src/webhooks/round.ts',
    from: 'outcome.failures >= failuresMax && isSilent',
    to: 'outcome.failures >= failuresMax',
    tests: rounds,
    named: 'unless it took something of late',
    harm: 'an endpoint that refuses some events is told of one at a time',
  },
  {
    file: 'src/webhooks/round.ts',
    from: '      outcome.failures = 0;\n',
    to: '',
    tests: rounds,
    named: 'failures count from the last success on',
    harm: 'an endpoint that takes nearly everything is called failing',
  },
  {
    file: 'src/webhooks/round.ts',
    from: 'if (place >= mayBegin) return;',
    to: '',
    tests: rounds,
    named: 'gets half as many at once',
    harm: 'a receiver that says it is overloaded gets as many requests as before',
  },
];
