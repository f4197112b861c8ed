/**
 * A message is compiled once and filled in many times. Compiling builds everything that all copies share: the
 * encoded attachments, the encoded text between the placeholders, the boundaries. Filling in encodes only the
 * values and joins. The same input gives the same octets, so that a message tried again is the same message; what
 * is written is ASCII with CRLF line ends of at most 998 octets, and ends in CRLF. To and Cc alone are UTF-8 where they
 * name international addresses and the copy is for one of these.
 *
 * Levels that are not needed are left out of
 *
 *     mixed( related( alternative( text, html, invitation ), inline images ), attachments )
 */
import { createHash } from 'node:crypto';
import { runAtOnce, type Steps } from '../../platform/steps.ts';
import { codeUnitsMax, isLongerThan } from '../../platform/characters.ts';
import { type CompiledText, type Values, compileText, fillText } from '../placeholders.ts';
import { type EmailAddress, parseAddress } from './address.ts';
import { type NamedAddress, parseNamedAddress } from './named-address.ts';
import { isContentId, writeFilename } from './attachment.ts';
import { encodeBase64LinesInSteps } from './base64.ts';
import { readInvitationMethod } from './calendar.ts';
import { type ContentType, parseContentType } from './content-type.ts';
import {
  flattenText,
  writeDateField,
  writeFallbackParameter,
  writeField,
  writeMailbox,
  writeParameter,
  writeTextField,
  writeName,
  writeUnreachable,
  writeUtf8Field,
} from './headers.ts';
import {
  type CompiledPieces,
  type Piece,
  compileHoles,
  encodeAscii,
  fillPieces,
  joinPieces,
} from './pieces.ts';
import { subjectLengthMax } from './rendering.ts';
import { boundaryMark, encodeTextInSteps } from './text-body.ts';

export type EmailAttachment = {
  filename: string;
  /** `isContentType` must hold for it. */
  contentType: string;
  /** Without angle brackets, and `isContentId` must hold for it; makes the file inline. */
  contentId: string | null;
  content: Uint8Array;
};

export type EmailHeader = { name: string; value: string };

export type EmailContent = {
  /** Without angle brackets. */
  messageId: string;
  from: { address: string; name: string | null };
  /** These may have names, as `parseNamedAddress` reads them. */
  replyTo: string | null;
  to: readonly string[];
  cc: readonly string[];
  subject: string | null;
  html: string | null;
  text: string | null;
  attachments: readonly EmailAttachment[];
  /** What the message carries besides. */
  headers: readonly EmailHeader[];
};

/**
 * What may differ from copy to copy besides the values: a campaign writes to everyone separately. `headers` come after
 * those of the content, `List-Unsubscribe` for instance.
 */
export type PersonalHeaders = Partial<Pick<EmailContent, 'messageId' | 'to' | 'headers'>>;

/**
 * What a copy is made of; `date` is when it leaves. One that `isInternational` is for a recipient with such an address,
 * and leaves only to servers that offer SMTPUTF8; left out: it is not.
 */
export type EmailCopy = {
  date: Date;
  values: Values;
  personal: PersonalHeaders | null;
  isInternational?: boolean;
};

export type CompiledEmail = {
  content: EmailContent;
  /** The subject, cut at its placeholders; null where there is none. */
  subject: CompiledText | null;
  /** The header in pieces: a copy with fields of its own takes all others from here. */
  fields: HeaderFields;
  /** The finished header before and after Date, where no placeholder is in it. */
  header: { start: string; end: string } | null;
  body: CompiledPieces;
};

export type CompileOptions = { personalised: boolean | 'html'; isSigned: boolean };

/** One copy. The whole message is the header, an empty line and the body: `listChunks`. */
export type FilledEmail = {
  /** All header fields, each with its CRLF, without the empty line; a character an octet, which may be of UTF-8. */
  header: string;
  /** Ends in CRLF. Chunks are shared between copies: do not write to them. */
  body: readonly Uint8Array[];
  /** The body with its white space reduced (`reduceLines`), where that costs less than reading it again. */
  reducedBody: readonly Uint8Array[] | null;
};

/** Why a copy cannot be written with its values: a field that is cut would say something else than its author. */
export type UnfitCopy = 'too_large' | 'subject_too_long';

/**
 * Builds what all copies share. With `personalised`, placeholders in subject, html and text become holes, or with
 * `html` those of the html alone; elsewhere they are text like any other. With `isSigned` it is made ready for the
 * signatures of copies. Throws if an address, an id or a header can't be written, which is the mistake of a caller
 * that has not checked them.
 */
