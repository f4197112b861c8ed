import { type ConstantContent, createConstantContent } from '../platform/http/constant-content.ts';
import { baseStyle, respondDocument } from '../platform/http/page-response.ts';
import type { WebPage, PageRequest } from '../platform/http/route.ts';

/** Whether this visitor may open the sandbox; to others it is not mentioned. */
export type IsSandboxOpen = (request: PageRequest) => Promise<boolean>;

const sandboxLink = '<a href="sandbox">Sandbox</a>';

/** As the navigation of every page writes it, from whatever folder. */
const sandboxLinks = /<a href="(\.\.\/)*sandbox">Sandbox<\/a>/;

/** A page with a navigation that leads only to pages that a visitor may see. */
export type FittedPage = (isSandboxOpen: boolean) => ConstantContent;

export function fitNavigation(html: string): FittedPage {
  const open = createConstantContent(html);
  let closed: ConstantContent | undefined;
  return (isSandboxOpen) => {
    if (isSandboxOpen) return open;
    closed ??= createConstantContent(html.replace(sandboxLinks, ''));
    return closed;
  };
}

/** `GET /`: the way to the pages, for a person who opens the address that a start prints. */
export function startPage(isSandboxOpen: IsSandboxOpen): WebPage {
  const open = createConstantContent(renderStartPage(true));
  const closed = createConstantContent(renderStartPage(false));
  return {
    path: '/',
    handle: async (request) =>
      respondDocument((await isSandboxOpen(request)) ? open : closed, { statusCode: 200, style: styleSheet }),
  };
}

function renderStartPage(isSandboxOpen: boolean): string {
  const places = [
    {
      link: '<a href="docs">Documentation</a>',
      about: 'Guides, and every request of the API with its fields, limits, errors and examples to paste.',
    },
    {
      link: sandboxLink,
      about: 'What was sent into the sandbox, which goes nowhere else: open it, search it, delete it.',
    },
    {
      link: '<a href="gallery">Gallery</a>',
      about: 'Templates for email to look at, on a desktop and on a phone, and to copy.',
    },
  ].filter(({ link }) => isSandboxOpen || link !== sandboxLink);
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Postillion</title>
<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24'%3E%3Crect width='24' height='24' rx='6' fill='%23f2b822'/%3E%3Cpath d='M5 8h14v9H5zM5 8l7 5 7-5' fill='none' stroke='%231d2433' stroke-width='1.7' stroke-linejoin='round'/%3E%3C/svg%3E">
<style>${styleSheet}</style>
</head>
<body>
<main>
<svg viewBox="0 0 24 24" aria-hidden="true"><rect width="24" height="24" rx="6"/><path d="M5 8h14v9H5zM5 8l7 5 7-5"/></svg>
<h1>Postillion</h1>
<p>This is a messaging service. Programs use it at <code>/v1</code>, with an API key.</p>
<ul>
${places.map(({ link, about }) => `<li>${link}<p>${about}</p></li>`).join('\n')}
</ul>
</main>
</body>
</html>
`;
}

const styleSheet = `${baseStyle}
body { padding: 12vh 20px 40px; }
main { max-width: 560px; margin: 0 auto; }
svg { width: 44px; height: 44px; }
rect { fill: var(--gold); }
path { fill: none; stroke: #1d2433; stroke-width: 1.6; stroke-linecap: round; stroke-linejoin: round; }
h1 { margin: 10px 0 4px; font-size: 1.6rem; letter-spacing: -0.01em; }
p { margin: 0; color: var(--ink-soft); }
code { font-size: 0.9em; color: var(--ink); }
ul { margin: 24px 0 0; padding: 0; list-style: none; }
li { position: relative; margin-bottom: 10px; padding: 14px 18px; background: var(--surface); border: 1px solid var(--line); border-radius: 10px; }
li:hover { border-color: var(--gold); }
li a { font-size: 1.05rem; font-weight: 650; text-decoration: none; }
li a::after { position: absolute; inset: 0; content: ''; }
li:focus-within { outline: 2px solid var(--gold); outline-offset: 2px; }
li a:focus { outline: none; }
`;
