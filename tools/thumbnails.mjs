// Takes the thumbnails of the gallery's templates in a Chromium, and notes in gallery/thumbnails.json what each of them
// shows. Takes only those that are missing or show something else by now; --all takes them all. Not part of
// `npm run generate`, because two browsers, or two machines with other fonts, never draw quite the same.
import { access, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { compileText, fillText } from '../src/channels/placeholders.ts';
import { findChromium, launchChromium } from '../test/support/browser.ts';
import * as gallery from './gallery/folder.ts';

/** Of the letter that is shown, and of the picture. */
const letter = { width: 640, height: 800 };
const thumbnail = { width: 480, height: 600 };

/** Less shows smears around the letters, more is over 40 kB for the busiest templates. */
const quality = 80;

const { values: options } = parseArgs({ options: { all: { type: 'boolean', default: false } } });
const executable = findChromium();
if (executable === null) throw new Error('No Chromium was found; CHROMIUM_PATH can name one.');

const taken = await gallery.readThumbnailDigests();
const digests = {};
const browser = await launchChromium(executable);
try {
  const tab = await browser.newPage({ viewport: letter, colorScheme: 'light', javaScriptEnabled: false });
  const easel = await browser.newPage({ viewport: thumbnail });
  const devtools = await easel.context().newCDPSession(easel);
  for (const slug of await gallery.listTemplates()) {
    const { variables } = await gallery.readTemplateFacts(slug);
    const html = await gallery.renderTemplate(slug);
    const file = path.join(gallery.galleryDirectory, slug, 'thumbnail.webp');
    digests[slug] = gallery.digestThumbnailSource(html, variables);
    if (!options.all && digests[slug] === taken[slug] && (await exists(file))) continue;
    await tab.setContent(fillText(compileText(html, 'html'), variables, Infinity));
    // Drawn smaller at once, the tiles of a mosaic would not end on whole pixels, and show seams.
    const picture = (await tab.screenshot()).toString('base64');
    const { width } = thumbnail;
    await easel.setContent(
      `<body style="margin:0"><img width="${width}" src="data:image/png;base64,${picture}">`,
    );
    const { data } = await devtools.send('Page.captureScreenshot', { format: 'webp', quality });
    await writeFile(file, Buffer.from(data, 'base64'));
    process.stdout.write(`${slug}: ${(await readFile(file)).length} bytes\n`);
  }
} finally {
  await browser.close();
}
await writeFile(gallery.thumbnailDigestsFile, `${JSON.stringify(digests, null, 2)}\n`);

async function exists(file) {
  return access(file).then(
    () => true,
    () => false,
  );
}
