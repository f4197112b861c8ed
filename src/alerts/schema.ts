import { type Static, Type } from 'typebox';
import { instant, literals } from '../platform/http/shapes.ts';
import { alertKinds } from './kinds.ts';

export const addressesMax = 10;

const addresses = Type.Array(Type.String({ format: 'idn-email' }), {
  maxItems: addressesMax,
  uniqueItems: true,
  description: `Who is told by email, ${addressesMax} at most. With none, nobody is.`,
});

export const alertPatch = Type.Object(
  { addresses: Type.Optional(addresses) },
  { title: 'UpdateAlertsRequest', additionalProperties: false },
);

export type AlertPatch = Static<typeof alertPatch>;

/** Why an alert waits that was due. */
export const alertProblems = ['no_domain', 'suspended', 'quota_used_up'] as const;

export type AlertProblem = (typeof alertProblems)[number];

const waitingAlert = Type.Object(
  {
    kind: literals(alertKinds),
    count: Type.Integer({ description: 'How much of it has happened since the last alert of the kind.' }),
    since: instant,
    next_attempt_at: instant,
    problem: Type.Union([literals(alertProblems), Type.Null()], {
      description:
        'Why it could not be sent. `no_domain`: no domain of yours is verified. `suspended`, `quota_used_up`: you may not send mail at present. It is tried again.',
    }),
  },
  { title: 'WaitingAlert' },
);

export const alertRecord = Type.Object(
  {
    object: Type.Literal('alerts'),
    addresses: Type.Array(Type.String()),
    waiting: Type.Array(waitingAlert, {
      description: 'What is to be told: of a kind there is one email an hour at most.',
    }),
  },
  { title: 'Alerts' },
);

export type AlertRecord = Static<typeof alertRecord>;
