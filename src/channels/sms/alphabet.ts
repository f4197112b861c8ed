/**
 * The alphabet and the segments of a text (3GPP TS 23.038, and TS 23.040 for long ones). A text of nothing but the
 * GSM 7-bit default alphabet and its extension table has 160 places in one segment; any other is sent as UCS-2 and
 * has 70. Where one segment does not do, every segment gives some room to the header that numbers it: 153 and 67
 * are left. Characters of the extension table take two places, and a segment never ends between them, nor between
 * the halves of a surrogate pair.
 *
 * `readAlphabet` is what quotas count and `splitText` is what providers send; both cut with the same function, so
 * that what is counted is what is sent.
 */

export type TextEncoding = 'gsm7' | 'ucs2';

export type SplitText = {
  encoding: TextEncoding;
  /**
   * The octets of each segment, at least one: for `gsm7` one octet for each septet, not packed; for `ucs2` UTF-16
   * with the high octet first.
   */
  parts: Buffer[];
};

const escape = 0x1b;

/** By code, the whole default alphabet of TS 23.038 §6.2.1. At the place of the escape stands what cannot be sent. */
const defaultAlphabet =
  '@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞ\uffffÆæßÉ !"#¤%&\'()*+,-./0123456789:;<=>?' +
  '¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà';

/** TS 23.038 §6.2.1.1: what each code means after the escape. */
const extensionTable: readonly (readonly [code: number, character: string])[] = [
  [0x0a, '\f'],
  [0x14, '^'],
  [0x28, '{'],
  [0x29, '}'],
  [0x2f, '\\'],
  [0x3c, '['],
  [0x3d, '~'],
  [0x3e, ']'],
  [0x40, '|'],
  [0x65, '€'],
];

const codesByCharacter = new Map<string, readonly number[]>([
  ...Array.from(defaultAlphabet, (character, code) => [character, [code]] as const).filter(
    ([, [code]]) => code !== escape,
  ),
  ...extensionTable.map(([code, character]) => [character, [escape, code]] as const),
]);
const charactersByExtension = new Map<number, string>(extensionTable);

const placesInOne = { gsm7: 160, ucs2: 70 } as const;
const placesInEach = { gsm7: 153, ucs2: 67 } as const;

/** How a text is sent, and in how many segments. An empty text is one segment. */
export function readAlphabet(text: string): { encoding: TextEncoding; segments: number } {
  const { encoding, places } = encodeText(text);
  return { encoding, segments: cutPlaces(encoding, places).length };
}

/** The text as the octets of its segments. */
export function splitText(text: string): SplitText {
  const { encoding, places } = encodeText(text);
  return {
    encoding,
    parts: cutPlaces(encoding, places).map(([from, to]) => octetsOf(encoding, places, from, to)),
  };
}

/**
 * The text of octets of the GSM 7-bit default alphabet, one for each septet. A code that the extension table does not
 * know means what it means without the escape, and an escape without a code a space, as TS 23.038 §6.2.1.1 has it.
 */
export function decodeGsm(octets: Uint8Array): string {
  let text = '';
  for (let at = 0; at < octets.length; at += 1) {
    const code = (octets[at] ?? 0) & 0x7f;
    if (code !== escape) {
      text += defaultAlphabet[code] ?? '';
      continue;
    }
    at += 1;
    const extension = (octets[at] ?? escape) & 0x7f;
    text +=
      extension === escape ? ' ' : (charactersByExtension.get(extension) ?? defaultAlphabet[extension] ?? '');
  }
  return text;
}

/** Septets or UTF-16 code units, each of which takes one place. */
type EncodedText = { encoding: TextEncoding; places: readonly number[] };

function encodeText(text: string): EncodedText {
  const septets: number[] = [];
  for (let at = 0; at < text.length; at += 1) {
    const codes = codesByCharacter.get(text.charAt(at));
    if (codes === undefined) {
      return {
        encoding: 'ucs2',
        places: Array.from({ length: text.length }, (_, unit) => text.charCodeAt(unit)),
      };
    }
    septets.push(...codes);
  }
  return { encoding: 'gsm7', places: septets };
}

/** From where to where each segment reaches. */
function cutPlaces(
  encoding: TextEncoding,
  places: readonly number[],
): (readonly [from: number, to: number])[] {
  if (places.length <= placesInOne[encoding]) return [[0, places.length]];
  const cuts: (readonly [number, number])[] = [];
  for (let from = 0; from < places.length;) {
    const full = Math.min(from + placesInEach[encoding], places.length);
    const to = full < places.length && isBoundToNext(encoding, places[full - 1] ?? 0) ? full - 1 : full;
    cuts.push([from, to]);
    from = to;
  }
  return cuts;
}

function isBoundToNext(encoding: TextEncoding, place: number): boolean {
  return encoding === 'gsm7' ? place === escape : place >= 0xd800 && place <= 0xdbff;
}

function octetsOf(encoding: TextEncoding, places: readonly number[], from: number, to: number): Buffer {
  if (encoding === 'gsm7') return Buffer.from(places.slice(from, to));
  const octets = Buffer.alloc(2 * (to - from));
  for (let at = from; at < to; at += 1) octets.writeUInt16BE(places[at] ?? 0, 2 * (at - from));
  return octets;
}
