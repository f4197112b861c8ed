import path from 'node:path';
import { type PageFiles, readPageFiles, respondPart } from '../platform/http/page-response.ts';
import type { PageResponse } from '../platform/http/route.ts';

/** Nobody may keep what the sandbox shows. */
const cacheControl = 'no-store';

/** Throws if the files are not beside this one, as they are in the sources and in what is built from them. */
export function readSandboxPage(): PageFiles {
  return readPageFiles(path.join(import.meta.dirname, 'page'), 'sandbox', cacheControl);
}

export function respond(contentType: string, body: string | Buffer, contentPolicy?: string): PageResponse {
  return respondPart(contentType, body, {
    cacheControl,
    ...(contentPolicy !== undefined && { contentPolicy }),
  });
}
