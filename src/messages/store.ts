import { toComposed, toSearchKey } from '../platform/characters.ts';
import { countDemand, type HeldDemand, planAllows, type usagePlace } from '../accounts/accounts.ts';
import type { SendingChannel } from '../channels/channel.ts';
import { dateOf, parseTimestamp } from '../platform/clock.ts';
import { cursorOf, type Page, pageClause } from '../platform/http/pagination.ts';
import {
  type Bound,
  type Connection,
  statement,
  unpreparedStatement,
} from '../platform/postgres/database.ts';
import { type DefinedStatement, defineStatement, type Parameters } from '../platform/postgres/parameters.ts';
import { instantOfId, lowestIdAt } from '../platform/ids.ts';
import { stopUnless, isNotStopped } from '../platform/postgres/stop.ts';
import { allOf, anyOf, type Predicate, toPredicate } from '../platform/postgres/predicate.ts';
import { isTemplateUnchanged, type KeptVersion } from '../templates/templates.ts';
import { type Horizon, isBeyond } from './kept.ts';
import type { RecipientKey } from './keys.ts';
import { insertionOf } from './recipients/insertion-store.ts';
import type { dropReasons, RecipientStatus } from './schema.ts';
import type { RecipientField, Submission, SubmittedRecipient } from './submission.ts';

export type NewMessage = {
  id: string;
  submission: Submission;
  sealedAttachments: readonly Buffer[];
  /** Of the request that it came with; null if that named none. */
  traceId: string | null;
};

/**
 * Text in an array parameter is escaped character by character. From this length on, it is sent as a parameter of its
 * own, as bytes always are.
 */
const largeContentLengthMin = 65_536;

const lanes = { transactional: 0, campaign: 1 } as const;

type NewMessages = { messages: readonly NewMessage[]; at: Date };

type NewRecipient = SubmittedRecipient & { message: NewMessage; ordinal: number; contentBytes: number };

/**
 * SQL: inserts a batch of messages into all their tables, in common table expressions of one statement, if the condition
 * holds: round trips and planning for six tables would cost more than the rows.
 */
function insertionsIf({ value, rows }: Parameters<NewMessages>, condition: Predicate): string {
  const messages = rows(({ messages: each }) => each, {
    organization_id: ['uuid', ({ submission }) => submission.organizationId],
    id: ['uuid', ({ id }) => id],
    channel: ['text', ({ submission }) => submission.channel],
    class: ['text', ({ submission }) => submission.class],
    sender: ['text', ({ submission }) => submission.sender],
    subject: ['text', ({ submission }) => submission.subject],
    subject_key: ['text', ({ submission }) => submission.searchText && toSubjectKey(submission.searchText)],
    category: ['text', ({ submission }) => submission.category],
    template_id: ['uuid', ({ submission }) => submission.templateId],
    details: ['text', ({ submission }) => submission.details],
    recipient_count: ['integer', ({ submission }) => submission.recipients.length],
    content: ['text', ({ submission }) => (isLarge(submission) ? null : submission.content)],
    scheduled_at: ['timestamptz', ({ submission }) => scheduledAtOf(submission)],
  });
  const recipients = rows(({ messages: each }) => each.flatMap(recipientsOf), {
    organization_id: ['uuid', ({ message }) => message.submission.organizationId],
    message_id: ['uuid', ({ message }) => message.id],
    ordinal: ['integer', ({ ordinal }) => ordinal],
    field: ['text', ({ field }) => field],
    address: ['text', ({ address }) => address],
    address_key: ['text', ({ addressKey }) => addressKey],
    drop_reason: ['text', ({ dropReason }) => dropReason],
    channel: ['text', ({ message }) => message.submission.channel],
    lane: ['smallint', ({ message }) => lanes[message.submission.class]],
    content_bytes: ['integer', ({ contentBytes }) => contentBytes],
    trace_id: ['uuid', ({ message }) => message.traceId],
    scheduled_at: ['timestamptz', ({ message }) => scheduledAtOf(message.submission)],
  });
  const at = value((given) => given.at);
  const key = ['organization_id', 'message_id', 'ordinal'];
  return `new_messages as (
     insert into messages
       (organization_id, id, channel, class, status, sender, subject, subject_key, category, template_id, details,
       recipient_count, created_at, updated_at, scheduled_at)
     select organization_id, id, channel, class,
       case when recipient_count = 0 then 'skipped' when scheduled_at is null then 'queued' else 'scheduled' end,
       sender, subject, subject_key, category, template_id, details::json, recipient_count, ${at}, ${at}, scheduled_at
     from ${messages('message')}
     where ${condition}
   ), new_contents as (
     insert into message_contents (organization_id, message_id, content)
     select organization_id, id, content::json
     from ${messages('message', { only: ['organization_id', 'id', 'content'] })}
     where content is not null and ${condition}
   ), new_recipients as (
     ${insertionOf(recipients('recipient', { only: [...key, 'field', 'address', 'address_key', 'drop_reason'] }), { at, condition })}
   ), new_jobs as (
     insert into delivery_queue
       (organization_id, message_id, ordinal, channel, lane, due_at, accepted_at, is_cancellable, content_bytes, trace_id)
     select organization_id, message_id, ordinal, channel, lane, coalesce(scheduled_at, ${at}),
       coalesce(scheduled_at, ${at}), scheduled_at is not null, content_bytes, trace_id
     from ${recipients('recipient', { only: [...key, 'drop_reason', 'channel', 'lane', 'content_bytes', 'trace_id', 'scheduled_at'] })}
     where drop_reason is null and ${condition}
   )`;
}

