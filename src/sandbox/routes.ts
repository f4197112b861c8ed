import { setImmediate } from 'node:timers/promises';
import { LRUCache } from 'lru-cache';
import { notFound, PublicError, resourceNotFound, validationError } from '../platform/http/errors.ts';
import { isUuid } from '../platform/ids.ts';
import { frameContentPolicy } from '../platform/http/page-response.ts';
import type { Page, PageRequest, PageResponse } from '../platform/http/route.ts';
import { isUnstorable } from '../platform/http/validation.ts';
import type { Database } from '../platform/postgres/database.ts';
import { buildFrame } from './frame.ts';
import { readSandboxPage, respond } from './page.ts';
import { type ParsedSource, parseHead, parseSource } from './parsed-source.ts';
import * as store from './store.ts';
import { createTurns } from './turns.ts';
import { isLinkOpened, isWelcome, type SandboxAccess, tokenCookie } from './visitor.ts';

export type SandboxTools = {
  database: Database;
  access: SandboxAccess;
  /** How browsers reach this installation, if it is known. */
  publicUrl: string | null;
};

/**
 * What went through the sandbox, as a page and as JSON. To whoever is not welcome these paths look as if they did
 * not exist. Throws if the files of the page are missing.
 */
export function sandboxPages(tools: SandboxTools): Page[] {
  const files = readSandboxPage();
  const viewer = createViewer(tools.database);
  const pages: Record<string, (request: PageRequest) => Promise<PageResponse>> = {
    '/sandbox': (request) => Promise.resolve(respondPage(request, files.html, tools)),
    '/sandbox/page.css': () => Promise.resolve(files.css),
    '/sandbox/page.js': () => Promise.resolve(files.script),
    '/sandbox/messages': async ({ query }) => respondJson(await viewer.list(readListQuery(query))),
    '/sandbox/messages/:id': async (request) => respondJson(await viewer.show(readId(request))),
    '/sandbox/messages/:id/html': async (request) => respondFrame(await viewer.frame(readId(request))),
    '/sandbox/messages/:id/source': async (request) =>
      respondSource(await viewer.find(readId(request)), request.query.download === '1'),
  };
  return Object.entries(pages).map(([path, handle]) => ({
    path,
    isPolled: path === '/sandbox/messages',
    handle: (request) => {
      if (!isWelcome(request, tools.access)) throw new PublicError(notFound, 'There is no such route.');
      return handle(request);
    },
  }));
}

/**
 * Answered at once, and not by leading to the address without the token: a browser that comes from another site's
 * page would not send the new cookie along.
 */
function respondPage(request: PageRequest, page: PageResponse, tools: SandboxTools): PageResponse {
  if (!isLinkOpened(request, tools.access)) return page;
  return { ...page, headers: { ...page.headers, 'set-cookie': tokenCookie(tools.access, tools.publicUrl) } };
}

/** What is parsed of messages is kept, since the page asks for the same ones again and again. */
const parsedCharactersMax = 16 * 1_048_576;

/** Each may hold a message of the largest size, and what was parsed of it, in memory. */
const waitingMax = 200;

type Listing = Omit<ParsedSource, 'attachments'> & {
  attachments: { filename: string | null; content_type: string; size: number; content_id: string | null }[];
};

