/** The gallery as it lies in its folder: a folder a template, and the values that the templates are filtered by. */
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { renderLayout } from './layout.ts';
import { parseMarkup } from './markup.ts';

export const galleryDirectory = path.resolve(import.meta.dirname, '../../gallery');

export const thumbnailDigestsFile = path.join(galleryDirectory, 'thumbnails.json');

export const filters = ['types', 'seasons', 'features', 'industries'] as const;

export type Category = { id: string; slug: string; name: string };

export type Categories = Record<(typeof filters)[number], Category[]>;

/** template.json: what the API tells of a template, but for its texts. Of the filters it holds slugs. */
export type TemplateFacts = Record<(typeof filters)[number], string[]> & {
  id: string;
  name: string;
  description: string;
  subject: string;
  preview_text: string;
  /** A sample value for every placeholder of the template. */
  variables: Record<string, string>;
  created_at: string;
  updated_at: string;
};

/** The slugs of all templates, in the order of the alphabet. */
export async function listTemplates(directory: string = galleryDirectory): Promise<string[]> {
  const entries = await readdir(directory, { withFileTypes: true });
  return entries
    .filter((entry) => entry.isDirectory())
    .map((entry) => entry.name)
    .sort();
}

export async function readTemplateFacts(slug: string): Promise<TemplateFacts> {
  const text = await readFile(path.join(galleryDirectory, slug, 'template.json'), 'utf8');
  return JSON.parse(text) as TemplateFacts; // The test of the gallery holds every file to its schema.
}

export async function readCategories(): Promise<Categories> {
  const text = await readFile(path.join(galleryDirectory, 'categories.json'), 'utf8');
  return JSON.parse(text) as Categories; // As above.
}

/** The HTML that `template.html` has to hold. Throws an error that names the template. */
export async function renderTemplate(slug: string): Promise<string> {
  const facts = await readTemplateFacts(slug);
  const markup = await readFile(path.join(galleryDirectory, slug, 'template.xml'), 'utf8');
  try {
    return renderLayout(parseMarkup(markup), facts.subject);
  } catch (error) {
    throw new Error(`gallery/${slug}/template.xml cannot be rendered`, { cause: error });
  }
}

/** Changes with everything that a thumbnail shows: the HTML and the samples in it. */
export function digestThumbnailSource(html: string, variables: TemplateFacts['variables']): string {
  return createHash('sha256').update(html).update(JSON.stringify(variables)).digest('hex');
}

/** Which HTML and samples each thumbnail was taken of, by slug. Empty before the first one. */
export async function readThumbnailDigests(): Promise<Record<string, string>> {
  const text = await readFile(thumbnailDigestsFile, 'utf8').catch(() => '{}');
  return JSON.parse(text) as Record<string, string>; // Written by tools/thumbnails.mjs only.
}
