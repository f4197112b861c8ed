/** What a person asks of a sender, by a word that carriers have agreed on for texts, and that chat apps are used with too. */
export type Keyword = 'stop' | 'start' | 'help';

/**
 * The words of CTIA's Messaging Principles, of the FCC's rule on revoking consent (47 CFR 64.1200(a)(10)), of the
 * Canadian short codes, and the plain equivalents in Spanish, German, Swedish and Russian. Written without spaces,
 * hyphens and accents, as `readKeyword` compares them.
 *
 * A word too many here mistakes an ordinary text for a keyword; a word too few costs a complaint. `YES` starts
 * nothing, though carriers may take it so: it answers all kinds of questions, and consent should be meant.
 */
const words: Readonly<Record<Keyword, readonly string[]>> = {
  stop: [
    ...['STOP', 'STOPALL', 'UNSUBSCRIBE', 'UNSUB', 'CANCEL', 'END', 'QUIT', 'REVOKE', 'OPTOUT', 'REMOVE'],
    ...['ARRET', 'ARRETE', 'ARRETER', 'ALTO', 'BAJA', 'PARAR', 'STOPP', 'СТОП'],
  ],
  start: ['START', 'UNSTOP'],
  help: ['HELP', 'INFO', 'AIDE', 'AYUDA'],
};

const keywords: ReadonlyMap<string, Keyword> = new Map([
  ...words.stop.map((word) => [word, 'stop'] as const),
  ...words.start.map((word) => [word, 'start'] as const),
  ...words.help.map((word) => [word, 'help'] as const),
]);

/** A keyword with what may stand around it. A longer text says something else, and is not read. */
const charsMax = 64;

/**
 * Which keyword a text consists of, or null. Case, accents, the width of letters, and white space, hyphens,
 * punctuation and symbols count for nothing; any other word beside the keyword makes it an ordinary text, for a person
 * to read.
 */
export function readKeyword(text: string): Keyword | null {
  if (text.length > charsMax) return null;
  // What is no letter and no digit goes, also from the middle: STOP ALL, OPT-OUT and "S.T.O.P." are one word each.
  const word = text
    .normalize('NFKD')
    .replace(/[^\p{L}\p{N}]+/gu, '')
    .toUpperCase();
  return keywords.get(word) ?? null;
}
