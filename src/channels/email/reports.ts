import { sanitiseDiagnostic } from '../diagnostic.ts';
import { decodeWords, type MailParts, readHeader, readMailParts, readWriter } from './report-parts.ts';
import { isDeliveryStatus, readDeliveryStatus, readFieldGroups } from './report-fields.ts';
import { judgeStatement, type RecipientStatement, type ReportedRecipient } from './report-recipient.ts';
import { judgeReturn, readTextAction, readTextStatements, type ReportHead } from './report-text.ts';

export type { ReportedAction, ReportedRecipient } from './report-recipient.ts';

/** What came back by mail. Everything in it is untrusted, and fit to be stored and shown. */
export type BounceReport =
  /** What became of the message, for one recipient or several: RFC 3464, and what servers write instead of it. */
  | { kind: 'delivery_status'; recipients: ReportedRecipient[] }
  /** Someone's verdict on the message (RFC 5965, RFC 6430, RFC 6591, RFC 6650). */
  | {
      kind: 'abuse';
      /** In lower case: `abuse`, `fraud`, `virus`, `not-spam`, `auth-failure`, `other`, `opt-out`. */
      feedbackType: string;
      /** Whether it asks not to be written to again; not so for `not-spam`, `auth-failure` and `virus`. */
      isComplaint: boolean;
      /**
       * What the report says to be the return path of the message that is complained of. Such reports go to an address
       * agreed with the provider, so that only these, and the id, say which message is meant.
       */
      returnPaths: readonly string[];
      /** `Message-ID` of the returned message, without its brackets. */
      messageId: string | null;
    }
  /** Nothing happened to the message: out of office, acknowledgements, receipts (RFC 3834, RFC 8098). */
  | { kind: 'automatic_reply' }
  | { kind: 'unrecognised'; detail: string };

/**
 * A report's own parts stand before the copy of the message; a status after a longer text for people has not been
 * seen. Larger would let a sender keep us busy for longer.
 */
const sourceBytesMax = 262_144;

/**
 * Reads what came back to a return path. Never fails, whatever the bytes: at most 256 kB of them are looked at, in
 * linear time.
 */
export function readReport(source: Uint8Array): BounceReport {
  const parts = readMailParts(source.subarray(0, sourceBytesMax));
  const head = {
    from: readWriter(parts.fields.get('from') ?? '').toLowerCase(),
    subject: decodeWords(parts.fields.get('subject') ?? ''),
    failedRecipients: parts.fields.get('x-failed-recipients') ?? '',
  };
  return (
    readFeedback(head, parts) ??
    readStatusParts(head, parts) ??
    readReturnedMail(head, parts) ??
    readAutomaticReply(head, parts) ?? {
      kind: 'unrecognised',
      detail: 'it has no shape of a report that is known',
    }
  );
}

const statusTypes: ReadonlySet<string> = new Set([
  'message/delivery-status',
  'message/global-delivery-status',
]);

/** How parts are labelled that should have been `message/…`. */
const untypedTypes: ReadonlySet<string> = new Set([
  'text/plain',
  'application/octet-stream',
  'message/report',
]);

/** Either labelled as it should be, or any text that has the fields. */
function findStatusText({ text, others }: MailParts): string | null {
  const labelled = others.filter(({ type }) => statusTypes.has(type)).map((part) => part.text);
  // Some make one part of every recipient.
  if (labelled.length > 0) return labelled.join('\n\n');
  const candidates = [...others.filter(({ type }) => untypedTypes.has(type)).map((part) => part.text), text];
  return candidates.find(isDeliveryStatus) ?? null;
}

function readStatusParts(head: ReportHead, parts: MailParts): BounceReport | null {
  const statusText = findStatusText(parts);
  if (statusText === null) return null;
  const told = readTextStatements(head, parts.text);
  const statements = readDeliveryStatus(statusText, readTextAction(head, parts.text));
  if (statements.length === 0) return null;
  return {
    kind: 'delivery_status',
    recipients: statements.map((statement) => {
      const all = findWords(statement, told, statements.length);
      // Which of several ends of an alias the fields are about is not said.
      const isAliasTarget = all.some((words) => words.isAliasTarget);
      const ended = endIfExpired({ ...statement, isAliasTarget }, all[0]);
      return judgeWithWords(ended, explainingSupplement(statement) ?? all[0]);
    }),
  };
}

