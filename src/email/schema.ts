import { type Static, Type } from 'typebox';
import {
  isContentId,
  isContentType,
  nameLengthMax,
  parseNamedAddress,
  subjectLengthMax,
  writeFilename,
} from '../channels/email/email.ts';
import { redact } from '../platform/http/redaction.ts';
import { instant, literals } from '../platform/http/shapes.ts';
import type { TextFormat } from '../platform/http/validation.ts';
import {
  categoryInput,
  dropReasons,
  fateFields,
  messageStatuses,
  metadataInput,
  metadataRecord,
  scheduledAtInput,
  scheduledAtRecord,
  tagsInput,
  tagsRecord,
  recipientStatuses,
  variablesInput,
} from '../messages/messages.ts';

/** Text formats of this room's schemas, for `createValidation`. */
export const emailFormats: Record<string, TextFormat> = {
  // Those whom we write to may have international addresses (`named-idn-email`): who writes needs one that everybody can answer.
  'named-email': { test: isSenderAddress, mustBe: 'an email address with ASCII before the @' },
  'named-idn-email': { test: (text) => parseNamedAddress(text) !== null, mustBe: 'an email address' },
  'content-type': { test: isContentType, mustBe: 'a content type' },
  'content-id': { test: isContentId, mustBe: 'printable ASCII without spaces or angle brackets' },
  'file-name': {
    // Control characters in a header are an attack. A path is cut off, since it is private to the sender.
    test: (text) => !/[\p{Cc}]/u.test(text) && writeFilename(text) !== '',
    mustBe: 'a file name without control characters',
  },
};

function isSenderAddress(text: string): boolean {
  const named = parseNamedAddress(text);
  return named !== null && !named.email.isInternational;
}

const sender = (description: string) => Type.String({ format: 'named-email', description });
const recipient = (description: string) => Type.String({ format: 'named-idn-email', description });

const recipients = ({ item, ...options }: { item: string; description?: string }) =>
  Type.Array(recipient(item), { mayBeOne: true, ...options });

const attachmentInput = Type.Object(
  {
    filename: Type.String({
      minLength: 1,
      maxLength: 255,
      format: 'file-name',
      sensitive: true,
      description:
        'With its extension. Programs, scripts and documents with macros are refused, judged by the name that the file would be saved under.',
    }),
    content: Type.Unsafe<Uint8Array>(
      Type.String({ contentEncoding: 'base64', sensitive: true, description: 'The file, in Base64.' }),
    ),
    content_type: Type.Optional(
      Type.String({
        maxLength: 255,
        format: 'content-type',
        description: 'Derived from the extension when omitted or `application/octet-stream`.',
      }),
    ),
    content_id: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: 255,
        format: 'content-id',
        description:
          'Makes the file inline; the HTML refers to it as `cid:<content_id>`. No two files have the same.',
      }),
    ),
  },
  { title: 'EmailAttachmentInput', additionalProperties: false },
);

/** Body of `POST /email/send`. What needs the account is in send.ts. */
export const emailSendBody = Type.Object(
  {
    from: sender('An address on a verified domain of the organization, or `Name <address>`.'),
    from_name: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: nameLengthMax,
        format: 'filled-line',
        description: 'The name shown with the address. Required unless `from` has one; goes before that one.',
      }),
    ),
    to: recipients({
      description: 'At most 50 addresses together with `cc` and `bcc`, as a list, or one as a text.',
      item: 'A recipient: an address, or `Name <address>`.',
    }),
    cc: Type.Optional(recipients({ item: 'A recipient.' })),
    bcc: Type.Optional(recipients({ item: 'A recipient that is not shown in any copy.' })),
    reply_to: Type.Optional(sender('Where replies go.')),
    subject: Type.Optional(
      Type.String({
        minLength: 1,
        maxLength: subjectLengthMax,
        format: 'filled-line',
        sensitive: true,
        description:
          'Required with `html` or `text`. Supports `{{variables}}`; the limit also holds after they are replaced.',
      }),
    ),
    html: Type.Optional(
      Type.String({ minLength: 1, sensitive: true, description: 'HTML body. Supports `{{variables}}`.' }),
    ),
    text: Type.Optional(
      Type.String({
        minLength: 1,
        sensitive: true,
        description: 'Plain text body; made from the HTML when omitted. Supports `{{variables}}`.',
      }),
    ),
    template_id: Type.Optional(
      Type.String({ maxLength: 255, description: 'A saved template, instead of `html` and `text`.' }),
    ),
    variables: Type.Optional(
      variablesInput('Replace `{{name}}` in subject, html and text; `{{{name}}}` is not HTML-escaped.'),
    ),
    attachments: Type.Optional(Type.Array(attachmentInput, { maxItems: 10 })),
    category: Type.Optional(categoryInput),
    metadata: Type.Optional(metadataInput),
    tags: Type.Optional(tagsInput),
    scheduled_at: Type.Optional(scheduledAtInput),
    headers: Type.Optional(
      Type.Record(Type.String(), Type.String({ sensitive: true }), {
        maxProperties: 25,
        description:
          'Further header fields, with values of at most 900 characters: `X-…`, `In-Reply-To`, `References` (at most 20,000; the email carries the first id and the newest, up to 900), `Auto-Submitted`, `Importance`, `Priority`, `Sensitivity`, `Precedence`, `Thread-Topic`, `Thread-Index`, `Comments`, `Keywords`, `Organization`, and `List-…`.',
      }),
    ),
  },
  { title: 'SendEmailRequest', additionalProperties: false, rules: ['email-fields', 'email-source'] },
);

