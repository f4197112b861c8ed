import type { SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff } from '../../provider.ts';
import { ownWords } from './outcomes.ts';

/** Refuses a hand-off whose addresses could put something else into the dialogue; null if they are plain. */
export function refuseEnvelope(handOff: EmailHandOff, remote: string | null): SendOutcome | null {
  const { recipient, envelopeFrom } = handOff;
  const isPlain =
    (isEnvelopeAddress(recipient) || isInternationalAddress(recipient)) &&
    (envelopeFrom === '' || isEnvelopeAddress(envelopeFrom));
  if (isPlain) return null;
  return {
    kind: 'rejected',
    reason: 'other',
    reply: ownWords('an address of the envelope is not plain', remote),
  };
}

/** RFC 5321 §4.5.3.1: 64 octets, an at sign, 255 octets. */
const addressBytesMax = 320;

/** Whether an address can stand between angle brackets as it is: no space, bracket, control or eight-bit character. */
function isEnvelopeAddress(address: string): boolean {
  return address.length <= addressBytesMax && /^[\x21-\x3b=\x3f-\x7e]+$/.test(address);
}

/** The same in UTF-8, of an address that takes SMTPUTF8 (RFC 6531 §3.3). */
function isInternationalAddress(address: string): boolean {
  const isShort = address.length <= addressBytesMax && Buffer.byteLength(address) <= addressBytesMax;
  return isShort && needsSmtpUtf8(address) && /^[^\0- <>\x7f\p{C}\p{Z}]+$/u.test(address);
}

/** Whether an address can be named only to a server that offers SMTPUTF8. */
export function needsSmtpUtf8(address: string): boolean {
  return !/^[\0-\x7f]*$/.test(address);
}
