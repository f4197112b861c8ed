import { direct } from './direct/definition.ts';
import { sandbox } from './sandbox/definition.ts';

/** The registry: a new provider of pushes is a folder with its `definition.ts` and a line here. */
export const pushProviders = { sandbox, direct } as const;

export type PushProviderName = keyof typeof pushProviders;