function recipientsOf(message: NewMessage): NewRecipient[] {
  const { submission, sealedAttachments } = message;
  const contentBytes = sealedAttachments.reduce((sum, { length }) => sum + length, submission.content.length);
  return submission.recipients.map((recipient, ordinal) => ({
    ...recipient,
    message,
    ordinal,
    contentBytes,
  }));
}

/** Of one that was checked when it was accepted. */
function scheduledAtOf({ scheduledAt }: Submission): Date | null {
  const epochMs = scheduledAt === undefined ? null : parseTimestamp(scheduledAt);
  return epochMs === null ? null : dateOf(epochMs);
}

const insertAll = defineStatement<NewMessages>(
  'messages_insert_all',
  (parameters) => `with ${insertionsIf(parameters, toPredicate('true'))} select`,
);

/** What an acceptance returns: one row. */
export type AcceptedAtOnce = { is_accepted: boolean };

/** A batch of messages, and what it asks of the accounts, each once. */
export type Wants = NewMessages & {
  senders: readonly { organizationId: string; name: string }[];
  demands: readonly HeldDemand[];
  /** Where the demands are counted. */
  place: ReturnType<typeof usagePlace>;
  templates: readonly KeptVersion[];
  /** The channel of PostgreSQL to be notified; null if nobody needs to be. */
  notified: string | null;
};

export type Acceptance = DefinedStatement<Wants, AcceptedAtOnce>;

/**
 * The statement that accepts a batch of messages of one channel at once, unless it is stopped or something stands in the
 * way of one of them: then it stores nothing, and stops those after it. `isOwnSender` is SQL over a row `sender` with
 * `organization_id` and `name`.
 */
