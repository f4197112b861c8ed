import { sandbox } from './sandbox/definition.ts';

/** The registry: a new provider of pushes is a folder with its `definition.ts` and a line here. */
export const pushProviders = { sandbox } as const;

export type PushProviderName = keyof typeof pushProviders;
