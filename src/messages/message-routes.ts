import { type Static, type TObject, type TSchema, Type } from 'typebox';
import type { SendingChannel } from '../channels/channel.ts';
import { badRequest, notFound } from '../platform/http/errors.ts';
import { paginationParameters, readPage, toList } from '../platform/http/pagination.ts';
import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { idParameter, listOf } from '../platform/http/shapes.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import type { Acceptor } from './accept.ts';
import { type Horizon, messageNotFound, type ReadHorizon } from './kept.ts';
import { tagFilter } from './labels.ts';
import { findMessage, listMessages, type MessageRow, type SearchedPrefixes } from './store.ts';

export type MessageRouteTools = { database: Database; acceptor: Acceptor; readHorizon: ReadHorizon };

/** How messages of a channel are listed and read. */
export type MessageReading<Listed extends TObject, Read extends TObject> = {
  channel: SendingChannel;
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
  { channel, path, scope, tag, list, read }: MessageReading<Listed, Read>,
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
