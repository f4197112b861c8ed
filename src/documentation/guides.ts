import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { projectDirectory } from '../config.ts';
import { renderCode } from './operations.ts';
import { escapeHtml } from './prose.ts';

/** The guides: the Markdown files of the project, of which each has a page. They come with the package. */

type GuideFile = {
  slug: string;
  /** From the project's folder. */
  file: string;
  /** In the menu. */
  title: string;
  /** The slugs of the resources that it is about. */
  about: readonly string[];
};

export const guideGroups: readonly { title: string; guides: readonly GuideFile[] }[] = [
  {
    title: 'Guides',
    guides: [
      { slug: 'start', file: 'README.md', title: 'Getting started', about: ['email'] },
      inDocs('domains', 'Domains and delivery', ['email', 'sending-domains']),
      inDocs('smtp', 'Sending by SMTP', ['email']),
      inDocs('sms', 'Text messages', ['sms', 'sms-senders', 'sms-campaigns']),
      inDocs('push', 'Push notifications', ['push', 'push-devices', 'push-campaigns']),
      inDocs('chat-app', 'Chat-app messages', ['chat-app', 'chat-app-templates', 'chat-app-campaigns']),
      inDocs('scheduling', 'Sending later', ['email', 'sms', 'push', 'chat-app']),
      inDocs('templates', 'Writing templates', ['templates', 'email']),
      inDocs('gallery', 'Using the gallery', ['template-gallery']),
      inDocs('audience', 'Audience', ['contacts', 'lists', 'tags', 'properties', 'segments']),
      inDocs('suppressions', 'Who is not written to', ['suppressions', 'email']),
      inDocs('events', 'What contacts do', ['events', 'segments']),
      inDocs('campaigns', 'Campaigns', [
        'email-campaigns',
        'sms-campaigns',
        'chat-app-campaigns',
        'push-campaigns',
      ]),
      inDocs('tracking', 'Unsubscribing, opens and clicks', ['email-campaigns']),
      inDocs('import', 'Import and export', ['contacts', 'events']),
      inDocs('webhooks', 'Hearing what happens', ['webhooks']),
      inDocs('alerts', 'Being told what goes wrong', ['webhooks']),
      inDocs('request-log', 'The request log', ['request-log']),
      inDocs('compat', 'Coming from another service', ['email']),
      inDocs('sandbox', 'The sandbox', []),
      inDocs('sms-simulator', 'SMS simulator', ['sms']),
      inDocs('chat-app-simulator', 'Chat-app simulator', ['chat-app']),
    ],
  },
  {
    title: 'Operation',
    guides: [
      inDocs('installing', 'Installing', []),
      inDocs('settings', 'Settings', []),
      inDocs('operating', 'Operating', []),
      inDocs('monitoring', 'Monitoring', []),
      inDocs('reliability', 'Reliability', []),
      inDocs('mail-servers', 'Answers of mail servers', []),
      inDocs('benchmarks', 'Benchmarks', []),
    ],
  },
];

function inDocs(slug: string, title: string, about: readonly string[]): GuideFile {
  return { slug, file: `docs/${slug}.md`, title, about };
}

const guides = guideGroups.flatMap((group) => group.guides);
const slugs = new Map(guides.map(({ file, slug }) => [file, slug]));

export function guidesAbout(resource: string): readonly GuideFile[] {
  return guides.filter(({ about }) => about.includes(resource));
}

export type RenderedGuide = {
  html: string;
  /** Of the second level, as text. */
  headings: readonly { id: string; text: string }[];
};

/** Rejects if the file is missing. The library for Markdown is loaded with the first guide that is asked for. */
export async function renderGuide({ file }: GuideFile): Promise<RenderedGuide> {
  const [text, { Marked, Renderer, TextRenderer }] = await Promise.all([
    readFile(path.join(projectDirectory, file), 'utf8'),
    import('marked'),
  ]);
  const headings: { id: string; text: string }[] = [];
  const seen = new Map<string, number>();
  const plain = new Renderer();
  const markdown = new Marked({
    renderer: {
      heading({ tokens, depth }) {
        const words = this.parser.parseInline(tokens, new TextRenderer());
        const id = anchorOf(words, seen);
        if (depth === 2) headings.push({ id, text: words });
        return `<h${depth} id="${id}">${this.parser.parseInline(tokens)}</h${depth}>\n`;
      },
      code: ({ text: code }) => `${renderCode(code)}\n`,
      // Whatever looks like HTML is text, but for remarks to those who edit the file.
      html: ({ text: html }) => (html.trimStart().startsWith('<!--') ? '' : escapeHtml(html)),
      link({ href, tokens }) {
        const shown = this.parser.parseInline(tokens);
        const target = findTarget(file, href);
        return target === null ? shown : `<a href="${escapeHtml(target)}">${shown}</a>`;
      },
      table(token) {
        plain.parser = this.parser;
        // Read aloud, a heading without words is a column without a name.
        const header = token.header.map((cell) => ({ ...cell, header: cell.text !== '' }));
        return `<div class="table">${plain.table({ ...token, header })}</div>\n`;
      },
      // The policy of the page lets no picture be loaded.
      image: ({ text: words }) => escapeHtml(words),
    },
  });
  return { html: await markdown.parse(text), headings };
}

/** As GitHub makes them, since that is where the links within the files lead too. `words` are HTML. */
function anchorOf(words: string, seen: Map<string, number>): string {
  const anchor = words
    .toLowerCase()
    .replaceAll(/&[a-z#0-9]+;/g, '')
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(/\s/g, '-');
  const before = seen.get(anchor) ?? 0;
  seen.set(anchor, before + 1);
  return before === 0 ? anchor : `${anchor}-${before}`;
}

/** From the page of one guide to that of another; null for files that have no page. */
function findTarget(file: string, href: string): string | null {
  if (/^(https?:|#)/.test(href)) return href;
  const { pathname, hash } = new URL(href, `file:///${file}`);
  const slug = slugs.get(pathname.slice(1));
  return slug === undefined ? null : `${slug}${hash}`;
}
