import {
  type EmailAddress,
  type EmailText,
  findHeaderIssues,
  isRefusedAttachment,
  makeTextPart,
  mayBeLonger,
  type NamedAddress,
  parseAddress,
  parseNamedAddress,
  readCalendar,
  readInvitationMethod,
  renderEmail,
  resolveContentType,
  shortenReferences,
  writeNamedAddress,
} from '../channels/email/email.ts';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import {
  badRequest,
  defineError,
  type ErrorDefinition,
  PublicError,
  referenceNotFound,
  validationError,
} from '../platform/http/errors.ts';
import { largeBodyBytesMin, type TaskRunner, type ThreadTask } from '../platform/http/body-threads.ts';
import { showKey } from '../platform/http/json-text.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import type { EmailSendBody } from './schema.ts';
import {
  type RecipientField,
  type Submission,
  type SubmittedRecipient,
  toStoredLabels,
} from '../messages/messages.ts';
import type { EmailTemplate, PreparedTemplate } from '../templates/templates.ts';
import type { StoredEmailContent, StoredEmailDetails } from './stored.ts';

export const attachmentRejected = defineError(
  400,
  'attachment_rejected',
  'An attachment is an executable or a script; nothing was sent.',
);

const recipientsMax = 50;

export type EmailRequest = {
  organizationId: string;
  body: EmailSendBody;
  /** The template that the body names; null if it names none, or one that does not exist. */
  template: EmailText | null;
  /** What was made of the template before; null or left out: it is made anew. */
  prepared?: PreparedTemplate | null;
  idempotencyKey: ScopedKey | null;
};

/**
 * Turns a request into a submission, or into the error of the first rule that it breaks, in the order of the
 * specification: counts and emptiness, content source, attachments, references. Checks that need the account come later
 * (accept.ts).
 */
export function prepareEmail(request: EmailRequest): Submission | PublicError {
  const { body, template } = request;
  const from = readNamed(body.from);
  const recipients = listRecipients(body);
  return (
    checkCounts(body) ??
    checkContentSource(body) ??
    checkAttachments(body) ??
    checkTemplate(body, template) ??
    buildSubmission({ ...request, from, recipients })
  );
}

/**
 * What the thread that reads large bodies makes of one. `idempotencyKey` and the organization are added from the
 * request.
 */
export type PreparedEmail =
  | { kind: 'submission'; submission: Omit<Submission, 'organizationId' | 'idempotencyKey'> }
  | { kind: 'refused'; definition: ErrorDefinition; message: string };

/** Null for a body that names a template, since the template must be looked up first. */
export function prepareLargeEmail(body: EmailSendBody): PreparedEmail | null {
  return body.template_id === undefined ? prepareInThread({ body, template: null }) : null;
}

/** `prepareEmail` for an email that becomes large by its template. */
export const prepareEmailTask: ThreadTask<
  { body: EmailSendBody; template: EmailText | null },
  PreparedEmail
> = {
  name: 'prepare email',
  run: prepareInThread,
};

function prepareInThread({ body, template }: Pick<EmailRequest, 'body' | 'template'>): PreparedEmail {
  const prepared = prepareEmail({ organizationId: '', body, template, idempotencyKey: null });
  if (prepared instanceof PublicError) {
    return { kind: 'refused', definition: prepared.definition, message: prepared.message };
  }
  const { organizationId: _organizationId, idempotencyKey: _idempotencyKey, ...submission } = prepared;
  const text = String(submission.content);
  // A short one is copied, and stored by the statement of its message; bytes have one of their own.
  const content = text.length < handedOverLengthMin ? text : new TextEncoder().encode(text);
  return { kind: 'submission', submission: { ...submission, content } };
}

/** Longer contents are handed over to the main thread as bytes, instead of being copied. */
const handedOverLengthMin = 65_536;

/** Making text of more HTML takes more than two or three milliseconds, in which no other request would be answered. */
const htmlLengthMax = 8_192;

/** `prepareEmail` without a template; runs in the thread if text is to be made of long HTML. */
export async function prepareContent(
  runner: TaskRunner,
  request: Omit<EmailRequest, 'template'>,
): Promise<Submission | PublicError> {
  const { html = null, text = null, variables = {} } = request.body;
  const isLong = text === null && mayBeLonger({ subject: null, html, text }, variables, htmlLengthMax);
  return isLong
    ? fromThread(await runner.run(prepareEmailTask, { body: request.body, template: null }), request)
    : prepareEmail({ ...request, template: null });
}

/**
 * `prepareEmail` with a template that may be out of date: the submission says of which version it was made. Null where
 * the request must be prepared with the template as it is now: it would become large, or be refused.
 */
