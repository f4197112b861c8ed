import type { TObject } from 'typebox';
import { createCampaignDescriber } from '../campaigns/campaigns.ts';
import type { SendingChannel } from '../channels/channel.ts';
import { createRecipientDescriber, type ReadHorizon, toldRecipient } from '../messages/messages.ts';
import type { DescribeEvents, EventDescribers } from '../webhooks/webhooks.ts';
import { campaignChannels } from './channels.ts';

/** Who tells what events happened to. */
export function createEventDescribers(readHorizon: ReadHorizon): EventDescribers {
  const recipients = createRecipientDescriber(readHorizon);
  return {
    ...({
      email: recipients,
      sms: recipients,
      push: recipients,
      chatapp: recipients,
    } satisfies Record<SendingChannel, DescribeEvents>),
    campaign: createCampaignDescriber(campaignChannels),
  };
}

/** What they tell. */
export const eventSchemas = {
  email: toldRecipient,
  sms: toldRecipient,
  push: toldRecipient,
  chatapp: toldRecipient,
} satisfies Record<SendingChannel, TObject>;
