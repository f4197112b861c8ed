import {
  findAddressOf,
  findOptOuts,
  hasOptedOutOfChannel,
  refuseReference,
  resolveContact,
  type SuppressionTools,
} from '../audience/audience.ts';
import { listTemplateTexts, type TemplateParameters } from '../channels/chatapp/template.ts';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import { type ChatTemplate, findChatTemplate } from '../chat-templates/chat-templates.ts';
import type { Submission } from '../messages/messages.ts';
import { badRequest, forbidden, notFound, PublicError, validationError } from '../platform/http/errors.ts';
import type { ScopedKey } from '../platform/http/idempotency.ts';
import { now } from '../platform/clock.ts';
import { isUuid } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { findParameterIssues, takeCode } from './parameters.ts';
import type { ChatAppSendBody } from './schema.ts';
import type { StoredChatAppContent, StoredChatAppDetails } from './stored.ts';

export type ChatAppRequest = {
  organizationId: string;
  body: ChatAppSendBody;
  idempotencyKey: ScopedKey | null;
};

/** Whom a message goes to. The contact is the one that the request names; null if it names a number. */
export type ChatAppRecipient = { to: string; contactId: string | null };

/**
 * Turns a request into a submission, or into the error of the rule that it breaks. Checks that need the plan come later
 * (accept.ts).
 *
 * Whoever has opted out of everything gets nothing but the codes that they ask for, whether the request names a number or
 * a contact. To want no campaigns keeps out what the provider charges as marketing.
 */
export async function prepareChatApp(
  transaction: Transaction,
  tools: SuppressionTools,
  { organizationId, body, idempotencyKey }: ChatAppRequest,
): Promise<Submission | PublicError> {
  const wanted = readWantedTemplate(body);
  const named = countNamed(body);
  if (named instanceof PublicError) return named;
  const template = await findTemplate(transaction, organizationId, wanted);
  if (template === null) return new PublicError(notFound, 'There is no such chat-app template.');
  const recipient = await findRecipient(transaction, organizationId, body);
  if (recipient instanceof PublicError) return recipient;
  const unfit = findUnfitness(template, now(tools.clock));
  if (unfit !== null) return new PublicError(badRequest, unfit);
  const parameters = body.parameters ?? {};
  const issues = findParameterIssues(template.content, parameters);
  if (issues.length > 0) return new PublicError(validationError, issues.join(', '));
  const hasObjected =
    (template.category !== 'authentication' &&
      (await hasOptedOutOfChannel(transaction, tools, 'chatapp', {
        organizationId,
        address: recipient.to,
      }))) ||
    (template.marketingFrom !== null &&
      (await wantsNoMarketing(transaction, tools, organizationId, recipient)));
  if (hasObjected) return new PublicError(forbidden, 'The recipient has opted out of chat-app messages.');
  return submitChatApp({ organizationId, recipient, template, parameters, idempotencyKey });
}

type WantedTemplate = { id: string } | { name: string; language: string };

function readWantedTemplate({ template_id: id, template: name, language }: ChatAppSendBody): WantedTemplate {
  if (id !== undefined) return { id };
  if (name === undefined || language === undefined) throw new Error('the rules let no such body through');
  return { name, language };
}

function findTemplate(
  transaction: Transaction,
  organizationId: string,
  wanted: WantedTemplate,
): Promise<ChatTemplate | null> {
  if (!('id' in wanted)) return findChatTemplate(transaction, organizationId, wanted);
  if (!isUuid(wanted.id)) return Promise.resolve(null);
  return findChatTemplate(transaction, organizationId, { id: wanted.id.toLowerCase() });
}

function countNamed({ to, ...body }: ChatAppSendBody): PublicError | null {
  const { contact_id, external_id, email, phone_number } = body;
  const namesContact = [contact_id, external_id, email, phone_number].some((given) => given !== undefined);
  if (to === undefined)
    return namesContact ? null : new PublicError(badRequest, 'Say whom it is for: by to, or by a contact.');
  return namesContact
    ? new PublicError(badRequest, 'Give to alone, without identifiers of a contact.')
    : null;
}

async function findRecipient(
  transaction: Transaction,
  organizationId: string,
  body: ChatAppSendBody,
): Promise<ChatAppRecipient | PublicError> {
  if (body.to !== undefined) return { to: body.to, contactId: null };
  const resolved = await resolveContact(transaction, organizationId, body);
  if (resolved.kind !== 'found') return refuseReference(resolved);
  const { id: contactId } = resolved;
  const to = await findAddressOf(transaction, 'chatapp', { organizationId, id: contactId });
  return to === null ? new PublicError(badRequest, 'The contact has no phone number.') : { to, contactId };
}

/** Why a single message cannot be made of a template, in words for the caller. */
function findUnfitness(
  { name, language, status, category, sendable, sendableReason, marketingFrom }: ChatTemplate,
  at: Date,
): string | null {
  const which = `The template ${name} (${language})`;
  if (status !== 'approved') return `${which} is not approved: it is ${status}.`;
  if (category === 'marketing') return `${which} is for marketing, and can only be sent in a campaign.`;
  if (marketingFrom !== null && marketingFrom <= at)
    return `${which} was moved to the category marketing by the provider, and can only be sent in a campaign.`;
  if (!sendable) return `${which} cannot be sent${sendableReason === null ? '' : `: ${sendableReason}`}.`;
  return null;
}

/** What the provider charges as marketing goes to nobody who has refused it, however the message names the person. */
async function wantsNoMarketing(
  transaction: Transaction,
  tools: SuppressionTools,
  organizationId: string,
  { to }: ChatAppRecipient,
): Promise<boolean> {
  const numbers = [{ organizationId, channel: 'chatapp' as const, address: to }];
  return (await findOptOuts(transaction, tools, numbers)).size > 0;
}

/** A message that is ready to be sent to one number. */
export function submitChatApp(message: {
  organizationId: string;
  recipient: ChatAppRecipient;
  template: Pick<ChatTemplate, 'id' | 'name' | 'language' | 'category' | 'content'>;
  parameters: TemplateParameters;
  idempotencyKey: ScopedKey | null;
}): Submission {
  const { organizationId, recipient, template, parameters, idempotencyKey } = message;
  const { to, contactId } = recipient;
  const { shown, code } = takeCode(template.content, parameters);
  const details: StoredChatAppDetails = {
    ...(contactId !== null && { contact_id: contactId }),
    template: template.name,
    language: template.language,
  };
  const content: StoredChatAppContent = {
    template_id: template.id,
    category: template.category,
    parameters: shown,
  };
  return {
    organizationId,
    channel: 'chatapp',
    class: 'transactional',
    sender: '',
    senderName: '',
    subject: null,
    searchText: template.name,
    category: template.category,
    templateId: template.id,
    details: JSON.stringify(details),
    content: JSON.stringify(content),
    recipients: [{ field: 'to', address: to, addressKey: to, dropReason: null }],
    // Sealed, and deleted when the message is at its end: what attachments get is what a code needs.
    attachments: code === null ? [] : [Buffer.from(code, 'utf8')],
    quotaUnits: 1,
    missingVariables: [],
    warnings: nameForeignSyntax(findForeignSyntax(listTemplateTexts(template.content))),
    idempotencyKey,
  };
}
