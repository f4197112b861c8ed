import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { compileText, fillText } from '../channels/placeholders.ts';
import { PublicError, resourceNotFound, validationError } from '../platform/http/errors.ts';
import type { PageBody, PageRequest, PageResponse, WebPage } from '../platform/http/route.ts';
import { type ColorScheme, colorSchemes, fixColorScheme } from './color-scheme.ts';
import type { Category, Gallery, GalleryTemplate } from './gallery.ts';
import { readGalleryPage, respond, respondFrame, respondThumbnail } from './page.ts';

export type GalleryPageTools = {
  /** As `openGallery` returns it. */
  readGallery: () => Promise<Gallery>;
  /** The folder that it reads. */
  directory: string;
  /** The page with a navigation that leads only to pages that this visitor may see. */
  fitPage: (html: string) => (request: PageRequest) => Promise<PageBody>;
};

/**
 * The gallery as people browse it: it holds nothing of any organization, and is for everybody. Throws if the files
 * of the page are missing.
 */
export function galleryPages(tools: GalleryPageTools): WebPage[] {
  const files = readGalleryPage();
  const fit = tools.fitPage(files.text);
  const keep = createKeeper();
  const pages: Record<string, (request: PageRequest) => Promise<PageResponse>> = {
    '/gallery': async (request) => ({
      ...files.html,
      body: await fit(request),
    }),
    '/gallery/page.css': () => Promise.resolve(files.css),
    '/gallery/page.js': () => Promise.resolve(files.script),
    '/gallery/templates.json': () =>
      keep('templates.json', async () => respondListing(await tools.readGallery())),
    '/gallery/templates/:slug': async (request) => {
      const scheme = readColorScheme(request);
      const template = await findTemplate(tools, request);
      return keep(`html ${scheme ?? ''} ${template.slug}`, () => {
        const html = scheme === null ? template.html : fixColorScheme(template.html, scheme);
        return respondFrame(fillSamples(template, html, 'html'));
      });
    },
    '/gallery/templates/:slug/text': async (request) => {
      const template = await findTemplate(tools, request);
      return keep(`text ${template.slug}`, () =>
        respond('text/plain; charset=utf-8', fillSamples(template, template.text, 'text')),
      );
    },
    '/gallery/thumbnails/:slug': async (request) => {
      const template = await findTemplate(tools, request);
      return keep(`thumbnail ${template.slug}`, () => readThumbnail(tools.directory, template));
    },
  };
  return Object.entries(pages).map(([path, handle]) => ({ path, isRoutine: path !== '/gallery', handle }));
}

/**
 * Makes a response once, since the gallery changes with releases only: two megabytes for the one that comes along. What
 * failed is tried again.
 */
function createKeeper() {
  const kept = new Map<string, PageResponse>();
  return async (name: string, make: () => PageResponse | Promise<PageResponse>): Promise<PageResponse> => {
    const known = kept.get(name);
    if (known !== undefined) return known;
    const made = await make();
    kept.set(name, made);
    return made;
  };
}

/** Found in the list or not at all: what is asked for never becomes part of a file's name. */
async function findTemplate(
  { readGallery }: GalleryPageTools,
  { params }: PageRequest,
): Promise<GalleryTemplate> {
  const { templates } = await readGallery();
  const found = templates.find(({ slug }) => slug === params.slug);
  if (found === undefined) throw resourceNotFound();
  return found;
}

function readColorScheme({ query }: PageRequest): ColorScheme | null {
  if (query.scheme === undefined) return null;
  const scheme = colorSchemes.find((name) => name === query.scheme);
  if (scheme === undefined) {
    throw new PublicError(validationError, `scheme must be one of ${colorSchemes.join(', ')}`);
  }
  return scheme;
}

/** What a filled-in template may be long: as much as a template of an organization. */
const filledLengthMax = 2 * 1_048_576;

function fillSamples({ slug, variables }: GalleryTemplate, written: string, form: 'html' | 'text'): string {
  const filled = fillText(compileText(written, form), variables, filledLengthMax);
  if (filled === null) throw new Error(`the template ${slug} of the gallery is too long`);
  return filled;
}

function respondListing({ templates, categories }: Gallery): PageResponse {
  const body = { templates: templates.map(showTemplate), categories: showCategories(categories) };
  return respond('application/json; charset=utf-8', JSON.stringify(body));
}

/** What a person chooses by; the bodies have addresses of their own. */
function showTemplate(template: GalleryTemplate) {
  return {
    id: template.id,
    slug: template.slug,
    name: template.name,
    description: template.description,
    subject: fillSamples(template, template.subject, 'text'),
    preview_text: fillSamples(template, template.previewText, 'text'),
    variables: template.variables,
    ...showCategories(template.categories),
  };
}

function showCategories({ types, seasons, features, industries }: Gallery['categories']) {
  const show = (categories: readonly Category[]) => categories.map(({ slug, name }) => ({ slug, name }));
  return {
    types: show(types),
    seasons: show(seasons),
    features: show(features),
    industries: show(industries),
  };
}

/** In the order in which they are looked for. */
const thumbnailFiles = [
  { name: 'thumbnail.webp', contentType: 'image/webp' },
  { name: 'thumbnail.png', contentType: 'image/png' },
];

async function readThumbnail(directory: string, { slug }: GalleryTemplate): Promise<PageResponse> {
  for (const { name, contentType } of thumbnailFiles) {
    const image = await readFile(path.join(directory, slug, name)).catch(nullIfMissing);
    if (image !== null) return respondThumbnail(contentType, image);
  }
  throw resourceNotFound();
}

function nullIfMissing(cause: NodeJS.ErrnoException): null {
  if (cause.code === 'ENOENT') return null;
  throw cause;
}
