import { cursorOf, type Page, pageClause } from '../../platform/http/pagination.ts';
import { type Connection, unpreparedStatement } from '../../platform/postgres/database.ts';
import type { DropReason, RecipientStatus } from '../schema.ts';
import { fateOfRecipient, type RecipientFate } from '../status.ts';
import { type FateRow, fateColumns } from '../store.ts';
import type { MessageKey } from '../keys.ts';

export type CampaignRecipientRow = FateRow & {
  ordinal: number;
  contact_id: string;
  /** Null if the recipient is not a device. */
  device_id: string | null;
  /** Empty once it was erased. */
  address: string;
  status: RecipientStatus;
  fate: RecipientFate;
  status_at: Date;
  drop_reason: DropReason | null;
  handed_off_at: Date | null;
};

const columns = `ordinal, contact_id, device_id, address, status, ${fateOfRecipient} as fate, status_at, drop_reason, handed_off_at,
  ${fateColumns}`;

/** SQL: of recipients in the order of their contacts, one for each contact. */
const onePerContact = 'distinct on (contact_id)';

/**
 * Returns the recipients of one contact more than the page holds, one for each contact, by the index recipients_contact.
 */
export async function listAll(
  connection: Connection,
  message: MessageKey,
  page: Page,
): Promise<CampaignRecipientRow[]> {
  return connection.rows(
    unpreparedStatement<CampaignRecipientRow>(
      `select ${onePerContact} ${columns}
       from recipients
       where organization_id = $1 and message_id = $2 and contact_id is not null
         ${pageClause(page, 'contact_id', '$3')}
       limit $4`,
    ),
    [message.organizationId, message.messageId, cursorOf(page), page.limit + 1],
  );
}

/** All recipients that these contacts are, in the order of their ordinals, by the index recipients_contact. */
export async function listOfContacts(
  connection: Connection,
  message: MessageKey,
  contactIds: readonly string[],
): Promise<CampaignRecipientRow[]> {
  return connection.rows(
    unpreparedStatement<CampaignRecipientRow>(
      `select ${columns}
       from recipients
       where organization_id = $1 and message_id = $2 and contact_id = any ($3::uuid[])
       order by ordinal`,
    ),
    [message.organizationId, message.messageId, contactIds],
  );
}

/**
 * The ordinal of the first recipient of a page, or null if there is none: ordinals are given in the order of the
 * contacts' ids, and of a contact in that of its devices.
 */
export async function findFirstOrdinal(
  connection: Connection,
  message: MessageKey,
  page: Page,
): Promise<number | null> {
  const [row] = await connection.rows(
    unpreparedStatement<{ ordinal: number }>(
      `select ordinal
       from recipients
       where organization_id = $1 and message_id = $2 and contact_id is not null
         ${pageClause(page, 'contact_id', '$3')}, device_id ${page.before === null ? 'desc' : 'asc'}
       limit 1`,
    ),
    [message.organizationId, message.messageId, cursorOf(page)],
  );
  return row?.ordinal ?? null;
}

/** Which slices of a campaign to list. `rowCount` is how many of its recipients have a row. */
export type SliceSearch = {
  message: MessageKey;
  fates: readonly RecipientFate[];
  rowCount: number;
  firstSlice: number;
  isAscending: boolean;
  sliceSize: number;
  slicesMax: number;
};

/** `fates` as last counted: for each fate the ordinals, or how many there are. Null if the slice was never counted. */
export type CountedSlice = {
  slice: number;
  fates: Partial<Record<RecipientFate, number[] | number>> | null;
};

/**
 * Lists slices that have recipients of the given fates, starting at a slice and going in the page's direction. For a
 * million recipients, a thousand slices are examined. In a slice that was never counted, all recipients count as
 * pending.
 */
export async function listSlicesWith(connection: Connection, search: SliceSearch): Promise<CountedSlice[]> {
  const { message, rowCount, firstSlice, isAscending, sliceSize } = search;
  return connection.rows(
    unpreparedStatement<CountedSlice>(
      `select wanted.slice, n.fates
       from generate_series($3::integer, $4::integer) as wanted (slice)
       left join recipient_counts n
         on n.organization_id = $1 and n.message_id = $2 and n.slice = wanted.slice
       where n.fates ?| $5::text[] or (n.slice is null and 'pending' = any ($5))
       order by wanted.slice ${isAscending ? 'asc' : 'desc'}
       limit $6`,
    ),
    [
      message.organizationId,
      message.messageId,
      isAscending ? firstSlice : 0,
      isAscending ? Math.floor((rowCount - 1) / sliceSize) : firstSlice,
      search.fates,
      search.slicesMax,
    ],
  );
}

/** Ordinals, both inclusive. */
export type OrdinalRange = { from: number; to: number };

/** Recipients of the given fates in ranges of ordinals, by the primary key; of the same contact one alone. */
export async function listInRanges(
  connection: Connection,
  message: MessageKey,
  wanted: {
    fates: readonly RecipientFate[];
    ranges: readonly OrdinalRange[];
    isAscending: boolean;
    rowsMax: number;
    /** Whether a contact may be several recipients. */
    areDevices: boolean;
  },
): Promise<CampaignRecipientRow[]> {
  const order = wanted.isAscending ? 'asc' : 'desc';
  // To tell contacts apart all of a range is read and sorted, which is not worth it where each is one recipient.
  const [distinct, position] = wanted.areDevices ? [onePerContact, 'contact_id'] : ['', 'ordinal'];
  return connection.rows(
    unpreparedStatement<CampaignRecipientRow>(
      `select ${distinct} r.*
       from unnest($3::integer[], $4::integer[]) as range (low, high)
       cross join lateral (
         select ${distinct} ${columns}
         from recipients
         where organization_id = $1 and message_id = $2 and ordinal >= range.low and ordinal <= range.high
           and ${fateOfRecipient} = any ($6::text[])
         order by ${position} ${order}
         limit $5
       ) r
       order by r.${position} ${order}
       limit $5`,
    ),
    [
      message.organizationId,
      message.messageId,
      wanted.ranges.map(({ from }) => from),
      wanted.ranges.map(({ to }) => to),
      wanted.rowsMax,
      wanted.fates,
    ],
  );
}

/** About how many recipients with smaller ordinals are done: the sum of full slices as last counted. */
export async function countSettledBefore(
  connection: Connection,
  message: MessageKey,
  wanted: { ordinal: number; sliceSize: number },
): Promise<number> {
  const slice = Math.floor(wanted.ordinal / wanted.sliceSize);
  const [row] = await connection.rows(
    unpreparedStatement<{ settled: number }>(
      `select
         (
           select coalesce(sum(n.delivered + n.bounced + n.failed + n.dropped + n.uncertain + n.unconfirmed), 0)
           from recipient_counts n
           where n.organization_id = $1 and n.message_id = $2 and n.slice < $3
         ) + (
           select count(*)
           from recipients
           where organization_id = $1 and message_id = $2 and ordinal >= $4 and ordinal < $5
             and ${fateOfRecipient} not in ('pending', 'delayed')
         ) as settled`,
    ),
    [message.organizationId, message.messageId, slice, slice * wanted.sliceSize, wanted.ordinal],
  );
  return row?.settled ?? 0;
}
