import { LRUCache } from 'lru-cache';
import { type CompiledEmailText, compileEmailText, type EmailText } from '../channels/email/email.ts';
import { findForeignSyntax, type ForeignSyntax } from '../channels/foreign-syntax.ts';
import { createBatcher } from '../platform/batcher.ts';
import { isUuid } from '../platform/ids.ts';
import type { Database } from '../platform/postgres/database.ts';
import { toEmailText } from './rendering.ts';
import * as store from './store.ts';

/**
 * The email that a template makes, with a text wherever there can be one, and the version of the template that it was
 * made of. One that is kept in memory is `prepared`.
 */
export type EmailTemplate = { email: EmailText; prepared: PreparedTemplate | null; version: string };

/** The email, cut at its placeholders, and what is foreign in its bodies. */
export type PreparedTemplate = { compiled: CompiledEmailText; foreign: readonly ForeignSyntax[] };

/**
 * Templates that mail was made of lately, in memory. What is there may be out of date: another node may have
 * changed the template. So `recall` is for those alone who have PostgreSQL compare the version before anything comes of
 * it (`isTemplateUnchanged`), and who else `read` it anew.
 */
export type TemplateCache = {
  /** As it was when it was last read; null for one that is not in memory. */
  recall: (template: store.TemplateKey) => EmailTemplate | null;
  /** As it is now, from the database. Null for an id that is none, or unknown, or another organization's. */
  read: (template: store.TemplateKey) => Promise<EmailTemplate | null>;
};

/** Larger holds more in memory, smaller reads more often where many templates are in use at once. */
const cacheBytesMax = 16 * 1_048_576;
/** Larger ones would push many others out, and cost much more than their reading. */
const templateBytesMax = 262_144;
/** Node.js keeps a character in two octets at most; of keys and objects there are a few hundred. */
const bytesPerCharacter = 2;
const bytesBeside = 500;
/** A placeholder, and the object of the text in front of it. */
const bytesPerPlaceholder = 300;

/**
 * Templates that are read in one transaction, and transactions at once. Larger holds more in memory, since a template may
 * have megabytes; smaller takes more transactions when many find theirs changed.
 */
const readItemsMax = 20;
const readsMax = 2;

export function createTemplateCache(database: Database): TemplateCache {
  // Whoever asks gets what is read after that, never what another has begun to read before.
  const reads = createBatcher<store.TemplateKey, store.VersionedContent | null>({
    itemsMax: readItemsMax,
    concurrency: readsMax,
    run: (templates) => loadContents(database, templates),
  });
  const cache = new LRUCache<string, EmailTemplate>({
    maxSize: cacheBytesMax,
    maxEntrySize: templateBytesMax,
    sizeCalculation: ({ email }) => sizeOf(email),
  });
  return {
    recall: (template) => cache.get(keyOf(template)) ?? null,
    read: async (template) => {
      const content = isUuid(template.id) ? await reads.add(template) : null;
      if (content === null) {
        cache.delete(keyOf(template));
        return null;
      }
      const email = toEmailText(content);
      const prepared = sizeOf(email) <= templateBytesMax ? prepare(email) : null;
      const read = { email, prepared, version: content.version };
      cache.set(keyOf(template), read);
      return read;
    },
  };
}

function prepare(email: EmailText): PreparedTemplate {
  return { compiled: compileEmailText(email), foreign: findForeignSyntax([email.html, email.text]) };
}

/** Of an email that is prepared, in octets; rather too much, as not all braces are placeholders. */
function sizeOf({ subject, html, text }: EmailText): number {
  return [subject, html, text].reduce(
    (sum, part) =>
      sum + bytesPerCharacter * (part?.length ?? 0) + bytesPerPlaceholder * countBraces(part ?? ''),
    bytesBeside,
  );
}

function countBraces(text: string): number {
  let count = 0;
  for (let at = text.indexOf('{{'); at !== -1; at = text.indexOf('{{', at + 2)) count += 1;
  return count;
}

/** Ids count in any case; PostgreSQL and this both go by lower case. */
function keyOf({ organizationId, id }: store.TemplateKey): string {
  return `${organizationId} ${id.toLowerCase()}`;
}

/** As it is stored now. Null as in `read`. */
export async function loadContent(
  database: Database,
  template: store.TemplateKey,
): Promise<store.TemplateContent | null> {
  if (!isUuid(template.id)) return null;
  const [content = null] = await loadContents(database, [template]);
  return content;
}

/** Each template once, however many ask for it. */
async function loadContents(
  database: Database,
  wanted: readonly store.TemplateKey[],
): Promise<(store.VersionedContent | null)[]> {
  const templates = [...new Map(wanted.map((template) => [keyOf(template), template])).values()];
  const organizationIds = [...new Set(templates.map(({ organizationId }) => organizationId))];
  const [rows] = await database.together(organizationIds, [store.findContents(templates)]);
  const contents = new Map(rows.map((row) => [keyOf(store.keyOfContent(row)), store.contentOf(row)]));
  return wanted.map((template) => contents.get(keyOf(template)) ?? null);
}
