import { readFileSync } from 'node:fs';
import path from 'node:path';
import { createConstantContent } from '../platform/http/constant-content.ts';
import { respondPart } from '../platform/http/page-response.ts';
import type { PageRate, PageResponse, WebPage } from '../platform/http/route.ts';

/**
 * The SDK for browsers: a module that pages load, and the part of a service worker that they import. Both are for sites
 * of any origin. Throws if one of the files is missing from the folder, into which they are built.
 */
export function sdkPages(directory: string): WebPage[] {
  const pages: Record<string, PageResponse> = {
    '/push/sdk.js': respondScript(directory, 'sdk.js', {}),
    // Where a proxy has Postillion below a site's own origin, the worker may serve all of the site.
    '/push/sw.js': respondScript(directory, 'sw.js', { 'service-worker-allowed': '/' }),
  };
  return Object.entries(pages).map(([path, response]) => ({
    path,
    rate: scriptRate,
    isRoutine: true,
    handle: () => Promise.resolve(response),
  }));
}

/** Every visitor of a site asks once an hour, and a whole company may come from one network. */
const scriptRate: PageRate = { by: 'site', perMinute: 6_000 };

/** A release reaches sites within the hour. Browsers look once a day at most whether a worker has changed. */
const cacheControl = 'public, max-age=3600';

/** What a worker may do that was registered by this address; one that imports it has the policy of its own site. */
const workerContentPolicy = "default-src 'none'; connect-src *";

function respondScript(
  directory: string,
  name: string,
  headers: Readonly<Record<string, string>>,
): PageResponse {
  const script = createConstantContent(readFileSync(path.join(directory, name)));
  const response = respondPart('text/javascript; charset=utf-8', script, {
    cacheControl,
    contentPolicy: workerContentPolicy,
  });
  return {
    ...response,
    headers: {
      ...response.headers,
      'access-control-allow-origin': '*',
      'cross-origin-resource-policy': 'cross-origin',
      ...headers,
    },
  };
}
