import type { Clock } from '../../../../platform/clock.ts';
import type { InboundSms } from '../../provider.ts';
import { decodeGsm } from '../../alphabet.ts';
import type { ShortMessage } from './pdu.ts';
import { cleanText, readNumber, readSenderName } from './strangers.ts';

/**
 * Texts that were sent to one of our senders. A long one comes in parts, each with a header that numbers it (TS
 * 23.040 §9.2.3.24.1 and .8). They are held, unanswered, until all are there, so that the message centre still has what
 * we lose; and for a few seconds only, since a message centre that waits for each answer before it sends the next part
 * would never send it. A text that is not whole by then is stored part by part, as are texts that come when too many
 * parts are held already.
 */

type Take = (inbound: InboundSms) => Promise<void>;

/** Shorter tears texts apart whose parts took different ways; message centres wait 10 s and more for an answer. */
const heldMs = 5_000;
/** Of at most 64 kB each, and usually of 140 octets. */
const partsHeldMax = 500;

/** §5.2.12: the octets begin with a user data header. */
const headerFollows = 0x40;

type Numbering = { reference: number; count: number; number: number };

type Part = {
  message: ShortMessage;
  /** Without the header. */
  octets: Buffer;
  /** Resolves when the part is stored, alone or in its whole. */
  stored: Promise<void>;
  settle: (stored: Promise<void>) => void;
};

type Group = { parts: Map<number, Part>; cancelTimer: () => void };

export class InboundTexts {
  #clock: Clock;
  #country: string | null;
  #take: Take;
  #groups = new Map<string, Group>();
  #partsHeld = 0;

  /** `country` is the dialling code of the country whose national numbers come without it, if any. */
  constructor(clock: Clock, country: string | null, take: Take) {
    this.#clock = clock;
    this.#country = country;
    this.#take = take;
  }

  /** Resolves when the text, or the whole that this is a part of, is stored; rejects if it cannot be. */
  async add(message: ShortMessage): Promise<void> {
    const { octets, numbering } = readHeader(message);
    if (numbering === null || this.#partsHeld >= partsHeldMax) {
      return this.#take(this.#textOf(message, octets));
    }
    const { source, destination } = message;
    const { reference, count, number } = numbering;
    const key = `${source.address} ${destination.address} ${reference} ${count}`;
    const group = this.#groups.get(key) ?? this.#open(key);
    const part = createPart(message, octets);
    // Delivered again, on another connection perhaps: both are answered alike.
    const earlier = group.parts.get(number);
    if (earlier === undefined) this.#partsHeld += 1;
    else earlier.settle(part.stored);
    group.parts.set(number, part);
    if (group.parts.size === count) this.#takeWhole(key, group);
    return part.stored;
  }

  /** Hands over everything that is held, as it is. */
  flush(): void {
    for (const [key, group] of [...this.#groups]) this.#takeEach(key, group);
  }

  #open(key: string): Group {
    const group: Group = {
      parts: new Map(),
      cancelTimer: this.#clock.after(heldMs, () => {
        this.#takeEach(key, group);
      }),
    };
    this.#groups.set(key, group);
    return group;
  }

  #takeWhole(key: string, group: Group): void {
    const [first, ...others] = this.#close(key, group);
    if (first === undefined) return;
    // Joined before they are read, because the sender's phone may have cut between an escape and its character.
    const octets = Buffer.concat([first, ...others].map((part) => part.octets));
    const stored = this.#take(this.#textOf(first.message, octets));
    for (const part of [first, ...others]) part.settle(stored);
  }

  #takeEach(key: string, group: Group): void {
    for (const part of this.#close(key, group))
      part.settle(this.#take(this.#textOf(part.message, part.octets)));
  }

  /** The parts in the order of the text. */
  #close(key: string, group: Group): Part[] {
    group.cancelTimer();
    this.#groups.delete(key);
    this.#partsHeld -= group.parts.size;
    return [...group.parts].sort(([a], [b]) => a - b).map(([, part]) => part);
  }

  #textOf(message: ShortMessage, octets: Buffer): InboundSms {
    const senderName = readSenderName(message.destination, this.#country);
    const senderNameAsWritten = readSenderName(message.destination, null);
    return {
      // SMPP 3.4 gives inbound texts no identifier.
      providerMessageId: null,
      from: readNumber(message.source, this.#country),
      senderName,
      ...(senderNameAsWritten === senderName ? {} : { senderNameAsWritten }),
      text: cleanText(decodeOctets(message.dataCoding, octets)),
    };
  }
}

/** Whether a message is a text at all, and not octets for a program on the phone (TS 23.038 §4). */
export function isText({ dataCoding }: ShortMessage): boolean {
  if (dataCoding === 0x02 || dataCoding === 0x04) return false;
  // Class and indication groups: bit 2 says octets.
  return dataCoding < 0xf0 || (dataCoding & 0x04) === 0;
}

function createPart(message: ShortMessage, octets: Buffer): Part {
  let settle: Part['settle'] = () => undefined;
  const stored = new Promise<void>((resolve) => {
    settle = resolve;
  });
  // A copy, because the octets share the memory of everything that came with them.
  return { message, octets: Buffer.from(octets), stored, settle };
}

/** SMPP 3.4 §5.2.19, and the classes of TS 23.038 §4, which some pass on as they come. */
function decodeOctets(dataCoding: number, octets: Buffer): string {
  const isUcs2 = dataCoding === 0x08 || (dataCoding >= 0x18 && dataCoding <= 0x1b) || dataCoding >> 4 === 0xe;
  if (isUcs2) return new TextDecoder('utf-16be', { ignoreBOM: true }).decode(octets);
  if (dataCoding === 0x06) return new TextDecoder('iso-8859-5').decode(octets);
  if (dataCoding === 0x07) return new TextDecoder('iso-8859-8').decode(octets);
  const isGsm = dataCoding === 0x00 || (dataCoding >= 0x10 && dataCoding <= 0x13) || dataCoding >= 0xf0;
  // An octet that is no septet says that the provider's own alphabet is not GSM's; the next likely one is Latin-1.
  return isGsm && octets.every((octet) => octet < 0x80) ? decodeGsm(octets) : octets.toString('latin1');
}

/** TS 23.040 §9.2.3.24: a length, and then elements of an identifier, a length and so many octets. */
function readHeader(message: ShortMessage): { octets: Buffer; numbering: Numbering | null } {
  const whole = message.messagePayload ?? message.octets;
  const headerLength = whole[0] ?? 0;
  if ((message.esmClass & headerFollows) === 0 || headerLength + 1 > whole.length) {
    return { octets: whole, numbering: null };
  }
  const header = whole.subarray(1, headerLength + 1);
  const octets = whole.subarray(headerLength + 1);
  // Ends because every element takes at least two octets.
  for (let at = 0; at + 2 <= header.length; at += 2 + (header[at + 1] ?? 0)) {
    const value = header.subarray(at + 2, at + 2 + (header[at + 1] ?? 0));
    const numbering = readNumbering(header[at] ?? 0, value);
    if (numbering !== null) return { octets, numbering };
  }
  return { octets, numbering: null };
}

/** Element 0 has a reference of one octet, element 8 one of two; then how many parts there are, and which this is. */
function readNumbering(element: number, value: Buffer): Numbering | null {
  const isShort = element === 0x00 && value.length === 3;
  const isWide = element === 0x08 && value.length === 4;
  if (!isShort && !isWide) return null;
  const [count = 0, number = 0] = value.subarray(-2);
  if (number < 1 || number > count) return null;
  return { reference: value.readUIntBE(0, value.length - 2), count, number };
}
