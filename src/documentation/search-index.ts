import type { DocumentationPage } from './page.ts';

/** What the search of the documentation looks through: operations and schemas each, and other pages as wholes. */

/** `words` are all that stand there, in lower case and each once; `kind` says what it is. */
export type SearchEntry = [title: string, page: string, anchor: string, words: string, kind: string];

export function indexPages(pages: readonly DocumentationPage[]): SearchEntry[] {
  return pages.flatMap((page) => {
    const articles = [...page.main.matchAll(/<article id="([^"]+)">(.*?)<\/article>/gs)];
    if (articles.length === 0)
      return [[page.title, page.slug, '', wordsOf(page.main), 'Guide'] as SearchEntry];
    return articles.map(([, anchor = '', html = '']): SearchEntry => {
      const title = page.contents.find(({ id }) => id === anchor)?.text ?? page.title;
      const isSchema = anchor.startsWith('schema-');
      return [toText(title), page.slug, anchor, wordsOf(html), `${page.title}${isSchema ? ', schema' : ''}`];
    });
  });
}

/** Without the examples, which say in three languages what the fields say. */
function wordsOf(html: string): string {
  const text = toText(html.replaceAll(/<pre[^>]*>.*?<\/pre>/gs, ' ').replaceAll(/<[^>]+>/g, ' '));
  return [...new Set(text.toLowerCase().match(/[\p{L}\p{N}_./{}[\]-]+/gu))].join(' ');
}

/** Of HTML without tags, as `escapeHtml` and the library for Markdown write it. */
function toText(html: string): string {
  return html
    .replaceAll('&lt;', '<')
    .replaceAll('&gt;', '>')
    .replaceAll('&quot;', '"')
    .replaceAll('&#39;', "'")
    .replaceAll('&amp;', '&');
}
