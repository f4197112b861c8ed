import { readAddress } from '../channels/email/email.ts';
import type { AddressedChannel } from './contact-fields.ts';
import { isPhoneNumber } from './schema.ts';

/** Channels on which a person or a program can name an address; a push has none that anybody knows. */
export const addressedChannels = ['email', 'sms', 'chatapp'] as const satisfies readonly AddressedChannel[];

type Addresses = { noun: string; normalise: (text: string) => string | null };

const phoneNumbers: Addresses = {
  noun: 'a phone number in E.164',
  normalise: (text) => (isPhoneNumber(text) ? text : null),
};

const addressesOf: Readonly<Record<AddressedChannel, Addresses>> = {
  email: { noun: 'an email address', normalise: (text) => readAddress(text)?.normalised ?? null },
  sms: phoneNumbers,
  chatapp: phoneNumbers,
};

/** As addresses of the channel are compared; null if it is none. */
export function normaliseAddress(channel: AddressedChannel, text: string): string | null {
  return addressesOf[channel].normalise(text);
}

/** What an address of the channel is called. */
export function nounOfAddress(channel: AddressedChannel): string {
  return addressesOf[channel].noun;
}