export function compileEmail(content: EmailContent, options: CompileOptions): CompiledEmail {
  return runAtOnce(compileEmailInSteps(content, options));
}

/** The same in steps, of which attachments and large texts make the most. */
export function* compileEmailInSteps(content: EmailContent, options: CompileOptions): Steps<CompiledEmail> {
  const compile = options.personalised === true ? compileWords : compileLiteral;
  const compileHtml = options.personalised === false ? compileLiteral : compileMarkup;
  const root = yield* compileParts(content, { plain: compile, html: compileHtml });
  const subject = content.subject === null ? null : compile(content.subject);
  const fields = writeFields(content, `MIME-Version: 1.0\r\n${root.header}`);
  const isFixed = subject === null || subject.placeholders.length === 0;
  return {
    content,
    subject,
    fields,
    header: isFixed
      ? { start: joinStart(fields, writeSubject(content.subject)), end: joinEnd(fields) }
      : null,
    body: joinPieces(endsInLineEnd(root.body) ? root.body : [...root.body, '\r\n'], options),
  };
}

/**
 * One copy of the message, at the cost of its personal parts; `too_large` if its values take more than 8 MiB, and
 * `subject_too_long` if they make more than 998 characters of the subject. `personal` stands in for header fields of
 * the content that was compiled.
 */
export function fillEmail(
  compiled: CompiledEmail,
  { date, values, personal, isInternational = false }: EmailCopy,
): FilledEmail | UnfitCopy {
  const filled = fillPieces(compiled.body, values);
  if (filled === 'too_large') return filled;
  const { chunks: body, reducedChunks: reducedBody } = filled;
  const dateField = writeDateField(date);
  const isUnlike = isInternational && compiled.fields.inUtf8 !== null;
  if (personal === null && compiled.header !== null && !isUnlike) {
    const { start, end } = compiled.header;
    return { header: start + dateField + end, body, reducedBody };
  }
  const shared = isUnlike ? { ...compiled.fields, ...compiled.fields.inUtf8 } : compiled.fields;
  const fields = personal === null ? shared : replaceFields(shared, personal, isInternational);
  const subject = compiled.subject === null ? null : fillSubject(compiled.subject, values);
  if (compiled.subject !== null && subject === null) return 'subject_too_long';
  const header = joinStart(fields, writeSubject(subject)) + dateField + joinEnd(fields);
  return { header, body, reducedBody };
}

/** The whole message in order. */
export function listChunks({ header, body }: FilledEmail): Uint8Array[] {
  return [encodeAscii(`${header}\r\n`), ...body];
}

function compileWords(text: string): CompiledText {
  return compileText(text, 'text');
}

function compileMarkup(html: string): CompiledText {
  return compileText(html, 'html');
}

function compileLiteral(text: string): CompiledText {
  return { literals: [text], placeholders: [] };
}

/** Null if it grows too long. */
function fillSubject(subject: CompiledText, values: Values): string | null {
  const filled = fillText(subject, values, codeUnitsMax(subjectLengthMax));
  return filled === null || isLongerThan(filled, subjectLengthMax) ? null : filled;
}

