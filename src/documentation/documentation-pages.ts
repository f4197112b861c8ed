import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { projectDirectory } from '../config.ts';
import { type ConstantContent, createConstantContent } from '../platform/http/constant-content.ts';
import { resourceNotFound } from '../platform/http/errors.ts';
import type { ApiInfo, OpenApiDocument } from '../platform/http/openapi.ts';
import type { PageRequest, PageResponse, WebPage } from '../platform/http/route.ts';
import { readApiReference } from './api-reference.ts';
import { documentationPolicy, renderPage } from './page.ts';
import { indexPages } from './search-index.ts';
import { listDocumentation } from './site.ts';
import { type FittedPage, fitNavigation, type IsSandboxOpen } from './start-page.ts';

/** The description of the API for programs and for people, from the file that was generated and committed. */
export function documentationPages(isSandboxOpen: IsSandboxOpen): WebPage[] {
  const load = once(loadDocumentation);
  const show = async (request: PageRequest, slug: string): Promise<PageResponse> => {
    const { pages } = await load();
    const fitted = await pages.get(slug)?.();
    if (fitted === undefined) throw resourceNotFound();
    return {
      statusCode: 200,
      headers: {
        ...commonHeaders,
        'content-type': 'text/html; charset=utf-8',
        'content-security-policy': documentationPolicy,
        'referrer-policy': 'no-referrer',
      },
      body: fitted(await isSandboxOpen(request)),
    };
  };
  return [
    {
      path: '/openapi.json',
      handle: async () => respondJson((await load()).description),
    },
    { path: '/docs', handle: (request) => show(request, '') },
    {
      path: '/docs/search.json',
      isRoutine: true,
      handle: async () => respondJson(await (await load()).search()),
    },
    { path: '/docs/:page', handle: (request) => show(request, request.params.page ?? '') },
    {
      path: '/docs/guides/:guide',
      handle: (request) => show(request, `guides/${request.params.guide ?? ''}`),
    },
  ];
}

const commonHeaders = { 'x-content-type-options': 'nosniff', 'cache-control': 'no-cache' };

function respondJson(body: ConstantContent): PageResponse {
  return {
    statusCode: 200,
    headers: { ...commonHeaders, 'content-type': 'application/json; charset=utf-8' },
    body,
  };
}

type Documentation = {
  description: ConstantContent;
  /** By their slugs. */
  pages: ReadonlyMap<string, () => Promise<FittedPage>>;
  search: () => Promise<ConstantContent>;
};

async function loadDocumentation(): Promise<Documentation> {
  const read = (file: string) => readFile(path.join(projectDirectory, file), 'utf8');
  const [text, examples] = await Promise.all([read('openapi.json'), read('docs/api-examples.json')]);
  // Both are made from the program, and compared with it before every release.
  const reference = readApiReference(
    JSON.parse(text) as OpenApiDocument,
    JSON.parse(examples) as ApiInfo['examples'],
  );
  const made = listDocumentation(reference);
  const pages = [...made].map(
    ([slug, make]) => [slug, once(async () => fitNavigation(renderPage(await make(), reference)))] as const,
  );
  return {
    description: createConstantContent(text),
    pages: new Map(pages),
    search: once(async () => {
      const all = await Promise.all([...made].map(([, make]) => make()));
      return createConstantContent(JSON.stringify(indexPages(all)));
    }),
  };
}

/** Does it at the first request; after a failure, the next request tries again. */
function once<Made>(make: () => Promise<Made>): () => Promise<Made> {
  let made: Promise<Made> | undefined;
  return () => {
    made ??= make().catch((cause: unknown) => {
      made = undefined;
      throw cause;
    });
    return made;
  };
}
