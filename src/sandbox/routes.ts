import { setImmediate } from 'node:timers/promises';
import { LRUCache } from 'lru-cache';
import { forbidden, notFound, PublicError, resourceNotFound } from '../platform/http/errors.ts';
import { isUuid } from '../platform/ids.ts';
import type { WebPage, PageRequest, PageResponse } from '../platform/http/route.ts';
import type { Database } from '../platform/postgres/database.ts';
import { addBlindCopy } from './addresses.ts';
import { respondAttachment, shownTypeOf } from './attachment-response.ts';
import { buildFrame } from './frame.ts';
import { messageContentPolicy, readSandboxPage, respond, respondJson } from './page.ts';
import { type ParsedSource, parseHead, parseSource } from './parsed-source.ts';
import { type PushTrial, pushTrialPages } from './push-trial.ts';
import { replyPages, type Replies } from './replies.ts';
import { readDeletionQuery, readListQuery, type SandboxQuery } from './query.ts';
import { isMatch } from './search.ts';
import * as store from './store.ts';
import { createTurns } from './turns.ts';
import { type WebhookTrial, webhookTrialPages } from './webhook-trial.ts';
import { isLinkOpened, isOwnOrigin, isWelcome, type SandboxAccess, tokenCookie } from './visitor.ts';

export type { Fields } from './posted-json.ts';
export type { PushTrial } from './push-trial.ts';
export type { AnsweredMessage, Replies } from './replies.ts';
export type { WebhookTrial } from './webhook-trial.ts';

export type SandboxTools = {
  database: Database;
  access: SandboxAccess;
  /** How browsers reach this installation, if it is known. */
  publicUrl: string | null;
  pushTrial: PushTrial;
  webhookTrial: WebhookTrial;
  replies: Replies;
};

/**
 * What went through the sandbox, as a page and as JSON. For visitors without access, these paths respond as if
 * they did not exist. Throws if the files of the page are missing.
 */
