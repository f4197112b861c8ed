import type { RecipientStatement, ReportedAction } from './report-recipient.ts';

/**
 * Reports that were written for people: of servers that know no RFC 3464 (qmail, old Exim and sendmail, Exchange's
 * gateways), and the part for people of those that do. Each has its own layout, but all of them name the address at
 * the start of a line and explain after it, mostly by quoting the reply that they got. That is what is read here;
 * telling forty products apart would say little more, and break with their next release.
 */

/** What is looked at of a message's header. */
export type ReportHead = {
  /** The address of `From` in lower case, or its name where it has no address. */
  from: string;
  subject: string;
  /** Exim's header `X-Failed-Recipients`, or empty. */
  failedRecipients: string;
};

/** After this comes the returned message: larger reads more of it for nothing. */
const textCharsMax = 16_384;
const linesMax = 400;
const lineCharsMax = 1_000;
const recipientsMax = 50;
const explanationCharsMax = 4_000;

const daemonNames =
  /^(?:mailer-?daemon|mail-?daemon|mdaemon|postmaster|mmdf|mail-?delivery|mailadm|noreply-dmd)\b/;

/** Beginnings of subjects, in lower case. */
const failureSubjects = [
  'undeliver',
  'returned mail',
  'mail delivery failed',
  'mail delivery failure',
  'mail delivery error',
  'mail delivery problem',
  'mail delivery status notification',
  'mail failure',
  'mail system error',
  'mail could not be delivered',
  'mail returned to sender',
  'mailer daemon',
  'delivery status notification',
  'delivery failure',
  'delivery failed',
  'delivery error',
  'delivery notification',
  'delivery report',
  'failed delivery',
  'failure notice',
  'failure delivery',
  'failed mail',
  'message delivery failure',
  'message status - undeliverable',
  'message undeliver',
  'message delayed',
  'non delivery report',
  'non-delivery',
  'nondeliverable',
  'notification: delivery',
  'warning: message',
  'warning: could not send',
  'there was an error sending your mail',
  'returning message to sender',
  'user unknown',
  'unknown user',
  'unzustellbar',
  'nicht zustellbar',
  'mail konnte nicht',
  'non remis',
  'échec de la remise',
  'no se puede entregar',
  'no entregado',
  'impossibile recapitare',
  'onbestelbaar',
  'niet bezorgd',
  'não é possível entregar',
  'olevererbart',
  'недоставленное',
  '未送达',
  '无法投递',
  '系统退信',
  '配信不能',
];

/** What a report says before anything else, in lower case; at most 400 characters on. */
const failureOpenings = [
  'this is the qmail-send program',
  'created automatically by mail delivery software',
  "wasn't able to deliver your message",
  'was not able to deliver your message',
  'unable to deliver your message',
  'unable to deliver the message',
  'unable to deliver message',
  'could not be delivered to',
  'could not deliver your message',
  "couldn't be delivered",
  "wasn't delivered to",
  'delivery has failed to these recipients',
  'delivery to the following recipient',
  'did not reach the following recipient',
  'did not reach some or all of',
  'was not delivered to',
  'following addresses had permanent',
  'following addresses had delivery',
  'following addresses had transient',
  'transcript of session follows',
  'has not yet been delivered to',
  'this is the mailer-daemon',
];

const delayMarks = [
  'warning only',
  'warning message only',
  'has not yet been delivered',
  'have not yet been delivered',
  'has been delayed',
  'is delayed',
  'delivery delayed',
  'notification (delay)',
  'transient non-fatal errors',
  'will be retried',
  'will keep trying',
  'will continue to try',
  'will try again',
  'still being retried',
  'still trying to deliver',
  'no action is required',
  'warning: message',
  'warning: could not send message for past',
];

/** What stands before the copy of the message that is sent back. */
const copyMarks = [
  /^[\s*=_-]*(?:below this line is a copy|this is a copy of|here is a copy|below is a copy|copy of the message)/i,
  /^[\s*=_-]{3,}(?:the )?(?:header of the )?(?:original|unsent|returned|rejected|undelivered|unsent) message/i,
  /^[\s*=_-]*(?:the )?original (?:message|mail)(?: headers?)?(?: follows| headers?)?[\s.:=_-]*$/i,
  /^[\s*=_-]*(?:message|mail) headers? follow/i,
  /^[\s*=_-]*(?:your message|the message) (?:reads|was|text|header)[\w ]{0,20}:?\s*$/i,
  /^(?:return-path|received): ?\S/i,
];

/**
 * Whether what is said in words is a report: `maybe` where only the writer or only the subject speaks for it, because
 * mail systems write other things, too, and other mail has such subjects.
 */
