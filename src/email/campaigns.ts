import { type TProperties, Type } from 'typebox';
import { addressColumns } from '../audience/audience.ts';
import {
  makeTextPart,
  mayBeLonger,
  nameLengthMax,
  parseAddress,
  parseNamedAddress,
  subjectLengthMax,
} from '../channels/email/email.ts';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import type { Values } from '../channels/placeholders.ts';
import { findTracking } from '../domains/domains.ts';
import { inlineRunner, largeBodyBytesMin, type TaskRunner } from '../platform/http/body-threads.ts';
import { literals, optional, optionalText, textOrNull } from '../platform/http/shapes.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import {
  keepTemplate,
  listVariables,
  type TemplateContent,
  toEmailText,
  variablesMax,
} from '../templates/templates.ts';
import { findSourceConflict } from './send.ts';
import { hasUnsubscribeLink, renderEmailSampleTask, submitEmailTestTask } from './campaign-sample.ts';
import { findMessageSender } from '../messages/messages.ts';
import type { StoredEmailContent, StoredEmailDetails } from './stored.ts';
import { emailChannel } from './channel.ts';
import {
  type CampaignChannel,
  type CampaignContent,
  categoryInput,
  pickValues,
  type PreparableCampaign,
  type Preparation,
  type PreparedMessage,
  type SampleCopy,
  variablesInput,
  variablesOrNull,
} from '../campaigns/campaigns.ts';

const contentFields = {
  subject: optionalText({
    minLength: 1,
    maxLength: subjectLengthMax,
    format: 'filled-line',
    description: 'Required unless the template has one. Supports `{{variables}}`, as do the bodies.',
  }),
  preview_text: optionalText({
    minLength: 1,
    maxLength: 500,
    format: 'filled-line',
    description: "What mail clients show beside the subject; the template's own when omitted.",
  }),
  from: optionalText({
    format: 'named-email',
    description: 'An address on a verified domain of the organization, or `Name <address>`.',
  }),
  from_name: optionalText({
    minLength: 1,
    maxLength: nameLengthMax,
    format: 'filled-line',
    description: 'The name shown with the address, in place of one in `from`.',
  }),
  reply_to: optionalText({ format: 'named-email', description: 'Where replies go.' }),
  template_id: optionalText({
    format: 'uuid',
    description: 'A saved template, instead of `html` and `text`.',
  }),
  html: optionalText({ minLength: 1, description: 'HTML body.' }),
  text: optionalText({
    minLength: 1,
    description: 'Plain text body; generated from the HTML when omitted.',
  }),
  track_opens: optional<boolean>('boolean', {
    description: 'The setting of the sending domain when omitted.',
  }),
  track_clicks: optional<boolean>('boolean', {
    description: 'The setting of the sending domain when omitted.',
  }),
  uncertain: optional<'skip' | 'repeat'>('string', {
    enum: ['skip', 'repeat', null],
    description:
      'What becomes of a copy whose hand-off was cut off before its answer, so that it may have arrived: `skip` sends nothing more, `repeat` sends the same message once more after a minute. `skip` when omitted.',
  }),
  category: categoryInput,
  variables: variablesInput,
} satisfies TProperties;

/** The inputs that are given; those never given or taken back are absent. */
type EmailInputs = {
  subject?: string;
  preview_text?: string;
  from?: string;
  from_name?: string;
  reply_to?: string;
  template_id?: string;
  html?: string;
  text?: string;
  track_opens?: boolean;
  track_clicks?: boolean;
  uncertain?: 'skip' | 'repeat';
  category?: string;
  variables?: Values;
};

function inputsOf(content: CampaignContent): EmailInputs {
  return content; // Checked by contentFields.
}

const booleanOrNull = Type.Union([Type.Boolean(), Type.Null()]);