export function defineAcceptance(channel: SendingChannel, isOwnSender: Predicate): Acceptance {
  const isAccepted = toPredicate('(select is_accepted from verdict)');
  return defineStatement<Wants, AcceptedAtOnce>(`messages_accept_${channel}`, (parameters) => {
    const { value, rows } = parameters;
    const demands = rows((wants) => wants.demands, {
      organization_id: ['uuid', ({ organizationId }) => organizationId],
      units: ['bigint', ({ units }) => units],
      is_held: ['boolean', ({ isHeld }) => isHeld],
    });
    const senders = rows((wants) => wants.senders, {
      organization_id: ['uuid', ({ organizationId }) => organizationId],
      name: ['text', ({ name }) => name],
    });
    const templates = rows((wants) => wants.templates, {
      organization_id: ['uuid', ({ organizationId }) => organizationId],
      id: ['uuid', ({ id }) => id],
      version: ['text', ({ version }) => version],
    });
    const month = value(({ place: [first] }) => first);
    const shard = value(({ place: [, second] }) => second);
    const notified = value((wants) => wants.notified);
    // `bool_and` leaves nulls out: what is not found must be false.
    return `with demand as materialized (
       select organization_id, units, is_held
       from ${demands('demand')}
     ), verdict as materialized (
       select
         (
           select coalesce(bool_and(coalesce(${isOwnSender}, false)), false)
           from ${senders('sender')}
         )
         and (select coalesce(bool_and(coalesce(${planAllows(channel, month)}, false)), false) from demand)
         and (
           select coalesce(bool_and(coalesce(${isTemplateUnchanged}, false)), true)
           from ${templates('kept')}
         )
         and ${isNotStopped} as is_accepted
     ), ${insertionsIf(parameters, isAccepted)}, counted as (
       ${countDemand({ channel, month, shard, condition: isAccepted })}
     )
     select
       is_accepted,
       ${stopUnless(toPredicate('is_accepted'))},
       (select pg_notify(${notified}, '${channel}') where is_accepted and ${notified}::text is not null)
     from verdict`;
  });
}

export async function insertMessages(
  connection: Connection,
  messages: readonly NewMessage[],
  at: Date,
): Promise<void> {
  const bound = [insertAll.bind({ messages, at }), ...insertTagsAtOnce(messages)];
  await Promise.all(bound.map((each) => connection.rows(each.statement, each.values)));
}

const insertTags = statement(
  'messages_insert_tags',
  `insert into message_tags (organization_id, channel, tag, message_id)
   select organization_id, channel, tag, message_id
   from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[]) as given (organization_id, channel, tag, message_id)
   where ${isNotStopped}`,
);

/** Tags of messages, for statements that are sent at once, unless they are stopped. Most messages have none. */
export function insertTagsAtOnce(messages: readonly NewMessage[]): Bound<unknown>[] {
  const tags = messages.flatMap(({ id, submission: { organizationId, channel, tags: own = [] } }) =>
    own.map((tag) => ({ organizationId, channel, tag, id })),
  );
  if (tags.length === 0) return [];
  const values = [
    tags.map(({ organizationId }) => organizationId),
    tags.map(({ channel }) => channel),
    tags.map(({ tag }) => tag),
    tags.map(({ id }) => id),
  ];
  return [{ statement: insertTags, values }];
}

const searchKeyLengthMax = 200;

function toSubjectKey(text: string): string {
  return toSearchKey(toComposed(text).slice(0, searchKeyLengthMax).toWellFormed());
}

/** Whether `insertMessages` stores all of it, and nothing is left to `insertLargeParts`. */
export function isStoredWhole(submission: Submission): boolean {
  return submission.attachments.length === 0 && !isLarge(submission);
}

/** Bytes in an array parameter would be written as a `bytea` literal, which is not JSON. */
function isLarge({ content }: Submission): boolean {
  return typeof content !== 'string' || content.length >= largeContentLengthMin;
}

const insertContent = unpreparedStatement(
  'insert into message_contents (organization_id, message_id, content) values ($1, $2, $3)',
);

const insertAttachment = unpreparedStatement(
  'insert into attachment_contents (organization_id, message_id, ordinal, sealed) values ($1, $2, $3, $4)',
);

/**
 * Inserts what `insertMessages` leaves out: large contents, and attachments. The statements are sent without waiting
 * for each other.
 */
export function insertLargeParts(
  connection: Connection,
  messages: readonly NewMessage[],
): Promise<unknown>[] {
  return messages.flatMap(({ id, submission, sealedAttachments }) => {
    const { organizationId, content } = submission;
    const contents = isLarge(submission)
      ? [connection.rows(insertContent, [organizationId, id, content])]
      : [];
    const attachments = sealedAttachments.map((sealed, ordinal) =>
      connection.rows(insertAttachment, [organizationId, id, ordinal, sealed]),
    );
    return [...contents, ...attachments];
  });
}

