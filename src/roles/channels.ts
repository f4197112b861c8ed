import { emailChannel, type MessageChannels, smsChannel } from '../messages/messages.ts';

/** The registry: a new channel is a module and an entry here, and in the maps of those who ask for more of it. */
export const messageChannels: MessageChannels = { email: emailChannel, sms: smsChannel };
