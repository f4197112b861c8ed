import type { TObject } from 'typebox';
import {
  createContactDescriber,
  describeSuppressionEvents,
  type ShowTools,
  toldContact,
  toldSuppression,
} from '../audience/audience.ts';
import { createCampaignDescriber, toldCampaign } from '../campaigns/campaigns.ts';
import type { SendingChannel } from '../channels/channel.ts';
import { describeTemplateEvents } from '../chat-templates/chat-templates.ts';
import { createDomainDescriber, type InstanceHosts } from '../domains/domains.ts';
import { describeConversions } from '../events/events.ts';
import {
  createRecipientDescriber,
  describeOrganizationEvents,
  type ReadHorizon,
  toldRecipient,
} from '../messages/messages.ts';
import { createSegmentDescriber, toldSegment } from '../segments/segments.ts';
import type { DescribeEvents, EventDescribers } from '../webhooks/webhooks.ts';
import { campaignChannels } from './channels.ts';

/** Who tells what events happened to. */
export function createEventDescribers(
  tools: ShowTools & { readHorizon: ReadHorizon; hosts: InstanceHosts },
): EventDescribers {
  const recipients = createRecipientDescriber(tools.readHorizon);
  return {
    ...({
      email: recipients,
      sms: recipients,
      push: recipients,
      chatapp: recipients,
    } satisfies Record<SendingChannel, DescribeEvents>),
    campaign: createCampaignDescriber(campaignChannels),
    contact: createContactDescriber(tools),
    suppression: describeSuppressionEvents,
    segment: createSegmentDescriber(tools),
    'chatapp.template': describeTemplateEvents,
    domain: createDomainDescriber(tools.hosts),
    event: describeConversions,
    organization: describeOrganizationEvents,
  };
}

/** What they tell. */
export const eventSchemas: Readonly<Record<string, TObject>> = {
  ...({
    email: toldRecipient,
    sms: toldRecipient,
    push: toldRecipient,
    chatapp: toldRecipient,
  } satisfies Record<SendingChannel, TObject>),
  campaign: toldCampaign,
  contact: toldContact,
  suppression: toldSuppression,
  segment: toldSegment,
};