export function sandboxPages(tools: SandboxTools): WebPage[] {
  const files = readSandboxPage('sandbox');
  const viewer = createViewer(tools.database);
  const messagesPath = '/sandbox/messages';
  const messagePath = `${messagesPath}/:id`;
  const pages: WebPage[] = [
    { path: '/sandbox', handle: (request) => Promise.resolve(respondPage(request, files.html, tools)) },
    { path: '/sandbox/page.css', isRoutine: true, handle: () => Promise.resolve(files.css) },
    { path: '/sandbox/page.js', isRoutine: true, handle: () => Promise.resolve(files.script) },
    {
      path: messagesPath,
      isRoutine: true,
      handle: async (request) => respondJson(await viewer.list(readListQuery(request))),
    },
    {
      method: 'DELETE',
      path: messagesPath,
      handle: async (request) => respondJson(await viewer.deleteListed(readDeletionQuery(request))),
    },
    { path: messagePath, handle: async (request) => respondJson(await viewer.show(readId(request))) },
    {
      method: 'DELETE',
      path: messagePath,
      handle: async (request) => respondJson(await viewer.deleteOne(readId(request))),
    },
    {
      path: `${messagePath}/html`,
      isRoutine: true,
      handle: async (request) => respondFrame(await viewer.frame(readId(request))),
    },
    {
      path: `${messagePath}/source`,
      handle: async (request) =>
        respondSource(await viewer.find(readId(request)), request.query.download === '1'),
    },
    {
      path: `${messagePath}/attachments/:index`,
      handle: async (request) =>
        respondAttachment(
          await viewer.attachment(readId(request), readIndex(request)),
          request.query.download === '1',
        ),
    },
  ];
  const answerPages = replyPages(`${messagePath}/replies`, tools.replies, {
    envelope: (request) => viewer.findEnvelope(readId(request)),
    message: (request) => viewer.find(readId(request)),
  });
  const welcome = (request: PageRequest, page: PageResponse) => respondPage(request, page, tools);
  const trialPages = [
    ...pushTrialPages(tools.pushTrial, welcome),
    ...webhookTrialPages(tools.webhookTrial, welcome),
  ];
  return [...pages, ...answerPages, ...trialPages].map((page) => ({
    ...page,
    handle: async (request: PageRequest) => {
      if (!(await isWelcome(request, tools.access)))
        throw new PublicError(notFound, 'There is no such route.');
      if (page.method !== undefined && page.method !== 'GET' && !isOwnOrigin(request, tools.publicUrl))
        throw new PublicError(forbidden, 'A page of another site must not change anything here.');
      return page.handle(request);
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

/**
 * What one request searches, in messages and in octets of their sources: a second or two of work, in turn with all other
 * requests. More would keep the sandbox waiting for longer; less takes more requests to look through everything.
 */
const searchedMax = 2_000;
const searchedBytesMax = 4 * 1_048_576;
const searchBatch = 100;

type Listing = Omit<ParsedSource, 'attachments'> & {
  attachments: {
    filename: string | null;
    content_type: string;
    size: number;
    content_id: string | null;
    /** Whether a browser may show it, or only save it. */
    can_be_shown: boolean;
  }[];
};

type Listed = { message: store.ListedMessage; listing: Listing };

/** `next` is what the next page comes after; null if there is none. */
type Found = { listed: Listed[]; next: string | null };

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

  const readListed = (message: store.ListedMessage) =>
    message.isTruncated ? parseHead(message.channel, message.source).then(toListing) : readListing(message);

  /** Those that match, newest first, of what one request looks at: the search goes on after `next`. */
  const search = async (
    text: string,
    query: SandboxQuery,
    limits: { found: number; bytes: number },
  ): Promise<Found> => {
    const listed: Listed[] = [];
    let [lookedAt, bytes, { after }] = [0, 0, query];
    // Ends since each round looks at one message at least.
    for (;;) {
      const rows = await store.listSandboxMessages(database, { ...query, after, limit: searchBatch });
      for (const message of rows) {
        const isCutOff = message.isTruncated && !message.isLarge;
        // In a list of its own, or first in another, it is whole.
        if (isCutOff) break;
        if (lookedAt >= searchedMax || bytes >= limits.bytes) return { listed, next: after };
        const listing = await readListed(message);
        if (isMatch(text, message, listing)) {
          if (listed.length >= limits.found) return { listed, next: after };
          listed.push({ message, listing });
        }
        lookedAt += 1;
        bytes += message.source.length;
        after = message.id;
        // Matching takes as long as parsing where what was parsed is known.
        await setImmediate();
      }
      const last = rows.at(-1);
      if (last === undefined || (rows.length < searchBatch && after === last.id))
        return { listed, next: null };
    }
  };
  const listPage = async (query: SandboxQuery): Promise<Found> => {
    const rows = await store.listSandboxMessages(database, { ...query, limit: query.limit + 1 });
    const listed: Listed[] = [];
    for (const message of rows.slice(0, query.limit))
      listed.push({ message, listing: await readListed(message) });
    return { listed, next: rows.length > query.limit ? (listed.at(-1)?.message.id ?? null) : null };
  };

  return {
    find: (id: string) => inTurn(() => find(id)),
    findEnvelope: async (id: string) => {
      const envelope = await store.findSandboxEnvelope(database, id);
      if (envelope === null) throw resourceNotFound();
      return envelope;
    },
    list: (query: SandboxQuery) =>
      inTurn(async () => {
        const limits = { found: query.limit, bytes: searchedBytesMax };
        const { listed, next } = await (query.search === null
          ? listPage(query)
          : search(query.search, query, limits));
        const data = listed.map(({ message, listing }) => showMessage(message, listing, message.isTruncated));
        return { object: 'list', has_more: next !== null, next, data };
      }),
    deleteListed: (query: SandboxQuery) =>
      inTurn(async () => {
        const limits = { found: searchedMax, bytes: Number.POSITIVE_INFINITY };
        const ids =
          query.search === null
            ? null
            : (await search(query.search, query, limits)).listed.map(({ message }) => message.id);
        return { deleted: await store.deleteListedMessages(database, { ...query, ids }) };
      }),
    deleteOne: (id: string) =>
      inTurn(async () => {
        const all = { channel: null, recipient: null };
        if ((await store.deleteListedMessages(database, { ...all, ids: [id] })) === 0)
          throw resourceNotFound();
        return { id, deleted: true };
      }),
    attachment: (id: string, index: number) =>
      inTurn(async () => {
        const { channel, source } = await find(id);
        const attachment = (await parseSource(channel, source)).attachments[index];
        if (attachment === undefined) throw resourceNotFound();
        return attachment;
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
      can_be_shown: shownTypeOf(contentType) !== null,
    })),
  };
}

function showMessage(message: store.SandboxMessage, listing: Listing, isTruncated: boolean) {
  const { from, subject, addresses, headers, html, text, attachments } = listing;
  const isEmail = message.channel === 'email';
  return {
    id: message.id,
    organization_id: message.organizationId,
    message_id: message.messageId,
    channel: message.channel,
    outcome: message.outcome,
    from: from ?? message.sender,
    to: message.recipient,
    addresses: isEmail ? addBlindCopy(addresses, message.recipient) : null,
    return_path: isEmail ? message.sender : null,
    created_at: message.createdAt.toISOString(),
    subject,
    headers,
    html,
    text,
    attachments,
    truncated: isTruncated,
  };
}

function respondFrame(html: string): PageResponse {
  const response = respond('text/html; charset=utf-8', html, messageContentPolicy);
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

function readIndex({ params }: PageRequest): number {
  const { index = '' } = params;
  if (!/^\d{1,4}$/.test(index)) throw resourceNotFound();
  return Number(index);
}