export const emailCampaigns: CampaignChannel = {
  messages: emailChannel,
  deliveredPerSecondMax: 8_000,
  path: '/email/campaigns',
  noun: 'EmailCampaign',
  object: 'email_campaign',
  tag: 'Email campaigns',
  contentFields,
  contentRecord: {
    subject: textOrNull,
    preview_text: textOrNull,
    from: textOrNull,
    from_name: textOrNull,
    reply_to: textOrNull,
    template_id: textOrNull,
    html: textOrNull,
    text: textOrNull,
    track_opens: booleanOrNull,
    track_clicks: booleanOrNull,
    uncertain: Type.Union([literals(['skip', 'repeat']), Type.Null()]),
    category: textOrNull,
    variables: variablesOrNull,
  },
  bodyFields: ['html', 'text', 'variables'],
  findIssues: (content) => findSourceConflict((name) => content[name] !== undefined),
  rules: ['email-campaign'],
  templateIdOf: (content) => inputsOf(content).template_id?.toLowerCase() ?? null,
  findUnknown: async (transaction, organizationId, content) => {
    const { template_id: id } = inputsOf(content);
    if (id === undefined) return [];
    const template = await readTemplate(transaction, { organizationId, id });
    return template.kind === 'unknown' ? [template.issue] : [];
  },
  openMeter: null,
  reach: { kind: 'address', columns: addressColumns.email },
  addressFormat: 'idn-email',
  testedAddress: 'Each address gets a message of its own.',
  words: {
    medium: 'email',
    address: 'email address',
    taker: 'the next mail server',
    arrival: 'the next mail server took it',
    opened: 'was opened',
    clicked: 'one of its links was clicked',
    cutOff: 'it may have arrived, and is sent once more only if the campaign says `uncertain: "repeat"`',
    retriedFor: 'three days',
    unreachable: 'The mail servers of the domain have no addresses.',
    unfit: 'more than 998 characters of subject, or more than 30 MB',
  },
  defaultsOf: (content) => inputsOf(content).variables ?? {},
  prepare: prepareEmail,
  findObstacle: async (transaction, message) => {
    const domain = parseAddress((await findMessageSender(transaction, message)) ?? '')?.domain ?? '';
    return (await findTracking(transaction, { organizationId: message.organizationId, name: domain })) ===
      null
      ? `The sending domain ${domain} was deleted.`
      : null;
  },
  sampleRecord: {
    subject: textOrNull,
    html: textOrNull,
    text: textOrNull,
    links: Type.Array(Type.String(), { description: 'The targets of the links in the HTML, each once.' }),
    size_bytes: Type.Union([Type.Integer(), Type.Null()], {
      description: 'The size of the whole email, without what is added at delivery, such as the signature.',
    }),
  },
  emptySample: { subject: null, html: null, text: null, links: [], size_bytes: null },
  findOversights: async (transaction, organizationId, content) => {
    const source = await readSource(transaction, { organizationId, content });
    if (source.kind !== 'found') return [];
    const { subject, html, text, previewText } = source.content;
    const { subject: ownSubject = subject, preview_text: ownPreviewText = previewText } = inputsOf(content);
    return [
      ...(hasUnsubscribeLink(source.content) ? [] : (['no_unsubscribe_link'] as const)),
      ...nameForeignSyntax(findForeignSyntax([ownSubject, ownPreviewText, html, text])),
    ];
  },
  renderSample: (runner, message, copy) =>
    runnerFor(runner, message, copy).run(renderEmailSampleTask, { message, copy }),
  submitTest: ({ runner }, message, copy) =>
    runnerFor(runner, message, copy).run(submitEmailTestTask, { message, copy }),
};