/** For messages that turn out to be refused. */
export async function deleteLargeParts(
  connection: Connection,
  messages: readonly NewMessage[],
): Promise<void> {
  if (messages.length === 0) return;
  const keys = [messages.map(({ submission }) => submission.organizationId), messages.map(({ id }) => id)];
  await Promise.all([connection.rows(deleteContents, keys), connection.rows(deleteAttachments, keys)]);
}

const deleteContents = unpreparedStatement(deleteOfMessages('message_contents'));
const deleteAttachments = unpreparedStatement(deleteOfMessages('attachment_contents'));

function deleteOfMessages(table: 'message_contents' | 'attachment_contents'): string {
  return `delete from ${table} where (organization_id, message_id) in (select * from unnest($1::uuid[], $2::uuid[]))`;
}

export type NewCampaignMessage = {
  organizationId: string;
  id: string;
  campaignId: string;
  channel: SendingChannel;
  sender: string;
  subject: string | null;
  category: string | null;
  templateId: string | null;
  details: string;
  content: string;
};

/** Its recipients are inserted later, by other statements. */
export async function insertCampaignMessage(
  connection: Connection,
  message: NewCampaignMessage,
  at: Date,
): Promise<void> {
  const { organizationId, id } = message;
  await Promise.all([
    connection.rows(
      unpreparedStatement(
        `insert into messages
           (organization_id, id, channel, class, sender, subject, category, template_id, details, recipient_count,
           created_at, updated_at, campaign_id)
         values ($1, $2, $3, 'campaign', $4, $5, $6, $7, $8, 0, $9, $9, $10)`,
      ),
      [
        organizationId,
        id,
        message.channel,
        message.sender,
        message.subject,
        message.category,
        message.templateId,
        message.details,
        at,
        message.campaignId,
      ],
    ),
    connection.rows(insertContent, [organizationId, id, message.content]),
  ]);
}

/** Returns those of the ids whose message exists. */
export async function findMessageIds(
  connection: Connection,
  wanted: readonly { organizationId: string; id: string }[],
): Promise<Set<string>> {
  const rows = await connection.rows(
    unpreparedStatement<{ id: string }>(
      `select id
       from unnest($1::uuid[], $2::uuid[]) as wanted (organization_id, id)
       join messages using (organization_id, id)`,
    ),
    [wanted.map(({ organizationId }) => organizationId), wanted.map(({ id }) => id)],
  );
  return new Set(rows.map(({ id }) => id));
}

export type MessageRow = {
  id: string;
  /** One of the statuses that the channel's `refreshStatus` gives. */
  status: string;
  sender: string;
  subject: string | null;
  category: string | null;
  template_id: string | null;
  created_at: Date;
  updated_at: Date;
  /** When it is to be sent, or was; null if it had no time of its own. */
  scheduled_at: Date | null;
  details: unknown;
};

const messageColumns =
  'm.id, m.status, m.sender, m.subject, m.category, m.template_id, m.details, m.created_at, m.updated_at, m.scheduled_at';

/**
 * Planned at each run, as is the next statement: a plan that was made while the month's partition was empty would read
 * all of it.
 */
const selectMessage = unpreparedStatement<MessageRow>(
  `select ${messageColumns}
   from messages m
   where m.organization_id = $1 and m.id = $2 and m.channel = $3 and m.class <> 'campaign'`,
);

/** Null if there is none, or if it is beyond the horizon. */
export async function findMessage(
  connection: Connection,
  wanted: { organizationId: string; id: string; channel: SendingChannel; horizon: Horizon },
): Promise<MessageRow | null> {
  const { organizationId, id, channel, horizon } = wanted;
  if (isBeyond(horizon, id)) return null;
  const [row] = await connection.rows(selectMessage, [organizationId, id, channel]);
  return row ?? null;
}