/** Body of `POST /email/:id/resend`. */
export const emailResendBody = Type.Object(
  {
    to: Type.Optional(
      recipients({
        description:
          'Whom it goes to instead of its recipients: at most 50 addresses as a list, or one as a text. Nobody else gets it then.',
        item: 'A recipient: an address, or `Name <address>`.',
      }),
    ),
  },
  { title: 'ResendEmailRequest', additionalProperties: false },
);

export type EmailSendBody = Static<typeof emailSendBody>;

/** What may be shown of a body later, as JSON; null if nothing is left of it. */
export function showEmailBody(body: object): string | null {
  return redact(emailSendBody, body);
}

export const emailStatus = literals(messageStatuses, {
  title: 'EmailStatus',
  description: 'The summary of the statuses of all recipients.',
});

const optional = <Schema extends ReturnType<typeof Type.String>>(schema: Schema) =>
  Type.Union([schema, Type.Null()]);

const emailRecipient = Type.Object(
  {
    email: Type.Union([Type.String(), Type.Null()], {
      description: 'Null after it was erased together with its contact.',
    }),
    status: literals(recipientStatuses, { title: 'EmailRecipientStatus' }),
    status_at: instant,
    dropped: Type.Boolean({
      description: 'The address failed a check after acceptance and was not written to.',
    }),
    drop_reason: Type.Union([literals(dropReasons, { title: 'EmailDropReason' }), Type.Null()]),
    ...fateFields,
  },
  { title: 'EmailRecipient' },
);

const attachment = Type.Object(
  {
    filename: Type.String(),
    content_type: Type.String(),
    size: Type.Integer({ description: 'Bytes.' }),
    content_id: optional(Type.String()),
  },
  { title: 'EmailAttachment' },
);

/** Record of `GET /email/:id`. */
export const emailRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    from: Type.String(),
    from_name: optional(Type.String()),
    reply_to: optional(Type.String()),
    subject: optional(Type.String({ description: 'As it was sent, with variables replaced.' })),
    template_id: optional(Type.String()),
    category: optional(Type.String()),
    metadata: metadataRecord,
    tags: tagsRecord,
    resent_from: Type.Union([Type.String({ format: 'uuid' }), Type.Null()], {
      description: 'The email that this one says once more.',
    }),
    to: Type.Array(emailRecipient),
    cc: Type.Array(emailRecipient),
    bcc: Type.Array(emailRecipient),
    attachments: Type.Array(attachment),
    status: emailStatus,
    scheduled_at: scheduledAtRecord,
    created_at: instant,
    updated_at: instant,
  },
  { title: 'EmailMessage' },
);

/** Record of `GET /email/:id/content`. */
export const emailContentRecord = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    from: Type.String(),
    from_name: optional(Type.String()),
    reply_to: optional(Type.String()),
    to: Type.Array(Type.String(), { description: 'As the email names them.' }),
    cc: Type.Array(Type.String()),
    subject: optional(Type.String()),
    html: optional(Type.String()),
    text: optional(Type.String()),
    headers: Type.Record(Type.String(), Type.String(), { description: 'The fields that were given.' }),
    attachments: Type.Array(attachment),
  },
  { title: 'EmailContent' },
);

export type EmailContentRecord = Static<typeof emailContentRecord>;
export type EmailRecord = Static<typeof emailRecord>;
export type EmailRecipientRecord = Static<typeof emailRecipient>;