export function prepareRecalled(
  request: Omit<EmailRequest, 'template'>,
  recalled: EmailTemplate | null,
): Submission | null {
  if (recalled === null || mayBeLonger(recalled.email, request.body.variables ?? {}, largeBodyBytesMin))
    return null;
  const { email: template, prepared: preparedTemplate } = recalled;
  const prepared = prepareEmail({ ...request, template, prepared: preparedTemplate });
  return prepared instanceof PublicError ? null : { ...prepared, templateVersion: recalled.version };
}

/** `prepareEmail`; runs in the thread if the values make the template large. */
export async function prepareFromTemplate(
  runner: TaskRunner,
  request: EmailRequest,
): Promise<Submission | PublicError> {
  const { body, template } = request;
  const isLarge = template !== null && mayBeLonger(template, body.variables ?? {}, largeBodyBytesMin);
  return isLarge
    ? fromThread(await runner.run(prepareEmailTask, { body, template }), request)
    : prepareEmail(request);
}

/** Turns the thread's result into what `prepareEmail` would have returned. */
export function fromThread(
  prepared: PreparedEmail,
  { organizationId, idempotencyKey }: Pick<EmailRequest, 'organizationId' | 'idempotencyKey'>,
): Submission | PublicError {
  return prepared.kind === 'refused'
    ? new PublicError(prepared.definition, prepared.message)
    : { ...prepared.submission, organizationId, idempotencyKey };
}

/** No email goes to nobody, or to more than fifty. */
export function checkCounts(body: Pick<EmailSendBody, 'to' | 'cc' | 'bcc'>): PublicError | null {
  if (body.to.length === 0) return new PublicError(badRequest, 'At least one recipient is required in to.');
  const count = body.to.length + (body.cc?.length ?? 0) + (body.bcc?.length ?? 0);
  if (count > recipientsMax) {
    return new PublicError(
      badRequest,
      `Too many recipients: ${count} in to, cc and bcc; maximum ${recipientsMax}.`,
    );
  }
  return null;
}

function checkContentSource(body: EmailSendBody): PublicError | null {
  const issues = findSourceIssues((name) => body[name] !== undefined);
  return issues.length > 0 ? new PublicError(validationError, issues.join(', ')) : null;
}

type SourceField = 'template_id' | 'html' | 'text' | 'subject';

/** Whether content comes from exactly one source, with a subject. */
export function findSourceIssues(isGiven: (name: SourceField) => boolean): string[] {
  if (isGiven('template_id')) return findSourceConflict(isGiven);
  if (!isGiven('html') && !isGiven('text')) return ['one of html, text or template_id is required'];
  return isGiven('subject') ? [] : ['subject is required with html or text'];
}

export function findSourceConflict(isGiven: (name: SourceField) => boolean): string[] {
  return isGiven('template_id') && (isGiven('html') || isGiven('text'))
    ? ['template_id must not be combined with html or text']
    : [];
}

export function findNamedHeaderIssues({ headers = {} }: Partial<EmailSendBody>): string[] {
  return findHeaderIssues(headers).map(({ name, issue }) => `headers.${showKey(name)} ${issue}`);
}

function checkAttachments({ attachments = [] }: EmailSendBody): PublicError | null {
  const refused = attachments.find(({ filename, content_type }) =>
    isRefusedAttachment(filename, content_type ?? ''),
  );
  return refused === undefined
    ? null
    : new PublicError(
        attachmentRejected,
        `The attachment ${JSON.stringify(refused.filename)} is of a type that is not accepted; nothing was sent.`,
      );
}

/** RFC 2045 §7: a reader that finds an id twice shows either file. */
export function findContentIdIssues({ attachments = [] }: Partial<EmailSendBody>): string[] {
  const firsts = new Map<string, number>();
  return attachments.flatMap(({ content_id: contentId }, index) => {
    if (contentId === undefined) return [];
    const first = firsts.get(contentId);
    if (first === undefined) firsts.set(contentId, index);
    return first === undefined
      ? []
      : [`attachments[${index}].content_id must not be that of attachments[${first}]`];
  });
}

/** A calendar file that is declared as an invitation must be one, and must name its recipients. */
export function findInvitationIssues({ attachments = [], to = [] }: Partial<EmailSendBody>): string[] {
  return attachments.flatMap((attachment, index) =>
    checkInvitation(attachment, to).map((issue) => `attachments[${index}].content ${issue}`),
  );
}

function checkInvitation(
  attachment: NonNullable<EmailSendBody['attachments']>[number],
  to: readonly string[],
): string[] {
  const method = readInvitationMethod(attachment.content_type ?? '');
  if (method === null) return [];
  const calendar = readCalendar(attachment.content);
  if (calendar.method?.toUpperCase() !== method) return [`must carry METHOD:${method}`];
  const attendees = new Set(calendar.attendees.map((attendee) => parseAddress(attendee)?.normalised));
  return to.flatMap((address) => {
    const { email } = parseNamedAddress(address) ?? {};
    return email === undefined || attendees.has(email.normalised)
      ? []
      : [`must list ${email.address} as an attendee`];
  });
}

