import { readFileSync } from 'node:fs';
import path from 'node:path';
import { sha256 } from '../secrets.ts';
import { createConstantContent } from './constant-content.ts';
import type { PageBody, PageResponse } from './route.ts';

/** What every page outside of the API goes out with: which of its parts a browser may use, and for what. */

/** The style sheet that all pages begin with. */
export const baseStyle = readFileSync(path.join(import.meta.dirname, 'page', 'base.css'), 'utf8');

/** A page, its style and its script: as they are on disk, read when the server starts. */
export type PageFiles = { html: PageResponse; text: string; css: PageResponse; script: PageResponse };

/**
 * A page itself holds no data from outside: its script fetches that, and puts it in as text. Frames are its own,
 * with HTML from elsewhere under the policy of `frameContentPolicy`.
 */
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

/**
 * A document that is complete in itself: its one style sheet is named by its digest, it has no script, and its forms
 * post to where it came from.
 */
export function respondDocument(
  html: PageBody,
  options: { statusCode: number; style: string; headers?: Readonly<Record<string, string>> },
): PageResponse {
  const contentPolicy = [
    "default-src 'none'",
    `style-src 'sha256-${sha256(options.style).toString('base64')}'`,
    'img-src data:',
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
  ].join('; ');
  const response = respondPart('text/html; charset=utf-8', html, { cacheControl: 'no-store', contentPolicy });
  return {
    ...response,
    statusCode: options.statusCode,
    headers: { ...response.headers, 'x-robots-tag': 'noindex', ...options.headers },
  };
}

/** For responses that show nothing: neither as a document of their own nor as a part of another. */
const dataContentPolicy = "default-src 'none'; frame-ancestors 'none'; sandbox";

/**
 * The policy under which HTML that is not the page's own is shown. `sandbox` without exceptions takes from it scripts,
 * forms, pop-ups, automatic redirects and the origin, also where it is opened outside of the page's frame; `default-src
 * 'none'` leaves nothing to be fetched, so that viewing it is not reported to any server.
 */
export const frameContentPolicy =
  "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox";

/**
 * To follow the HTML in a frame, so that a link opens a new window, which the sandbox forbids: a click does nothing,
 * where it would otherwise replace what is shown by the browser's page about a blocked frame, or by what it links to.
 */
export const linkTrap = '<base target="_blank">';

/** A response whose type no browser may guess, and that no other site may read. */
export function respondPart(
  contentType: string,
  body: PageBody,
  options: { cacheControl: string; contentPolicy?: string },
): PageResponse {
  return {
    statusCode: 200,
    headers: {
      'content-type': contentType,
      'content-security-policy': options.contentPolicy ?? dataContentPolicy,
      'cross-origin-resource-policy': 'same-origin',
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
      'cache-control': options.cacheControl,
    },
    body,
  };
}

/** Throws if the folder has not all of them: `<name>.html`, `.css` and `.js`. */
export function readPageFiles(directory: string, name: string, cacheControl: string): PageFiles {
  const read = (extension: string) => readFileSync(path.join(directory, `${name}.${extension}`), 'utf8');
  const contentPolicy = pageContentPolicy;
  const respond = (contentType: string, text: string) =>
    respondPart(contentType, createConstantContent(text), { cacheControl, contentPolicy });
  return {
    html: respond('text/html; charset=utf-8', read('html')),
    text: read('html'),
    css: respond('text/css; charset=utf-8', baseStyle + read('css')),
    script: respond('text/javascript; charset=utf-8', read('js')),
  };
}
