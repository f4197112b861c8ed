import { mx } from './mx/definition.ts';
import { sandbox } from './sandbox/definition.ts';
import { smtp } from './smtp/definition.ts';

/** The registry: a new provider of email is a folder with its `definition.ts` and a line here. */
export const emailProviders = { sandbox, smtp, mx } as const;

export type EmailProviderName = keyof typeof emailProviders;
