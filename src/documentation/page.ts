import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { baseStyle } from '../platform/http/page-response.ts';
import { type ApiReference, commonSchemas, errorsPage } from './api-reference.ts';
import { guideGroups } from './guides.ts';
import { escapeHtml } from './prose.ts';

/**
 * What all pages of the documentation have around what they say: a menu, a style and two scripts, all within the page, so
 * that the first answer is all that a browser waits for. All of it can be read without the scripts, which search, copy,
 * and leave one language of the examples. Of the ready-made viewers redoc 3 and Scalar need Node.js 22; swagger-ui-dist
 * is 1.7 MB of script with an eval in it, rapidoc 0.9 MB with another and with styles of its own making.
 */

export type DocumentationPage = {
  /** Below `/docs/`; empty for the overview. */
  slug: string;
  title: string;
  /** As HTML. */
  main: string;
  /** What the menu shows of this page: anchors, and their texts as HTML. */
  contents: readonly { id: string; text: string }[];
};

const read = (name: string) => readFileSync(path.join(import.meta.dirname, name), 'utf8');
const style = baseStyle + read('page.css');
const languageScript = read('language-script.js');
const pageScript = read('page-script.js');

/** The style sheet and the scripts are named by their digests. The page script asks for what can be searched. */
export const documentationPolicy = [
  "default-src 'none'",
  `style-src ${sourceOf(style)}`,
  `script-src ${sourceOf(languageScript)} ${sourceOf(pageScript)}`,
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

function sourceOf(text: string): string {
  return `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
}

/** What leads from a page to the root of the installation: `/docs` lies there itself, `/docs/email` a folder deeper. */
export function rootOf(slug: string): string {
  return slug === '' ? '' : '../'.repeat(slug.split('/').length);
}

export function renderPage(page: DocumentationPage, reference: ApiReference): string {
  const { title: product, version } = reference.document.info;
  const root = rootOf(page.slug);
  const title = page.slug === '' ? `${product} API` : `${page.title} · ${product} API`;
  const entry = (slug: string, name: string) => renderEntry(page, slug, name);
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${escapeHtml(title)}</title>
<style>${style}</style>
<script>${languageScript}</script>
</head>
<body data-root="${root}">
<nav aria-label="Contents">
<p class="places"><a href="${root || './'}">Start</a> <a href="${root}sandbox">Sandbox</a> <a href="${root}gallery">Gallery</a></p>
<p class="brand"><a href="${root}docs">${escapeHtml(product)}</a> <small>${escapeHtml(version)}</small></p>
<button type="button" id="menu" aria-expanded="false" aria-controls="contents">Contents</button>
<div id="contents">
<label for="search" class="search">Search <input id="search" type="search" autocomplete="off" placeholder="A path, a field, a word"></label>
<p id="found" role="status"></p>
<ul id="results"></ul>
<div id="pages">
<ul>
${entry('', 'Overview')}
</ul>
<h2>Resources</h2>
<ul>
${reference.resources.map(({ slug, name }) => entry(slug, name)).join('\n')}
${entry(errorsPage, 'Errors')}
${entry(commonSchemas, 'Common schemas')}
</ul>
${guideGroups
  .map(
    (group) => `<h2>${group.title}</h2>
<ul>
${group.guides.map((guide) => entry(`guides/${guide.slug}`, guide.title)).join('\n')}
</ul>`,
  )
  .join('\n')}
<p><a href="${root}openapi.json">openapi.json</a></p>
</div>
</div>
</nav>
<main id="top">
${page.main}
</main>
<script>${pageScript}</script>
</body>
</html>
`;
}

/** Of the menu. Only the page that is open shows what is on it. */
function renderEntry({ slug: open, contents }: DocumentationPage, slug: string, name: string): string {
  const isOpen = slug === open;
  const href = rootOf(open) + (slug === '' ? 'docs' : `docs/${slug}`);
  const items = contents.map(({ id, text }) => `<li><a href="#${escapeHtml(id)}">${text}</a></li>`);
  const inner = isOpen && items.length > 0 ? `\n<ul>\n${items.join('\n')}\n</ul>` : '';
  return `<li><a href="${escapeHtml(href)}"${isOpen ? ' aria-current="page"' : ''}>${escapeHtml(name)}</a>${inner}</li>`;
}
