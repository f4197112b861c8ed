import type { EmailRecord } from '../../email/email.ts';
import { isObject, rename, withoutNulls } from '../fields.ts';

/**
 * Resend's emails as ours. Whatever is not of its form is left as it is, so that the check of what comes out refuses it by the
 * name that the program gave it.
 */

/** Body of `POST /emails` as that of `POST /email/send`. */
export function toEmail(value: unknown): unknown {
  if (!isObject(value)) return value;
  const { template, tags, reply_to: replyTo, attachments, ...fields } = withoutNulls(value);
  return {
    ...fields,
    ...nameOf(fields.from),
    ...(replyTo !== undefined && { reply_to: onlyOne(replyTo) }),
    ...(template !== undefined && toTemplate(template)),
    ...(tags !== undefined && { metadata: toMetadata(tags) }),
    ...(attachments !== undefined && { attachments: toAttachments(attachments) }),
  };
}

/** Body of `POST /emails/batch` as that of `POST /email/send/batch`. */
export function toBatch(value: unknown, headers: Readonly<Record<string, unknown>>): unknown {
  const isPermissive = headers['x-batch-validation'] === 'permissive';
  return {
    emails: Array.isArray(value) ? value.map(toEmail) : value,
    ...(isPermissive && { on_error: 'skip' }),
  };
}

/** A sender without a name is shown by its address. */
function nameOf(from: unknown): { from_name?: string } {
  return typeof from === 'string' && !from.trimEnd().endsWith('>') ? { from_name: from } : {};
}

/** There is one address for replies: several are refused as a list. */
function onlyOne(replyTo: unknown): unknown {
  if (!Array.isArray(replyTo)) return replyTo;
  const [first, ...others] = replyTo as unknown[];
  return others.length === 0 ? first : replyTo;
}

function toTemplate(template: unknown): Record<string, unknown> {
  if (!isObject(template)) return { template };
  return rename(withoutNulls(template), { id: 'template_id' });
}

/** Tags have a name and a value, as our metadata do. */
function toMetadata(tags: unknown): unknown {
  if (!Array.isArray(tags)) return tags;
  const pairs = (tags as unknown[]).map((tag) => (isObject(tag) ? [tag.name, tag.value] : [undefined, tag]));
  return pairs.every(([name]) => typeof name === 'string')
    ? Object.fromEntries(pairs as [string, unknown][])
    : tags;
}

function toAttachments(attachments: unknown): unknown {
  if (!Array.isArray(attachments)) return attachments;
  return (attachments as unknown[]).map((attachment) =>
    isObject(attachment)
      ? rename(withoutNulls(attachment), { contentType: 'content_type', contentId: 'content_id' })
      : attachment,
  );
}

/** An email as `GET /email/:id` and `GET /email` show it, as far as Resend's has the same. */
export function showEmail(email: EmailRecord): Record<string, unknown> {
  const recipients = [...email.to, ...email.cc, ...email.bcc];
  return {
    id: email.id,
    // As delivery writes it.
    message_id: `<${email.id}@${email.from.split('@').at(-1) ?? ''}>`,
    from: email.from_name === null ? email.from : `${email.from_name} <${email.from}>`,
    to: addressesIn(email.to),
    cc: addressesIn(email.cc),
    bcc: addressesIn(email.bcc),
    reply_to: email.reply_to === null ? null : [email.reply_to],
    subject: email.subject ?? '',
    created_at: email.created_at,
    scheduled_at: email.scheduled_at,
    last_event: lastEventOf(email.status, recipients),
    tags: Object.entries(email.metadata).map(([name, value]) => ({ name, value })),
    topic_id: null,
  };
}

type Recipient = EmailRecord['to'][number];

/** Those that are not erased. */
function addressesIn(recipients: readonly Recipient[]): string[] {
  return recipients.flatMap(({ email }) => email ?? []);
}

const events: Readonly<Record<Recipient['status'], string>> = {
  sent: 'sent',
  delayed: 'delivery_delayed',
  delivered: 'delivered',
  opened: 'opened',
  clicked: 'clicked',
  unsubscribed: 'clicked',
  bounced: 'bounced',
  failed: 'failed',
  complained: 'complained',
  cancelled: 'canceled',
};

/** What happened last to any of its recipients. */
function lastEventOf(status: EmailRecord['status'], recipients: readonly Recipient[]): string {
  if (status === 'queued' || status === 'scheduled') return status;
  const last = recipients.reduce<Recipient | null>(
    (latest, recipient) => (latest === null || recipient.status_at > latest.status_at ? recipient : latest),
    null,
  );
  if (last === null) return 'queued';
  return last.dropped ? 'suppressed' : events[last.status];
}