export function judgeReturn(head: ReportHead, text: string): 'yes' | 'maybe' | 'no' {
  const opening = text.slice(0, 400).toLowerCase();
  const subject = head.subject.slice(0, 200).toLowerCase();
  const isNamedSo = failureSubjects.some((beginning) => subject.startsWith(beginning));
  const isFromDaemon = daemonNames.test(head.from);
  const isCertain =
    head.failedRecipients !== '' || failureOpenings.some((phrase) => opening.includes(phrase));
  if (isCertain || (isNamedSo && isFromDaemon)) return 'yes';
  return isNamedSo || isFromDaemon ? 'maybe' : 'no';
}

/** What a report is about that says neither: mail that still waits, or mail that was given up. */
export function readTextAction(head: ReportHead, text: string): ReportedAction {
  const words = `${head.subject.slice(0, 200)}\n${text.slice(0, 2_000)}`.toLowerCase();
  return delayMarks.some((mark) => words.includes(mark)) ? 'delayed' : 'failed';
}

/**
 * What the words state of each recipient, at most 50, each with the explanation that follows its address. Where no
 * line begins with an address, all of the words are about the first one anywhere, or about a recipient without one.
 */
export function readTextStatements(head: ReportHead, text: string): RecipientStatement[] {
  const action = readTextAction(head, text);
  const lines = withoutCopy(text);
  const explanations = new Map<string, { address: string; words: string }>();
  let current: { address: string; words: string } | null = null;
  for (const line of lines) {
    const named = splitAddressLine(line);
    if (named !== null) {
      const key = named.address.toLowerCase();
      if (explanations.size >= recipientsMax && !explanations.has(key)) break;
      // Exchange names an address twice: for people, and with the reply for administrators.
      current = explanations.get(key) ?? { address: named.address, words: '' };
      explanations.set(key, current);
    }
    if (current !== null) current.words = appendWords(current.words, named?.rest ?? line);
  }

  const whole = lines.reduce(appendWords, '');
  if (explanations.size === 0) {
    const alias = findAlias(whole);
    const address = alias ?? findAddress(head.failedRecipients) ?? findAddress(whole);
    return [
      {
        action,
        address,
        // It may be anybody's.
        finalAddress: null,
        isAliasTarget: alias !== null,
        status: null,
        diagnostic: whole,
        remote: null,
      },
    ];
  }
  return [...explanations.values()].map(({ address, words }) => ({
    action,
    address: findAlias(words) ?? address,
    finalAddress: address,
    isAliasTarget: findAlias(words) !== null,
    status: null,
    // Some explain first and name the address last.
    diagnostic: words === '' && explanations.size === 1 ? whole : words,
    remote: null,
  }));
}

function withoutCopy(text: string): string[] {
  const lines = text
    .slice(0, textCharsMax)
    .split(/\r\n|\n|\r/, linesMax)
    .map((line) => line.slice(0, lineCharsMax));
  const end = lines.findIndex((line) => copyMarks.some((mark) => mark.test(line)));
  return end === -1 ? lines : lines.slice(0, end);
}

function appendWords(words: string, line: string): string {
  if (words.length >= explanationCharsMax) return words;
  const added = line.trim();
  if (added === '') return words;
  return words === '' ? added : `${words} ${added}`;
}

const anAddress = String.raw`[^\s<>"'()[\]:;,@]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}`;

/** Brackets, quotes and bullets before it; or a label such as `Recipient address:`. */
const addressLine = new RegExp(
  String.raw`^\s{0,40}(?:(?:(?:original |final |failed )?(?:recipient|address)(?: address)?|addressed to):\s{0,10})?[*•>-]{0,3}\s{0,5}["'<(]{0,3}(${anAddress})`,
  'i',
);

const anyAddress = new RegExp(`(?<![^\\s<"'(])${anAddress}`);

/** The address that a line begins with, and what the line says after it. */
function splitAddressLine(line: string): { address: string; rest: string } | null {
  const found = addressLine.exec(line);
  const address = found?.[1];
  if (found === null || address === undefined) return null;
  // Outlook writes `someone@example.com<mailto:someone@example.com>`.
  const rest = line.slice(found[0].length).replace(/^<mailto:[^>]{1,300}>/i, '');
  return { address, rest: rest.replace(/^[\s"'>):;,]+/, '') };
}

/**
 * Exim names where an alias leads to, and below it the alias; where the target is hidden, it writes `an undisclosed
 * address` instead (https://www.exim.org/exim-html-current/doc/html/spec_html/ch-the_redirect_router.html,
 * `hide_child_in_errmsg`).
 */
function findAlias(words: string): string | null {
  return /\((?:ultimately )?generated from (\S{1,320})\)/.exec(words)?.[1] ?? null;
}

function findAddress(text: string): string | null {
  return anyAddress.exec(text.slice(0, explanationCharsMax))?.[0] ?? null;
}
