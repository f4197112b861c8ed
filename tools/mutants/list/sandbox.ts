import type { Mutant } from '../mutant.ts';

const replies = ['src/sandbox/replies.test.ts'];
const webhookTrial = ['src/sandbox/webhook-trial.test.ts'];

/** What is said as the recipient of a message in the sandbox. */
export const sandbox: readonly Mutant[] = [
  {
    file: 'src/sandbox/replies.ts',
    from: '        if (obstacle !== null) throw new PublicError(badRequest, obstacle);\n',
    to: '',
    tests: replies,
    named: 'with another provider',
    harm: 'a click in an old inbox opts out the number of a real person',
  },
  {
    file: 'src/sandbox/replies.ts',
    from: "button?.type !== 'quick_reply' ||",
    to: 'button === undefined ||',
    tests: replies,
    named: 'is no answer',
    harm: 'a click on a link says its words as an answer',
  },
  {
    file: 'src/roles/replies.ts',
    from: "kind: 'marketing_preference', value: said.value",
    to: "kind: 'marketing_preference', value: 'stop'",
    tests: replies,
    named: 'until it is resumed',
    harm: 'marketing that was stopped in the sandbox cannot be resumed there',
  },
  {
    file: 'src/sandbox/webhook-trial.ts',
    from: '    if (trial.obstacle !== null) throw new PublicError(forbidden, trial.obstacle);\n',
    to: '',
    tests: webhookTrial,
    named: 'leaves the installation',
    harm: 'whoever may open the sandbox reads to whom an organization has written for real',
  },
  {
    file: 'src/roles/webhook-trial.ts',
    from: "webhook.kind === 'poll' && webhook.description === description",
    to: "webhook.kind === 'poll'",
    tests: webhookTrial,
    named: 'only what the page has asked for',
    harm: 'a click on the page deletes the webhook that a program of the customer reads by, and loses its events',
  },
];
