/** Replaces what differs between two runs of the same requests by fixed values. */

export type StableTexts = {
  /** In this place and in all that come. */
  keep: (text: string, stable: string) => void;
  /** What happens from now on happened in the next minute. */
  begin: () => void;
  /** A copy. Ids count as they are first met, in the order of the calls. */
  replace: <Value>(value: Value) => Value;
};

const startMs = Date.parse('2026-11-21T10:00:00.000Z');
const minuteMs = 60_000;

/** Longer texts are cut: an example shows what they are, and not all of them. */
const charactersMax = 500;

/** UUIDs of version 7: what programs make. Those of the gallery are of version 4, and always the same. */
const idPattern = /[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/g;
const timePattern = /20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;
/** Named by the end of an id. */
const selectorPattern = /\bpst[0-9a-f]{12}\b/g;
/** Of a device, random but for its beginning. */
const secretPattern = /\bpds_[\w-]{43}/g;
/** Of an endpoint, random but for its beginning. */
const webhookSecretPattern = /\bwhsec_[\w+/=]{20,}/g;
/** Where a test has its receivers. */
const receiverPattern = /\bhttp:\/\/127\.0\.0\.1:\d+/g;
/** How long something took. */
const stableMs = 7;
/** What every RSA key of 2048 bits begins with, and what follows it. */
const keyPattern = /(MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA)[\w+/=]+/g;

/** Each `begin` is the beginning of a minute: what a clock that goes by makes different is then the same. */
export function createStableTexts(): StableTexts {
  const known = new Map<string, string>();
  const beginnings: number[] = [];

  const minuteOf = (epochMs: number): number => {
    const begun = beginnings.filter((beginning) => beginning <= epochMs).length;
    return startMs + begun * minuteMs;
  };
  const stable = (text: string, make: (number: number) => string): string => {
    const found = known.get(text) ?? make(known.size);
    known.set(text, found);
    return found;
  };
  const replaceText = (text: string): string => {
    const atMs = minuteOf(Date.now());
    const replaced = text
      .replaceAll(idPattern, (id) => stable(id, (number) => idAt(atMs, number)))
      .replaceAll(
        timePattern,
        (time) => known.get(time) ?? new Date(minuteOf(Date.parse(time))).toISOString(),
      )
      .replaceAll(selectorPattern, (selector) => stable(selector, (number) => `pst${digits(number, 12)}`))
      .replaceAll(webhookSecretPattern, `whsec_${'A'.repeat(43)}=`)
      .replaceAll(receiverPattern, 'https://shop.example')
      .replaceAll(secretPattern, `pds_${'0'.repeat(43)}`)
      .replaceAll(keyPattern, '$1…');
    return replaced.length > charactersMax ? `${replaced.slice(0, charactersMax)}…` : replaced;
  };
  const replaceAll = (value: unknown): unknown => {
    if (typeof value === 'string') return replaceText(value);
    if (Array.isArray(value)) return value.map(replaceAll);
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, inner]) => [key, key === 'ms' ? stableMs : replaceAll(inner)]),
    );
  };

  return {
    keep: (text, always) => known.set(text, always),
    begin: () => {
      // What has just happened may bear the time of this very millisecond.
      const justNowMs = Date.now();
      while (Date.now() <= justNowMs) continue;
      beginnings.push(Date.now());
    },
    replace: <Value>(value: Value) => {
      return replaceAll(JSON.parse(JSON.stringify(value))) as Value; // The same JSON with other texts in it.
    },
  };
}

/** As RFC 9562 §5.7 has it, with a number in the place of what is random. */
function idAt(epochMs: number, number: number): string {
  const time = epochMs.toString(16).padStart(12, '0');
  return `${time.slice(0, 8)}-${time.slice(8)}-7000-8000-${digits(number, 12)}`;
}

function digits(number: number, length: number): string {
  return number.toString(16).padStart(length, '0');
}
