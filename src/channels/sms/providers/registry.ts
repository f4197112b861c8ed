import { sandbox } from './sandbox/definition.ts';
import { smpp } from './smpp/definition.ts';
import { twilio } from './twilio/definition.ts';

/** The registry: a new provider of texts is a folder with its `definition.ts` and a line here. */
export const smsProviders = { sandbox, smpp, twilio } as const;

export type SmsProviderName = keyof typeof smsProviders;
