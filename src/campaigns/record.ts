import type { ConversionSums } from '../events/events.ts';
import type { RecipientSums } from '../messages/messages.ts';
import { audienceFields } from './audience-fields.ts';
import type { CampaignChannel } from './channel.ts';
import type { CampaignStats } from './schema.ts';
import type { CampaignRow } from './store.ts';

/** What was counted of a campaign, as far as there is anything. */
export type CampaignSums = { sums: RecipientSums | undefined; conversions: ConversionSums | undefined };

/** A campaign as the API shows it; without its bodies in a list. */
export function showCampaign(
  { contentRecord, bodyFields }: CampaignChannel,
  row: CampaignRow,
  { sums, conversions }: CampaignSums,
  { isListed }: { isListed: boolean },
) {
  const shown = Object.keys(contentRecord).filter((field) => !isListed || !bodyFields.includes(field));
  return {
    id: row.id,
    name: row.name,
    status: row.status,
    ...Object.fromEntries(shown.map((field) => [field, row.content[field] ?? null])),
    ...Object.fromEntries(audienceFields.map((field) => [field, row[field]])),
    scheduled_at: showInstant(row.scheduled_at),
    queued_at: showInstant(row.queued_at),
    started_at: showInstant(findStart(row, sums)),
    completed_at: showInstant(row.completed_at),
    cancelled_at: showInstant(row.cancelled_at),
    pause_reason: row.pause_reason,
    failure_reason: row.failure_reason,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
    stats: showStats(row, { sums, conversions }),
  };
}

/**
 * When a campaign is cancelled or fails, hand-offs may be under way. They are counted later, when the engine no longer
 * changes the campaign, so the counts show here that it had started.
 */
function findStart(row: CampaignRow, sums: RecipientSums | undefined): Date | null {
  if (row.started_at !== null || (sums?.handedOff ?? 0) === 0) return row.started_at;
  return row.cancelled_at ?? row.completed_at;
}

function showInstant(at: Date | null): string | null {
  return at?.toISOString() ?? null;
}

/** Recipients that are not done are shown as waiting, unless the campaign is cancelled. */
function showStats(row: CampaignRow, { sums, conversions }: CampaignSums): CampaignStats {
  const { delivered, bounced, failed, dropped, uncertain, unconfirmed, ...rest } = sums ?? nobody;
  const audience = row.audience ?? 0;
  const done = delivered + bounced + failed + dropped + uncertain + unconfirmed;
  const left = Math.max(0, audience - done);
  const isCancelled = row.status === 'cancelled';
  return {
    audience,
    excluded: {
      unsubscribed: row.excluded_unsubscribed ?? 0,
      suppressed: row.excluded_suppressed ?? 0,
      no_address: row.excluded_no_address ?? 0,
      duplicate: row.excluded_duplicate ?? 0,
    },
    pending: isCancelled ? 0 : left,
    sent: rest.handedOff,
    delivered,
    bounced,
    complained: rest.complained,
    failed,
    opened: rest.opened,
    clicked: rest.clicked,
    unsubscribed: rest.unsubscribed,
    dropped,
    uncertain,
    unconfirmed,
    cancelled: isCancelled ? left : 0,
    conversions: conversions?.count ?? 0,
    conversion_value: conversions?.values ?? [],
  };
}

const nobody: RecipientSums = {
  handedOff: 0,
  delayed: 0,
  delivered: 0,
  bounced: 0,
  failed: 0,
  complained: 0,
  unsubscribed: 0,
  opened: 0,
  clicked: 0,
  dropped: 0,
  uncertain: 0,
  unconfirmed: 0,
};
