import { readFileSync } from 'node:fs';
import path from 'node:path';
import type { PageResponse } from '../platform/http/route.ts';

/** The page, its style and its script: as they are on disk, read when the server starts. */
export type PageFiles = { html: PageResponse; css: PageResponse; script: PageResponse };

/** The templates' own HTML is shown in frames only, under a stricter policy. */
const pageContentPolicy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  "frame-src 'self'",
  "img-src 'self' data:",
  "frame-ancestors 'none'",
  "base-uri 'none'",
  "form-action 'none'",
].join('; ');

/** Throws if the files are not beside this one, as they are in the sources and in what is built from them. */
export function readPageFiles(): PageFiles {
  const read = (file: string) => readFileSync(path.join(import.meta.dirname, 'page', file), 'utf8');
  return {
    html: respond('text/html; charset=utf-8', read('gallery.html'), pageContentPolicy),
    css: respond('text/css; charset=utf-8', read('gallery.css')),
    script: respond('text/javascript; charset=utf-8', read('gallery.js')),
  };
}

/** For responses that show nothing: neither as a document of their own nor as a part of another. */
const dataContentPolicy = "default-src 'none'; frame-ancestors 'none'; sandbox";

/** Anybody may have what the gallery says; a new release may say something else. */
export function respond(
  contentType: string,
  body: string | Buffer,
  contentPolicy: string = dataContentPolicy,
): PageResponse {
  return {
    statusCode: 200,
    headers: {
      'content-type': contentType,
      'content-security-policy': contentPolicy,
      'cross-origin-resource-policy': 'same-origin',
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cache-control': 'no-cache',
    },
    body,
  };
}

/**
 * No script, no form, nothing from elsewhere, and no origin: templates are our own, and yet need none of it. The
 * frame stays as bare as that of a message, so that a template which asks for more is seen to break.
 */
const frameContentPolicy =
  "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox";

/**
 * Follows the template's HTML, so that a link opens a new window, which the sandbox forbids: a click does nothing,
 * where it would otherwise replace the template by whatever the sample links to.
 */
const linkTrap = '<base target="_blank">';

export function respondFrame(html: string): PageResponse {
  const response = respond('text/html; charset=utf-8', `${html}\n${linkTrap}`, frameContentPolicy);
  // Browsers look up the hosts of links ahead of time.
  return { ...response, headers: { ...response.headers, 'x-dns-prefetch-control': 'off' } };
}

/** Thumbnails are also for the pages of those who list the gallery through the API, and change with releases only. */
export function respondThumbnail(contentType: string, image: Buffer): PageResponse {
  const response = respond(contentType, image);
  return {
    ...response,
    headers: {
      ...response.headers,
      'cross-origin-resource-policy': 'cross-origin',
      'cache-control': 'public, max-age=3600',
    },
  };
}