function createViewer(database: Database) {
  const inTurn = createTurns(waitingMax);
  const listings = new LRUCache<string, Listing>({
    maxSize: parsedCharactersMax,
    sizeCalculation: (listing) => JSON.stringify(listing).length,
  });

  const find = async (id: string) => {
    const message = await store.findSandboxMessage(database, id);
    if (message === null) throw resourceNotFound();
    return message;
  };
  const readListing = async (message: store.SandboxMessage & { source: Buffer }) => {
    const known = listings.get(message.id);
    if (known !== undefined) return known;
    // Parsing is work for the processor alone; others get their turn in between.
    await setImmediate();
    const listing = toListing(await parseSource(message.channel, message.source));
    listings.set(message.id, listing);
    return listing;
  };

  return {
    find: (id: string) => inTurn(() => find(id)),
    list: (page: store.SandboxPage) =>
      inTurn(async () => {
        const rows = await store.listSandboxMessages(database, { ...page, limit: page.limit + 1 });
        const data = [];
        for (const message of rows.slice(0, page.limit)) {
          const listing = message.isTruncated
            ? toListing(await parseHead(message.channel, message.source))
            : await readListing(message);
          data.push(showMessage(message, listing, message.isTruncated));
        }
        return { object: 'list', has_more: rows.length > page.limit, data };
      }),
    show: (id: string) =>
      inTurn(async () => {
        const message = await find(id);
        return showMessage(message, await readListing(message), false);
      }),
    frame: (id: string) =>
      inTurn(async () => {
        const message = await find(id);
        return buildFrame(await parseSource(message.channel, message.source));
      }),
  };
}

function toListing(parsed: ParsedSource): Listing {
  return {
    ...parsed,
    attachments: parsed.attachments.map(({ filename, contentType, content, contentId }) => ({
      filename,
      content_type: contentType,
      size: content.byteLength,
      content_id: contentId,
    })),
  };
}

function showMessage(message: store.SandboxMessage, listing: Listing, isTruncated: boolean) {
  const { from, subject, headers, html, text, attachments } = listing;
  return {
    id: message.id,
    organization_id: message.organizationId,
    message_id: message.messageId,
    channel: message.channel,
    outcome: message.outcome,
    from: from ?? message.sender,
    to: message.recipient,
    created_at: message.createdAt.toISOString(),
    subject,
    headers,
    html,
    text,
    attachments,
    truncated: isTruncated,
  };
}

function respondJson(body: unknown): PageResponse {
  return respond('application/json; charset=utf-8', JSON.stringify(body));
}

function respondFrame(html: string): PageResponse {
  const response = respond('text/html; charset=utf-8', html, frameContentPolicy);
  // Browsers look up the hosts of links ahead of time, and a name can say whose message is being looked at.
  return { ...response, headers: { ...response.headers, 'x-dns-prefetch-control': 'off' } };
}

function respondSource({ id, source }: { id: string; source: Buffer }, isDownload: boolean): PageResponse {
  if (!isDownload) return respond('text/plain; charset=utf-8', source);
  const response = respond('message/rfc822', source);
  return {
    ...response,
    headers: { ...response.headers, 'content-disposition': `attachment; filename="${id}.eml"` },
  };
}

function readId({ params }: PageRequest): string {
  const { id = '' } = params;
  if (!isUuid(id)) throw resourceNotFound();
  return id;
}

const channels = ['email', 'sms', 'push', 'chatapp'];
const defaultLimit = '20';
const limitMax = 100;
/** No address is longer: 64 octets, an at sign, 255 octets (RFC 5321 §4.5.3.1), with room for a full push token. */
const recipientLengthMax = 4_096;

/** Throws a PublicError (422) that names everything wrong with the query. */
function readListQuery(query: PageRequest['query']): store.SandboxPage {
  const { channel = '', to = '', search = '', after = '', limit = '' } = query;
  const page = /^\d{1,3}$/.test(limit || defaultLimit) ? Number(limit || defaultLimit) : 0;
  const issues = [
    channel === '' || channels.includes(channel) ? null : `channel must be one of ${channels.join(', ')}`,
    isRecipient(to) ? null : 'to must be an address',
    isRecipient(search) ? null : 'search must be a part of an address',
    after === '' || isUuid(after) ? null : 'after must be a UUID',
    page >= 1 && page <= limitMax ? null : `limit must be a number from 1 to ${limitMax}`,
  ].filter((issue) => issue !== null);
  if (issues.length > 0) throw new PublicError(validationError, issues.join(', '));
  return {
    channel: channel || null,
    recipient: to || null,
    recipientPart: search || null,
    after: after || null,
    limit: page,
  };
}

function isRecipient(text: string): boolean {
  return text.length <= recipientLengthMax && !isUnstorable(text);
}
