import { type TProperties, Type } from 'typebox';
import { addressColumns } from '../audience/audience.ts';
import {
  listTemplateParameters,
  listTemplateTexts,
  type TemplateParameters,
} from '../channels/chatapp/template.ts';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import { listPlaceholders, type Values } from '../channels/placeholders.ts';
import {
  type CampaignChannel,
  type CampaignContent,
  type ChannelPauseReason,
  type Oversight,
  pickValues,
  type PreparableCampaign,
  type Preparation,
  variablesInput,
  variablesOrNull,
} from '../campaigns/campaigns.ts';
import {
  type ChatTemplate,
  findBudget,
  findCampaignsHeld,
  findChatTemplate,
  findMarketingRefusal,
  isStoppedForGood,
  isUsedUp,
  keepChatTemplate,
  wasChatTemplateDeleted,
} from '../chat-templates/chat-templates.ts';
import { findMessageContent } from '../messages/messages.ts';
import { optional, optionalText, textOrNull } from '../platform/http/shapes.ts';
import { instantOfId } from '../platform/ids.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { foreseeChatApp, openChatAppBudget } from './budget.ts';
import { renderChatAppSample, submitChatAppTest } from './campaign-sample.ts';
import { chatAppChannel } from './channel.ts';
import { findNameIssues } from './parameters.ts';
import { parametersMax, valueLengthMax } from './schema.ts';
import type { StoredChatAppContent, StoredChatAppDetails } from './stored.ts';

const contentFields = {
  template_id: optionalText({
    maxLength: 255,
    description: 'A marketing or utility template that was approved.',
  }),
  parameters: optional<TemplateParameters>('object', {
    additionalProperties: { type: 'string', maxLength: valueLengthMax, sensitive: true },
    maxProperties: parametersMax,
    description:
      'A text for each placeholder of the template, by its name. Supports `{{variables}}`, such as `{{first_name}}`; ' +
      'white space in it becomes a single blank.',
  }),
  variables: variablesInput,
} satisfies TProperties;

/** The inputs that are given; those never given or taken back are absent. */
type ChatAppInputs = { template_id?: string; parameters?: TemplateParameters; variables?: Values };

function inputsOf(content: CampaignContent): ChatAppInputs {
  return content; // Checked by contentFields.
}

export const chatAppCampaigns: CampaignChannel = {
  messages: chatAppChannel,
  // Of an account with a few numbers that are throttled high.
  deliveredPerSecondMax: 2_000,
  path: '/chatapp/campaigns',
  noun: 'ChatAppCampaign',
  object: 'chatapp_campaign',
  tag: 'Chat-app campaigns',
  contentFields,
  contentRecord: {
    template_id: textOrNull,
    parameters: Type.Unsafe<TemplateParameters | null>({
      type: ['object', 'null'],
      additionalProperties: { type: 'string' },
    }),
    variables: variablesOrNull,
  },
  bodyFields: ['parameters', 'variables'],
  findIssues: () => [],
  rules: [],
  templateIdOf: (content) => inputsOf(content).template_id?.toLowerCase() ?? null,
  templateKind: 'chat_template',
  findUnknown: async (transaction, organizationId, content) => {
    const { template_id: id } = inputsOf(content);
    if (id === undefined) return [];
    const template = await findChatTemplate(transaction, organizationId, { id: id.toLowerCase() });
    return template === null ? [await describeUnknown(transaction, organizationId, id)] : [];
  },
  openMeter: null,
  reach: { kind: 'address', columns: addressColumns.chatapp },
  addressFormat: 'phone-number',
  testedAddress: 'Each address gets a message of its own.',
  words: {
    medium: 'chat-app messages',
    address: 'phone number',
    taker: 'the chat app',
    arrival: 'it arrived on the phone',
    opened: 'was read',
    clicked: 'one of its links was clicked',
    cutOff: 'it may have arrived, and will not be sent again',
    retriedFor: 'a day',
    unreachable:
      'The chat app refused this number three times within 30 days, and nothing has ever arrived there.',
    unfit: 'a parameter without a value, or a text that is too long',
  },
  defaultsOf: (content) => inputsOf(content).variables ?? {},
  prepare: prepareChatAppCampaign,
  findObstacle,
  findPauseReason,
  openBudget: openChatAppBudget,
  foresee: foreseeChatApp,
  needsAllValues: true,
  sampleRecord: {
    header: textOrNull,
    body: textOrNull,
    footer: textOrNull,
    buttons: Type.Array(Type.Object({ text: Type.String(), url: textOrNull, phone_number: textOrNull })),
  },
  emptySample: { header: null, body: null, footer: null, buttons: [] },
  findOversights: findChatAppOversights,
  renderSample: (_runner, message, copy) => Promise.resolve(renderChatAppSample(message, copy)),
  submitTest: (_tools, message, copy) => Promise.resolve(submitChatAppTest(message, copy)),
};

