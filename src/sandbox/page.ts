import path from 'node:path';
import {
  frameContentPolicy,
  type PageFiles,
  readPageFiles,
  respondPart,
} from '../platform/http/page-response.ts';
import type { PageResponse } from '../platform/http/route.ts';

/**
 * For the HTML of a message: a link opens a new window, which is a page like any other. Everything else stays
 * forbidden; above all nothing runs by itself, so that a window opens by a click only.
 */
export const messageContentPolicy = `${frameContentPolicy} allow-popups allow-popups-to-escape-sandbox`;

/** Responses of the sandbox must not be cached. */
const cacheControl = 'no-store';

/** Throws if the files are not beside this one, as they are in the sources and in what is built from them. */
export function readSandboxPage(name: 'sandbox' | 'push' | 'webhooks'): PageFiles {
  const files = readPageFiles(path.join(import.meta.dirname, 'page'), name, cacheControl);
  // A window that a link of a message opens, whatever the link asks for, gets no hold of the page that it came from.
  const headers = { ...files.html.headers, 'cross-origin-opener-policy': 'same-origin' };
  return { ...files, html: { ...files.html, headers } };
}

export function respond(contentType: string, body: string | Buffer, contentPolicy?: string): PageResponse {
  return respondPart(contentType, body, {
    cacheControl,
    ...(contentPolicy !== undefined && { contentPolicy }),
  });
}

export function respondJson(body: unknown): PageResponse {
  return respond('application/json; charset=utf-8', JSON.stringify(body));
}
