import { toSearchKey } from '../platform/characters.ts';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';

/**
 * The gallery: templates that come with the product. They are files, a folder each, checked before every release
 * (docs/gallery.md), and the same for all organizations.
 */

/** A value of a filter. */
export type Category = { id: string; slug: string; name: string };

export const filterNames = ['types', 'seasons', 'features', 'industries'] as const;

export type FilterName = (typeof filterNames)[number];

export type GalleryTemplate = {
  id: string;
  /** The name of its folder. */
  slug: string;
  name: string;
  description: string;
  subject: string;
  previewText: string;
  html: string;
  text: string;
  /** The placeholders, each with a sample of what it may be replaced by. */
  variables: Readonly<Record<string, string>>;
  categories: Readonly<Record<FilterName, readonly Category[]>>;
  createdAt: string;
  updatedAt: string;
};

export type Gallery = {
  /** Newest first, which is the order of their ids. */
  templates: readonly GalleryTemplate[];
  categories: Readonly<Record<FilterName, readonly Category[]>>;
};

/** Returns a function that reads the gallery at its first call; after a failure, the next call tries again. */
export function openGallery(directory: string): () => Promise<Gallery> {
  let reading: Promise<Gallery> | undefined;
  return () => {
    reading ??= readGallery(directory).catch((cause: unknown) => {
      reading = undefined;
      throw cause;
    });
    return reading;
  };
}

async function readGallery(directory: string): Promise<Gallery> {
  const categories = (await readJson(path.join(directory, 'categories.json'))) as Gallery['categories'];
  const entries = await readdir(directory, { withFileTypes: true });
  const folders = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
  const templates = await Promise.all(folders.map((slug) => readTemplate(directory, slug, categories)));
  return { templates: templates.sort((a, b) => (a.id < b.id ? 1 : -1)), categories };
}

/** `template.json`, as the gallery's own check holds it to. */
type TemplateFile = {
  id: string;
  name: string;
  description: string;
  subject: string;
  preview_text: string;
  variables: Record<string, string>;
  created_at: string;
  updated_at: string;
} & Record<FilterName, readonly string[]>;

async function readTemplate(
  directory: string,
  slug: string,
  categories: Gallery['categories'],
): Promise<GalleryTemplate> {
  const folder = path.join(directory, slug);
  const [file, html, text] = await Promise.all([
    readJson(path.join(folder, 'template.json')) as Promise<TemplateFile>,
    readFile(path.join(folder, 'template.html'), 'utf8'),
    readFile(path.join(folder, 'template.txt'), 'utf8'),
  ]);
  const categoriesOf = (filter: FilterName) =>
    categories[filter].filter((category) => file[filter].includes(category.slug));
  return {
    id: file.id,
    slug,
    name: file.name,
    description: file.description,
    subject: file.subject,
    previewText: file.preview_text,
    html,
    text,
    variables: file.variables,
    categories: {
      types: categoriesOf('types'),
      seasons: categoriesOf('seasons'),
      features: categoriesOf('features'),
      industries: categoriesOf('industries'),
    },
    createdAt: file.created_at,
    updatedAt: file.updated_at,
  };
}

async function readJson(file: string): Promise<unknown> {
  return JSON.parse(await readFile(file, 'utf8'));
}

export type GalleryFilter = {
  /** Part of the name, ignoring case. */
  search?: string;
  /** Ids: within one filter any of them matches, and all filters must. */
  categories: Partial<Record<FilterName, readonly string[]>>;
};

export function matchesFilter(template: GalleryTemplate, filter: GalleryFilter): boolean {
  const { search, categories } = filter;
  return (
    (search === undefined || toSearchKey(template.name).includes(toSearchKey(search))) &&
    filterNames.every((name) => {
      const wanted = categories[name];
      return wanted === undefined || template.categories[name].some(({ id }) => wanted.includes(id));
    })
  );
}