async function prepareEmail(transaction: Transaction, campaign: PreparableCampaign): Promise<Preparation> {
  const inputs = inputsOf(campaign.content);
  const [source, sender] = await Promise.all([
    readSource(transaction, campaign),
    readSender(transaction, campaign.organizationId, inputs),
  ]);
  const issues = [source, sender].flatMap((part) => ('issue' in part ? [part.issue] : []));
  const subject = inputs.subject ?? (source.kind === 'found' ? source.content.subject : null);
  // If the template does not exist, it is unknown whether it has a subject.
  if (subject === null && source.kind !== 'unknown') issues.unshift('subject is required');
  if (source.kind !== 'found' || sender.kind !== 'found' || issues.length > 0)
    return { kind: 'not_ready', issues };

  const email = toEmailText({
    ...source.content,
    subject,
    previewText: inputs.preview_text ?? source.content.previewText,
  });
  const names = listVariables({ ...email, previewText: null });
  if (names.length > variablesMax) {
    const issue = `the content must have at most ${variablesMax} different placeholders`;
    return { kind: 'not_ready', issues: [issue] };
  }
  const variableNames = names.filter((name) => !isReserved(name));
  const details: StoredEmailDetails = {
    fromName: inputs.from_name ?? sender.name,
    replyTo: inputs.reply_to ?? null,
    attachments: [],
    tracking: {
      opens: inputs.track_opens ?? sender.tracking.opens,
      clicks: inputs.track_clicks ?? sender.tracking.clicks,
    },
    listIds: campaign.listIds,
    ...(inputs.uncertain === 'repeat' && { repeatsUncertain: true }),
  };
  const content: StoredEmailContent = {
    to: [],
    cc: [],
    html: email.html,
    text: email.text,
    defaults: pickValues(inputs.variables ?? {}, variableNames),
  };
  return {
    kind: 'ready',
    message: {
      sender: sender.address,
      subject: email.subject,
      category: inputs.category ?? null,
      templateId: inputs.template_id?.toLowerCase() ?? null,
      details: JSON.stringify(details),
      content: JSON.stringify(content),
      variableNames,
    },
  };
}

/** Copies that may be large are made in the thread. */
function runnerFor(
  runner: TaskRunner,
  { subject, content }: PreparedMessage,
  { values }: SampleCopy,
): TaskRunner {
  // The content's JSON contains its placeholders too.
  return mayBeLonger({ subject, html: content, text: null }, values, largeBodyBytesMin)
    ? runner
    : inlineRunner;
}

/** A placeholder that we fill in for each copy. No contact or campaign gives its value. */
function isReserved(name: string): boolean {
  return name === 'unsubscribe_url' || name.startsWith('_postillion.');
}

type Source =
  | { kind: 'found'; content: TemplateContent }
  | { kind: 'missing'; issue: string }
  | { kind: 'unknown'; issue: string };

/** The email's content, from the template or from the inputs. */
async function readSource(
  transaction: Transaction,
  { organizationId, content }: { organizationId: string; content: CampaignContent },
): Promise<Source> {
  const { template_id: id, html = null, text = null } = inputsOf(content);
  if (id !== undefined) return readTemplate(transaction, { organizationId, id });
  if (html === null && text === null)
    return { kind: 'missing', issue: 'html, text or template_id is required' };
  return {
    kind: 'found',
    content: {
      subject: null,
      html,
      text: text ?? (html === null ? null : makeTextPart(html)),
      previewText: null,
    },
  };
}

async function readTemplate(
  transaction: Transaction,
  template: { organizationId: string; id: string },
): Promise<Source> {
  const content = await keepTemplate(transaction, template);
  return content === null
    ? { kind: 'unknown', issue: `template_id is not a template of this organization: ${template.id}` }
    : { kind: 'found', content };
}

type SenderReading =
  | { kind: 'found'; address: string; name: string | null; tracking: { opens: boolean; clicks: boolean } }
  | { kind: 'missing'; issue: string };

async function readSender(
  transaction: Transaction,
  organizationId: string,
  { from }: EmailInputs,
): Promise<SenderReading> {
  if (from === undefined) return { kind: 'missing', issue: 'from is required' };
  const named = parseNamedAddress(from);
  if (named === null) throw new Error('the schema lets no such address through');
  const { email: address } = named;
  const tracking = await findTracking(transaction, { organizationId, name: address.domain });
  return tracking === null
    ? {
        kind: 'missing',
        issue: `the domain ${address.domain} of from is not a verified sending domain of this organization`,
      }
    : { kind: 'found', address: address.address, name: named.name, tracking };
}
