import { type Static, type TObject, type TSchema, Type } from 'typebox';
import { badRequest, conflict, notFound, PublicError } from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter, instant, listOf } from '../platform/http/shapes.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { Acceptor } from './accept.ts';
import type { MessageChannel } from './channel.ts';
import { type Horizon, messageNotFound } from './kept.ts';
import { tagFilter } from './labels.ts';
import { scheduledAtInput } from './schedule.ts';
import { cancelMessage, rescheduleMessage, type SchedulingTools } from './scheduling.ts';
import { findMessage, listMessages, type MessageRow, type SearchedPrefixes } from './store.ts';

export type MessageRouteTools = SchedulingTools & { acceptor: Acceptor };

/** How messages of a channel are listed and read. */
export type MessageReading<Listed extends TObject, Read extends TObject> = {
  channel: MessageChannel;
  /** Below `/v1`: `/sms`. */
  path: string;
  scope: string;
  tag: string;
  list: Reading<Listed> & {
    description: string;
    /** What a search looks for, in the documentation's words. */
    searched: string;
    prefixesOf: (search: string) => SearchedPrefixes;
    status: TSchema;
    category: TSchema;
  };
  read: Reading<Read>;
};

type Reading<Record extends TObject> = {
  operationId: string;
  summary: string;
  record: Record;
  when: string;
  load: LoadRecords<Static<Record>>;
};

/**
 * Loads what belongs to messages of the channel beside their rows, and returns how each of them is shown; null if it has
 * gone meanwhile.
 */
export type LoadRecords<Record> = (
  transaction: Transaction,
  wanted: { organizationId: string; messageIds: readonly string[]; horizon: Horizon },
) => Promise<(message: MessageRow) => Record | null>;

/** The list of a channel's messages, and one of them; those of campaigns are not in the list. */
export function messageReadingRoutes<Listed extends TObject, Read extends TObject>(
  { database, readHorizon }: MessageRouteTools,
  { channel: { name: channel }, path, scope, tag, list, read }: MessageReading<Listed, Read>,
): Route[] {
  return [
    defineRoute({
      method: 'GET',
      path,
      operationId: list.operationId,
      scope,
      tag,
      summary: list.summary,
      description: list.description,
      query: Type.Object(
        {
          ...paginationParameters,
          search: Type.Optional(
            Type.String({ minLength: 1, maxLength: 200, sensitive: true, description: list.searched }),
          ),
          status: Type.Optional(Type.Unsafe<string>(list.status)),
          category: Type.Optional(Type.Unsafe<string>(list.category)),
          tag: Type.Optional(tagFilter),
        },
        { additionalProperties: false },
      ),
      success: { statusCode: 200, schema: listOf(list.record), when: list.when },
      errors: [badRequest],
      handle: async ({ caller: { organizationId }, query }) => {
        const page = readPage(query);
        const { search, status, category, tag } = query;
        const filter = {
          ...(search !== undefined && { search: list.prefixesOf(search) }),
          ...(status !== undefined && { status }),
          ...(category !== undefined && { category }),
          ...(tag !== undefined && { tag }),
        };
        const records = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const messages = await listMessages(transaction, {
            organizationId,
            channel,
            filter,
            page,
            horizon,
          });
          const messageIds = messages.map(({ id }) => id);
          const show = await list.load(transaction, { organizationId, messageIds, horizon });
          return messages.map(show).filter((record) => record !== null);
        });
        return json(toList(records, page, (record) => record));
      },
    }),
    defineRoute({
      method: 'GET',
      path: `${path}/:id`,
      operationId: read.operationId,
      scope,
      tag,
      summary: read.summary,
      params: idParameter,
      success: { statusCode: 200, schema: read.record, when: read.when },
      errors: [notFound],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const record = await database.asOrganizations([organizationId], async (transaction) => {
          const horizon = await readHorizon(transaction, organizationId);
          const message = await findMessage(transaction, { organizationId, id, channel, horizon });
          // Not before it is known to be one of these: a campaign's message has as many recipients as it likes.
          if (message === null) throw messageNotFound(horizon, id);
          const show = await read.load(transaction, { organizationId, messageIds: [id], horizon });
          const shown = show(message);
          if (shown === null) throw messageNotFound(horizon, id);
          return shown;
        });
        return json(record);
      },
    }),
  ];
}

/** How scheduled messages of a channel are cancelled and moved. */
export type MessageScheduling = {
  channel: MessageChannel;
  /** Below `/v1`: `/sms`. */
  path: string;
  scope: string;
  tag: string;
  /** What one is, with its article: `an SMS`. */
  noun: string;
  /** In operation ids: `Sms`. */
  idNoun: string;
  /** What recipients are named by: `number`. */
  named: string;
  /** Of the address of a recipient; null once it was erased. */
  nameOf: (address: string) => string | null;
};

const rescheduleBody = Type.Object(
  { scheduled_at: scheduledAtInput },
  { title: 'RescheduleMessageRequest', additionalProperties: false },
);

const rescheduled = Type.Object(
  { id: Type.String({ format: 'uuid' }), scheduled_at: instant },
  { title: 'RescheduledMessage' },
);

const cancellation = Type.Object(
  {
    id: Type.String({ format: 'uuid' }),
    cancelled: Type.Array(Type.String(), { description: 'Who does not get it.' }),
    left: Type.Array(Type.String(), { description: 'Whom it was being handed over for, or had been.' }),
  },
  { title: 'MessageCancellation' },
);

export function messageSchedulingRoutes(
  tools: MessageRouteTools,
  { channel, path, scope, tag, noun, idNoun, named, nameOf }: MessageScheduling,
): Route[] {
  return [
    defineRoute({
      method: 'POST',
      path: `${path}/:id/cancel`,
      operationId: `cancel${idNoun}`,
      addsStorage: false,
      scope,
      tag,
      summary: `Cancel ${noun} that is scheduled`,
      description:
        'Until the moment at which it is handed over. The answer names whom that has kept it from, and whom it had left ' +
        `for, each by its ${named}; if it had left for all, it is 409 \`conflict\` and names them. May be repeated. What it ` +
        'took of the quota is not given back.',
      params: idParameter,
      success: { statusCode: 200, schema: cancellation, when: 'Who does not get it, and who does.' },
      errors: [notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id } }) => {
        const outcome = await cancelMessage(tools, { organizationId, id, channel }, nameOf);
        if (outcome instanceof PublicError) throw outcome;
        return json({ id, ...outcome });
      },
    }),
    defineRoute({
      method: 'PATCH',
      path: `${path}/:id`,
      operationId: `reschedule${idNoun}`,
      addsStorage: false,
      scope,
      tag,
      summary: `Give ${noun} that is scheduled another time`,
      description:
        'As long as its time has not come; then, and once it was cancelled, the answer is 409 `conflict`.',
      params: idParameter,
      body: rescheduleBody,
      success: { statusCode: 200, schema: rescheduled, when: 'Its new time.' },
      errors: [badRequest, notFound, conflict],
      handle: async ({ caller: { organizationId }, params: { id }, body }) => {
        const moved = await rescheduleMessage(tools, { organizationId, id, channel }, body.scheduled_at);
        if (moved instanceof PublicError) throw moved;
        return json({ id, scheduled_at: moved.toISOString() });
      },
    }),
  ];
}
