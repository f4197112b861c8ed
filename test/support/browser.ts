/** A real Chromium for tests, wherever the machine has one. */
import { accessSync, constants, statSync } from 'node:fs';
import path from 'node:path';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, describe } from 'vitest';

const usualPlaces = [
  '/usr/bin',
  '/usr/local/bin',
  '/snap/bin',
  '/opt/google/chrome',
  '/Applications/Google Chrome.app/Contents/MacOS',
  '/Applications/Chromium.app/Contents/MacOS',
  '/Applications/Firefox.app/Contents/MacOS',
];

const chromiumNames = [
  ...['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'],
  // On a Mac.
  ...['Google Chrome', 'Chromium'],
];

/** The executable that CHROMIUM_PATH names, or else the first of the usual ones; null where there is none. */
export function findChromium(environment: NodeJS.ProcessEnv = process.env): string | null {
  return findBrowser(environment, 'CHROMIUM_PATH', chromiumNames);
}

/** The executable that the variable names, or else the first with one of these names; null where there is none. */
export function findBrowser(
  environment: NodeJS.ProcessEnv,
  variable: string,
  names: readonly string[],
): string | null {
  const { [variable]: named, PATH: searched = '' } = environment;
  if (named !== undefined && named !== '') return isExecutable(named) ? named : null;
  const directories = [
    ...searched.split(path.delimiter).filter((directory) => directory !== ''),
    ...usualPlaces,
  ];
  const candidates = directories.flatMap((directory) => names.map((name) => path.join(directory, name)));
  return candidates.find(isExecutable) ?? null;
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return statSync(file).isFile();
  } catch {
    return false;
  }
}

/** So that Chromium makes no requests of its own, and runs as root in containers. */
const quietly = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** Of each wait for the page: Playwright's own half a minute takes a busy machine for a page that does not answer. */
const pageWaitMsMax = 300_000;

export async function launchChromium(executablePath: string): Promise<Browser> {
  const browser = await chromium.launch({ executablePath, args: quietly, timeout: pageWaitMsMax });
  browser.on('context', (context) => {
    context.setDefaultTimeout(pageWaitMsMax);
  });
  return browser;
}

/** Tests that need a browser; `getBrowser` is for their bodies. Without one they are skipped, with a message. */
export function describeInBrowser(name: string, defineTests: (getBrowser: () => Browser) => void): void {
  const executablePath = findChromium();
  if (executablePath === null) {
    console.log(`Skipped, because no Chromium was found (CHROMIUM_PATH can name one): ${name}`);
  }
  describe.skipIf(executablePath === null)(name, () => {
    let browser: Browser | null = null;
    beforeAll(async () => {
      browser = await launchChromium(executablePath ?? '');
    });
    afterAll(async () => {
      await browser?.close();
    });
    defineTests(() => {
      if (browser === null) throw new Error('the browser is there only while tests run');
      return browser;
    });
  });
}

/**
 * Makes of a page that a test has used one like new, for the next: a context and a page of its own cost each test 0.7 s
 * of processor time, this a tenth of that. A clock that was put into the page stays, and so does who listens to it:
 * tests that need another clock, or another kind of browser, open a page of their own.
 */
export async function wipePage(page: Page): Promise<void> {
  const context = page.context();
  for (const other of context.pages()) if (other !== page) await other.close();
  const session = await context.newCDPSession(page);
  const { origin } = new URL(page.url());
  // Of `about:blank`, which has nothing, the origin is null.
  if (origin !== 'null') {
    await session.send('DOMStorage.clear', { storageId: { securityOrigin: origin, isLocalStorage: false } });
    await session.send('Storage.clearDataForOrigin', { origin, storageTypes: 'all' });
  }
  await page.goto('about:blank');
  await page.unrouteAll({ behavior: 'wait' });
  await Promise.all([context.clearCookies(), context.clearPermissions()]);
  await session.send('Network.clearBrowserCache');
  await session.send('Page.resetNavigationHistory');
  await session.detach();
}
