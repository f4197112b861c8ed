import { type TProperties, Type } from 'typebox';
import { findForeignSyntax, nameForeignSyntax } from '../channels/foreign-syntax.ts';
import { pushPlatforms } from '../channels/push/notification.ts';
import type { Values } from '../channels/placeholders.ts';
import {
  type CampaignChannel,
  type CampaignContent,
  pickValues,
  type PreparableCampaign,
  type Preparation,
  variablesInput,
  variablesOrNull,
} from '../campaigns/campaigns.ts';
import { textOfKey } from '../messages/messages.ts';
import { instant, textOrNull } from '../platform/http/shapes.ts';
import { pushAddressInSql, readPushAddress } from './address.ts';
import { renderPushSample, submitPushTest } from './campaign-sample.ts';
import { pushChannel } from './channel.ts';
import { findEngagements } from './engagement-store.ts';
import { platformOf } from './record.ts';
import { listPushPlaceholders, textsOf, withoutPlaceholders } from './rendering.ts';
import { orNull, type PushContentBody, pushCampaignFields, pushTextsRecord } from './schema.ts';
import { findContentIssues } from './send.ts';
import type { StoredPushContent } from './stored.ts';

const contentFields = { ...pushCampaignFields, variables: variablesInput } satisfies TProperties;

/** The inputs that are given; those never given or taken back are absent. */
type PushInputs = Partial<PushContentBody> & { category?: string; variables?: Values };

function inputsOf(content: CampaignContent): PushInputs {
  return content; // Checked by contentFields.
}

/** A contact is reached on each of its devices: a recipient is one of them, and has its own copy and its own fate. */
export const pushCampaigns: CampaignChannel = {
  messages: pushChannel,
  deliveredPerSecondMax: 8_000,
  path: '/push/campaigns',
  noun: 'PushCampaign',
  object: 'push_campaign',
  tag: 'Push campaigns',
  contentFields,
  contentRecord: {
    ...pushTextsRecord,
    android_channel_id: textOrNull,
    ttl_seconds: orNull(Type.Integer()),
    priority: textOrNull,
    category: textOrNull,
    variables: variablesOrNull,
  },
  bodyFields: ['action_buttons', 'data_payload', 'variables'],
  findIssues: findCampaignIssues,
  rules: ['push-campaign'],
  templateIdOf: () => null,
  findUnknown: () => Promise.resolve([]),
  openMeter: null,
  reach: {
    kind: 'devices',
    addressOf: pushAddressInSql,
    record: {
      platform: orNull(
        Type.String({
          enum: [...pushPlatforms],
          description: 'Null before its turn, and once it was erased.',
        }),
      ),
      delivered_at: orNull(instant),
      dismissed_at: orNull(instant),
      action_id: orNull(Type.String({ description: 'Of the button that was clicked.' })),
    },
    load: async (transaction, message, recipients) => {
      const reports = await findEngagements(
        transaction,
        recipients.map(({ ordinal }) => ({ ...message, ordinal })),
      );
      return (recipient) => {
        const address = recipient && readPushAddress(recipient.address);
        const reported = recipient && reports.get(textOfKey({ ...message, ordinal: recipient.ordinal }));
        return {
          platform: address && platformOf(address),
          delivered_at: reported?.deliveredAt?.toISOString() ?? null,
          dismissed_at: reported?.dismissedAt?.toISOString() ?? null,
          action_id: reported?.actionId ?? null,
        };
      };
    },
  },
  addressFormat: 'uuid',
  testedAddress: 'Ids of contacts. Each of them gets it on all of its devices.',
  words: {
    medium: 'push',
    address: 'device that gets pushes',
    taker: 'the push service',
    arrival: 'the app on the device reported it',
    opened: 'was displayed',
    clicked: 'was clicked',
    cutOff:
      'it may have arrived; it is sent once more at most, under the same id, by which the device shows it once',
    retriedFor: 'four weeks, or as long as its `ttl_seconds` say',
    unreachable: 'The device cannot be reached.',
    unfit:
      'an empty text, one that is too long, an image that is not https, or more bytes than a platform takes',
  },
  defaultsOf: (content) => inputsOf(content).variables ?? {},
  prepare: (_transaction, campaign) => Promise.resolve(prepareCampaign(campaign)),
  // Whose app it is, is said by credentials. Without them a device is failed by itself, and another one may be reached.
  findObstacle: () => Promise.resolve(null),
  sampleRecord: {
    ...pushTextsRecord,
    size_bytes: Type.Union([Type.Integer(), Type.Null()], {
      description: 'In the form in which it has the least room left.',
    }),
  },
  emptySample: {
    title: null,
    body: null,
    image_url: null,
    icon_url: null,
    deep_link: null,
    action_buttons: null,
    data_payload: null,
    size_bytes: null,
  },
  findOversights: (_transaction, _organizationId, content) =>
    Promise.resolve(
      nameForeignSyntax(findForeignSyntax(textsOf({ title: '', body: '', ...inputsOf(content) }))),
    ),
  renderSample: (_runner, message, copy) => Promise.resolve(renderPushSample(message, copy)),
  submitTest: ({ database }, message, copy) => submitPushTest(database, message, copy),
};

/**
 * With its placeholders a content may be long, of which little is left when they are filled. Longer ones would only be
 * work for every recipient.
 */
const writtenBytesMax = 16_384;

/** Of the inputs that there are. */
export function findCampaignIssues(content: CampaignContent): string[] {
  const { category: _category, variables: _variables, title = '', body = '', ...rest } = inputsOf(content);
  return findKnownIssues({ title, body, ...rest });
}

/** What is wrong whatever the values of contacts are. What they make too large has failed at its hand-off. */
function findKnownIssues(content: PushContentBody): string[] {
  const bytes = Buffer.byteLength(JSON.stringify(content));
  if (bytes > writtenBytesMax)
    return [`title, body, data_payload and the rest have ${bytes} bytes, and may have ${writtenBytesMax}`];
  return findContentIssues(withoutPlaceholders(content));
}

function prepareCampaign({ content }: PreparableCampaign): Preparation {
  const { category = null, variables = {}, title, body, ...rest } = inputsOf(content);
  if (title === undefined || body === undefined) {
    const issues = Object.entries({ title, body }).flatMap(([name, text]) =>
      text === undefined ? [`${name} is required`] : [],
    );
    return { kind: 'not_ready', issues };
  }
  const said: PushContentBody = { title, body, ...rest };
  const variableNames = listPushPlaceholders(said);
  const stored: StoredPushContent = { ...said, defaults: pickValues(variables, variableNames) };
  return {
    kind: 'ready',
    message: {
      sender: '',
      subject: title,
      category,
      templateId: null,
      details: '{}',
      content: JSON.stringify(stored),
      variableNames,
    },
  };
}
