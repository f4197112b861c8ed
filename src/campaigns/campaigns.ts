/** The entry of this room: one message to many people, from its draft to its results. */

export type {
  BudgetRequest,
  CampaignChannel,
  CampaignChannels,
  CampaignContent,
  Oversight,
  PreparableCampaign,
  Preparation,
  PreparedMessage,
  QuotaMeter,
  Sample,
  SampleCopy,
  TestCopy,
  Forecast,
  Foreseen,
  PeopleBudget,
} from './channel.ts';
export type { ChannelPauseReason } from './states.ts';
export { countCampaignsUnderWay } from './engine-store.ts';
export { campaignsUnderWay } from './keeper-store.ts';
export { createCampaignDescriber } from './told-events.ts';
export { categoryInput, pickValues, variablesInput, variablesOrNull } from './content-fields.ts';
export { toldCampaign } from './schema.ts';
