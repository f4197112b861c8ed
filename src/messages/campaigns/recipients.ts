import type { Page } from '../../platform/http/pagination.ts';
import { groupBy } from '../../platform/grouping.ts';
import type { Connection } from '../../platform/postgres/database.ts';
import * as store from './recipients-store.ts';
import { sliceSize } from '../recipients/counts.ts';
import type { RecipientFate } from '../status.ts';
import type { MessageKey } from '../keys.ts';

/**
 * The recipients of a campaign, newest contact first: all of them, or those of one status. A page is of so many contacts,
 * each of which may be several recipients, its devices. The status is in no index,
 * which would make every delivery more expensive. Instead, the counts tell which slices contain recipients of the
 * status, and only these are read. Counts are about a second old, and so are the results.
 */

/** How the API shows a recipient of a campaign: its status, or why it has none. */
export const campaignRecipientStatuses = [
  'pending',
  'dropped',
  'delayed',
  'sent',
  'delivered',
  'opened',
  'clicked',
  'bounced',
  'failed',
  'complained',
  'unsubscribed',
  'cancelled',
] as const;

export type CampaignRecipientStatus = (typeof campaignRecipientStatuses)[number];

export type CampaignRecipient = store.CampaignRecipientRow & { shownStatus: CampaignRecipientStatus };

/** A campaign's message, how many of its recipients have a row so far, and whether the campaign was cancelled. */
export type CampaignRecipients = {
  message: MessageKey;
  rowCount: number;
  isCancelled: boolean;
  /** Whether a contact may be several recipients. */
  areDevices: boolean;
};

/** Returns those of up to one contact more than the page holds, in the order of `pageClause`. */
export async function listCampaignRecipients(
  connection: Connection,
  recipients: CampaignRecipients,
  { status, page }: { status: CampaignRecipientStatus | null; page: Page },
): Promise<CampaignRecipient[]> {
  const rows =
    status === null
      ? await store.listAll(connection, recipients.message, page)
      : await listWithStatus(connection, recipients, status, page);
  const shown = rows.map((row) => show(row, recipients));
  return recipients.areDevices ? withOtherDevices(connection, recipients, { status, shown }) : shown;
}

/** Adds the other recipients that the same contacts are; of a status, those that have it. */
async function withOtherDevices(
  connection: Connection,
  recipients: CampaignRecipients,
  { status, shown }: { status: CampaignRecipientStatus | null; shown: readonly CampaignRecipient[] },
): Promise<CampaignRecipient[]> {
  const ofContacts = groupBy(
    await findCampaignRecipients(
      connection,
      recipients,
      shown.map(({ contact_id: id }) => id),
    ),
    ({ contact_id: id }) => id,
  );
  return shown.flatMap((first) =>
    (ofContacts.get(first.contact_id) ?? []).flatMap((row) => {
      // It may have got another status since the first was read, which must not shorten the page.
      if (row.ordinal === first.ordinal) return [first];
      return status === null || row.shownStatus === status ? [row] : [];
    }),
  );
}

/** The recipients that these contacts are: none, one, or one for each device. */
export async function findCampaignRecipients(
  connection: Connection,
  recipients: CampaignRecipients,
  contactIds: readonly string[],
): Promise<CampaignRecipient[]> {
  if (contactIds.length === 0) return [];
  const rows = await store.listOfContacts(connection, recipients.message, contactIds);
  return rows.map((row) => show(row, recipients));
}

/** Recipients that are not done are shown as waiting, unless the campaign is cancelled. */
function show(row: store.CampaignRecipientRow, { isCancelled }: CampaignRecipients): CampaignRecipient {
  const isOver = isCancelled && (row.fate === 'pending' || row.fate === 'delayed');
  return { ...row, shownStatus: isOver ? 'cancelled' : row.fate };
}

/** The fates that are shown as this status; empty if none is. */
function fatesOf(status: CampaignRecipientStatus, isCancelled: boolean): RecipientFate[] {
  if (status === 'cancelled') return isCancelled ? ['pending', 'delayed'] : [];
  return isCancelled && (status === 'pending' || status === 'delayed') ? [] : [status];
}

