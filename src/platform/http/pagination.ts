import { Type } from 'typebox';
import { badRequest, PublicError } from './errors.ts';

export const pageSizeMax = 100;

/** The query parameters of every list. They arrive as text; `readPage` turns them into a page. */
export const paginationParameters = {
  limit: Type.Optional(
    Type.String({ format: 'page-size', description: 'Items on a page, 1 to 100.', default: '20' }),
  ),
  after: Type.Optional(Type.String({ format: 'uuid', description: 'Items older than this id.' })),
  before: Type.Optional(Type.String({ format: 'uuid', description: 'Items newer than this id.' })),
};

/** The same in the body of a request that asks for a page by more than a query holds. */
export const paginationFields = {
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: pageSizeMax, description: 'Items on a page.', default: 20 }),
  ),
  after: Type.Optional(Type.String({ format: 'uuid', description: 'Items older than this id.' })),
  before: Type.Optional(Type.String({ format: 'uuid', description: 'Items newer than this id.' })),
};

/** Where a list goes on: without a value it would begin anew for ever. */
export function isCursor(parameter: string): boolean {
  return Object.hasOwn(paginationParameters, parameter) || parameter === 'from';
}

/** To be handed to `createValidation`. */
export const paginationFormats = {
  'page-size': {
    test: (text: string) => /^\d{1,3}$/.test(text) && Number(text) >= 1 && Number(text) <= pageSizeMax,
    mustBe: `a number from 1 to ${pageSizeMax}`,
  },
};

/** Which part of a list, newest first. `limit` is what the client asked for; a store reads one row more. */
export type Page = { limit: number; after: string | null; before: string | null };

/** Throws a PublicError (400) if both cursors are given. */
export function readPage(query: { limit?: string | number; after?: string; before?: string }): Page {
  if (query.after !== undefined && query.before !== undefined) {
    throw new PublicError(badRequest, 'Give either after or before, not both.');
  }
  return { limit: Number(query.limit ?? '20'), after: query.after ?? null, before: query.before ?? null };
}

/**
 * The clause of a store's statement that reads one page, and the parameter it needs. Every id is a UUIDv7, so that
 * the order of ids is the order of time; a cursor is only compared, never looked up.
 */
export function pageClause(page: Page, idColumn: string, cursorParameter: string): string {
  if (page.before !== null) return `and ${idColumn} > ${cursorParameter} order by ${idColumn} asc`;
  if (page.after !== null) return `and ${idColumn} < ${cursorParameter} order by ${idColumn} desc`;
  return `and ${cursorParameter}::uuid is null order by ${idColumn} desc`;
}

export function cursorOf(page: Page): string | null {
  return page.before ?? page.after;
}

export type List<Item> = { object: 'list'; has_more: boolean; data: Item[] };

/** `rows` are as `pageClause` ordered them, up to one more than the page holds. */
export function toList<Row, Item>(rows: readonly Row[], page: Page, show: (row: Row) => Item): List<Item> {
  const onPage = rows.slice(0, page.limit);
  if (page.before !== null) onPage.reverse();
  return { object: 'list', has_more: rows.length > page.limit, data: onPage.map(show) };
}
