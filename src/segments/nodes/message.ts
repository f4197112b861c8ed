import { addressColumns } from '../../audience/audience.ts';
import { type SendingChannel, sendingChannels } from '../../channels/channel.ts';
import {
  type CampaignMessage,
  type EngagementAction,
  engagementActions,
  hasEngaged,
} from '../../messages/messages.ts';
import { dateOf } from '../../platform/clock.ts';
import { type Predicate, toPredicate } from '../../platform/postgres/predicate.ts';
import type { LeafType } from '../leaf.ts';
import {
  addUnknown,
  findMember,
  periodSchema,
  type Place,
  type Reading,
  readOneOf,
  readPeriodMs,
  readUuid,
  refuseOtherMembers,
  takeMember,
  uuidSchema,
} from '../reading.ts';

/**
 * What can be known of the messages of a channel. Opens and clicks of texts are unknown; a text is `delivered` or
 * `bounced` according to its receipt. A chat-app message is opened when it is read.
 */
const actionsByChannel: Readonly<Record<SendingChannel, readonly EngagementAction[]>> = {
  email: engagementActions,
  sms: ['delivered', 'bounced'],
  push: ['delivered', 'opened', 'clicked'],
  chatapp: ['delivered', 'opened'],
};

const contactColumns = { organizationId: 'contact.organization_id', id: 'contact.id' };

const isOwnAddress = (key: string) => (column: string) =>
  toPredicate(`${column} = contact.${key} collate "default"`);

/** By channel, whether a column of addresses holds one of the contact's. */
const addressesByChannel: Readonly<Record<SendingChannel, (column: string) => Predicate>> = {
  email: isOwnAddress(addressColumns.email.key),
  sms: isOwnAddress(addressColumns.sms.key),
  chatapp: isOwnAddress(addressColumns.chatapp.key),
  push: (column) => toPredicate(`${column} = contact.id::text collate "default"`),
};

/** What became of the messages to a contact. */
export const messageCondition: LeafType = {
  description:
    'What happened to messages to the contact: to all of them, or to those of one campaign (`campaign_id`); at any ' +
    'time, or recently (`within`). A click also counts as an open, and an open as a delivery. Texts have only ' +
    'deliveries and bounces; a chat-app message is opened when it is read.',
  title: 'MessageCondition',
  forms: sendingChannels.map((channel) => ({
    fields: {
      channel: { type: 'string', enum: [channel] },
      action: { type: 'string', enum: actionsByChannel[channel] },
      campaign_id: uuidSchema,
      within: periodSchema,
    },
    optional: ['campaign_id', 'within'],
  })),
  example: { type: 'message', channel: 'email', action: 'opened', within: { value: 30, unit: 'day' } },
  read: (reading, members) => {
    refuseOtherMembers(reading, members, ['type', 'channel', 'action', 'campaign_id', 'within']);
    const [channelPlace, actionPlace] = [
      takeMember(reading, members, 'channel'),
      takeMember(reading, members, 'action'),
    ];
    const channel = channelPlace && readOneOf(reading, channelPlace, sendingChannels);
    const action = actionPlace && readOneOf(reading, actionPlace, actionsByChannel[channel ?? 'email']);
    const campaignPlace = findMember(members, 'campaign_id');
    const campaignMessage = campaignPlace && readCampaign(reading, campaignPlace, channel);
    const withinPlace = findMember(members, 'within');
    const withinMs = withinPlace && readPeriodMs(reading, withinPlace);
    if (channel === null || action === null) return null;
    if (campaignPlace !== null && campaignMessage === null) return null;
    if (withinPlace !== null && withinMs === null) return null;
    return {
      compile: ({ bind, at }) =>
        hasEngaged(
          {
            action,
            since: withinMs === null ? null : dateOf(at.getTime() - withinMs),
            messageId: campaignMessage?.messageId ?? null,
          },
          { ...contactColumns, isAddress: addressesByChannel[channel] },
          bind,
        ),
      references: [],
      isTimeBound: withinMs !== null,
      readsMessages: true,
    };
  },
};

/** A draft has no message yet. */
function readCampaign(
  reading: Reading,
  place: Place,
  channel: SendingChannel | null,
): CampaignMessage | null {
  const id = readUuid(reading, place);
  if (id === null) return null;
  const message = reading.findCampaignMessage(id);
  return message !== undefined && (channel === null || message.channel === channel)
    ? message
    : addUnknown(reading, `${place.path} is not a known campaign that was sent`);
}