async function describeUnknown(
  transaction: Transaction,
  organizationId: string,
  id: string,
): Promise<string> {
  const wasDeleted = await wasChatTemplateDeleted(transaction, { organizationId, id: id.toLowerCase() });
  return wasDeleted
    ? `template_id is a chat-app template that was deleted: ${id}`
    : `template_id is not a chat-app template of this organization: ${id}`;
}

async function findChatAppOversights(
  transaction: Transaction,
  organizationId: string,
  content: CampaignContent,
): Promise<Oversight[]> {
  const { template_id: id, parameters = {} } = inputsOf(content);
  const template =
    id === undefined ? null : await findChatTemplate(transaction, organizationId, { id: id.toLowerCase() });
  const texts = template === null ? [] : listTemplateTexts(template.content);
  return nameForeignSyntax(findForeignSyntax([...texts, ...Object.values(parameters)]));
}

async function prepareChatAppCampaign(
  transaction: Transaction,
  { organizationId, content }: PreparableCampaign,
): Promise<Preparation> {
  const { template_id: id, parameters = {}, variables = {} } = inputsOf(content);
  if (id === undefined) return { kind: 'not_ready', issues: ['template_id is required'] };
  const template = await keepChatTemplate(transaction, { organizationId, id: id.toLowerCase() });
  if (template === null)
    return { kind: 'not_ready', issues: [await describeUnknown(transaction, organizationId, id)] };
  const unfit = findUnfitness(template);
  const issues = [
    ...(unfit === null ? [] : [`template_id ${unfit}`]),
    ...findNameIssues(listTemplateParameters(template.content), parameters),
  ];
  if (issues.length > 0) return { kind: 'not_ready', issues };
  const variableNames = listPlaceholders(Object.values(parameters), Number.POSITIVE_INFINITY);
  const details: StoredChatAppDetails = { template: template.name, language: template.language };
  const stored: StoredChatAppContent = {
    template_id: template.id,
    category: template.category,
    parameters,
    defaults: pickValues(variables, variableNames),
    template: template.content,
  };
  return {
    kind: 'ready',
    message: {
      sender: '',
      subject: template.name,
      category: template.category,
      templateId: template.id,
      details: JSON.stringify(details),
      content: JSON.stringify(stored),
      variableNames,
    },
  };
}

/** Why a campaign cannot be made of a template, as what follows its field. */
function findUnfitness({
  status,
  category,
  sendable,
  sendableReason,
  isChangingParameters,
}: ChatTemplate): string | null {
  if (category === 'authentication') return 'is a template for one-time codes, which go to one person each';
  if (status !== 'approved') return `is a template that is not approved: it is ${status}`;
  if (isChangingParameters)
    return 'is a template whose placeholders are being changed: wait until the provider has taken the edit';
  return sendable ? null : `is a template that cannot be sent: ${sendableReason ?? 'it was stopped'}`;
}

type CampaignMessage = { organizationId: string; messageId: string };

async function findObstacle(transaction: Transaction, message: CampaignMessage): Promise<string | null> {
  const template = await findTemplateOf(transaction, message);
  if (template === 'unknown') return null;
  if (template === null) return 'Its template was deleted.';
  const { name, language, sendableReason: reason, category, marketingFrom } = template;
  if (reason !== null && isStoppedForGood(reason))
    return `The template ${name} (${language}) cannot be sent any more: it is ${reason}.`;
  const isMarketing = category === 'marketing' || marketingFrom !== null;
  return isMarketing ? describeRefusal(transaction, message) : null;
}

/** The provider takes no marketing of the account at all. It may do so again: what is queued later tries for itself. */
async function describeRefusal(
  transaction: Transaction,
  { organizationId, messageId }: CampaignMessage,
): Promise<string | null> {
  const refusal = await findMarketingRefusal(transaction, organizationId);
  return refusal === null || refusal.at < instantOfId(messageId)
    ? null
    : `The provider takes no marketing from this account: ${refusal.words}`;
}

async function findPauseReason(
  transaction: Transaction,
  message: CampaignMessage,
  at: Date,
): Promise<ChannelPauseReason | null> {
  const template = await findTemplateOf(transaction, message);
  // With an obstacle it is not to wait, but to fail.
  if (template === null || template === 'unknown') return null;
  const { sendableReason: reason } = template;
  if (reason !== null) return isStoppedForGood(reason) ? null : 'template_paused';
  const held = await findCampaignsHeld(transaction, message.organizationId, at);
  if (held !== null) return 'account_held';
  // Until then the places of those who are in the queue are theirs.
  const budget = await findBudget(transaction, message.organizationId, at);
  return budget !== null && isUsedUp(budget) ? 'messaging_limit' : null;
}

/** `unknown`: what the message says is no longer stored. Null: the template was deleted. */
async function findTemplateOf(
  transaction: Transaction,
  { organizationId, messageId }: CampaignMessage,
): Promise<ChatTemplate | null | 'unknown'> {
  const content = await findMessageContent(transaction, { organizationId, messageId });
  if (content === null) return 'unknown';
  const { template_id: id } = content as StoredChatAppContent; // As prepareChatAppCampaign wrote it.
  return findChatTemplate(transaction, organizationId, { id });
}
