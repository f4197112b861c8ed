import { readSuppressions, type Suppression, type SuppressionTools } from '../audience/audience.ts';
import {
  type CampaignRecipient,
  countWaitingBefore,
  findCampaignRecipients,
  sliceSize,
} from '../messages/messages.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import * as answers from './answer-store.ts';
import { includedAndExcluded } from './audience-fields.ts';
import type { CampaignChannel } from './channel.ts';
import { explain, type Explanation, type Facts, rankOfOutcome } from './explanation.ts';
import type { CampaignReference } from './lifecycle.ts';
import { recipientsOf, type RecipientTools, refuseRemoved } from './recipients.ts';
import * as store from './store.ts';

export type ExplainTools = SuppressionTools & RecipientTools;

/** `place` is where the contact was to be reached, as answers show it. */
export type Explained = { explanation: Explanation; place: Readonly<Record<string, unknown>> };

/** Null if the campaign does not exist, or nothing is known of the contact. */
export async function explainRecipient(
  tools: ExplainTools,
  { organizationId, channel, id }: CampaignReference,
  contactId: string,
): Promise<Explained | null> {
  return tools.database.asOrganizations([organizationId], async (transaction) => {
    const contact = { organizationId, id: contactId };
    // Read before the recipient's row, since the contact gets its row when it leaves the frozen audience.
    const waitingOrdinal = await answers.findWaitingOrdinal(
      transaction,
      { organizationId, id },
      { id: contactId, sliceSize },
    );
    const campaign = await store.findCampaignWithoutBodies(transaction, {
      organizationId,
      channel: channel.messages.name,
      id,
    });
    if (campaign === null) return null;
    const recipients = recipientsOf(channel, campaign);
    await refuseRemoved(transaction, tools.readHorizon, campaign);
    const rows =
      recipients === null ? [] : await findCampaignRecipients(transaction, recipients, [contactId]);
    const { included, excluded } = includedAndExcluded(campaign);
    const row = await answers.findStanding(transaction, channel, contact, [...included, ...excluded]);
    if (rows.length === 0 && waitingOrdinal === null && row === null) return null;
    const suppression = await findSuppression(tools, transaction, channel, organizationId, row);
    const common = {
      words: channel.words,
      campaign: {
        status: campaign.status,
        scheduledAt: campaign.scheduled_at,
        frozenAt: findFrozenAt(campaign, contactId.toLowerCase()),
        isPartlyFrozen: campaign.frozen_through !== null,
        cancelledAt: campaign.cancelled_at,
        pauseReason: campaign.pause_reason,
        failureReason: campaign.failure_reason,
        isCutOff: campaign.expanded < (campaign.audience ?? 0),
      },
      standing: row && standingOf(row, campaign, suppression),
    };
    const explained = [];
    for (const recipient of rows.length === 0 ? [null] : rows) {
      const waiting = await findWaiting(transaction, campaign, recipient, waitingOrdinal);
      explained.push({ recipient, explanation: explain({ ...common, recipient, waiting }) });
    }
    const [first] = explained.toSorted(
      (one, other) => rankOfOutcome(other.explanation.outcome) - rankOfOutcome(one.explanation.outcome),
    );
    if (first === undefined) throw new Error('nothing was explained');
    const { reach } = channel;
    if (reach.kind === 'devices')
      return { explanation: first.explanation, place: { devices: explained.flatMap(showDevice) } };
    const address = first.recipient === null ? (row?.address ?? null) : first.recipient.address || null;
    return { explanation: first.explanation, place: { [reach.columns.address]: address } };
  });
}

function showDevice({
  recipient,
  explanation,
}: {
  recipient: CampaignRecipient | null;
  explanation: Explanation;
}) {
  return recipient === null ? [] : [{ device_id: recipient.device_id, ...showExplanation(explanation) }];
}

export function showExplanation({ outcome, reason, steps }: Explanation) {
  return {
    outcome,
    reason,
    steps: steps.map(({ at, text }) => ({ at: at?.toISOString() ?? null, text })),
  };
}

/**
 * When the part of the audience was frozen that the contact would be in; null if it is not frozen yet. Ids in lower
 * case sort like their bytes.
 */
function findFrozenAt(campaign: store.CampaignRow, contactId: string): Date | null {
  const {
    frozen_at: frozenAt,
    frozen_through: through,
    first_frozen_through: firstThrough,
    rest_frozen_at: restFrozenAt,
  } = campaign;
  if (through !== null && contactId > through) return null;
  return firstThrough !== null && contactId > firstThrough ? (restFrozenAt ?? frozenAt) : frozenAt;
}

function standingOf(
  row: answers.StandingRow,
  campaign: store.CampaignRow,
  suppression: Suppression | null,
): NonNullable<Facts['standing']> {
  const sets = includedAndExcluded(campaign);
  const [included, excluded] = [new Set(sets.included), new Set(sets.excluded)];
  return {
    createdAt: row.created_at,
    includedBy: row.sets.filter(({ id }) => included.has(id)),
    excludedBy: row.sets.filter(({ id }) => excluded.has(id)),
    hasAddress: row.address_key !== null,
    isUnsubscribed: row.is_unsubscribed,
    suppression,
  };
}

async function findSuppression(
  tools: ExplainTools,
  transaction: Transaction,
  { messages }: CampaignChannel,
  organizationId: string,
  row: answers.StandingRow | null,
): Promise<Suppression | null> {
  const address = row?.address_key ?? null;
  if (address === null) return null;
  const [first = null] = await readSuppressions(transaction, tools, messages.name, {
    organizationId,
    address,
  });
  return first;
}

async function findWaiting(
  transaction: Transaction,
  campaign: store.CampaignRow,
  recipient: CampaignRecipient | null,
  waitingOrdinal: number | null,
): Promise<Facts['waiting']> {
  const { organization_id: organizationId, message_id: messageId } = campaign;
  const isPending = recipient === null || recipient.shownStatus === 'pending';
  const ordinal = recipient?.ordinal ?? waitingOrdinal;
  if (messageId === null || ordinal === null || !isPending) return null;
  return { countBefore: await countWaitingBefore(transaction, { organizationId, messageId }, ordinal) };
}
