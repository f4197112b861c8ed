import { splitText } from '../../alphabet.ts';
import type { SmsHandOff } from '../../provider.ts';
import type { ShortMessage } from './pdu.ts';
import type { SmppUrl } from './url.ts';

/** From a text to what is submitted for it. */

/** §5.2.12: the octets begin with a user data header. */
const headerFollows = 0x40;
/** §5.2.17: a receipt for the end, good or bad. */
const receiptWanted = 0x01;
/** §5.2.19: the provider's own alphabet, nearly everywhere that of GSM, one octet for each septet. */
const providersAlphabet = 0x00;
const ucs2 = 0x08;

/** TS 23.040 §9.2.3.24.1: the number of parts is one octet. */
const partsMax = 255;
/** SMPP 3.4 §4.4.1: addresses have 20 octets besides their NUL. */
const addressCharsMax = 20;

/**
 * The messages that carry a text, in their order. A text of several gets the header that numbers them, with
 * `reference` (0 to 255) the same in all; only the last asks for a receipt, since the text has arrived no sooner.
 * Null if the text or one of its ends cannot be expressed.
 */
export function composeMessages(
  target: SmppUrl,
  handOff: Pick<SmsHandOff, 'sender' | 'to' | 'text'>,
  reference: number,
): ShortMessage[] | null {
  const { sender, to, text } = handOff;
  const { encoding, parts } = splitText(text);
  const destination = to.replace(/^\+/, '');
  if (parts.length > partsMax || !isAddress(sender.name) || !isAddress(destination)) return null;
  const isLong = parts.length > 1;
  return parts.map((part, at) => ({
    source: { ...target.senderPlans[sender.type], address: sender.name },
    destination: { ...target.destinationPlan, address: destination },
    esmClass: isLong ? headerFollows : 0,
    validityPeriod: target.validityMinutes === null ? '' : relativeTime(target.validityMinutes),
    registeredDelivery: at === parts.length - 1 ? receiptWanted : 0,
    dataCoding: encoding === 'gsm7' ? providersAlphabet : ucs2,
    // TS 23.040 §9.2.3.24.1: five octets of header, of which element 0 has three.
    octets: isLong ? Buffer.concat([Buffer.from([5, 0, 3, reference, parts.length, at + 1]), part]) : part,
    receiptedMessageId: null,
    messageState: null,
    messagePayload: null,
  }));
}

function isAddress(text: string): boolean {
  return text.length <= addressCharsMax && /^[\x20-\x7e]+$/.test(text);
}

/** §7.1.1.2: YYMMDDhhmmsstnnR */
function relativeTime(minutes: number): string {
  const twoDigits = (number: number) => String(number).padStart(2, '0');
  const days = Math.floor(minutes / 1_440);
  const hours = Math.floor(minutes / 60) % 24;
  return `0000${twoDigits(days)}${twoDigits(hours)}${twoDigits(minutes % 60)}00000R`;
}