/** Message-IDs are made by the service: a dot-atom on both sides (RFC 5322 §3.6.4). */
const messageIdPattern = /^[\w!#$%&'*+\-/=?^`{|}~.]{1,250}@[A-Za-z0-9.-]{1,253}$/;

/** Every field but the subject and the date, written. */
type HeaderFields = {
  from: string;
  to: string;
  /** Cc and Reply-To, which are the same in all copies. */
  others: string;
  /** What differs in copies for international addresses; null if none is named. */
  inUtf8: Pick<HeaderFields, 'to' | 'others'> | null;
  messageId: string;
  extra: string;
  personal: string;
  /** MIME-Version and the Content fields of the whole. */
  content: string;
};

function writeFields(content: EmailContent, contentHeader: string): HeaderFields {
  return {
    from: writeMailbox('From', readSender(readAddress(content.from.address)), content.from.name),
    ...writeRecipients(content, false),
    inUtf8: [...content.to, ...content.cc].some((named) => readNamed(named).email.isInternational)
      ? writeRecipients(content, true)
      : null,
    messageId: writeMessageId(content.messageId),
    extra: writeExtraFields(content.headers),
    personal: '',
    content: contentHeader,
  };
}

function writeRecipients(
  { to, cc, replyTo }: EmailContent,
  isUtf8: boolean,
): Pick<HeaderFields, 'to' | 'others'> {
  return {
    to: writeAddresses('To', to, isUtf8),
    others: writeAddresses('Cc', cc, isUtf8) + (replyTo === null ? '' : writeReplyTo(readNamed(replyTo))),
  };
}

/** With what is given written anew: the rest of the header is the same for all. */
function replaceFields(fields: HeaderFields, personal: PersonalHeaders, isUtf8: boolean): HeaderFields {
  const { to, messageId, headers } = personal;
  // Not by spreading, which took longer than writing them.
  return {
    from: fields.from,
    to: to === undefined ? fields.to : writeAddresses('To', to, isUtf8),
    others: fields.others,
    inUtf8: null,
    messageId: messageId === undefined ? fields.messageId : writeMessageId(messageId),
    extra: fields.extra,
    personal: headers === undefined ? '' : writeExtraFields(headers),
    content: fields.content,
  };
}

/** What comes before Date. The order never changes. */
function joinStart({ from, to, others }: HeaderFields, subject: string): string {
  return from + to + others + subject;
}

function joinEnd({ messageId, extra, personal, content }: HeaderFields): string {
  return messageId + extra + personal + content;
}

function writeSubject(subject: string | null): string {
  return subject === null ? '' : writeTextField('Subject', subject);
}

function writeMessageId(messageId: string): string {
  if (!messageIdPattern.test(messageId)) throw new Error('not a Message-ID');
  return writeField('Message-ID', [`<${messageId}>`]);
}

function writeExtraFields(headers: readonly EmailHeader[]): string {
  return headers.map(writeExtraField).join('');
}

/** International addresses in UTF-8, or as what people can read where no server has offered SMTPUTF8. */
function writeAddresses(field: string, addresses: readonly string[], isUtf8: boolean): string {
  if (addresses.length === 0) return '';
  const words: string[] = [];
  for (const [index, named] of addresses.entries()) {
    const { name, email } = readNamed(named);
    const separator = index === addresses.length - 1 ? '' : ',';
    if (email.isInternational && !isUtf8) words.push(...writeUnreachable(email.address, separator));
    else if (name === null) words.push(email.envelope + separator);
    else words.push(...writeName(name, field), `<${email.envelope}>${separator}`);
  }
  return isUtf8 ? writeUtf8Field(field, words) : writeField(field, words);
}

/** Who writes has an address that everybody can answer. */
function readSender({ envelope, isInternational }: EmailAddress): string {
  if (isInternational) throw new Error('mail does not come from an international address');
  return envelope;
}

function writeReplyTo({ name, email }: NamedAddress): string {
  return writeMailbox('Reply-To', readSender(email), name);
}

function readNamed(text: string): NamedAddress {
  const parsed = parseNamedAddress(text);
  if (parsed === null) throw new Error('not an address that a header can carry');
  return parsed;
}

function readAddress(address: string): EmailAddress {
  const parsed = parseAddress(address);
  if (parsed === null) throw new Error('not an address that a header can carry');
  return parsed;
}

/** Fields that the message has already, or that must never be in one. */
const reservedFields: ReadonlySet<string> = new Set(
  [
    'from sender to cc bcc reply-to subject date message-id return-path received dkim-signature',
    'mime-version content-type content-transfer-encoding content-disposition content-id',
  ].flatMap((line) => line.split(' ')),
);

function writeExtraField(header: EmailHeader): string {
  if (reservedFields.has(header.name.toLowerCase()))
    throw new Error(`${header.name} is written by the message`);
  const value = flattenText(header.value).trim();
  // Structured values must not be encoded, however long their words are: RFC 2369 knows nothing of RFC 2047.
  return /^[ -~]+$/.test(value)
    ? writeField(header.name, value.split(/ +/))
    : writeTextField(header.name, value);
}

/** A body part (RFC 2045 §2.5): its Content fields, and a body that does not end in the CRLF of the boundary. */
type Part = { header: string; body: readonly Piece[] };

function* compileParts(
  content: EmailContent,
  compile: Readonly<Record<'plain' | 'html', (text: string) => CompiledText>>,
): Steps<Part> {
  const files: CompiledAttachment[] = [];
  for (const attachment of content.attachments) files.push(yield* compileAttachment(attachment));
  const isInline = (file: CompiledAttachment) => content.html !== null && file.attachment.contentId !== null;
  const boundaries = createBoundaries(content.messageId);
  const bodies: Part[] = [];
  // Without any content an empty text part stands for it: a message has a body.
  if (content.text !== null || content.html === null) {
    bodies.push(yield* compileBody('plain', content.text ?? '', compile.plain));
  }
  if (content.html !== null) bodies.push(yield* compileBody('html', content.html, compile.html));
  bodies.push(...compileInvitation(files));
  const alternative = joinParts('alternative', boundaries.alternative, bodies);
  const related = joinParts('related', boundaries.related, [alternative, ...files.filter(isInline)]);
  return joinParts('mixed', boundaries.mixed, [related, ...files.filter((file) => !isInline(file))]);
}

type Boundaries = { mixed: string; related: string; alternative: string };

function createBoundaries(messageId: string): Boundaries {
  const digest = createHash('sha256').update(messageId).digest('hex').slice(0, 32);
  return {
    mixed: `${boundaryMark}m${digest}`,
    related: `${boundaryMark}r${digest}`,
    alternative: `${boundaryMark}a${digest}`,
  };
}

function joinParts(subtype: keyof Boundaries, boundary: string, parts: readonly Part[]): Part {
  const [first, ...others] = parts;
  if (first === undefined) throw new Error('a multipart without parts');
  if (others.length === 0) return first;
  // RFC 2387 §3.1: the type of the root, which is the first part.
  const rootType = /^Content-Type: ([a-z/]+)/.exec(first.header)?.[1] ?? 'text/html';
  const type = subtype === 'related' ? `;\r\n type="${rootType}"` : '';
  return {
    header: `Content-Type: multipart/${subtype}${type};\r\n boundary="${boundary}"\r\n`,
    body: [
      ...parts.flatMap((part) => [`--${boundary}\r\n${part.header}\r\n`, ...part.body, '\r\n']),
      `--${boundary}--\r\n`,
    ],
  };
}

const carriageReturn = 0x0d;
const lineFeed = 0x0a;

function endsInLineEnd(body: readonly Piece[]): boolean {
  const last = body.at(-1);
  if (last instanceof Uint8Array) return last.at(-2) === carriageReturn && last.at(-1) === lineFeed;
  return typeof last === 'string' && last.endsWith('\r\n');
}

function* compileBody(
  subtype: 'plain' | 'html',
  text: string,
  compile: (text: string) => CompiledText,
): Steps<Part> {
  const compiled = compile(text);
  const isLiteral = compiled.placeholders.length === 0;
  const { encoding, body } = isLiteral
    ? yield* encodeTextInSteps(text)
    : { encoding: 'quoted-printable', body: compileHoles(compiled) };
  return {
    header: `Content-Type: text/${subtype}; charset=utf-8\r\n` + `Content-Transfer-Encoding: ${encoding}\r\n`,
    body,
  };
}

type CompiledAttachment = Part & { attachment: EmailAttachment };

function* compileAttachment(attachment: EmailAttachment): Steps<CompiledAttachment> {
  const { contentId } = attachment;
  const filename = writeFilename(attachment.filename);
  if (contentId !== null && !isContentId(contentId)) throw new Error('not a Content-ID');
  const disposition = contentId === null ? 'attachment' : 'inline';
  return {
    attachment,
    header: [
      `Content-Type: ${writeContentType(attachment.contentType)}${writeFallbackParameter('name', filename)}\r\n`,
      'Content-Transfer-Encoding: base64\r\n',
      contentId === null ? '' : `Content-ID: <${contentId}>\r\n`,
      `Content-Disposition: ${disposition}${writeParameter('filename', filename)}\r\n`,
    ].join(''),
    body: yield* encodeBase64LinesInSteps(attachment.content),
  };
}

function writeContentType(text: string): string {
  const contentType = parseContentType(text);
  if (contentType === null) throw new Error('not a content type');
  const parameters = contentType.parameters.filter(isKeptParameter);
  return (
    writeMediaType(contentType) + parameters.map(({ name, value }) => writeParameter(name, value)).join('')
  );
}

/** Base64 may not stand on messages and multiparts (RFC 2046 §5), and a reader would take them for our own parts. */
function writeMediaType(contentType: ContentType): string {
  return /^(?:message|multipart)\//.test(contentType.mediaType)
    ? 'application/octet-stream'
    : contentType.mediaType;
}

/** The file has one name, which was looked at; and only a multipart has a boundary. */
function isKeptParameter(parameter: { name: string }): boolean {
  return !/^(?:name|filename|boundary)(?:\*|$)/.test(parameter.name);
}

/** Gmail and Outlook show an invitation only if it is an alternative of the text; it stays attached as well. */
function compileInvitation(files: readonly CompiledAttachment[]): Part[] {
  for (const { attachment, body } of files) {
    const method = readInvitationMethod(attachment.contentType);
    if (method === null) continue;
    const header =
      `Content-Type: text/calendar; method=${method}; charset=utf-8\r\n` +
      'Content-Transfer-Encoding: base64\r\n';
    return [{ header, body }];
  }
  return [];
}
