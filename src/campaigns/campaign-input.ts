import type { Transaction } from '../platform/postgres/database.ts';
import { type AudienceField, audienceFields, type AudienceIds, findUnknownSets } from './audience-fields.ts';
import type { CampaignChannel, CampaignContent } from './channel.ts';
import type { CampaignInput } from './schema.ts';

/** The inputs of a campaign as they are stored: the channel's content, and the audience. */
export type CampaignInputs = { content: CampaignContent; audience: AudienceIds };

export const emptyInputs: CampaignInputs = {
  content: {},
  audience: {
    list_ids: [],
    tag_ids: [],
    segment_ids: [],
    exclude_list_ids: [],
    exclude_tag_ids: [],
    exclude_segment_ids: [],
  },
};

/** Inputs that are not given stay as they are; null removes one. */
export function mergeInput(
  channel: CampaignChannel,
  present: CampaignInputs,
  input: CampaignInput,
): CampaignInputs {
  const idsOf = (field: AudienceField) =>
    input[field] === undefined ? present.audience[field] : distinctIds(input[field] ?? []);
  return {
    content: withoutNulls({ ...present.content, ...pickContent(channel, input) }),
    audience: {
      list_ids: idsOf('list_ids'),
      tag_ids: idsOf('tag_ids'),
      segment_ids: idsOf('segment_ids'),
      exclude_list_ids: idsOf('exclude_list_ids'),
      exclude_tag_ids: idsOf('exclude_tag_ids'),
      exclude_segment_ids: idsOf('exclude_segment_ids'),
    },
  };
}

function pickContent({ contentFields }: CampaignChannel, input: CampaignInput): CampaignContent {
  const given = Object.keys(contentFields).filter((field) => input[field] !== undefined);
  return Object.fromEntries(given.map((field) => [field, input[field]]));
}

function withoutNulls(content: CampaignContent): CampaignContent {
  return Object.fromEntries(Object.entries(content).filter(([, value]) => value !== null));
}

function distinctIds(ids: readonly string[]): string[] {
  return [...new Set(ids.map((id) => id.toLowerCase()))];
}

/**
 * Everything that this input names must exist. Names from earlier inputs may have been deleted since; that is reported
 * when the campaign is sent.
 */
export async function findInputIssues(
  transaction: Transaction,
  given: { organizationId: string; channel: CampaignChannel; input: CampaignInput; merged: CampaignInputs },
): Promise<string[]> {
  const { organizationId, channel, input, merged } = given;
  const content = withoutNulls(pickContent(channel, input));
  const audience = Object.fromEntries(audienceFields.map((field) => [field, input[field] ?? []]));
  return [
    ...channel.findIssues(merged.content),
    ...(await channel.findUnknown(transaction, organizationId, content)),
    ...(await findUnknownSets(transaction, organizationId, audience)),
  ];
}
