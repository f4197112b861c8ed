import { findUnwillingContacts, refuseReference, resolveContacts } from '../audience/audience.ts';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import { isReservedDataKey, payloadSize } from '../channels/push/notification.ts';
import { findPushTargets, type ReachedDevice } from '../devices/devices.ts';
import { forbidden, PublicError } from '../platform/http/errors.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import {
  type Labels,
  type Submission,
  type SubmittedRecipient,
  toStoredLabels,
} from '../messages/messages.ts';
import type { PushSendBody } from './schema.ts';
import { writePushAddress } from './address.ts';
import { textsOf } from './rendering.ts';
import { type StoredPushContent, type StoredPushDetails, toPushContent } from './stored.ts';

export type PushRequest = { organizationId: string; body: PushSendBody; idempotencyKey: ScopedKey | null };

/**
 * Turns a request into a submission, or into the error of the rule that it breaks. It goes to the devices that the
 * contact has at this moment, each of which is a recipient of its own; a device that is retired before its hand-off
 * gets nothing. So it is where it
 * is sent later. Checks that need the plan come later (accept.ts).
 */
export async function preparePush(
  transaction: Transaction,
  { organizationId, body, idempotencyKey }: PushRequest,
): Promise<Submission | PublicError> {
  const [prepared] = await preparePushes(transaction, organizationId, [{ body, idempotencyKey }]);
  if (prepared === undefined) throw new Error('a push was not prepared');
  return prepared;
}

/** The same for many of an organization, in their order and by as many statements as for one. */
export async function preparePushes(
  transaction: Transaction,
  organizationId: string,
  requests: readonly Omit<PushRequest, 'organizationId'>[],
): Promise<(Submission | PublicError)[]> {
  const resolved = await resolveContacts(
    transaction,
    organizationId,
    requests.map(({ body }) => body),
  );
  const contactIds = resolved.flatMap((contact) => (contact.kind === 'found' ? [contact.id] : []));
  const [targets, unwilling] = await Promise.all([
    findPushTargets(
      transaction,
      contactIds.map((contactId) => ({ organizationId, contactId })),
    ),
    findUnwillingContacts(
      transaction,
      'push',
      contactIds.map((id) => ({ organizationId, id })),
    ),
  ]);
  let found = 0;
  return requests.map(({ body, idempotencyKey }, index) => {
    const contact = resolved[index] ?? { kind: 'required' };
    if (contact.kind !== 'found') return refuseReference(contact);
    const place = found++;
    const { devices, hasDevices } = targets[place] ?? { devices: [], hasDevices: false };
    if (unwilling.get(place) === 'unsubscribed')
      return new PublicError(forbidden, 'The contact has opted out of push notifications.');
    if (hasDevices && devices.length === 0)
      return new PublicError(forbidden, 'None of the devices of the contact can be sent a push.');
    return submitPush({
      organizationId,
      contactId: contact.id,
      devices,
      content: contentOf(body),
      category: body.category ?? null,
      labels: body,
      scheduledAt: body.scheduled_at,
      idempotencyKey,
    });
  });
}

/** What a request says, without whom it is for. */
function contentOf(body: PushSendBody): StoredPushContent {
  const {
    contact_id: _id,
    external_id: _externalId,
    email: _email,
    phone_number: _phoneNumber,
    category: _category,
    metadata: _metadata,
    tags: _tags,
    scheduled_at: _scheduledAt,
    ...content
  } = body;
  return content;
}

/** Rules that concern several fields of a content. Each text begins with the path of its field. */
export function findContentIssues(stored: StoredPushContent): string[] {
  const reserved = Object.keys(stored.data_payload ?? {}).filter(isReservedDataKey);
  const issues = reserved
    .slice(0, 10)
    .map((key) => `data_payload.${showStart(key)} is a reserved key: rename it`);
  const { platform, bytes, bytesMax } = payloadSize(toPushContent(stored));
  if (bytes > bytesMax) {
    issues.push(
      `title, body, data_payload and the rest take ${bytes} bytes together in the form for ${platform}, and may take ${bytesMax}`,
    );
  }
  return issues;
}

function showStart(key: string): string {
  return key.length > 64 ? `${key.slice(0, 64).toWellFormed()}…` : key;
}

export function submitPush(push: {
  organizationId: string;
  contactId: string;
  devices: readonly ReachedDevice[];
  content: StoredPushContent;
  category: string | null;
  labels?: Labels;
  scheduledAt?: Submission['scheduledAt'];
  idempotencyKey: ScopedKey | null;
}): Submission {
  const {
    organizationId,
    contactId,
    devices,
    content,
    category,
    labels = {},
    scheduledAt,
    idempotencyKey,
  } = push;
  const storedLabels = toStoredLabels(labels);
  const details: StoredPushDetails = { contact_id: contactId, ...storedLabels };
  return {
    organizationId,
    channel: 'push',
    class: 'transactional',
    sender: '',
    senderName: '',
    subject: content.title,
    searchText: content.title,
    category,
    templateId: null,
    tags: storedLabels.tags,
    details: JSON.stringify(details),
    content: JSON.stringify(content),
    recipients: devices.map((device) => toRecipient(contactId, device)),
    attachments: [],
    // One without a device is skipped.
    quotaUnits: devices.length === 0 ? 0 : 1,
    missingVariables: [],
    warnings: nameForeignSyntax(findForeignSyntax(textsOf(content))),
    scheduledAt,
    idempotencyKey,
  };
}

/** The token is not stored with the message: a newer one may be there by the hand-off. */
function toRecipient(contactId: string, { id, account }: ReachedDevice): SubmittedRecipient {
  return { field: 'to', address: writePushAddress(account, id), addressKey: contactId, dropReason: null };
}
