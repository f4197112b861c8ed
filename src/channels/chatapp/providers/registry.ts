import { sandbox } from './sandbox/definition.ts';

/** The registry: a new provider of chat-app messages is a folder with its `definition.ts` and a line here. */
export const chatAppProviders = { sandbox } as const;

export type ChatAppProviderName = keyof typeof chatAppProviders;
