import {
  findAddressesOf,
  findOptedOutOfChannel,
  findOptOuts,
  refuseReference,
  resolveContacts,
  type SuppressionTools,
} from '../audience/audience.ts';
import { listTemplateTexts, type TemplateParameters } from '../channels/chatapp/template.ts';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import { type ChatTemplate, findChatTemplate } from '../chat-templates/chat-templates.ts';
import { type Labels, type Submission, toStoredLabels } from '../messages/messages.ts';
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
  const [prepared] = await prepareChatApps(transaction, tools, organizationId, [{ body, idempotencyKey }]);
  if (prepared === undefined) throw new Error('a chat-app message was not prepared');
  return prepared;
}

/** The same for many of an organization, in their order: by as many statements as for one, and one more for each template. */
export async function prepareChatApps(
  transaction: Transaction,
  tools: SuppressionTools,
  organizationId: string,
  requests: readonly Omit<ChatAppRequest, 'organizationId'>[],
): Promise<(Submission | PublicError)[]> {
  const bodies = requests.map(({ body }) => body);
  const [templateOf, recipients] = await Promise.all([
    findTemplates(transaction, organizationId, bodies),
    findRecipients(transaction, organizationId, bodies),
  ]);
  const at = now(tools.clock);
  const drafts = requests.map((request, index) =>
    draft(request, { template: templateOf(request.body), recipient: recipients[index], at }),
  );
  const objections = await findObjections(transaction, tools, organizationId, drafts);
  return drafts.map((one, index) => {
    if (one instanceof PublicError) return one;
    if (objections.has(index))
      return new PublicError(forbidden, 'The recipient has opted out of chat-app messages.');
    return submitChatApp({ organizationId, ...one });
  });
}

/** A message to which nobody has objected yet. */
type Draft = Pick<ChatAppRequest, 'idempotencyKey'> & {
  recipient: ChatAppRecipient;
  template: ChatTemplate;
  parameters: TemplateParameters;
  labels: Labels;
  scheduledAt: Submission['scheduledAt'];
};

/** In the order in which the rules of one message go by. */
function draft(
  { body, idempotencyKey }: Omit<ChatAppRequest, 'organizationId'>,
  known: {
    template: ChatTemplate | null;
    recipient: ChatAppRecipient | PublicError | undefined;
    at: Date;
  },
): Draft | PublicError {
  const { template, recipient } = known;
  const named = countNamed(body);
  if (named !== null) return named;
  if (template === null) return new PublicError(notFound, 'There is no such chat-app template.');
  if (recipient === undefined) throw new Error('a message was not looked up');
  if (recipient instanceof PublicError) return recipient;
  const unfit = findUnfitness(template, known.at);
  if (unfit !== null) return new PublicError(badRequest, unfit);
  const parameters = body.parameters ?? {};
  const issues = findParameterIssues(template.content, parameters);
  if (issues.length > 0) return new PublicError(validationError, issues.join(', '));
  return { recipient, template, parameters, labels: body, scheduledAt: body.scheduled_at, idempotencyKey };
}

/** Those of the messages, as indexes, whose recipients want none of the kind. */
async function findObjections(
  transaction: Transaction,
  tools: SuppressionTools,
  organizationId: string,
  drafts: readonly (Draft | PublicError)[],
): Promise<Set<number>> {
  const addressed = (isConcerned: (one: Draft) => boolean) =>
    drafts.flatMap((one, index) =>
      one instanceof PublicError || !isConcerned(one)
        ? []
        : [{ index, organizationId, channel: 'chatapp' as const, address: one.recipient.to }],
    );
  const ordinary = addressed(({ template }) => template.category !== 'authentication');
  // What the provider charges as marketing goes to nobody who has refused it, however the message names the person.
  const marketing = addressed(({ template }) => template.marketingFrom !== null);
  const [fromAll, fromMarketing] = await Promise.all([
    findOptedOutOfChannel(transaction, tools, 'chatapp', ordinary),
    findOptOuts(transaction, tools, marketing),
  ]);
  return new Set([
    ...[...fromAll].flatMap((place) => ordinary[place]?.index ?? []),
    ...[...fromMarketing].flatMap((place) => marketing[place]?.index ?? []),
  ]);
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

/** Each template once, by a function of the body that names it. */
async function findTemplates(
  transaction: Transaction,
  organizationId: string,
  bodies: readonly ChatAppSendBody[],
): Promise<(body: ChatAppSendBody) => ChatTemplate | null> {
  const nameOf = (body: ChatAppSendBody) => JSON.stringify(readWantedTemplate(body));
  const wanted = new Map(bodies.map((body) => [nameOf(body), readWantedTemplate(body)]));
  const found = new Map(
    await Promise.all(
      [...wanted].map(
        async ([name, one]) => [name, await findTemplate(transaction, organizationId, one)] as const,
      ),
    ),
  );
  return (body) => found.get(nameOf(body)) ?? null;
}

/** As each body says by itself; whether it says so twice is looked at before. */
async function findRecipients(
  transaction: Transaction,
  organizationId: string,
  bodies: readonly ChatAppSendBody[],
): Promise<(ChatAppRecipient | PublicError)[]> {
  const resolved = await resolveContacts(
    transaction,
    organizationId,
    bodies.flatMap((body) => (body.to === undefined ? [body] : [])),
  );
  const contactIds = resolved.flatMap((contact) => (contact.kind === 'found' ? [contact.id] : []));
  const addresses = await findAddressesOf(transaction, 'chatapp', organizationId, contactIds);
  const contacts = resolved.values();
  return bodies.map(({ to }) => {
    if (to !== undefined) return { to, contactId: null };
    const { value: contact = { kind: 'required' as const } } = contacts.next();
    if (contact.kind !== 'found') return refuseReference(contact);
    const address = addresses.get(contact.id);
    return address === undefined
      ? new PublicError(badRequest, 'The contact has no phone number.')
      : { to: address, contactId: contact.id };
  });
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

/** A message that is ready to be sent to one number. */
export function submitChatApp(message: {
  organizationId: string;
  recipient: ChatAppRecipient;
  template: Pick<ChatTemplate, 'id' | 'name' | 'language' | 'category' | 'content'>;
  parameters: TemplateParameters;
  labels?: Labels;
  scheduledAt?: Submission['scheduledAt'];
  idempotencyKey: ScopedKey | null;
}): Submission {
  const {
    organizationId,
    recipient,
    template,
    parameters,
    labels = {},
    scheduledAt,
    idempotencyKey,
  } = message;
  const { to, contactId } = recipient;
  const { shown, code } = takeCode(template.content, parameters);
  const storedLabels = toStoredLabels(labels);
  const details: StoredChatAppDetails = {
    ...(contactId !== null && { contact_id: contactId }),
    template: template.name,
    language: template.language,
    ...storedLabels,
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
    tags: storedLabels.tags,
    details: JSON.stringify(details),
    content: JSON.stringify(content),
    recipients: [{ field: 'to', address: to, addressKey: to, dropReason: null }],
    // Sealed, and deleted when the message is at its end: what attachments get is what a code needs.
    attachments: code === null ? [] : [Buffer.from(code, 'utf8')],
    quotaUnits: 1,
    missingVariables: [],
    warnings: nameForeignSyntax(findForeignSyntax(listTemplateTexts(template.content))),
    scheduledAt,
    idempotencyKey,
  };
}