export type MessageFilter = { status?: string; category?: string; tag?: string; search?: SearchedPrefixes };

/** Prefixes to search for: of a message's search text, and of an address; null where addresses are not searched. */
export type SearchedPrefixes = { text: string; address: string | null };

type MessageSearch = {
  organizationId: string;
  channel: SendingChannel;
  filter: MessageFilter;
  page: Page;
  horizon: Horizon;
};

/**
 * Returns one row more than the page holds. A page is filled from a few days as a rule, so they are asked alone at first: a
 * statement is planned for each partition that its ids may lie in, which takes longer than all else where there are many.
 */
export async function listMessages(connection: Connection, wanted: MessageSearch): Promise<MessageRow[]> {
  const page = withinHorizon(wanted.page, wanted.horizon);
  const near = nearOf(page, wanted.horizon);
  const whole = { from: wanted.horizon.messagesFrom, to: null };
  const spans = near === null ? [whole] : [near, whole];
  const { search } = wanted.filter;
  if (search !== undefined && (await isRareText(connection, wanted, { span: whole, search })))
    return searchByIndex(connection, { ...wanted, page }, { span: whole, search });
  let rows: MessageRow[] = [];
  for (const span of spans) {
    const asked = { ...wanted, page };
    rows = await (search === undefined
      ? selectPage(connection, asked, span)
      : searchNewest(connection, asked, { span, search }));
    if (rows.length > page.limit) return rows;
  }
  if (search === undefined || (await isLookedThrough(connection, { ...wanted, page }, whole))) return rows;
  return searchByIndex(connection, { ...wanted, page }, { span: whole, search });
}

/** Ids: none of a page is lower than `from`, or as high as `to`. */
type Span = { from: string | null; to: string | null };

/**
 * With fewer, organizations with little mail are asked twice; with more, the first question looks into more partitions of a day
 * each.
 */
const nearMs = 8 * 86_400_000;
/** The last instant of a UUIDv7. */
const instantMsMax = 2 ** 48 - 1;

/** The days beside the cursor of a page, or the last ones; null if there is nothing beyond them. */
function nearOf({ after, before }: Page, { messagesFrom, atMs }: Horizon): Span | null {
  if (before !== null) {
    const untilMs = instantOfId(before).getTime() + nearMs;
    return untilMs >= Math.min(atMs, instantMsMax) ? null : { from: messagesFrom, to: lowestIdAt(untilMs) };
  }
  const newestMs = after === null ? atMs : Math.min(instantOfId(after).getTime(), atMs);
  if (newestMs <= nearMs) return null;
  const from = lowestIdAt(newestMs - nearMs);
  return messagesFrom !== null && from <= messagesFrom ? null : { from, to: null };
}

type Selection = {
  values: unknown[];
  bind: (value: unknown) => string;
  /** Messages `m` that pass all filters but the search, and lie in the span. */
  isOfMessages: Predicate;
  isWithin: (column: string) => Predicate;
};

/** $1 is the organization, $2 the cursor, $3 one more than the page holds, $4 the channel. */
function selectMessages(
  { organizationId, channel, filter, page }: MessageSearch,
  { from, to }: Span,
): Selection {
  const values: unknown[] = [organizationId, cursorOf(page), page.limit + 1];
  const bind = (value: unknown) => `$${values.push(value)}`;
  const isOfChannel = toPredicate(`m.channel = ${bind(channel)}`);
  const [low, high] = [from && bind(from), to && bind(to)];
  const isWithin = (column: string) =>
    allOf([
      ...(low === null ? [] : [toPredicate(`${column} >= ${low}`)]),
      ...(high === null ? [] : [toPredicate(`${column} < ${high}`)]),
    ]);
  const conditions: Predicate[] = [toPredicate("m.class = 'transactional'"), isOfChannel, isWithin('m.id')];
  if (filter.status !== undefined) conditions.push(toPredicate(`m.status = ${bind(filter.status)}`));
  if (filter.category !== undefined) conditions.push(toPredicate(`m.category = ${bind(filter.category)}`));
  if (filter.tag !== undefined)
    conditions.push(
      toPredicate(`exists (
         select
         from message_tags t
         where t.organization_id = $1 and t.channel = m.channel and t.tag = ${bind(filter.tag)} and t.message_id = m.id
       )`),
    );
  return { values, bind, isOfMessages: allOf(conditions), isWithin };
}

