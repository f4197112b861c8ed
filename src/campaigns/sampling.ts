import type { Values } from '../channels/placeholders.ts';
import type { ContactVariables } from '../messages/messages.ts';
import type { Clock } from '../platform/clock.ts';
import { PublicError, validationError } from '../platform/http/errors.ts';
import { type Database, isStatementTimeout, type Transaction } from '../platform/postgres/database.ts';
import * as answers from './answer-store.ts';
import type { Preparation } from './channel.ts';
import * as engine from './engine-store.ts';
import type { CampaignReference } from './lifecycle.ts';
import type { TaskRunner } from '../platform/http/body-threads.ts';
import { prepareCampaign } from './queueing.ts';
import { loadVariables } from './running.ts';
import * as store from './store.ts';

export type SampleTools = {
  database: Database;
  clock: Clock;
  /** The installation's URL, without a slash at the end. */
  publicUrl: () => string;
  runner: TaskRunner;
};

/** A campaign in its current state, and the values for one copy of it. */
export type LoadedSample = {
  campaign: store.CampaignRow;
  preparation: Preparation;
  /** Where to read a contact's values for the placeholders that have no default. */
  variables: ContactVariables;
  /** The contact whose values are used; null if only defaults are. */
  contactId: string | null;
  values: Values;
  awaitsSegment: boolean;
};

/** Null if the campaign does not exist; an error if the contact does not. */
export async function loadSample(
  tools: SampleTools,
  reference: CampaignReference,
  givenContactId: string | null,
): Promise<LoadedSample | PublicError | null> {
  const { organizationId, channel, id } = reference;
  const campaign = { organizationId, id };
  const loaded = await tools.database.asOrganizations([organizationId], async (transaction) => {
    const row = await store.findCampaign(transaction, { ...campaign, channel: channel.messages.name });
    if (row === null) return null;
    const preparation = await prepareCampaign(transaction, channel, row);
    const variableNames = preparation.kind === 'ready' ? preparation.message.variableNames : [];
    return {
      campaign: row,
      preparation,
      variables: await loadVariables(transaction, { organizationId, variableNames }),
      awaitsSegment: (await engine.findSegmentState(transaction, campaign)) !== 'current',
    };
  });
  if (loaded === null) return null;
  const contactId = givenContactId?.toLowerCase() ?? (await findSample(tools, reference));
  const own =
    contactId === null
      ? {}
      : await tools.database.asOrganizations([organizationId], (transaction) =>
          answers.findContactValues(transaction, { organizationId, id: contactId }, loaded.variables),
        );
  if (own === null && givenContactId !== null) {
    return new PublicError(
      validationError,
      `contact_id is not a contact of this organization: ${givenContactId}`,
    );
  }
  const defaults = channel.defaultsOf(loaded.campaign.content);
  return { ...loaded, contactId: own === null ? null : contactId, values: { ...defaults, ...own } };
}

/** If finding a contact takes longer, the sample has no contact: that is better than no sample, or a late one. */
const sampleTimeoutMs = 2_000;

async function findSample(tools: SampleTools, reference: CampaignReference): Promise<string | null> {
  const { organizationId, channel, id } = reference;
  try {
    return await tools.database.asOrganizations([organizationId], async (transaction: Transaction) => {
      await engine.allowForLargeAudience(transaction, sampleTimeoutMs);
      return answers.findSampleContact(transaction, { organizationId, id }, channel);
    });
  } catch (cause) {
    if (isStatementTimeout(cause)) return null;
    throw cause;
  }
}
