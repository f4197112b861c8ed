/** The channels of the service, each by the name that the API has for it. */
export const channels = ['email', 'sms', 'push', 'chatapp'] as const;

export type Channel = (typeof channels)[number];

/**
 * Those on which messages are sent in this release. A name that is added here is missing from every map of channels
 * until it has its module.
 */
export const sendingChannels = ['email', 'sms', 'push', 'chatapp'] as const satisfies readonly Channel[];

export type SendingChannel = (typeof sendingChannels)[number];
