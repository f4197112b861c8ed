import { access, readdir, readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import { Parser } from 'htmlparser2';
import type { Page } from 'playwright-core';
import Type from 'typebox';
import Value from 'typebox/value';
import { describe, expect, test } from 'vitest';
import { compileText, escapeHtml, fillText, listPlaceholders } from '../../src/channels/placeholders.ts';
import { describeInBrowser } from '../../test/support/browser.ts';
import {
  digestThumbnailSource,
  filters,
  galleryDirectory,
  listTemplates,
  readCategories,
  readTemplateFacts,
  readThumbnailDigests,
  renderTemplate,
  type TemplateFacts,
} from './folder.ts';

const slugPattern = /^[a-z0-9]+(-[a-z0-9]+)*$/;
const uuidPattern = '^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$';

/** Gmail cuts a longer letter off, and with it the way to unsubscribe. */
const htmlBytesMax = 102_000;
/** RFC 5322, section 2.1.1, without the CRLF. */
const lineBytesMax = 998;
/** Gmail throws away what is longer. */
const sheetLengthMax = 8192;
const thumbnailBytesMax = 40_000;
/** WCAG 2.2, 1.4.3, for text of any size. */
const contrastMin = 4.5;
const fontPxMin = 14;
const buttonPxMin = 44;
const valuesMax = 100_000;

const slugs = await listTemplates();
const categories = await readCategories();

const factsSchema = Type.Object(
  {
    id: Type.String({ pattern: uuidPattern }),
    name: Type.String({ minLength: 1, maxLength: 100 }),
    description: Type.String({ minLength: 20, maxLength: 200 }),
    subject: Type.String({ minLength: 1, maxLength: 120 }),
    preview_text: Type.String({ minLength: 1, maxLength: 150 }),
    types: Type.Array(Type.String(), { minItems: 1, uniqueItems: true }),
    seasons: Type.Array(Type.String(), { minItems: 1, uniqueItems: true }),
    features: Type.Array(Type.String(), { minItems: 1, uniqueItems: true }),
    industries: Type.Array(Type.String(), { minItems: 1, uniqueItems: true }),
    variables: Type.Record(Type.String({ pattern: '^[a-z][a-z0-9_]*$' }), Type.String({ minLength: 1 })),
    created_at: Type.String({ pattern: String.raw`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$` }),
    updated_at: Type.String({ pattern: String.raw`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$` }),
  },
  { additionalProperties: false },
);

type Template = { facts: TemplateFacts; html: string; text: string };

async function readTemplate(slug: string): Promise<Template> {
  const [facts, html, text] = await Promise.all([
    readTemplateFacts(slug),
    readFile(path.join(galleryDirectory, slug, 'template.html'), 'utf8'),
    readFile(path.join(galleryDirectory, slug, 'template.txt'), 'utf8'),
  ]);
  return { facts, html, text };
}

type Tag = { name: string; attributes: Record<string, string> };

/** The tags that a client sees which is not classic Outlook: what stands in conditional comments is not among them. */
function listTags(html: string): Tag[] {
  const tags: Tag[] = [];
  const parser = new Parser({ onopentag: (name, attributes) => tags.push({ name, attributes }) });
  parser.end(html);
  return tags;
}

function namesIn(...texts: string[]): string[] {
  return listPlaceholders(texts, Number.POSITIVE_INFINITY).sort();
}

function fillWithSamples(text: string, facts: TemplateFacts, form: 'html' | 'text'): string {
  return fillText(compileText(text, form), facts.variables, valuesMax)!;
}

test('there are at least 24 templates, each in a folder with all of its files', async () => {
  expect(slugs.length).toBeGreaterThanOrEqual(24);
  for (const slug of slugs) {
    expect(slug).toMatch(slugPattern);
    expect((await readdir(path.join(galleryDirectory, slug))).sort()).toEqual([
      'template.html',
      'template.json',
      'template.txt',
      'template.xml',
      'thumbnail.webp',
    ]);
  }
});

test('no two things in the gallery have the same id, and no two templates the same name or subject', async () => {
  const templates = await Promise.all(slugs.map(readTemplateFacts));
  const values = filters.flatMap((filter) => categories[filter]);
  const ids = [...templates, ...values].map(({ id }) => id);
  for (const id of ids) expect(id).toMatch(new RegExp(uuidPattern));
  for (const distinct of [ids, templates.map(({ name }) => name), templates.map(({ subject }) => subject)]) {
    expect(new Set(distinct).size).toBe(distinct.length);
  }
});

test.each(filters)('every value of the filter "%s" is used, and no other one', async (filter) => {
  const templates = await Promise.all(slugs.map(readTemplateFacts));
  const used = [...new Set(templates.flatMap((template) => template[filter]))].sort();
  expect(used).toEqual(categories[filter].map(({ slug }) => slug).sort());
  for (const { slug, name } of categories[filter]) {
    expect(slug).toMatch(slugPattern);
    expect(name).not.toBe('');
  }
});

describe.each(slugs)('the template %s', (slug) => {
  test('has facts of the right shape', async () => {
    const { facts } = await readTemplate(slug);
    expect([...Value.Errors(factsSchema, facts)]).toEqual([]);
    expect(facts.updated_at >= facts.created_at).toBe(true);
  });

  test('has the HTML that its source makes', async () => {
    expect((await readTemplate(slug)).html).toBe(await renderTemplate(slug));
  });

  test('fits into mail servers and into Gmail', async () => {
    const { html, text } = await readTemplate(slug);
    expect(Buffer.byteLength(html)).toBeLessThan(htmlBytesMax);
    const longest = Math.max(
      ...[html, text].flatMap((part) => part.split('\n').map((line) => Buffer.byteLength(line))),
    );
    expect(longest).toBeLessThan(lineBytesMax);
    for (const [sheet] of html.matchAll(/<style>.*?<\/style>/gs))
      expect(sheet.length).toBeLessThan(sheetLengthMax);
  });

  test('declares its placeholders, and uses what it declares in the HTML and in the text', async () => {
    const { facts, html, text } = await readTemplate(slug);
    const declared = Object.keys(facts.variables).sort();
    expect(namesIn(html)).toEqual(declared);
    expect(namesIn(text)).toEqual(declared);
    expect(declared).toEqual(expect.arrayContaining(namesIn(facts.subject, facts.preview_text)));
  });

  test('leaves no placeholder and no brace once the samples are filled in', async () => {
    const { facts, html, text } = await readTemplate(slug);
    const [, body] = fillWithSamples(html, facts, 'html').split('</head>');
    expect(body).not.toMatch(/[{}]/);
    for (const part of [text, facts.subject, facts.preview_text]) {
      expect(fillWithSamples(part, facts, 'text')).not.toMatch(/[{}]/);
    }
  });

  test('fetches nothing, runs nothing and asks for nothing', async () => {
    const { html } = await readTemplate(slug);
    const tags = listTags(html);
    const forbidden = [
      'script',
      'form',
      'input',
      'link',
      'iframe',
      'object',
      'embed',
      'video',
      'audio',
      'base',
      'svg',
    ];
    expect(tags.filter(({ name }) => forbidden.includes(name))).toEqual([]);
    expect(html).not.toMatch(/@import|@font-face|url\(|expression\(|javascript:|data:/i);
    for (const { attributes } of tags) {
      expect(attributes.src).toBeUndefined();
      expect(attributes.background).toBeUndefined();
      expect(Object.keys(attributes).filter((attribute) => attribute.startsWith('on'))).toEqual([]);
    }
    const addresses = tags.filter(({ name }) => name === 'a').map(({ attributes }) => attributes.href);
    for (const address of addresses) expect(address).toMatch(/^\{\{[a-z0-9_]+\}\}[?a-z0-9=&_]*$/);
  });

  // rspamd's URI_COUNT_ODD costs a point, and counts each mention of an address in all parts of a mail.
  test('has an even number of links in HTML and text together', async () => {
    const { html, text } = await readTemplate(slug);
    const links = listTags(html).filter(({ attributes }) => attributes.href !== undefined);
    const written = text.match(/\{\{[a-z0-9_]+_url\}\}/g) ?? [];
    expect([links.length, written.length, (links.length + written.length) % 2]).toEqual([
      expect.any(Number),
      expect.any(Number),
      0,
    ]);
  });

  test('can be read aloud: language, title, what is layout and what is not, alternatives to images', async () => {
    const { html, facts } = await readTemplate(slug);
    const tags = listTags(html);
    expect(tags.find(({ name }) => name === 'html')?.attributes.lang).toBe('en');
    expect(html).toContain(`<title>${facts.subject}</title>`);
    for (const { attributes } of tags.filter(({ name }) => name === 'img'))
      expect(attributes.alt).toBeDefined();
    const tables = tags.filter(
      ({ name, attributes }) => name === 'table' && attributes.role !== 'presentation',
    );
    const headers = tags.filter(({ name, attributes }) => name === 'th' && attributes.scope === 'row');
    expect(tables.length).toBeLessThanOrEqual(headers.length);
    expect(tags.filter(({ name }) => name === 'h1')).toHaveLength(1);
    // A label counts as content, which has to be in a landmark (axe: region).
    const roles = tags
      .flatMap(({ attributes: { role } }) => role ?? [])
      .filter((role) => role !== 'presentation');
    expect(roles).toEqual(['main', 'article']);
    const levels = tags.flatMap(({ name }) => (/^h[1-6]$/.test(name) ? [Number(name[1])] : []));
    for (const [index, level] of levels.entries())
      expect(level).toBeLessThanOrEqual((levels[index - 1] ?? 0) + 1);
  });

  test('hides nothing in a font of no size, and has a subject that filters do not hold against it', async () => {
    const { html, facts } = await readTemplate(slug);
    expect(html).not.toMatch(/font-size:\s*0/);
    expect(fillWithSamples(facts.subject, facts, 'text')).not.toMatch(/\p{Sc}|\?\s*$|!/u);
  });

  test('leaves the preview text to whoever sends it, and has dark colours and a background for each of its buttons', async () => {
    const { html, facts } = await readTemplate(slug);
    expect(html).toContain('<meta name="color-scheme" content="light dark">');
    // It is put in when an email is sent, so that a copy's own counts.
    expect(html).not.toContain(facts.preview_text);
    const dark = /prefers-color-scheme:dark\)\{\n(.*?)\n\}/s.exec(html)?.[1]?.split('\n') ?? [];
    expect(dark.length).toBeGreaterThan(3);
    for (const rule of dark) {
      expect(['[data-ogsb]', '[data-ogsc]'].some((mark) => html.includes(`${mark} ${rule}`))).toBe(true);
    }
    for (const { attributes } of listTags(html)) {
      const painted = attributes.class?.split(' ').filter((name) => /^(text|fill|line)-/.test(name)) ?? [];
      for (const name of painted) expect(dark.some((rule) => rule.startsWith(`.${name}{`))).toBe(true);
      const colors = attributes.style?.match(/(?<![-a-z])(background-)?color:#/g) ?? [];
      expect(painted.length).toBeGreaterThanOrEqual(colors.length);
    }
    for (const [, cell] of html.matchAll(/<td([^>]*)>\n<a [^>]*class="button/g)) {
      expect(cell).toMatch(/mso-padding-alt:.*background-color:#/);
    }
  });

  test('that is a campaign names the sender, the postal address and the way out', async () => {
    const { facts, html } = await readTemplate(slug);
    const campaigns = ['newsletter', 'promotion', 'announcement', 'greeting', 're-engagement', 'fundraising'];
    if (!facts.types.some((type) => campaigns.includes(type))) return;
    for (const name of ['company_name', 'company_address', 'unsubscribe_url'])
      expect(namesIn(html)).toContain(name);
  });

  test('has a thumbnail of what it looks like now', async () => {
    const { facts, html } = await readTemplate(slug);
    const file = path.join(galleryDirectory, slug, 'thumbnail.webp');
    await access(file);
    expect((await stat(file)).size).toBeLessThanOrEqual(thumbnailBytesMax);
    // Otherwise: npm run generate:thumbnails.
    expect((await readThumbnailDigests())[slug]).toBe(digestThumbnailSource(html, facts.variables));
  });
});

/** From the narrowest phone to a reading pane that is wider than the letter. */
const widths = [320, 375, 640];

/** Every letter at every width beside each other: a window of its own for each of them would take four times as long. */
function showAll(letters: { slug: string; html: string }[]): string {
  const frames = letters.flatMap(({ slug, html }) =>
    widths.map(
      (width) =>
        `<iframe title="${slug}, ${width} px" width="${width}" height="800" srcdoc="${escapeHtml(html)}"></iframe>`,
    ),
  );
  return `<!doctype html><style>:root{color-scheme:light dark} iframe{border:0}</style>${frames.join('')}`;
}

/** What is wrong with the letters as they are shown: one sentence each. */
async function findFaults(page: Page, colorScheme: 'light' | 'dark'): Promise<string[]> {
  await page.emulateMedia({ colorScheme });
  // As a text, because the helpers of whatever compiles this file are not there in the page.
  return page.evaluate(`[...document.querySelectorAll('iframe')].flatMap((frame) =>
    (${describeFaults})(frame.contentWindow, '${colorScheme}').map((fault) => frame.title + ', ${colorScheme}: ' + fault),
  )`);
}

const describeFaults = String.raw`({ document, getComputedStyle, matchMedia, NodeFilter }, colorScheme) => {
  const faults = [];
  if (!matchMedia('(prefers-color-scheme: ' + colorScheme + ')').matches) faults.push('the colours are other ones');
  const rgba = (color) => {
    const numbers = color.match(/[\d.]+/g).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers[3] ?? 1 };
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const { rgb, alpha } = rgba(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return rgb;
      if (alpha !== 0) throw new Error('a background is translucent');
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    const words = node.nodeValue.trim();
    const element = node.parentElement;
    if (words === '' || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const [light, dark] = [luminance(rgba(style.color).rgb), luminance(groundOf(element))].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < ${contrastMin}) faults.push('"' + words.slice(0, 40) + '" has a contrast of ' + contrast.toFixed(2));
    if (parseFloat(style.fontSize) < ${fontPxMin}) faults.push('"' + words.slice(0, 40) + '" is set in ' + style.fontSize);
  }
  for (const button of document.querySelectorAll('a.button')) {
    const { width, height } = button.getBoundingClientRect();
    if (Math.min(width, height) < ${buttonPxMin}) faults.push('a button is only ' + width + ' by ' + height);
  }
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) faults.push('it is ' + scrollWidth + ' wide where ' + clientWidth + ' are to be had');
  return faults;
}`;

describeInBrowser('in a browser', (getBrowser) => {
  test('every template is legible in light and dark, and never scrolls sideways', async () => {
    const letters = await Promise.all(
      slugs.map(async (slug) => {
        const { facts, html } = await readTemplate(slug);
        return { slug, html: fillWithSamples(html, facts, 'html') };
      }),
    );
    const page = await getBrowser().newPage();
    const fetched: string[] = [];
    await page.route('**', (route) => {
      fetched.push(route.request().url());
      return route.abort();
    });
    await page.setContent(showAll(letters));
    const faults = [...(await findFaults(page, 'light')), ...(await findFaults(page, 'dark'))];
    await page.close();
    expect(faults).toEqual([]);
    expect(fetched).toEqual([]);
  });
});