/** About how many recipients are still to be written to before the one with this ordinal. */
export async function countWaitingBefore(
  connection: Connection,
  message: MessageKey,
  ordinal: number,
): Promise<number> {
  const settled = await store.countSettledBefore(connection, message, { ordinal, sliceSize });
  return Math.max(0, ordinal - settled);
}

/**
 * Slices read at least in each round. Counts may be out of date, so that a round finds nothing; then the next slices
 * are read.
 */
const slicesAtOnceMin = 4;

async function listWithStatus(
  connection: Connection,
  { message, rowCount, isCancelled, areDevices }: CampaignRecipients,
  status: CampaignRecipientStatus,
  page: Page,
): Promise<store.CampaignRecipientRow[]> {
  const fates = fatesOf(status, isCancelled);
  if (fates.length === 0) return [];
  const isAscending = page.before !== null;
  const found: store.CampaignRecipientRow[] = [];
  let first = await store.findFirstOrdinal(connection, message, page);
  // Ends because each round advances by at least one slice, and none follows the last.
  while (first !== null && found.length <= page.limit) {
    const rowsMax = page.limit + 1 - found.length;
    const slices = await store.listSlicesWith(connection, {
      message,
      fates,
      rowCount,
      firstSlice: Math.floor(first / sliceSize),
      isAscending,
      sliceSize,
      slicesMax: rowsMax + slicesAtOnceMin,
    });
    const chosen = chooseRanges(slices, { fates, first, isAscending, rowsMax });
    if (chosen === null) break;
    const { ranges, lastSlice } = chosen;
    const wanted = { fates, ranges, isAscending, rowsMax, areDevices };
    // The devices of a contact may lie in two slices.
    const last = found.at(-1)?.contact_id;
    const rows = await store.listInRanges(connection, message, wanted);
    found.push(...rows.filter(({ contact_id: id }) => id !== last));
    const next = isAscending ? (lastSlice + 1) * sliceSize : lastSlice * sliceSize - 1;
    first = next >= 0 && next < rowCount ? next : null;
  }
  return found;
}

/** The ranges in which enough recipients are likely to be found; null if no slice is left. */
function chooseRanges(
  slices: readonly store.CountedSlice[],
  wanted: { fates: readonly RecipientFate[]; first: number; isAscending: boolean; rowsMax: number },
): { ranges: store.OrdinalRange[]; lastSlice: number } | null {
  const ranges: store.OrdinalRange[] = [];
  let lastSlice: number | null = null;
  let expected = 0;
  for (const [index, counted] of slices.entries()) {
    if (expected >= wanted.rowsMax && index >= slicesAtOnceMin) break;
    lastSlice = counted.slice;
    const entries = wanted.fates.map((fate) =>
      counted.fates === null ? sliceSize : (counted.fates[fate] ?? []),
    );
    const known = entries.flatMap((entry) => (typeof entry === 'number' ? [] : entry));
    if (known.length > 0 && entries.every((entry) => typeof entry !== 'number')) {
      const within = known.filter((ordinal) =>
        wanted.isAscending ? ordinal >= wanted.first : ordinal <= wanted.first,
      );
      ranges.push(...within.map((ordinal) => ({ from: ordinal, to: ordinal })));
      expected += within.length;
    } else {
      ranges.push(rangeOf(counted.slice, wanted.first, wanted.isAscending));
      // A part of the first slice may lie outside the page.
      if (index > 0) expected += entries.reduce<number>((sum, entry) => sum + countOf(entry), 0);
    }
  }
  return lastSlice === null ? null : { ranges, lastSlice };
}

function countOf(entry: number | readonly number[]): number {
  return typeof entry === 'number' ? entry : entry.length;
}

function rangeOf(slice: number, first: number, isAscending: boolean): store.OrdinalRange {
  const [from, to] = [slice * sliceSize, (slice + 1) * sliceSize - 1];
  return isAscending ? { from: Math.max(from, first), to } : { from, to: Math.min(to, first) };
}