/** What the words for people say of the recipient: as often as it is named. */
function findWords(
  { address }: RecipientStatement,
  told: readonly RecipientStatement[],
  statementCount: number,
): readonly RecipientStatement[] {
  const same = told.filter((other) => other.address?.toLowerCase() === address?.toLowerCase());
  return same.length === 0 && told.length === 1 && statementCount === 1 ? told : same;
}

/**
 * RFC 3463 §3.5: X.4.7 is a message that was too old. Some call it `delayed` all the same, and send no other report.
 * But others write 4.7 into every warning, so that the words must say that its time is over, too.
 */
function endIfExpired(
  statement: RecipientStatement,
  words: RecipientStatement | undefined,
): RecipientStatement {
  if (statement.action !== 'delayed' || statement.status?.slice(1) !== '.4.7') return statement;
  const saying = [statement, ...(words?.action === 'failed' ? [words] : [])];
  const isExpired =
    saying.some(({ diagnostic }) => /\bexpired\b/i.test(diagnostic)) ||
    // OpenSMTPD before 7.3 writes this into a report that otherwise is a warning, but never into a warning.
    words?.diagnostic.startsWith('Envelope expired') === true;
  return isExpired ? { ...statement, action: 'failed' } : statement;
}

/** The statement in the words of its supplement, if these give a reason. */
function explainingSupplement(statement: RecipientStatement): RecipientStatement | null {
  const { supplement = '' } = statement;
  if (supplement === '') return null;
  const supplemented = { ...statement, status: null, diagnostic: supplement };
  return judgeStatement(supplemented).failureClass === 'other' ? null : supplemented;
}

/** Where the fields do not tell why, the words for people may: `Status: 5.0.0` below "The mailbox is full". */
function judgeWithWords(
  statement: RecipientStatement,
  words: RecipientStatement | undefined,
): ReportedRecipient {
  const judged = judgeStatement(statement);
  if (words === undefined) return judged;
  // The status has had its say, except that what it calls temporary stays so.
  const rejudged = judgeStatement({ ...statement, status: null, diagnostic: words.diagnostic });
  const isTemporary = statement.status?.startsWith('4') === true;
  if (judged.failureClass !== 'other' || rejudged.failureClass === 'other')
    return statement.diagnostic === '' ? withWordsOf(judged, rejudged) : judged;
  return {
    ...rejudged,
    type: isTemporary ? 'soft' : rejudged.type,
    reply: {
      ...rejudged.reply,
      enhancedCode: rejudged.reply.enhancedCode ?? statement.status,
      remote: judged.reply.remote ?? rejudged.reply.remote,
    },
  };
}

/**
 * A report without `Diagnostic-Code` is still told with the words that it gives to people. If these quote a reply that is
 * for now, that outweighs the status.
 */
function withWordsOf(judged: ReportedRecipient, said: ReportedRecipient): ReportedRecipient {
  const isTemporary = said.reply.code !== null && said.reply.code < 500;
  return {
    ...judged,
    type: isTemporary ? 'soft' : judged.type,
    reply: {
      ...said.reply,
      enhancedCode: judged.reply.enhancedCode ?? said.reply.enhancedCode,
      remote: judged.reply.remote ?? said.reply.remote,
    },
  };
}

/**
 * Where a message only might be a report, it must explain itself, and must not be an answer: a postmaster may be out
 * of office, too, and an answer may have the subject of what it answers.
 */
function readReturnedMail(head: ReportHead, parts: MailParts): BounceReport | null {
  const likelihood = judgeReturn(head, parts.text);
  if (likelihood === 'no' || (likelihood === 'maybe' && isMarkedAutomatic(head, parts))) return null;
  const recipients = readTextStatements(head, parts.text).map(judgeStatement);
  const isExplained = recipients.some(
    ({ failureClass, reply }) => failureClass !== 'other' || reply.code !== null,
  );
  return likelihood === 'yes' || isExplained ? { kind: 'delivery_status', recipients } : null;
}

/**
 * All other types (RFC 5965 §7.3, its registry and its drafts: `abuse`, `fraud`, `other`, `opt-out`, `opt-out-list`)
 * are of a person who wants no more of this mail. So is a type that is not registered: it counts as `other`.
 */
const typesWithoutComplaint: ReadonlySet<string> = new Set(['not-spam', 'auth-failure', 'virus']);