/**
 * Planned at each run, since the best plan depends on the filter: `status` and `category` use the indexes messages_status and
 * messages_category, and a page without a filter the primary key.
 */
async function selectPage(connection: Connection, wanted: MessageSearch, span: Span): Promise<MessageRow[]> {
  const { tag, ...others } = wanted.filter;
  if (tag !== undefined) return selectTaggedPage(connection, { ...wanted, filter: others }, { span, tag });
  const { values, isOfMessages } = selectMessages(wanted, span);
  return connection.rows(
    unpreparedStatement<MessageRow>(
      `select ${messageColumns}
       from messages m
       where m.organization_id = $1 and ${isOfMessages} ${pageClause(wanted.page, 'm.id', '$2')}
       limit $3`,
    ),
    values,
  );
}

/** In the order of the tag's own index, which is read no further than the page needs. */
async function selectTaggedPage(
  connection: Connection,
  wanted: MessageSearch,
  { span, tag }: { span: Span; tag: string },
): Promise<MessageRow[]> {
  const { values, bind, isOfMessages, isWithin } = selectMessages(wanted, span);
  return connection.rows(
    unpreparedStatement<MessageRow>(
      `select ${messageColumns}
       from (
         select t.message_id as id
         from message_tags t
         where t.organization_id = $1 and t.channel = $4 and t.tag = ${bind(tag)} and ${isWithin('t.message_id')}
           ${pageClause(wanted.page, 't.message_id', '$2')}
         offset 0
       ) tagged
       cross join lateral (
         select m.*
         from messages m
         where m.organization_id = $1 and ${isOfMessages} and m.id = tagged.id
         offset 0
       ) m
       where true ${pageClause(wanted.page, 'tagged.id', '$2')}
       limit $3`,
    ),
    values,
  );
}

/** Where in the list, and what for. */
type Searched = { span: Span; search: SearchedPrefixes };

/**
 * A text is rare if no more messages, and no more recipients, begin with it. To find and sort so many takes as long as to
 * look through the newest messages; with fewer, these would seldom hold a page of them.
 */
const rareMatchesMax = 10_000;

/** By the indexes messages_subject and recipients_address. */
async function isRareText(
  connection: Connection,
  wanted: MessageSearch,
  { span, search }: Searched,
): Promise<boolean> {
  const { values, bind, isWithin } = selectMessages({ ...wanted, filter: {} }, span);
  const { hasText, hasAddress } = bindSearch(bind, wanted.channel, search);
  const counts = [
    `select
     from messages m
     where m.organization_id = $1 and m.channel = $4 and m.class = 'transactional' and ${hasText('m')}
       and ${isWithin('m.id')}`,
    ...(hasAddress === null
      ? []
      : [
          `select
     from recipients r
     where r.organization_id = $1 and ${hasAddress('r')} and ${isWithin('r.message_id')}`,
        ]),
  ].map((matches) => `(select count(*) from (${matches} limit ${rareMatchesMax + 1}) matches)`);
  const [row] = await connection.rows(
    unpreparedStatement<{ is_rare: boolean }>(
      `select greatest(${counts.join(', ')}) <= ${rareMatchesMax} as is_rare
       from (select $2::uuid, $3::integer) unused`,
    ),
    values,
  );
  return row?.is_rare === true;
}

/**
 * How many messages are looked through for a text, from the cursor on. Fewer would seldom fill a page of a text that one in
 * a hundred has; more would cost searches for a rare one what they do not find here.
 */
const searchedNewestMax = 2_500;

