import path from 'node:path';
import { createConstantContent } from '../platform/http/constant-content.ts';
import {
  frameContentPolicy,
  linkTrap,
  type PageFiles,
  readPageFiles,
  respondPart,
} from '../platform/http/page-response.ts';
import type { PageResponse } from '../platform/http/route.ts';

/** Anybody may have what the gallery says; a new release may say something else. */
const cacheControl = 'no-cache';

/** Throws if the files are not beside this one, as they are in the sources and in what is built from them. */
export function readGalleryPage(): PageFiles {
  return readPageFiles(path.join(import.meta.dirname, 'page'), 'gallery', cacheControl);
}

export function respond(contentType: string, body: string | Buffer): PageResponse {
  return respondPart(contentType, createConstantContent(body), { cacheControl });
}

/** The frame stays as bare as that of a message, so that a template which asks for more is seen to break. */
export function respondFrame(html: string): PageResponse {
  const response = respondPart('text/html; charset=utf-8', createConstantContent(`${html}\n${linkTrap}`), {
    cacheControl,
    contentPolicy: frameContentPolicy,
  });
  // Browsers look up the hosts of links ahead of time.
  return { ...response, headers: { ...response.headers, 'x-dns-prefetch-control': 'off' } };
}

/** Thumbnails are also for the pages of those who list the gallery through the API, and change with releases only. */
export function respondThumbnail(contentType: string, image: Buffer): PageResponse {
  const content = createConstantContent(image, { isCompressible: false });
  const response = respondPart(contentType, content, { cacheControl: 'public, max-age=3600' });
  return { ...response, headers: { ...response.headers, 'cross-origin-resource-policy': 'cross-origin' } };
}
