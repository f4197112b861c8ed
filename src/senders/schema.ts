import { type Static, Type } from 'typebox';
import { senderTypes } from '../channels/sms/sms.ts';
import { instant, literals } from '../platform/http/shapes.ts';

/** A sender as the API shows it: only those that are approved are ever shown. */
export const senderRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    name: Type.String({ description: 'The value for `from`: a name, or a number without its plus.' }),
    type: literals(senderTypes, { title: 'SmsSenderType' }),
    status: literals(['approved']),
    created_at: instant,
    approved_at: instant,
  },
  { title: 'SmsSender' },
);

export type SenderRecord = Static<typeof senderRecord>;
