import { readFileSync } from 'node:fs';
import path from 'node:path';
import type { PageResponse } from '../platform/http/route.ts';

/** The page, its style and its script: as they are on disk, read when the server starts. */
export type PageFiles = { html: PageResponse; css: PageResponse; script: PageResponse };

/**
 * The page holds nothing from any message by itself: its script fetches them, and puts them in as text. Frames are
 * its own, with the messages' HTML under a stricter policy (frame.ts).
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

/** Throws if the files are not beside this one, as they are in the sources and in what is built from them. */
export function readPageFiles(): PageFiles {
  const read = (file: string) => readFileSync(path.join(import.meta.dirname, 'page', file), 'utf8');
  return {
    html: page('text/html; charset=utf-8', read('sandbox.html')),
    css: page('text/css; charset=utf-8', read('sandbox.css')),
    script: page('text/javascript; charset=utf-8', read('sandbox.js')),
  };
}

function page(contentType: string, body: string): PageResponse {
  return respond(contentType, body, pageContentPolicy);
}

/** For responses that show nothing: neither as a document of their own nor as a part of another. */
const dataContentPolicy = "default-src 'none'; frame-ancestors 'none'; sandbox";

/** A response of the sandbox, which nobody may keep, take for something else, or read from another site. */
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
      'cache-control': 'no-store',
    },
    body,
  };
}