function checkTemplate(body: EmailSendBody, template: EmailText | null): PublicError | null {
  if (body.template_id === undefined) return null;
  if (template === null) return referenceNotFound('template_id', 'template', body.template_id);
  return body.subject === undefined && template.subject === null
    ? new PublicError(validationError, 'subject is required with a template that has none')
    : null;
}

export type Recipient = { field: RecipientField; name: string | null; email: EmailAddress };

function listRecipients(body: EmailSendBody): Recipient[] {
  const fields = [
    ['to', body.to],
    ['cc', body.cc ?? []],
    ['bcc', body.bcc ?? []],
  ] as const;
  return fields.flatMap(([field, addresses]) =>
    addresses.map((address) => ({ field, ...readNamed(address) })),
  );
}

/** Of an address that a schema has let through. */
export function readNamed(text: string): NamedAddress {
  const named = parseNamedAddress(text);
  if (named === null) throw new Error('the schema lets no such address through');
  return named;
}

/** A sender has a name, be it with the address. Of an address that is wrong it is not known whether it would have one. */
export function findNameIssues(
  { from }: Partial<EmailSendBody>,
  isGiven: (name: 'from' | 'from_name') => boolean,
): string[] {
  if (isGiven('from_name') || (from === undefined && isGiven('from'))) return [];
  return from !== undefined && parseNamedAddress(from)?.name !== null ? [] : ['from_name is required'];
}

function buildSubmission(
  parts: EmailRequest & { from: NamedAddress; recipients: Recipient[] },
): Submission | PublicError {
  const { organizationId, body, template, from, recipients, idempotencyKey } = parts;
  const source = sourceOf(body, template);
  const { compiled = {}, foreign = findForeignSyntax([source.html, source.text]) } = parts.prepared ?? {};
  const ofSubject = body.subject === undefined ? {} : { subject: null };
  const rendering = renderEmail(source, body.variables ?? {}, { ...compiled, ...ofSubject });
  if (rendering.kind === 'too_long') return new PublicError(validationError, rendering.issue);
  const { email: rendered, missingVariables } = rendering;

  const attachments = body.attachments ?? [];
  const labels = toStoredLabels(body);
  const content: StoredEmailContent = {
    to: namedIn('to', recipients),
    cc: namedIn('cc', recipients),
    html: rendered.html,
    text: rendered.text ?? makeText(rendered.html, template),
    ...(body.headers !== undefined && { headers: shortenReferences(body.headers) }),
  };
  const details: StoredEmailDetails = {
    fromName: body.from_name ?? from.name,
    replyTo: body.reply_to === undefined ? null : writeNamedAddress(readNamed(body.reply_to)),
    attachments: attachments.map((attachment) => ({
      filename: attachment.filename,
      contentType: resolveContentType(attachment.filename, attachment.content_type),
      contentId: attachment.content_id ?? null,
      sizeBytes: attachment.content.byteLength,
    })),
    ...labels,
  };
  return {
    organizationId,
    channel: 'email',
    class: 'transactional',
    sender: from.email.address,
    senderName: from.email.domain,
    subject: rendered.subject,
    searchText: rendered.subject,
    category: body.category ?? null,
    templateId: body.template_id?.toLowerCase() ?? null,
    tags: labels.tags,
    details: JSON.stringify(details),
    content: JSON.stringify(content),
    recipients: markDuplicates(recipients),
    attachments: attachments.map((attachment) => attachment.content),
    quotaUnits: recipients.length,
    missingVariables,
    warnings: nameForeignSyntax(foreign, findForeignSyntax([source.subject])),
    scheduledAt: body.scheduled_at,
    idempotencyKey,
  };
}

/** As a header of the email names them. */
export function namedIn(wanted: RecipientField, recipients: readonly Recipient[]): string[] {
  return recipients.flatMap((recipient) =>
    recipient.field === wanted ? [writeNamedAddress(recipient)] : [],
  );
}

/** That of a template was made when it was saved. */
function makeText(html: string | null, template: EmailText | null): string | null {
  return html === null || template !== null ? null : makeTextPart(html);
}

/** The request's subject takes precedence over the template's. */
function sourceOf({ subject, html, text }: EmailSendBody, template: EmailText | null): EmailText {
  return template === null
    ? { subject: subject ?? null, html: html ?? null, text: text ?? null }
    : { ...template, subject: subject ?? template.subject };
}

/** An address that is given twice gets one copy, under its first mention. */
export function markDuplicates(recipients: readonly Recipient[]): SubmittedRecipient[] {
  const seen = new Set<string>();
  return recipients.map(({ field, email }) => {
    const isDuplicate = seen.has(email.normalised);
    seen.add(email.normalised);
    return {
      field,
      address: email.address,
      addressKey: email.normalised,
      dropReason: isDuplicate ? 'duplicate' : null,
    };
  });
}
