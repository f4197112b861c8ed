import { compileSms, countSegments, fillSms, trimSenderName } from '../channels/sms/sms.ts';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import { listMissing } from '../channels/placeholders.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import type { SmsSendBody } from './schema.ts';
import type { StoredSmsContent, StoredSmsDetails } from './stored.ts';
import { type Labels, type Submission, toStoredLabels } from '../messages/messages.ts';

export type SmsRequest = { organizationId: string; body: SmsSendBody; idempotencyKey: ScopedKey | null };

/** Turns a request into a submission. Checks that need the account come later (accept.ts). */
export function prepareSms({ organizationId, body, idempotencyKey }: SmsRequest): Submission {
  const variables = body.variables ?? {};
  const compiled = compileSms(body.body);
  const text = fillSms(compiled, variables);
  if (text === null) throw new Error('the rules let no such text through');
  return submitSms({
    organizationId,
    sender: trimSenderName(body.from),
    to: body.to,
    text,
    category: body.category ?? null,
    labels: body,
    missingVariables: listMissing(compiled, variables),
    warnings: nameForeignSyntax(findForeignSyntax([body.body])),
    scheduledAt: body.scheduled_at,
    idempotencyKey,
  });
}

/** A text that is ready to be sent to one number. */
export function submitSms(sms: {
  organizationId: string;
  sender: string;
  to: string;
  text: string;
  category: string | null;
  labels?: Labels;
  missingVariables: readonly string[];
  warnings: Submission['warnings'];
  scheduledAt?: Submission['scheduledAt'];
  idempotencyKey: ScopedKey | null;
}): Submission {
  const {
    organizationId,
    sender,
    to,
    text,
    category,
    labels = {},
    missingVariables,
    warnings,
    scheduledAt,
    idempotencyKey,
  } = sms;
  const { encoding, segments } = countSegments(text);
  const storedLabels = toStoredLabels(labels);
  const details: StoredSmsDetails = { encoding, segments, ...storedLabels };
  const content: StoredSmsContent = { text };
  return {
    organizationId,
    channel: 'sms',
    class: 'transactional',
    sender,
    senderName: sender,
    subject: null,
    searchText: sender,
    category,
    templateId: null,
    tags: storedLabels.tags,
    details: JSON.stringify(details),
    content: JSON.stringify(content),
    recipients: [{ field: 'to', address: to, addressKey: to, dropReason: null }],
    attachments: [],
    quotaUnits: segments,
    missingVariables,
    warnings,
    scheduledAt,
    idempotencyKey,
  };
}
