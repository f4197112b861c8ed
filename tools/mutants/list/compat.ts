/** Of the API in the forms of other services. */
import type { Mutant } from '../mutant.ts';

const resend = ['test/journeys/compat-resend.test.ts'];

export const compat: readonly Mutant[] = [
  {
    file: 'src/platform/http/route-handler.ts',
    from: 'endpoint: wire === null ? routeKey(route) : wireKey(wire),',
    to: 'endpoint: routeKey(route),',
    tests: resend,
    named: 'is sent once for its key',
    harm: 'a key that a program used in another form of the API keeps its email from being sent',
  },
  {
    file: 'src/compat/resend/emails.ts',
    from: "...(isPermissive && { on_error: 'skip' }),",
    to: "on_error: 'skip',",
    tests: resend,
    named: 'sends all or none',
    harm: 'a batch that is to be sent as a whole is sent in part',
  },
  {
    file: 'src/compat/resend/emails.ts',
    from: "return last.dropped ? 'suppressed' : events[last.status];",
    to: 'return events[last.status];',
    tests: resend,
    named: 'shows what happened last',
    harm: 'a program believes that somebody was written to who was not',
  },
  {
    file: 'src/platform/http/refusals.ts',
    from: 'peer?.showError(error) ??',
    to: '(null as { statusCode: number; body: unknown } | null) ??',
    tests: resend,
    named: 'in the form of the SDK',
    harm: 'a program does not understand why it was refused',
  },
  {
    file: 'src/platform/http/admission.ts',
    from: 'if (keyHeader === undefined) return readAuthorization(raw);',
    to: 'if (keyHeader === undefined || headers[keyHeader] === undefined) return readAuthorization(raw);',
    tests: ['test/journeys/compat-postmark.test.ts'],
    named: 'the token is the key',
    harm: 'a request is carried out for another key than that of its form',
  },
  {
    file: 'src/compat/postmark/emails.ts',
    from: "on_error: 'skip' }",
    to: "on_error: 'refuse_all' }",
    tests: ['test/journeys/compat-postmark.test.ts'],
    named: 'a batch has a result for each',
    harm: 'one wrong email keeps a whole batch from being sent',
  },
];
