import { channels } from '../../channels/channel.ts';
import { consentStates } from '../../audience/audience.ts';
import { toPredicate } from '../../platform/postgres/predicate.ts';
import type { LeafType } from '../leaf.ts';
import { readOneOf, refuseOtherMembers, takeMember } from '../reading.ts';

const operators = ['is', 'is_not'] as const;

/** Whether campaigns may write to a contact on a channel. */
export const consentCondition: LeafType = {
  description: 'Whether campaigns may write to the contact on a channel.',
  title: 'ConsentCondition',
  forms: [
    {
      fields: {
        channel: { type: 'string', enum: channels },
        operator: { type: 'string', enum: operators },
        value: { type: 'string', enum: consentStates },
      },
    },
  ],
  example: { type: 'consent', channel: 'email', operator: 'is', value: 'subscribed' },
  read: (reading, members) => {
    refuseOtherMembers(reading, members, ['type', 'channel', 'operator', 'value']);
    const [channelPlace, operatorPlace, valuePlace] = [
      takeMember(reading, members, 'channel'),
      takeMember(reading, members, 'operator'),
      takeMember(reading, members, 'value'),
    ];
    const channel = channelPlace && readOneOf(reading, channelPlace, channels);
    const operator = operatorPlace && readOneOf(reading, operatorPlace, operators);
    const value = valuePlace && readOneOf(reading, valuePlace, consentStates);
    if (channel === null || operator === null || value === null) return null;
    const isUnsubscribed = (operator === 'is') === (value === 'unsubscribed');
    return {
      compile: ({ bind }) =>
        toPredicate(
          `${isUnsubscribed ? '' : 'not '}${bind(channel)}::text = any (contact.unsubscribed_channels)`,
        ),
      references: [],
      isTimeBound: false,
      readsMessages: false,
    };
  },
};