/**
 * Among the messages next to the cursor. A text that many have fills its page here; by its index all of them would have to
 * be found first, and sorted.
 */
async function searchNewest(
  connection: Connection,
  wanted: MessageSearch,
  { span, search }: Searched,
): Promise<MessageRow[]> {
  const { page } = wanted;
  const { values, bind, isOfMessages } = selectMessages(wanted, span);
  const { hasText, hasAddress } = bindSearch(bind, wanted.channel, search);
  const matches = [hasText('m')];
  if (hasAddress !== null)
    matches.push(
      toPredicate(`exists (
           select
           from recipients r
           where r.organization_id = $1 and r.message_id = m.id and ${hasAddress('r')}
           offset 0
         )`),
    );
  return connection.rows(
    unpreparedStatement<MessageRow>(
      `select ${messageColumns}
       from (
         select m.*
         from messages m
         where m.organization_id = $1 and ${isOfMessages} ${pageClause(page, 'm.id', '$2')}
         limit ${searchedNewestMax}
       ) m
       where ${anyOf(matches)} ${pageClause(page, 'm.id', '$2')}
       limit $3`,
    ),
    values,
  );
}

/**
 * Whether the newest are all that there are. On a channel with few messages nothing more can be found, whatever many
 * addresses of other channels begin with: all of those would be looked up.
 */
async function isLookedThrough(connection: Connection, wanted: MessageSearch, span: Span): Promise<boolean> {
  const { page } = wanted;
  const { values, isOfMessages } = selectMessages(wanted, span);
  const [row] = await connection.rows(
    unpreparedStatement<{ is_all: boolean }>(
      `select count(*) < ${searchedNewestMax} as is_all
       from (
         select
         from messages m
         where m.organization_id = $1 and ${isOfMessages} ${pageClause(page, 'm.id', '$2')}
         limit ${searchedNewestMax}
       ) newest, (select $3::integer) unused`,
    ),
    values,
  );
  return row?.is_all === true;
}

/**
 * Among all, by the indexes messages_subject and recipients_address. A text that is rare, or old, is found here; asked for
 * the newest of them at once, PostgreSQL would walk the primary key back to them: 2.5 s through two million messages.
 */
async function searchByIndex(
  connection: Connection,
  wanted: MessageSearch,
  { span, search }: Searched,
): Promise<MessageRow[]> {
  const { page } = wanted;
  const { values, bind, isOfMessages, isWithin } = selectMessages(wanted, span);
  const { hasText, hasAddress } = bindSearch(bind, wanted.channel, search);
  const isBeyond = (column: string) =>
    toPredicate(
      page.before !== null ? `${column} > $2` : page.after !== null ? `${column} < $2` : '$2::uuid is null',
    );
  // Of many, no more than the page needs are kept; `offset 0` keeps the order of the page out of the choice of the index.
  const byText = `
    (select found.id
     from (select m.id from messages m where m.organization_id = $1 and ${isOfMessages} and ${hasText('m')} and ${isBeyond('m.id')} offset 0) found
     where true ${pageClause(page, 'found.id', '$2')}
     limit $3)`;
  const byAddress =
    hasAddress &&
    `
    select r.message_id
    from recipients r
    where r.organization_id = $1 and ${hasAddress('r')} and ${isWithin('r.message_id')} and ${isBeyond('r.message_id')}`;
  // In their order, so that no more messages are read than the page needs; `offset 0` keeps the page out of the search.
  return connection.rows(
    unpreparedStatement<MessageRow>(
      `select ${messageColumns}
       from (
         select found.id
         from (${byText} ${byAddress === null ? '' : `union ${byAddress}`} offset 0) found
         where true ${pageClause(page, 'found.id', '$2')}
         offset 0
       ) found
       cross join lateral (
         select m.*
         from messages m
         where m.organization_id = $1 and ${isOfMessages} and m.id = found.id
         offset 0
       ) m
       where true ${pageClause(page, 'found.id', '$2')}
       limit $3`,
    ),
    values,
  );
}

