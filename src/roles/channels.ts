import type { CampaignChannels } from '../campaigns/campaigns.ts';
import { chatAppCampaigns, chatAppChannel } from '../chatapp/chatapp.ts';
import { emailCampaigns, emailChannel } from '../email/email.ts';
import type { MessageChannels } from '../messages/messages.ts';
import { pushCampaigns, pushChannel } from '../push/push.ts';
import { smsCampaigns, smsChannel } from '../sms/sms.ts';

/** The registry: a new channel is a room and its entries here, and in the maps of those who ask for more of it. */
export const messageChannels: MessageChannels = {
  email: emailChannel,
  sms: smsChannel,
  push: pushChannel,
  chatapp: chatAppChannel,
};

/** Null where there are no campaigns on the channel. */
export const campaignChannels: CampaignChannels = {
  email: emailCampaigns,
  sms: smsCampaigns,
  push: pushCampaigns,
  chatapp: chatAppCampaigns,
};
