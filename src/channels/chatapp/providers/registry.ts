import { sandbox } from './sandbox/definition.ts';
import { whatsapp } from './whatsapp/definition.ts';

/** The registry: a new provider of chat-app messages is a folder with its `definition.ts` and a line here. */
export const chatAppProviders = { sandbox, whatsapp } as const;

export type ChatAppProviderName = keyof typeof chatAppProviders;
