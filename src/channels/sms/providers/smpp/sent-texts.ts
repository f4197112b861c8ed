import type { RecipientKey } from '../../../outcome.ts';

/**
 * The texts that were handed off lately, so that a receipt finds its text. Bounded; receipts of texts that are
 * forgotten, or were handed off before the process began, are matched by the identifiers in the database.
 *
 * Two things make receipts hard to match. They may come before the answer that names the text, or so soon after it
 * that it is not stored yet: `whenAnswered` waits for the answer, and `find` gives the reference, which is
 * known without the identifier. And many message centres name a text in hexadecimal when they take it and in decimal
 * when they report on it, or the reverse: an identifier that is not known as it is given is looked for in the other
 * notations. The notation of a message centre is learnt from its first receipt and then taken for granted, so
 * that receipts of texts from before a restart are matched too, once one of a later text has come.
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

/** How wide numbers are written, with zeros before them: unpadded, or as is seen. */
const widths = [0, 8, 10, 12, 16, 20];

/** From the identifier of a receipt to that of the answer. */
const rewritings: readonly Rewriting[] = widths.flatMap((width) =>
  [lowerHexOf, upperHexOf, decimalOf, digitsOf].map(
    (rewrite) => (identifier: string) => rewrite(identifier)?.padStart(width, '0') ?? null,
  ),
);

export class SentTexts {
  #texts = new Map<string, SentText>();
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

  add(text: SentText): void {
    this.#texts.delete(text.providerMessageId);
    this.#texts.set(text.providerMessageId, text);
    if (this.#texts.size <= textsKeptMax) return;
    const [oldest] = this.#texts.keys();
    if (oldest !== undefined) this.#texts.delete(oldest);
  }

  /** What a receipt for `to` calls `identifier`, under the identifier of its answer if that is known. */
  find(identifier: string, to: string): { providerMessageId: string; text: SentText | null } {
    const known = this.#texts.get(identifier);
    // The same digits may be one text in decimal and another in hexadecimal.
    if (known?.to === to) {
      this.#rewriting = null;
      return { providerMessageId: identifier, text: known };
    }
    for (const rewrite of rewritings) {
      const rewritten = rewrite(identifier);
      const text = rewritten === null ? undefined : this.#texts.get(rewritten);
      if (text?.to !== to) continue;
      this.#rewriting = rewrite;
      return { providerMessageId: text.providerMessageId, text };
    }
    if (known !== undefined) return { providerMessageId: identifier, text: known };
    return { providerMessageId: this.#rewriting?.(identifier) ?? identifier, text: null };
  }
}

function lowerHexOf(decimal: string): string | null {
  return isNumber(decimal, /^\d+$/) ? BigInt(decimal).toString(16) : null;
}

function upperHexOf(decimal: string): string | null {
  return lowerHexOf(decimal)?.toUpperCase() ?? null;
}

function decimalOf(hex: string): string | null {
  return isNumber(hex, /^[\da-f]+$/i) ? BigInt(`0x${hex}`).toString() : null;
}

function digitsOf(decimal: string): string | null {
  return isNumber(decimal, /^\d+$/) ? decimal.replace(/^0+(?=\d)/, '') : null;
}

function isNumber(identifier: string, pattern: RegExp): boolean {
  return identifier.length <= digitsMax && pattern.test(identifier);
}
