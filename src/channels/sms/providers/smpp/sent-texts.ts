import type { RecipientKey } from '../../../outcome.ts';

/**
 * The texts that were handed off lately, so that a receipt finds its text. Bounded; receipts of texts that are
 * forgotten, or were handed off before the process began, are matched by the identifiers in the database.
 *
 * Two things make receipts hard to match. They may come before the answer that names the text, or so soon after it
 * that it is not stored yet: `whenAnswered` waits for the answer, and `find` gives the reference, which is
 * known without the identifier. And a message centre may spell an identifier in one way when it takes a text and in
 * another when it reports on it: with zeros before it or without, in capitals or small letters, in decimal or in
 * hexadecimal.
 *
 * So numbers and UUIDs are known, here and in the database, in small letters and without zeros before them
 * (`canonicalIdentifier`). In other identifiers capitals may make a difference: they are looked for in any spelling
 * among the texts of the receipt's number alone. Decimal or hexadecimal is learnt from the first receipt and then
 * taken for granted, so that receipts of texts from before a restart are matched too, once one of a later text has
 * come.
 */
export type SentText = {
  providerMessageId: string;
  reference: RecipientKey;
  /** E.164, with its plus. */
  to: string;
  senderName: string;
};

/** Receipts of most texts come within minutes: this is some minutes of the fastest provider, and a few megabytes. */
const textsKeptMax = 20_000;

/** Identifiers of a message centre are a few octets; longer ones are not numbers. */
const digitsMax = 20;

type Rewriting = (identifier: string) => string | null;

/** From the identifier of a receipt to that of the answer. */
const rewritings: readonly Rewriting[] = [
  (decimal) => (isNumber(decimal, /^\d+$/) ? BigInt(decimal).toString(16) : null),
  (hexadecimal) => (isNumber(hexadecimal, /^[\da-f]+$/i) ? BigInt(`0x${hexadecimal}`).toString() : null),
];

/** An identifier as its text is known by it: of a number or a UUID, the one spelling for all. */
export function canonicalIdentifier(identifier: string): string {
  return /^[\da-f-]+$/i.test(identifier) ? fold(identifier) : identifier;
}

/** The same for all spellings of an identifier, and for others that differ in capitals alone. */
function fold(identifier: string): string {
  return identifier.toLowerCase().replace(/^0+(?=.)/, '');
}

export class SentTexts {
  /** By their identifiers. */
  #texts = new Map<string, SentText>();
  /** The last of each that `fold` cannot tell apart. */
  #folded = new Map<string, SentText>();
  #underWay = new Map<string, Set<Promise<void>>>();
  #rewriting: Rewriting | null = null;

  /** A text for this number is being submitted; the returned function says that its answer is known. */
  begin(to: string): () => void {
    let end = (): void => undefined;
    const answered = new Promise<void>((resolve) => {
      end = resolve;
    });
    const others = this.#underWay.get(to) ?? new Set();
    this.#underWay.set(to, others.add(answered));
    return () => {
      others.delete(answered);
      if (others.size === 0) this.#underWay.delete(to);
      end();
    };
  }

  /**
   * Resolves when every text for this number that is being submitted now has its answer, or will not get one. Null
   * if there is none.
   */
  whenAnswered(to: string): Promise<unknown> | null {
    const underWay = this.#underWay.get(to);
    return underWay === undefined ? null : Promise.all([...underWay]);
  }

  /** A text under its canonical identifier. */
  add(text: SentText): void {
    this.#texts.delete(text.providerMessageId);
    this.#texts.set(text.providerMessageId, text);
    this.#folded.set(fold(text.providerMessageId), text);
    if (this.#texts.size <= textsKeptMax) return;
    const [oldest] = this.#texts.values();
    if (oldest === undefined) return;
    this.#texts.delete(oldest.providerMessageId);
    const folded = fold(oldest.providerMessageId);
    if (this.#folded.get(folded) === oldest) this.#folded.delete(folded);
  }

  /** What a receipt for `to` calls `identifier`, under the identifier of its answer if that is known. */
  find(identifier: string, to: string): { providerMessageId: string; text: SentText | null } {
    const given = canonicalIdentifier(identifier);
    const known = this.#texts.get(given);
    const alike = known?.to === to ? known : this.#folded.get(fold(identifier));
    // The same digits may be one text in decimal and another in hexadecimal.
    if (alike?.to === to) {
      this.#rewriting = null;
      return { providerMessageId: alike.providerMessageId, text: alike };
    }
    for (const rewrite of rewritings) {
      const rewritten = rewrite(given);
      const text = rewritten === null ? undefined : this.#texts.get(rewritten);
      if (text?.to !== to) continue;
      this.#rewriting = rewrite;
      return { providerMessageId: text.providerMessageId, text };
    }
    if (known !== undefined) return { providerMessageId: given, text: known };
    return { providerMessageId: this.#rewriting?.(given) ?? given, text: null };
  }
}

function isNumber(identifier: string, pattern: RegExp): boolean {
  return identifier.length <= digitsMax && pattern.test(identifier);
}
