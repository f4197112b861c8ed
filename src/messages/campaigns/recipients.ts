import type { Page } from '../../platform/http/pagination.ts';
import type { Connection } from '../../platform/postgres/database.ts';
import * as store from './recipients-store.ts';
import { sliceSize } from '../recipients/counts.ts';
import type { RecipientFate } from '../status.ts';
import type { MessageKey } from '../keys.ts';

/**
 * The recipients of a campaign, newest contact first, as people look for them: all of them, or those of one status. No
 * index has the status, which would make every delivery dearer. Instead the counts are read, and of the recipients
 * only those slices in which somebody has the status; counts are about a second old, and so is what is found by them.
 */

/** What a recipient of a campaign is shown as: its status, or that there is none and why. */
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

/** A campaign's message, how many of its recipients have a row by now, and whether the rest of them got nothing. */
export type CampaignRecipients = { message: MessageKey; rowCount: number; isCancelled: boolean };

/** Up to one more than the page holds, in the order of `pageClause`. */
export async function listCampaignRecipients(
  connection: Connection,
  recipients: CampaignRecipients,
  { status, page }: { status: CampaignRecipientStatus | null; page: Page },
): Promise<CampaignRecipient[]> {
  const rows =
    status === null
      ? await store.listAll(connection, recipients.message, page)
      : await listWithStatus(connection, recipients, status, page);
  return rows.map((row) => show(row, recipients));
}

export async function findCampaignRecipient(
  connection: Connection,
  recipients: CampaignRecipients,
  contactId: string,
): Promise<CampaignRecipient | null> {
  const row = await store.findOne(connection, recipients.message, contactId);
  return row && show(row, recipients);
}

/** Whoever is not done yet waits; once the campaign is cancelled, nobody does. */
function show(row: store.CampaignRecipientRow, { isCancelled }: CampaignRecipients): CampaignRecipient {
  const isOver = isCancelled && (row.fate === 'pending' || row.fate === 'delayed');
  return { ...row, shownStatus: isOver ? 'cancelled' : row.fate };
}

/** The fates that are shown as a status; none of them if nobody can be shown as it. */
function fatesOf(status: CampaignRecipientStatus, isCancelled: boolean): RecipientFate[] {
  if (status === 'cancelled') return isCancelled ? ['pending', 'delayed'] : [];
  return isCancelled && (status === 'pending' || status === 'delayed') ? [] : [status];
}

/** How many are to be written to before the one with this ordinal, about. */
export async function countWaitingBefore(
  connection: Connection,
  message: MessageKey,
  ordinal: number,
): Promise<number> {
  const settled = await store.countSettledBefore(connection, message, { ordinal, sliceSize });
  return Math.max(0, ordinal - settled);
}

/** Of counts that are old nothing may be found: then another turn is taken, over the slices behind them. */
const slicesAtOnceMin = 4;

async function listWithStatus(
  connection: Connection,
  { message, rowCount, isCancelled }: CampaignRecipients,
  status: CampaignRecipientStatus,
  page: Page,
): Promise<store.CampaignRecipientRow[]> {
  const fates = fatesOf(status, isCancelled);
  if (fates.length === 0) return [];
  const isAscending = page.before !== null;
  const found: store.CampaignRecipientRow[] = [];
  let first = await store.findFirstOrdinal(connection, message, page);
  // Each turn goes at least one slice further, and none is left behind the last one.
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
    found.push(...(await store.listInRanges(connection, message, { fates, ranges, isAscending, rowsMax })));
    const next = isAscending ? (lastSlice + 1) * sliceSize : lastSlice * sliceSize - 1;
    first = next >= 0 && next < rowCount ? next : null;
  }
  return found;
}

/** Where to look, so that as many as are wanted are likely to be found; null if there is nowhere. */
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
      // Of the first slice a part may lie outside of the page.
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
