import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { projectDirectory } from '../config.ts';
import { type ConstantContent, createConstantContent } from '../platform/http/constant-content.ts';
import type { ApiInfo, OpenApiDocument } from '../platform/http/openapi.ts';
import type { WebPage } from '../platform/http/route.ts';
import { type RenderedDocumentation, renderDocumentation } from './page.ts';
import { type FittedPage, fitNavigation, type IsSandboxOpen } from './start-page.ts';

/** The description of the API for programs and for people, from the file that was generated and committed. */
export function documentationPages(isSandboxOpen: IsSandboxOpen): WebPage[] {
  let documentation: Promise<Documentation> | undefined;
  // Read at the first request; after a failure, the next request tries again.
  const load = () => {
    documentation ??= loadDocumentation().catch((cause: unknown) => {
      documentation = undefined;
      throw cause;
    });
    return documentation;
  };
  return [
    {
      path: '/openapi.json',
      handle: async () => ({
        statusCode: 200,
        headers: { ...commonHeaders, 'content-type': 'application/json; charset=utf-8' },
        body: (await load()).description,
      }),
    },
    {
      path: '/docs',
      handle: async (request) => {
        const { fitted, styleHash, scriptHash } = await load();
        return {
          statusCode: 200,
          headers: {
            ...commonHeaders,
            'content-type': 'text/html; charset=utf-8',
            // The one style sheet and the one script are named by their digests.
            'content-security-policy': `default-src 'none'; style-src '${styleHash}'; script-src '${scriptHash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`,
            'referrer-policy': 'no-referrer',
          },
          body: fitted(await isSandboxOpen(request)),
        };
      },
    },
  ];
}

const commonHeaders = { 'x-content-type-options': 'nosniff', 'cache-control': 'no-cache' };

type Documentation = Omit<RenderedDocumentation, 'html'> & {
  description: ConstantContent;
  fitted: FittedPage;
};

async function loadDocumentation(): Promise<Documentation> {
  const read = (file: string) => readFile(path.join(projectDirectory, file), 'utf8');
  const [text, examples] = await Promise.all([read('openapi.json'), read('docs/api-examples.json')]);
  // Both are made from the program, and compared with it before every release.
  const { html, ...hashes } = renderDocumentation(
    JSON.parse(text) as OpenApiDocument,
    JSON.parse(examples) as ApiInfo['examples'],
  );
  return { description: createConstantContent(text), fitted: fitNavigation(html), ...hashes };
}
