import type { SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff } from '../../provider.ts';
import { ownWords } from './outcomes.ts';

/** Refuses a hand-off whose addresses could put something else into the dialogue; null if they are plain. */
export function refuseEnvelope(handOff: EmailHandOff, remote: string | null): SendOutcome | null {
  const isPlain =
    isEnvelopeAddress(handOff.recipient) &&
    (handOff.envelopeFrom === '' || isEnvelopeAddress(handOff.envelopeFrom));
  if (isPlain) return null;
  return {
    kind: 'rejected',
    reason: 'other',
    reply: ownWords('an address of the envelope is not plain', remote),
  };
}

/** Whether an address can stand between angle brackets as it is: no space, bracket, control or eight-bit character. */
function isEnvelopeAddress(address: string): boolean {
  // RFC 5321 §4.5.3.1: 64 octets, an at sign, 255 octets.
  return address.length <= 320 && /^[\x21-\x3b=\x3f-\x7e]+$/.test(address);
}
