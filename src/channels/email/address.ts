import { domainToASCII } from 'node:url';

/** An email address that every part of the service understands alike: validation, suppression, routing, envelope. */
export type EmailAddress = {
  /** As it was submitted, its characters composed (NFC). */
  address: string;
  /** For comparison: as `foldAddress` makes it, the domain as A-labels. */
  normalised: string;
  /** For SMTP: the local part as submitted, whose case is its owner's business, and the domain as A-labels. */
  envelope: string;
  /** Lower-cased A-labels. */
  domain: string;
  /** Whether its local part goes beyond ASCII (RFC 6531), so that it takes servers that offer SMTPUTF8. */
  isInternational: boolean;
};

/** RFC 5321 §4.5.3.1.3: a path has 256 octets, two of them the angle brackets. */
export const addressLengthMax = 254;

/** RFC 5321 §4.5.3.1.1; in octets, as all limits here. */
const localPartLengthMax = 64;

/** RFC 1035 §2.3.4, without the length octets of the wire form. */
const domainLengthMax = 253;

/** RFC 5321 §4.1.2, Dot-string: runs of atext with single dots between them. */
const dotStringPattern = /^[\w!#$%&'*+\-/=?^`{|}~]+(?:\.[\w!#$%&'*+\-/=?^`{|}~]+)*$/;

/** RFC 2047 §2. A dot-atom or a name may be one: a reader that decodes it sees another address, or another name. */
export const encodedWordPattern = /=\?.*\?=/;

const labelPattern = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;

/**
 * The same beyond ASCII (RFC 6531 §3.3), for whole local parts in NFC: no controls, no spaces, nothing that is not seen
 * or turns the direction of writing, nothing unassigned, nothing that stands for a character that was lost, and no mark
 * that would join the character in front of it, be it the bracket in which the address stands.
 */
const internationalDotStringPattern = new RegExp(
  String.raw`^ATOM(?:\.ATOM)*$`.replaceAll(
    'ATOM',
    String.raw`(?!\p{M})[^\0- "(),.:;<>@[\\\]\x7f\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\ufffc\ufffd]+`,
  ),
  'u',
);

const asciiPattern = /^[\0-\x7f]*$/;

/**
 * Reads a bare address: a plain dot-atom local part (RFC 5321 §4.1.2, RFC 6531 §3.3) and a domain of two labels or more.
 * Null for everything else that mail knows: quoted local parts, lists, display names, comments, encoded words and
 * address literals are how two parsers come to disagree about who gets a message. White space is never trimmed.
 */
export function parseAddress(text: string): EmailAddress | null {
  if (text.length > addressLengthMax) return null;
  const at = text.indexOf('@');
  const localPart = text.slice(0, Math.max(at, 0));
  const isPlain = localPart.length <= localPartLengthMax && dotStringPattern.test(localPart);
  if (!isPlain)
    return asciiPattern.test(localPart) ? null : parseInternational(localPart, text.slice(at + 1));
  if (encodedWordPattern.test(localPart)) return null;
  const domain = parseDomain(text.slice(at + 1));
  if (domain === null) return null;
  const envelope = `${localPart}@${domain}`;
  if (envelope.length > addressLengthMax) return null;
  return { address: text, normalised: envelope.toLowerCase(), envelope, domain, isInternational: false };
}

function parseInternational(submitted: string, host: string): EmailAddress | null {
  const localPart = submitted.normalize('NFC');
  // The sign for kelvin is composed to a K: what only looks like ASCII is no other spelling of it.
  if (asciiPattern.test(localPart) || !isInternationalDotString(localPart)) return null;
  const domain = parseDomain(host);
  if (domain === null) return null;
  const envelope = `${localPart}@${domain}`;
  const folded = foldAddress(localPart);
  // In lower case it may be longer, and must be an address all the same.
  const localPartLength = Math.max(Buffer.byteLength(localPart), Buffer.byteLength(folded));
  if (localPartLength > localPartLengthMax || localPartLength + 1 + domain.length > addressLengthMax)
    return null;
  return {
    address: `${localPart}@${host.normalize('NFC')}`,
    normalised: `${folded}@${domain}`,
    envelope,
    domain,
    isInternational: true,
  };
}

/** Also where a system on its way replaces variants, such as a wide at sign, by what they stand for (NFKC). */
function isInternationalDotString(localPart: string): boolean {
  return [localPart, localPart.normalize('NFKC')].every(
    (text) => internationalDotStringPattern.test(text) && !encodedWordPattern.test(text),
  );
}

/**
 * An address, or a part of one, as addresses are compared: in lower case, and beyond ASCII composed (NFC) and with one
 * small sigma, since which of the two a capital one becomes depends on what follows. Domains stay as they are.
 */
export function foldAddress(text: string): string {
  const lowered = text.toLowerCase();
  return asciiPattern.test(lowered) ? lowered : lowered.normalize('NFC').replaceAll('ς', 'σ');
}

const plainDomainPattern = /^[A-Za-z0-9.-]+$/;
const unsafeAsciiPattern = /[\0-,/:-@[-`{-\x7f]/;
/**
 * What nobody sees and UTS #46 takes out without a word: two spellings that look alike would be stored as different ones.
 * Joiners are letters of names in Persian and in Indic scripts, and are refused elsewhere (RFC 5892, appendix A).
 */
const invisiblePattern = /[^\P{Default_Ignorable_Code_Point}\u200c\u200d]/u;

/** The domain as lower-cased A-labels, or null if it is none that mail can be sent to. Takes text of any length. */
export function parseDomain(text: string): string | null {
  if (text.length > domainLengthMax) return null;
  // What is refused here would mean something to a parser of URLs, which is what domainToASCII is.
  if (unsafeAsciiPattern.test(text)) return null;
  if (invisiblePattern.test(text)) return null;
  const lowered = text.toLowerCase();
  const isPlain = plainDomainPattern.test(text) && !lowered.includes('xn--');
  const domain = isPlain ? lowered : domainToASCII(text);
  if (domain.length > domainLengthMax) return null;
  const labels = domain.split('.');
  if (labels.length < 2 || !labels.every((label) => labelPattern.test(label))) return null;
  // RFC 1123 §2.1: the last label begins with a letter; 127.1 and 1.0x7f are addresses to a resolver.
  return /^[a-z]/.test(labels.at(-1) ?? '') ? domain : null;
}
