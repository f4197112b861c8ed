/**
 * The two minutes in which a person tries a push out: they start the program, open the page, and click. The program is
 * the built one, with the provider `direct`; Firefox is real; only its push service is of the tests.
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { DatabaseAddress } from '../../src/platform/postgres/database.ts';
import type { PushRecord } from '../../src/push/schema.ts';
import { type Autopush, startAutopush } from '../support/autopush.ts';
import { certificateForTests } from '../support/certificate-for-tests.ts';
import { eventually } from '../support/email-journey.ts';
import { type Firefox, findFirefox, launchFirefox } from '../support/firefox.ts';
import { servedUrl, usePrograms } from '../support/programs.ts';
import { databaseUrlOf, useTestDatabase } from '../support/test-database.ts';

const executablePath = findFirefox();
if (executablePath === null) {
  console.log('Skipped, because no Firefox was found (FIREFOX_PATH can name one): a push that is tried out');
}

/** As at a person's terminal, where the first key is shown. */
const asTerminal = ['--import', 'data:text/javascript,process.stdout.isTTY=true'];

describe.skipIf(executablePath === null)('a push that is tried out', () => {
  let address: DatabaseAddress;
  let directory: string;
  let autopush: Autopush;
  let firefox: Firefox | undefined;

  useTestDatabase({}, (opened) => {
    address = opened.address;
  });
  beforeAll(async () => {
    directory = await mkdtemp(path.join(os.tmpdir(), 'postillion-trial-'));
    await writeFile(path.join(directory, 'authorities.pem'), certificateForTests);
    autopush = await startAutopush();
  });
  afterAll(async () => {
    await autopush.stop();
    await rm(directory, { recursive: true });
  });
  const programs = usePrograms();
  afterEach(async () => firefox?.stop());

  /** Starts the program as the README says, and a browser whose person has allowed notifications of its page. */
  const start = async () => {
    const { untilSaid } = programs.start(
      {
        DATABASE_URL: databaseUrlOf(address),
        POSTILLION_SECRET: 'a secret of the tests, and of nothing else',
        PORT: '0',
        POSTILLION_PUSH_PROVIDER: 'direct',
        POSTILLION_WEB_PUSH_HOSTS: autopush.endpointHost,
        NODE_EXTRA_CA_CERTS: path.join(directory, 'authorities.pem'),
      },
      ['serve'],
      { nodeOptions: asTerminal },
    );
    const url = (await untilSaid('output', servedUrl))?.[1] ?? '';
    // There is no public URL, as in any trial.
    expect(await untilSaid('errors', /Safari gets no pushes/)).not.toBeNull();
    const key = (await untilSaid('output', /API key: +(\S+)/))?.[1] ?? '';
    const browser = await launchFirefox({
      executablePath: executablePath ?? '',
      pushUrl: autopush.url,
      origins: [url],
    });
    firefox = browser;
    await autopush.greeted;
    const ask = async <Body>(method: string, place: string, body?: unknown): Promise<Body> => {
      const response = await fetch(`${url}/v1${place}`, {
        method,
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      return (await response.json()) as Body;
    };
    const untilPage = (selector: string, text: string) =>
      browser.run<true>(
        `return new Promise((resolve) => {
          const look = () => {
            const element = document.querySelector(arguments[0]);
            if (element !== null && element.textContent.includes(arguments[1])) resolve(true);
            else setTimeout(look, 20);
          };
          look();
        });`,
        selector,
        text,
      );
    return { url, ask, browser, untilPage };
  };

  test('it reaches the browser, is shown and clicked, and both the API and the page tell of it', async () => {
    const { url, ask, browser, untilPage } = await start();
    await browser.open(`${url}/sandbox/push`);
    await untilPage('#browser-state', 'not registered yet');
    expect(await browser.run('return document.querySelector("#notice").hidden')).toBe(true);
    await browser.click('#enable');
    await untilPage('#browser-state', 'This browser is registered');

    const sent = await ask<{ id: string }>('POST', '/push/send', {
      external_id: 'postillion-sandbox',
      title: 'By the API',
      body: 'Grüße 📦',
      deep_link: `${url}/sandbox/push`,
      priority: 'high',
    });
    expect(await browser.untilShown('By the API')).toBe('Grüße 📦');
    expect(autopush.posted.map(({ headers }) => headers)).toMatchObject([
      { topic: sent.id.replaceAll('-', ''), urgency: 'high', 'content-encoding': 'aes128gcm' },
    ]);
    await browser.clickNotification('By the API');
    const read = () => ask<PushRecord>('GET', `/push/${sent.id}`);
    const clicked = await eventually(read, ({ devices }) => devices[0]?.status === 'clicked');
    expect(clicked).toMatchObject({
      status: 'sent',
      devices: [{ platform: 'web', status: 'clicked', error: null, uncertain: false, action_id: null }],
    });

    await browser.click('#send');
    await browser.untilShown('It works');
    await untilPage('#push-state', 'was taken by the push service');
    await browser.clickNotification('It works', 'wave');
    await untilPage('#devices tbody tr', 'clicked');
    await untilPage('#devices tbody tr', 'wave');
  });
});