/**
 * Conditions of a search, on a message and on a recipient; null where addresses are not searched. They use the operators of
 * `text_pattern_ops` and not `like`, because row-level security keeps `like` out of index conditions.
 *
 * Recipients of all channels share an index. An address of email may begin as phone numbers do, of which there may be very
 * many: they are left out as the index is read, and not only when their messages were looked up, which takes ten times as
 * long.
 */
function bindSearch(bind: Selection['bind'], channel: SendingChannel, { text, address }: SearchedPrefixes) {
  const bindRange = (prefix: string) => {
    const [from, to] = [bind(toSubjectKey(prefix)), bind(`${toSubjectKey(prefix)}${highestCharacter}`)];
    return (column: string) => toPredicate(`${column} ~>=~ ${from} and ${column} ~<~ ${to}`);
  };
  const isText = bindRange(text);
  const isAddress = address === null ? null : bindRange(address);
  return {
    hasText: (message: string) => isText(`${message}.subject_key`),
    hasAddress:
      isAddress &&
      ((recipient: string) =>
        channel === 'email'
          ? allOf([
              isAddress(`${recipient}.address_key`),
              toPredicate(`strpos(${recipient}.address_key, '@') > 0`),
            ])
          : isAddress(`${recipient}.address_key`)),
  };
}

/**
 * A page of what is newer than an id beyond the horizon begins at the horizon. Going the other way, what is beyond comes last,
 * so that the page ends there.
 */
function withinHorizon(page: Page, { messagesFrom }: Horizon): Page {
  return page.before !== null && messagesFrom !== null && page.before.toLowerCase() < messagesFrom
    ? { ...page, before: messagesFrom }
    : page;
}

/**
 * Compared byte by byte, every text that begins with a prefix lies between the prefix and the prefix followed by this.
 */
const highestCharacter = '\u{10ffff}';

/** The outcome of a recipient, apart from its status. */
export type FateRow = {
  uncertain: boolean;
  failure_type: 'hard' | 'soft' | null;
  failure_class: string | null;
  smtp_code: number | null;
  enhanced_code: string | null;
  diagnostic: string | null;
  remote: string | null;
  opened_at: Date | null;
  clicked_at: Date | null;
};

export const fateColumns =
  'uncertain, failure_type, failure_class, smtp_code, enhanced_code, diagnostic, remote, opened_at, clicked_at';

export type RecipientRow = FateRow & {
  message_id: string;
  field: RecipientField;
  address: string;
  status: RecipientStatus;
  status_at: Date;
  drop_reason: (typeof dropReasons)[number] | null;
};

const selectRecipients = unpreparedStatement<RecipientRow>(
  `select message_id, field, address, status, status_at, drop_reason, ${fateColumns}
   from recipients
   where organization_id = $1 and message_id = any ($2::uuid[])
   order by message_id, ordinal`,
);

/** Lists all recipients of transactional messages, which have few, in the order of their submission. */
export async function listRecipients(
  connection: Connection,
  organizationId: string,
  messageIds: readonly string[],
): Promise<RecipientRow[]> {
  return connection.rows(selectRecipients, [organizationId, messageIds]);
}

const selectOnlyRecipient = unpreparedStatement<{ ordinal: number }>(
  `select r.ordinal
   from messages m
   join recipients r on r.organization_id = m.organization_id and r.message_id = m.id
   where m.organization_id = $1 and m.id = $2 and m.channel = $3 and m.class <> 'campaign'
   limit 2`,
);

/** The recipient of a message that has no other; null if there are several, and for campaigns. */
export async function findOnlyRecipient(
  connection: Connection,
  wanted: { organizationId: string; messageId: string; channel: SendingChannel },
): Promise<RecipientKey | null> {
  const { organizationId, messageId, channel } = wanted;
  const [recipient, ...others] = await connection.rows(selectOnlyRecipient, [
    organizationId,
    messageId,
    channel,
  ]);
  if (recipient === undefined || others.length > 0) return null;
  return { organizationId, messageId, ordinal: recipient.ordinal };
}
