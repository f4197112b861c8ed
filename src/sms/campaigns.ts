import { type TProperties, Type } from 'typebox';
import { addressColumns } from '../audience/audience.ts';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import { listPlaceholders, type Values } from '../channels/placeholders.ts';
import { compileSms, countSegments, fillSms, smsLengthMax, trimSenderName } from '../channels/sms/sms.ts';
import { optionalText, textOrNull } from '../platform/http/shapes.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { findApprovedSenders } from '../senders/senders.ts';
import { renderSmsSample, submitSmsTest } from './campaign-sample.ts';
import { findMessageSender } from '../messages/messages.ts';
import { smsEncoding } from './schema.ts';
import type { StoredSmsContent } from './stored.ts';
import { smsChannel } from './channel.ts';
import {
  type CampaignChannel,
  type CampaignContent,
  categoryInput,
  pickValues,
  type PreparableCampaign,
  type Preparation,
  type QuotaMeter,
  variablesInput,
  variablesOrNull,
} from '../campaigns/campaigns.ts';

const contentFields = {
  from: optionalText({
    minLength: 1,
    maxLength: 255,
    format: 'filled-line',
    description: 'The name of an approved sender of the organization; a number with or without its plus.',
  }),
  body: optionalText({
    minLength: 1,
    maxLength: smsLengthMax,
    format: 'not-blank',
    description: 'The text. Supports `{{variables}}`; the limit also holds after they are replaced.',
  }),
  category: categoryInput,
  variables: variablesInput,
} satisfies TProperties;

/** The inputs that are given; those never given or taken back are absent. */
type SmsInputs = { from?: string; body?: string; category?: string; variables?: Values };

function inputsOf(content: CampaignContent): SmsInputs {
  return content; // Checked by contentFields.
}

export const smsCampaigns: CampaignChannel = {
  messages: smsChannel,
  deliveredPerSecondMax: 4_000,
  path: '/sms/campaigns',
  noun: 'SmsCampaign',
  object: 'sms_campaign',
  tag: 'SMS campaigns',
  contentFields,
  contentRecord: {
    from: textOrNull,
    body: textOrNull,
    category: textOrNull,
    variables: variablesOrNull,
  },
  bodyFields: ['body', 'variables'],
  findIssues: () => [],
  rules: [],
  templateIdOf: () => null,
  findUnknown: () => Promise.resolve([]),
  openMeter: openSmsMeter,
  reach: { kind: 'address', columns: addressColumns.sms },
  addressFormat: 'phone-number',
  testedAddress: 'Each address gets a message of its own.',
  words: {
    medium: 'SMS',
    address: 'phone number',
    taker: 'the carrier',
    arrival: 'it arrived on the phone',
    opened: 'was opened',
    clicked: 'one of its links was clicked',
    cutOff: 'it may have arrived, and will not be sent again',
    retriedFor: 'a day',
    unreachable: 'The number cannot be reached.',
    unfit: 'no text, or more than 1,600 characters',
  },
  defaultsOf: (content) => inputsOf(content).variables ?? {},
  prepare: prepareSms,
  findObstacle: async (transaction, { organizationId, messageId }) => {
    const name = (await findMessageSender(transaction, { organizationId, messageId })) ?? '';
    return (await isApproved(transaction, { organizationId, name }))
      ? null
      : `The sender ${name} is not approved any more.`;
  },
  sampleRecord: {
    from: textOrNull,
    body: textOrNull,
    encoding: Type.Union([smsEncoding, Type.Null()]),
    segments: Type.Union([Type.Integer(), Type.Null()], { description: 'Each counts as one text.' }),
  },
  emptySample: { from: null, body: null, encoding: null, segments: null },
  findOversights: (_transaction, _organizationId, content) =>
    Promise.resolve(nameForeignSyntax(findForeignSyntax([inputsOf(content).body]))),
  renderSample: (_runner, message, copy) => Promise.resolve(renderSmsSample(message, copy)),
  submitTest: (_tools, message, copy) => Promise.resolve(submitSmsTest(message, copy)),
};

async function prepareSms(
  transaction: Transaction,
  { organizationId, content }: PreparableCampaign,
): Promise<Preparation> {
  const { from, body, category = null, variables = {} } = inputsOf(content);
  const sender = from === undefined ? null : trimSenderName(from);
  const issues: string[] = [];
  if (sender === null) issues.push('from is required');
  else if (!(await isApproved(transaction, { organizationId, name: sender })))
    issues.push(`from is not an approved sender of this organization: ${sender}`);
  if (body === undefined) issues.push('body is required');
  if (sender === null || body === undefined || issues.length > 0) return { kind: 'not_ready', issues };

  const variableNames = listPlaceholders([body], Number.POSITIVE_INFINITY);
  const stored: StoredSmsContent = { text: body, defaults: pickValues(variables, variableNames) };
  return {
    kind: 'ready',
    message: {
      sender,
      subject: null,
      category,
      templateId: null,
      // Each copy has its own number of segments.
      details: '{}',
      content: JSON.stringify(stored),
      variableNames,
    },
  };
}

/** Counts segments. A copy that cannot be sent counts as none. */
function openSmsMeter(content: unknown): QuotaMeter {
  const { text, defaults = {} } = content as StoredSmsContent; // As prepareSms wrote it.
  const compiled = compileSms(text);
  return (values) => countSegments(fillSms(compiled, { ...defaults, ...values })).segments;
}

async function isApproved(
  transaction: Transaction,
  sender: { organizationId: string; name: string },
): Promise<boolean> {
  return (await findApprovedSenders(transaction, [sender])).get(sender) !== undefined;
}