function readFeedback(head: ReportHead, parts: MailParts): BounceReport | null {
  const { fields: headFields, others, text } = parts;
  const labelled = others.find(({ type }) => type === 'message/feedback-report')?.text;
  const candidates = [...others.filter(({ type }) => untypedTypes.has(type)).map((part) => part.text), text];
  const fields = labelled ?? candidates.find(isFeedback);
  if (fields !== undefined) {
    const group = readFieldGroups(fields).find((candidate) => candidate.has('feedback-type'));
    const told = (group?.get('feedback-type') ?? 'other').toLowerCase();
    const feedbackType = sanitiseDiagnostic(told).slice(0, 50);
    return {
      kind: 'abuse',
      feedbackType,
      isComplaint: !typesWithoutComplaint.has(feedbackType),
      ...findReferences(parts, group?.get('original-mail-from')),
    };
  }
  // Microsoft's programme for complaints sends no fields: only this subject, and the message.
  const isMicrosoft = head.subject.toLowerCase().startsWith('complaint about message from');
  if (!isMicrosoft && headFields.get('x-loop') !== 'scomp') return null;
  if (!others.some(({ type }) => type === 'message/rfc822')) return null;
  return { kind: 'abuse', feedbackType: 'abuse', isComplaint: true, ...findReferences(parts) };
}

/** Without its label a report is known by two of the fields that it must have (RFC 5965 §3.1). */
function isFeedback(text: string): boolean {
  return /^feedback-type[ \t]*:/im.test(text) && /^(?:user-agent|version)[ \t]*:/im.test(text);
}

const copyTypes: ReadonlySet<string> = new Set(['message/rfc822', 'message/global', 'text/rfc822-headers']);

/** What tells whose complaint it is. Some make one of the paths unreadable, and leave the other. */
function findReferences(
  { others }: MailParts,
  originalMailFrom = '',
): { returnPaths: string[]; messageId: string | null } {
  const copy = others.find(({ type }) => copyTypes.has(type));
  const fields = copy === undefined ? null : readHeader(copy.text);
  const paths = [originalMailFrom, fields?.get('return-path') ?? ''].map(readReference);
  return {
    returnPaths: [...new Set(paths)].filter((path) => path !== null),
    messageId: readReference(fields?.get('message-id') ?? ''),
  };
}

/** An address, or a message id of the same form. */
function readReference(value: string): string | null {
  const address = value.trim().replace(/^<|>$/g, '');
  const isAddress = address.length <= 254 && /^[^@\s]+@[^@\s]+$/.test(address);
  return isAddress && sanitiseDiagnostic(address) === address ? address : null;
}

/** Beginnings of subjects, in lower case and in the languages in which large providers write them. */
const automaticSubjects = [
  'auto:',
  'auto reply',
  'auto-reply',
  'auto response',
  'auto-response',
  'automatic reply',
  'automatic response',
  'automated reply',
  'automated response',
  'autoreply',
  'out of office',
  'out of the office',
  'away from',
  'i am away',
  'on vacation',
  'vacation',
  'automatische antwort',
  'abwesen',
  'réponse automatique',
  'absence',
  'respuesta autom',
  'fuera de la oficina',
  'risposta automatica',
  'automatisch antwoord',
  'afwezig',
  'resposta autom',
  'automatiskt svar',
  'automatisk svar',
  'autosvar',
  'odpowiedź automatyczna',
  'автоответ',
  '自動応答',
  '自動返信',
  '自动回复',
  '自动答复',
  '自動回覆',
];

/** By other marks than `Auto-Submitted`, which reports of failures carry as well. */
function isMarkedAutomatic(head: ReportHead, { fields }: MailParts): boolean {
  const subject = head.subject.toLowerCase().replace(/^re: ?/, '');
  if (automaticSubjects.some((beginning) => subject.startsWith(beginning))) return true;
  if (['x-autoreply', 'x-autorespond', 'x-autoresponder'].some((name) => fields.has(name))) return true;
  return ['precedence', 'x-precedence'].some((name) => /^auto_?reply$/i.test(fields.get(name) ?? ''));
}

function readAutomaticReply(head: ReportHead, parts: MailParts): BounceReport | null {
  // RFC 3834 §5: everything but `no`, with any parameters after it.
  const isSubmittedByMachine = /^auto-/i.test(parts.fields.get('auto-submitted') ?? '');
  const isReceipt = parts.others.some(({ type }) => type === 'message/disposition-notification');
  return isSubmittedByMachine || isReceipt || isMarkedAutomatic(head, parts)
    ? { kind: 'automatic_reply' }
    : null;
}
