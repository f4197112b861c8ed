import type { FailureClass, RemoteReply } from '../outcome.ts';
import { addressLengthMax } from './address.ts';
import { sanitiseDiagnostic } from '../diagnostic.ts';
import { classifyReply, enhancedCodeOf } from './replies.ts';

/** From what a report states of one recipient, in whatever words, to what it means for the one who wrote to it. */

/** RFC 3464 §2.3.3. */
export type ReportedAction = 'failed' | 'delayed' | 'delivered' | 'relayed' | 'expanded';

export type ReportedRecipient = {
  action: ReportedAction;
  /** As the report names it, which need not be how we wrote to it; null where it names none that is an email address. */
  address: string | null;
  /** Where it came to its end. Another one than we wrote to is the target of an alias. Null where that is not said. */
  finalAddress: string | null;
  /** Whether the report says itself that an alias led there: Exim does, and calls the alias the final address. */
  isAliasTarget: boolean;
  /** `other` where nothing failed. */
  failureClass: FailureClass;
  /** Hard only where the address or its domain is said not to exist, and for good. */
  type: 'hard' | 'soft';
  reply: RemoteReply;
};

/** What a report states of one recipient, as it stands there: nothing in it is fit to be stored or shown yet. */
export type RecipientStatement = {
  action: ReportedAction;
  address: string | null;
  finalAddress: string | null;
  isAliasTarget: boolean;
  /** RFC 3463, or null. */
  status: string | null;
  /** The words of the field `Diagnostic-Code` without their type, or those of a person; may be empty. */
  diagnostic: string;
  /** What `X-Supplementary-Info` adds to that, or empty. */
  supplement?: string;
  /** The host that is said to have refused. */
  remote: string | null;
};

export function judgeStatement(statement: RecipientStatement): ReportedRecipient {
  const quoted = findQuotedReply(statement.diagnostic);
  const enhancedCode = chooseEnhancedCode(quoted.enhancedCode, statement.status);
  const isFailure = statement.action === 'failed' || statement.action === 'delayed';
  const failureClass = isFailure ? classifyReply(quoted.code, enhancedCode, quoted.words, null) : 'other';
  return {
    action: statement.action,
    address: sanitiseAddress(statement.address),
    finalAddress: sanitiseAddress(statement.finalAddress),
    isAliasTarget: statement.isAliasTarget,
    failureClass,
    type: isHard(statement, quoted.code, enhancedCode, failureClass) ? 'hard' : 'soft',
    reply: {
      code: quoted.code,
      enhancedCode,
      diagnostic: sanitiseDiagnostic(quoted.words),
      remote: sanitiseHost(statement.remote ?? quoted.host),
    },
  };
}

/**
 * A report that gives up on an address after days of 4.x.x is no proof that the address does not exist; and where
 * several codes are given, one that says "for now" outweighs the others, since a suppression is for good.
 */
function isHard(
  statement: RecipientStatement,
  code: number | null,
  enhancedCode: string | null,
  failureClass: FailureClass,
): boolean {
  if (statement.action !== 'failed') return false;
  if (failureClass !== 'mailbox_not_found' && failureClass !== 'domain_not_found') return false;
  const isTemporary =
    (code !== null && code < 500) || [enhancedCode, statement.status].some((text) => text?.startsWith('4'));
  return !isTemporary;
}

/** The one that says more: many servers write `5.0.0` or `5.5.0` as the status and the real one in their words. */
function chooseEnhancedCode(fromWords: string | null, status: string | null): string | null {
  if (fromWords === null || (status !== null && /^\d\.0\.0$/.test(fromWords))) return status ?? fromWords;
  return fromWords;
}

type QuotedReply = {
  code: number | null;
  enhancedCode: string | null;
  /** From the reply on, or everything where none is quoted. */
  words: string;
  host: string | null;
};

/** Replies are not quoted further on than this, and a sender could make us search. */
const searchedCharsMax = 4_000;

/** Without its enhanced code a number is only taken for a reply if RFC 5321 and its successors know it. */
const knownCode = '(?:42[0-2]|43[12]|44[1-7]|45[0-4]|471|50[0-4]|51[0-3]|52[1-3]|53[0458]|541|55[0-9]|571)';

/** How a reply stands in other words, the surest form first. Each takes a few steps a character at most. */
const replyForms = [
  /^[\s'"(#<]{0,4}([45]\d{2})(?=[\s:;,#'"<-]|$)/,
  /(?<![\w.])([45]\d{2})[ -]{1,2}['"#]{0,2}[45]\.\d{1,3}\.\d{1,3}(?![\d.])/,
  new RegExp(String.raw`(?<![\w.=/[])(${knownCode})(?=[ -]{1,2}[^\s\d])`),
  /^\s{0,4}(2\d{2})(?=[\s-])/,
];

/** sendmail sends a whole transcript: what follows belongs to another command, or to another recipient. */
const nextReply = new RegExp(
  String.raw`(?<!\.\.\.)\s(?:<<<|>>>|\.\.\. while talking|${knownCode}[ -][^\s\d]|${knownCode} [45]\.\d)`,
);

const looseEnhancedCode = /(?<![\w.])[45]\.\d{1,3}\.\d{1,3}(?![\d.])/;

/** Postfix, Exim and GMX name the host before the reply, sendmail before its transcript. */
const quotedHost = /(?:^|[\s(])(?:host:? |talking to )([\w.-]{1,255})/;

/** The SMTP reply that a report quotes: `host mx.example.com[192.0.2.1] said: 550-5.1.1 No such user` and the like. */
function findQuotedReply(text: string): QuotedReply {
  const searched = text.slice(0, searchedCharsMax);
  const host = quotedHost.exec(searched)?.[1]?.replace(/\.$/, '') ?? null;
  for (const form of replyForms) {
    const found = form.exec(searched);
    const code = found?.[1];
    if (found === null || code === undefined) continue;
    const words = joinReplyLines(searched.slice(searched.indexOf(code, found.index) + 3), code);
    return {
      code: Number(code),
      enhancedCode: enhancedCodeOf(words) ?? findEnhancedCode(words),
      words,
      host,
    };
  }
  return { code: null, enhancedCode: findEnhancedCode(searched), words: searched.trim(), host };
}

function findEnhancedCode(text: string): string | null {
  return looseEnhancedCode.exec(text)?.[0] ?? null;
}

/** Without the codes that a reply of several lines repeats at the start of each, and without the replies after it. */
function joinReplyLines(text: string, code: string): string {
  const hasMoreLines = text.startsWith('-');
  const words = text.replace(/^[\s:;,'"-]+/, '');
  const enhancedCode = enhancedCodeOf(words);
  const marks = enhancedCode === null ? [] : [` ${code}-${enhancedCode} `, ` ${code} ${enhancedCode} `];
  if (hasMoreLines) marks.push(` ${code}-`, ` ${code} `);
  const joined = marks.reduce((rest, mark) => rest.replaceAll(mark, ' '), words);
  const end = joined.search(nextReply);
  return (end === -1 ? joined : joined.slice(0, end)).trim();
}

/** Null for what is no address, and for one that had to be changed to be shown: it would be another one then. */
function sanitiseAddress(address: string | null): string | null {
  if (address === null || address.length > addressLengthMax) return null;
  return sanitiseDiagnostic(address) === address ? address : null;
}

function sanitiseHost(host: string | null): string | null {
  if (host === null) return null;
  const sanitised = sanitiseDiagnostic(host).slice(0, 255);
  return sanitised === '' ? null : sanitised;
}
