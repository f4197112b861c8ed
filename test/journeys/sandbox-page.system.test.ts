/** The sandbox page as a developer uses it, and as a hostile message would like to use it. */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import http from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Browser, BrowserContextOptions, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { unpreparedStatement } from '../../src/platform/postgres/database.ts';
import { type KeptMessage, keepMessage, sandboxToken } from '../../src/sandbox/sandbox.ts';
import { describeInBrowser, wipePage } from '../support/browser.ts';
import { eventually } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

const phone = { width: 390, height: 844 };

describeInBrowser('the sandbox page', (getBrowser) => {
  let server: TestServer;
  let sharedPage: Page;
  /** The one that the tests share, unless a test has opened one of its own. */
  let page: Page;
  const troubles: string[] = [];

  beforeAll(async () => {
    server = await startTestServer({ worker: true });
    sharedPage = await openPage(getBrowser(), troubles);
  });

  afterAll(() => server.stop());

  beforeEach(async () => {
    await server.installation.database.rows(unpreparedStatement('truncate sandbox_messages'));
    troubles.length = 0;
    page = sharedPage;
  });

  afterEach(async () => {
    if (page === sharedPage) await wipePage(page);
    else await page.context().close();
    expect(troubles).toEqual([]);
  });

  const open = () => page.goto(`${server.url}/sandbox`);

  const keep = (source: string, message: Partial<KeptMessage> = {}) =>
    keepMessage(server.installation, {
      organizationId: server.organizationId,
      channel: 'email',
      messageId: server.installation.newId(),
      ordinal: 0,
      recipient: 'ada@example.com',
      sender: 'bounce@postillion.test',
      outcome: 'delivered',
      source: Buffer.from(source.replaceAll('\n', '\r\n')),
      ...message,
    });

  test('says how to begin, and shows the first email by itself when it has come', async () => {
    await open();
    await page.getByRole('heading', { name: 'Nothing was sent yet' }).waitFor();
    expect(await page.locator('#first-email').textContent()).toContain(`${server.url}/v1/email/send`);

    const sent = await server.request('POST', '/v1/email/send', {
      from: 'shop@postillion.test',
      from_name: 'Shop',
      to: ['ada@example.com'],
      subject: 'Grüße & <more>',
      html: '<h1>It works</h1><img src="cid:dot" width="20" height="20">',
      text: 'It works: https://example.com/x.',
      attachments: [
        { filename: 'dot.gif', content: transparentGif, content_type: 'image/gif', content_id: 'dot' },
        { filename: 'terms.txt', content: Buffer.from('Be kind.').toString('base64') },
      ],
    });
    expect(sent).toMatchObject({ status: 202 });

    const entry = page.locator('#messages a');
    await entry.waitFor();
    expect(await entry.innerText()).toMatch(
      /^ada@example\.com\n.*\nGrüße & <more>\nfrom shop@postillion\.test\nemail\ndelivered$/s,
    );
    await entry.click();
    await page.getByRole('heading', { name: 'Grüße & <more>' }).waitFor();

    const frame = page.frameLocator('iframe');
    expect(await frame.locator('h1').innerText()).toBe('It works');
    const width = await frame
      .locator('img')
      .evaluate((image) => Reflect.get(image as object, 'naturalWidth') as number);
    expect(width).toBe(1);

    await page.getByRole('tab', { name: 'Text' }).click();
    expect(await page.locator('.paper').innerText()).toContain('It works: https://example.com/x.');
    expect(await page.locator('.paper a').getAttribute('href')).toBe('https://example.com/x');

    await page.getByRole('tab', { name: 'Headers' }).click();
    await page.getByRole('row', { name: 'From Shop <shop@postillion.test>' }).waitFor();

    await page.getByRole('tab', { name: 'Source' }).click();
    await page.getByText('MIME-Version: 1.0').waitFor();

    await page.getByRole('tab', { name: 'Attachments' }).click();
    expect(await page.locator('.attachments li').allInnerTexts()).toEqual([
      expect.stringContaining('dot.gif'),
      expect.stringContaining('terms.txt'),
    ]);
  });

  test('opens by the link with its token, and keeps the token out of the address', async () => {
    const guarded = await startTestServer({ sandboxAccess: 'token' });
    try {
      await keepMessage(guarded.installation, {
        organizationId: guarded.organizationId,
        channel: 'email',
        messageId: guarded.installation.newId(),
        ordinal: 0,
        recipient: 'ada@example.com',
        sender: 'bounce@postillion.test',
        outcome: 'delivered',
        source: Buffer.from('Subject: Guarded\r\nContent-Type: text/html\r\n\r\n<h1>Hello</h1>\r\n'),
      });
      await page.goto(`${guarded.url}/sandbox?token=${sandboxToken(guarded.installation.secrets)}`);
      await page.frameLocator('iframe').getByRole('heading', { name: 'Hello' }).waitFor();
      expect(page.url()).toMatch(new RegExp(`^${guarded.url}/sandbox#`));
      expect(await page.evaluate('document.cookie')).toBe('');
      await page.reload();
      await page.frameLocator('iframe').getByRole('heading', { name: 'Hello' }).waitFor();
    } finally {
      await guarded.stop();
    }
  });

  test('finds by recipient and by channel, and goes back in time', async () => {
    for (let count = 1; count <= 40; count += 1) {
      await keep(`Subject: Mail ${count}\n\nHello`, { recipient: `user-${count}@example.com` });
    }
    await keep('Code 1234', { channel: 'sms', recipient: '+15550100' });
    await open();
    const entries = page.locator('#messages a');
    await entries.nth(29).waitFor();
    expect(await entries.count()).toBe(30);
    await page.getByRole('button', { name: 'Older messages' }).click();
    await entries.nth(40).waitFor();
    expect(await entries.count()).toBe(41);
    expect(await entries.nth(40).innerText()).toContain('Mail 1\n');
    expect(await page.getByRole('button', { name: 'Older messages' }).isVisible()).toBe(false);

    await page.getByLabel('Search recipients, subjects and texts').fill('USER-40@');
    await page.locator('#messages:not(:has(li + li)) a').waitFor();
    expect(await entries.innerText()).toContain('Mail 40');
    await page.getByLabel('Search recipients, subjects and texts').fill('nobody');
    await page.getByText('No message matches.').waitFor();
    await page.getByLabel('Search recipients, subjects and texts').fill('');
    await page.getByLabel('Channel').selectOption('sms');
    await page.locator('#messages:not(:has(li + li)) a').waitFor();
    expect(await entries.innerText()).toContain('Code 1234');
  });

  test('shows the whole envelope, and gives attachments to look at and to save', async () => {
    const sent = await server.request('POST', '/v1/email/send', {
      from: 'shop@postillion.test',
      from_name: 'Shop',
      to: ['ada@example.com'],
      cc: ['cy@example.com'],
      bcc: ['dora@example.com'],
      reply_to: 'help@postillion.test',
      subject: 'Your order',
      html: '<a href="https://example.com/">Look</a>',
      attachments: [
        { filename: 'dot.gif', content: transparentGif, content_type: 'image/gif' },
        {
          filename: 'page.html',
          content: Buffer.from('<script>document.title="hacked"</script>').toString('base64'),
        },
        { filename: 'sheet.xlsx', content: Buffer.from('sheet').toString('base64') },
      ],
    });
    expect(sent).toMatchObject({ status: 202 });
    await open();
    const blind = page.locator('#messages a', { hasText: 'dora@example.com' });
    await blind.click();
    await page.locator('#envelope', { hasText: 'Delivered todora@example.com' }).waitFor();
    expect(await page.locator('#envelope').innerText()).toMatch(
      /Delivered to\n+dora@example\.com\n+From\n+Shop <shop@postillion\.test>\n+To\n+ada@example\.com\n+Cc\n+cy@example\.com\n+Bcc\n+dora@example\.com\n+Reply to\n+help@postillion\.test\n+Return path\n+\S+@\S+/,
    );

    await page.getByRole('tab', { name: 'Attachments' }).click();
    const [picture] = await Promise.all([
      page.context().waitForEvent('page'),
      page.getByRole('link', { name: 'Open dot.gif' }).click(),
    ]);
    await picture.locator('img').waitFor();
    await picture.close();
    const [text] = await Promise.all([
      page.context().waitForEvent('page'),
      page.getByRole('link', { name: 'Open page.html' }).click(),
    ]);
    await text.getByText('<script>').waitFor();
    expect(await text.title()).not.toBe('hacked');
    await text.close();
    expect(await page.getByRole('link', { name: 'Open sheet.xlsx' }).count()).toBe(0);
    const [saved] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('link', { name: 'Save sheet.xlsx' }).click(),
    ]);
    expect(saved.suggestedFilename()).toBe('sheet.xlsx');
    expect(await readFile(await saved.path(), 'utf8')).toBe('sheet');
  });

  test('deletes one message, or all that match, by a second click', async () => {
    for (const name of ['One', 'Two', 'Three']) await keep(`Subject: ${name}\n\nHello`);
    await keep('Code 1234', { channel: 'sms', recipient: '+15550100' });
    await open();
    const entries = page.locator('#messages a');
    await entries.nth(3).waitFor();
    await page.locator('#messages a', { hasText: 'Two' }).click();
    await page.getByRole('heading', { name: 'Two' }).waitFor();
    await page.getByRole('button', { name: 'Delete', exact: true }).click();
    await page.getByRole('button', { name: 'Delete? Click again' }).click();
    await page.getByText('Deleted').waitFor();
    await page.locator('#messages:not(:has(li:nth-child(4)))').waitFor();
    expect((await entries.allInnerTexts()).join()).not.toContain('Two');

    await page.getByLabel('Channel').selectOption('email');
    await page.getByRole('button', { name: 'Delete all that match' }).click();
    await page.getByRole('button', { name: 'Delete all that match? Click again' }).click();
    await page.getByText('2 messages deleted').waitFor();
    await page.getByLabel('Channel').selectOption('');
    await page.locator('#messages a', { hasText: 'Code 1234' }).waitFor();
    await page.locator('#messages:not(:has(li:nth-child(2)))').waitFor();
  });

  test('shows of a text the message and its source, and no tabs of email', async () => {
    await keep('Subject: Mail\n\nHello');
    await keep('Code 1234', { channel: 'sms', recipient: '+15550100', sender: 'Shop' });
    await open();
    await page.getByRole('heading', { name: 'SMS' }).waitFor();
    expect(await page.getByRole('tab').allInnerTexts()).toEqual(['Message', 'Source']);
    expect(await page.locator('.paper').innerText()).toBe('Code 1234');
    await page.getByRole('tab', { name: 'Message' }).focus();
    await page.keyboard.press('ArrowLeft');
    expect(await page.getByRole('tab', { name: 'Source' }).getAttribute('aria-selected')).toBe('true');
  });

  test('shows a message of a chat app as its reader sees it, and only what it says', async () => {
    const hostile = '<img src=x onerror=alert(1)>';
    const bubble = {
      header: `Order ${hostile}`,
      body: 'Hello Ana,\nsee https://example.com/a.',
      footer: 'Reply STOP to stop.',
      buttons: [
        { type: 'quick_reply', text: 'Stop' },
        { type: 'url', text: 'Track', url: 'https://example.com/t/1' },
        { type: 'url', text: 'Evil', url: 'javascript:alert(1)' },
        { type: 'copy_code', text: 'Copy code', code: '482913' },
      ],
    };
    const sent = { channel: 'chatapp', recipient: '+15550100', sender: 'order_shipped en_US' } as const;
    for (const source of [
      '{"body": 7}',
      'no JSON',
      JSON.stringify({ body: 'Plain' }),
      JSON.stringify(bubble),
    ])
      await keep(source, sent);
    await open();
    await page.getByRole('heading', { name: 'Chat app' }).waitFor();
    const titles = await page.locator('#messages .subject').allInnerTexts();
    expect(titles).toEqual(['Hello Ana, see https://example.com/a.', 'Plain', 'no JSON', '{"body": 7}']);
    const chat = page.locator('.chat');
    expect(await chat.locator('strong').innerText()).toBe(`Order ${hostile}`);
    expect(await chat.locator('p').innerText()).toBe('Hello Ana,\nsee https://example.com/a.');
    expect(await chat.locator('small').innerText()).toBe('Reply STOP to stop.');
    expect(await chat.locator('li').allInnerTexts()).toEqual(['Stop', 'Track', 'Evil', 'Copy code']);
    const links = await chat.locator('a').all();
    expect(await Promise.all(links.map((link) => link.getAttribute('href')))).toEqual([
      'https://example.com/a',
      'https://example.com/t/1',
    ]);
    await page.locator('#messages a', { hasText: 'Plain' }).click();
    await page.locator('.chat p', { hasText: 'Plain' }).waitFor();
    expect(await page.locator('.chat li').count()).toBe(0);
    await page.locator('#messages a', { hasText: 'no JSON' }).click();
    await page.locator('.paper', { hasText: 'no JSON' }).waitFor();
  });

  test('lets one press a quick reply, answer and stop marketing as the recipient, and shows what follows', async () => {
    const number = '+491771234567';
    const contact = await server.request('POST', '/v1/contacts', { phone_number: number });
    expect(contact.status).toBe(201);
    const buttons = [
      { type: 'phone_number', text: 'Call', phoneNumber: '+15550100' },
      { type: 'quick_reply', text: 'Stop' },
    ];
    await keep(JSON.stringify({ body: 'Hello', buttons }), {
      channel: 'chatapp',
      recipient: number,
      sender: 'order_shipped en_US',
    });
    await open();
    await page.getByText('gets messages, and its contact those of campaigns too').waitFor();

    await page.getByRole('button', { name: 'Stop', exact: true }).click();
    await page.locator('.own-bubble', { hasText: 'Stop' }).waitFor();
    await page.getByText('This number has said STOP').waitFor();

    // What is being typed stays while the page asks what holds.
    const field = page.getByRole('textbox', { name: 'Answer as the recipient' });
    await field.pressSequentially('START');
    await page.waitForResponse(/replies$/);
    expect(await field.inputValue()).toBe('START');
    await field.press('Enter');
    await page.getByText('gets messages, and its contact those of campaigns too').waitFor();

    await page.getByRole('button', { name: 'Stop marketing' }).focus();
    await page.keyboard.press('Enter');
    await page.getByText('Its contact is unsubscribed: campaigns leave it out').waitFor();
    await page.getByRole('button', { name: 'Resume marketing' }).click();
    await page.getByText('gets messages, and its contact those of campaigns too').waitFor();

    await field.fill('<img src=x onerror=alert(1)>');
    await page.getByRole('button', { name: 'Say it' }).click();
    await page.locator('.own-bubble', { hasText: '<img src=x onerror=alert(1)>' }).waitFor();
    expect(await page.locator('#panel img').count()).toBe(0);
  });

  test('leads with the other pages to each of them', async () => {
    await page.goto(server.url);
    for (const [link, heading] of [
      ['Documentation', 'Postillion API'],
      ['Gallery', 'Postillion Gallery'],
      ['Sandbox', 'Postillion Sandbox'],
      ['Documentation', 'Postillion API'],
      ['Sandbox', 'Postillion Sandbox'],
      ['Gallery', 'Postillion Gallery'],
      ['Start', 'Postillion'],
      ['Sandbox', 'Postillion Sandbox'],
    ] as const) {
      await page.getByRole('link', { name: link, exact: true }).click();
      await page.getByRole('heading', { level: 1, name: heading, exact: true }).waitFor();
    }
  });

  test('fits a phone with its navigation, and so do the others', async () => {
    page = await openPage(getBrowser(), troubles, { viewport: phone });
    for (const path of ['/', '/docs', '/sandbox', '/gallery']) {
      await page.goto(`${server.url}${path}`);
      await page.getByRole('heading', { level: 1 }).waitFor();
      expect([path, await page.evaluate('document.documentElement.scrollWidth')]).toEqual([
        path,
        phone.width,
      ]);
    }
    const search = await page.getByLabel('Search templates').boundingBox();
    expect((search?.x ?? 0) + (search?.width ?? 0)).toBeLessThan(phone.width);
    expect(await page.getByRole('link', { name: 'Documentation' }).isVisible()).toBe(true);
  });

  test('is linked nowhere for clients that may not open it', async () => {
    const guarded = await startTestServer({ sandboxAccess: 'token' });
    try {
      const token = sandboxToken(guarded.installation.secrets);
      for (const path of ['/', '/docs', '/gallery']) {
        const ask = async (headers: Record<string, string>) =>
          (await fetch(`${guarded.url}${path}`, { headers })).text();
        expect(await ask({})).not.toContain('href="sandbox"');
        expect(await ask({ authorization: `Bearer ${token}` })).toContain('href="sandbox"');
      }
    } finally {
      await guarded.stop();
    }
  });

  test('can be used with the keyboard alone', async () => {
    await keep('Subject: Older\n\nText of the older');
    await keep('Subject: Newer\n\nText of the newer');
    await open();
    await page.getByRole('heading', { name: 'Newer' }).waitFor();
    await page.locator('#messages a').first().focus();
    await page.keyboard.press('ArrowDown');
    await page.getByRole('heading', { name: 'Older' }).waitFor();
    await page.getByText('Text of the older').waitFor();
    await page.getByRole('tab', { name: 'Text' }).focus();
    await page.keyboard.press('ArrowRight');
    await page.getByRole('rowheader', { name: 'Subject' }).waitFor();
    expect(await page.getByRole('tab', { name: 'Headers' }).getAttribute('aria-selected')).toBe('true');
  });

  test('shows on a phone the list or the message', async () => {
    page = await openPage(getBrowser(), troubles, { viewport: phone });
    await keep('Subject: One\n\nHello');
    await open();
    await page.locator('#messages a').click();
    await page.getByRole('heading', { name: 'One' }).waitFor();
    expect(await page.locator('#messages').isVisible()).toBe(false);
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBe(phone.width);
    await page.getByRole('link', { name: 'Inbox' }).click();
    await page.locator('#messages a').waitFor();
    expect(await page.locator('#message').isVisible()).toBe(false);
  });

  test('asks for new messages only while the page is visible', async () => {
    await keep('Subject: First\n\nHello');
    page = await openPage(getBrowser(), troubles);
    await page.clock.install();
    // The last that the page asks for when it opens.
    const isOpened = page.waitForResponse(/replies$/);
    await open();
    await isOpened;
    const asked: string[] = [];
    page.on('request', (request) => asked.push(request.url()));

    await setVisibility(page, 'hidden');
    await page.clock.runFor(60_000);
    expect(asked).toEqual([]);

    const question = page.waitForRequest(/messages\?limit=1$/);
    await setVisibility(page, 'visible');
    await (await question).response();
    await keep('Subject: Second\n\nHello');
    await page.clock.runFor(2_000);
    await page.getByText('1 new message').waitFor();
    expect(await page.locator('#messages a').count()).toBe(2);
    // The message that is open stays.
    expect(await page.locator('#subject').innerText()).toBe('First');
  });

  test('says of the open message that it does not match, and follows what is chosen', async () => {
    await keep('Subject: Mail\n\nHello');
    await keep('Code 1234', { channel: 'sms', recipient: '+15550100' });
    await open();
    await page.getByRole('heading', { name: 'SMS' }).waitFor();
    const note = page.getByText('This message is not in the list');
    expect(await note.isVisible()).toBe(false);
    await page.getByLabel('Channel').selectOption('email');
    await note.waitFor();
    expect(await page.locator('#subject').innerText()).toBe('SMS');
    await page.locator('#messages a').click();
    await page.getByRole('heading', { name: 'Mail' }).waitFor();
    expect(await note.isVisible()).toBe(false);

    await page.getByLabel('Search recipients, subjects and texts').fill('nobody');
    await note.waitFor();
    await page.getByRole('button', { name: 'Show all messages' }).click();
    await page.locator('#messages li:nth-child(2)').waitFor();
    expect(await note.isVisible()).toBe(false);
  });

  test('does not say so of a message that stands further down than the list reaches', async () => {
    await keep('Subject: Oldest\n\nHello');
    for (let count = 1; count <= 35; count += 1) await keep(`Subject: Mail ${count}\n\nHello`);
    await open();
    await page.getByRole('button', { name: 'Older messages' }).click();
    await page.locator('#messages a', { hasText: 'Oldest' }).click();
    await page.getByRole('heading', { name: 'Oldest' }).waitFor();
    await page.getByLabel('Channel').selectOption('email');
    await page.locator('#messages:not(:has(li:nth-child(31)))').waitFor();
    expect(await page.locator('#unlisted').isVisible()).toBe(false);
  });

  test('says that the open message was deleted elsewhere, of whatever channel, and forgets it', async () => {
    for (const channel of ['email', 'push'] as const) {
      await keep('Subject: Older\n\nHello');
      await keep('Subject: Gone soon\n\nHello', { channel });
      await open();
      const heading = channel === 'email' ? 'Gone soon' : 'Push';
      await page.getByRole('heading', { name: heading, exact: true }).waitFor();
      await server.installation.database.rows(
        unpreparedStatement(
          'delete from sandbox_messages where id = (select id from sandbox_messages order by id desc limit 1)',
        ),
      );
      await page.getByRole('heading', { name: 'This message is not here any more' }).waitFor();
      await page.locator('#messages:not(:has(li:nth-child(2)))').waitFor();
      expect(await page.locator('#messages').innerText()).not.toContain('Gone soon');
      expect(await page.locator('#status').innerText()).toBe('');
      // Chromium tells of the answer by which the page learns of it.
      expect(troubles.splice(0)).toEqual([expect.stringContaining('404')]);
      await server.installation.database.rows(unpreparedStatement('truncate sandbox_messages'));
      await page.goto('about:blank');
    }
  });

  test('opens what comes first into an empty list, and after a deletion the next', async () => {
    await open();
    await page.getByRole('heading', { name: 'Nothing was sent yet' }).waitFor();
    for (const name of ['One', 'Two', 'Three']) await keep(`Subject: ${name}\n\nHello`);
    await page.locator('#messages a', { hasText: 'Two' }).click();
    await page.getByRole('heading', { name: 'Two' }).waitFor();
    for (const next of ['One', 'Three']) {
      await page.getByRole('button', { name: 'Delete', exact: true }).click();
      await page.getByRole('button', { name: 'Delete? Click again' }).click();
      await page.getByRole('heading', { name: next }).waitFor();
    }
    await page.getByRole('button', { name: 'Delete', exact: true }).click();
    await page.getByRole('button', { name: 'Delete? Click again' }).click();
    await page.getByRole('heading', { name: 'Nothing was sent yet' }).waitFor();
    await keep('Subject: First again\n\nHello');
    await page.getByRole('heading', { name: 'First again' }).waitFor();
  });

  test('leaves nothing of one message on the page while a large one is on its way', async () => {
    await keep(`Subject: Large\n\n${'x'.repeat(1_100_000)}`);
    await keep('Subject: Small\n\nThe small text');
    await open();
    await page.getByText('The small text').waitFor();
    let release: () => void = () => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    await page.route(/messages\/[^/?]+$/, async (route) => {
      await released;
      await route.continue();
    });
    await page.locator('#messages a', { hasText: 'Large' }).click();
    await page.getByRole('heading', { name: 'Large' }).waitFor();
    expect(await page.locator('#panel').innerText()).toBe('');
    expect(await page.getByRole('button', { name: 'Delete', exact: true }).isVisible()).toBe(false);
    release();
    await page.getByText('The first 500,000 of').waitFor();
  });

  test('shows a push as its reader sees it, fetches nothing for it, and only what it says', async () => {
    const hostile = '<img src=x onerror=alert(1)>';
    const outside: string[] = [];
    const note = (request: { url: () => string }) => {
      if (!request.url().startsWith(server.url)) outside.push(request.url());
    };
    page.on('request', note);
    const push = {
      title: `Your order ${hostile}`,
      body: 'It arrives tomorrow.\nBetween 9 and 12.',
      imageUrl: 'https://pictures.example/p.png',
      iconUrl: 'https://pictures.example/i.png',
      deepLink: 'acme://orders/1042',
      actionButtons: [
        { actionId: 'track', label: 'Track it', deepLink: 'https://example.com/t/1' },
        { actionId: 'evil', label: 'Evil', deepLink: 'javascript:alert(1)' },
        { actionId: 'later', label: 'Later', deepLink: null },
      ],
      dataPayload: { order: '1042' },
    };
    const sent = { channel: 'push', recipient: 'a-token', sender: 'ios' } as const;
    for (const source of [
      'no JSON',
      '{"title": 7, "body": "B"}',
      JSON.stringify({ title: 'Odd', body: 'B', actionButtons: 'x', dataPayload: 7 }),
      JSON.stringify(push),
    ])
      await keep(source, sent);
    await open();
    await page.getByRole('heading', { name: 'Push', exact: true }).waitFor();
    expect(await page.locator('#messages .subject').allInnerTexts()).toEqual([
      push.title,
      'Odd',
      '{"title": 7, "body": "B"}',
      'no JSON',
    ]);
    const card = page.getByRole('region', { name: 'Notification' });
    expect(await card.locator('strong').innerText()).toBe(push.title);
    expect(await card.locator('.notification-text').innerText()).toBe(push.body);
    expect(await card.locator('li').allInnerTexts()).toEqual(['Track it', 'Evil', 'Later']);
    const links = await page.locator('#panel a').all();
    expect(await Promise.all(links.map((link) => link.getAttribute('href')))).toEqual([
      'https://pictures.example/p.png',
      'https://example.com/t/1',
    ]);
    for (const row of [
      'A tap opens acme://orders/1042',
      'Button “Later” is reported as later',
      'Data: order 1042',
    ])
      await page.getByRole('row', { name: row }).waitFor();
    await page.getByText('iOS shows the icon of the app itself').waitFor();
    expect(await page.locator('#panel img').count()).toBe(0);
    await page.locator('#messages a', { hasText: 'Odd' }).click();
    await card.locator('strong', { hasText: 'Odd' }).waitFor();
    await page.locator('#messages a', { hasText: 'no JSON' }).click();
    await page.locator('.paper', { hasText: 'no JSON' }).waitFor();
    expect(outside).toEqual([]);
    page.off('request', note);
  });

  test('shows only the beginning of a text of two megabytes, and says so', async () => {
    await keep(`Subject: Long\n\n${'All work and no play. '.repeat(100_000)}`);
    await open();
    await page.getByText(/The first 500,000 of 2,\d{3},\d{3} characters\./).waitFor();
    expect((await page.locator('.paper').textContent())?.length).toBe(500_000);
  });
});

describeInBrowser('a hostile message on the sandbox page', (getBrowser) => {
  let server: TestServer;
  let outside: Outside;

  beforeAll(async () => {
    server = await startTestServer();
    outside = await startOutside();
    await keepMessage(server.installation, {
      organizationId: server.organizationId,
      channel: 'email',
      messageId: server.installation.newId(),
      ordinal: 0,
      recipient: '"<img src=x onerror=alert(1)>"@example.com',
      sender: 'bounce@postillion.test',
      outcome: '<b>delivered</b>',
      source: Buffer.from(hostileSource(outside.url)),
    });
  });

  afterAll(async () => {
    await outside.stop();
    await server.stop();
  });

  test('would do harm if it were let: this is the measure of the tests below', async () => {
    const victim = await startOutside();
    const page = await openPage(getBrowser(), []);
    const scriptRan = page.waitForFunction("document.title === 'hacked'");
    await page.setContent(hostileHtml(victim.url).replace(/<meta[^>]*refresh[^>]*>/, ''));
    await scriptRan;
    // The form leads away from the page, and would end what the page still fetches.
    const fetched = ['/image', '/style', '/script', '/onerror'];
    await eventually(
      () => victim.requests,
      (requests) => fetched.every((path) => requests.includes(path)),
    );
    await Promise.all([page.waitForURL(/form-sent/), page.getByRole('button', { name: 'Send' }).click()]);
    await page.setContent(`<meta http-equiv="refresh" content="0;url=${victim.url}/refreshed">`);
    await page.waitForURL(/refreshed/);
    expect(victim.requests).toEqual(expect.arrayContaining([...fetched, '/form-sent?', '/refreshed']));
    await page.context().close();
    await victim.stop();
  });

  test('runs no script, fetches nothing, sends no form, and leads nowhere but by a click on its link', async () => {
    const troubles: string[] = [];
    const page = await openPage(getBrowser(), troubles);
    const answered: string[] = [];
    page.on('response', (response) => answered.push(response.url()));
    await page.goto(`${server.url}/sandbox`);
    const frame = page.frameLocator('iframe');
    await frame.getByRole('heading', { name: 'Hostile' }).waitFor();

    expect(outside).toMatchObject({ requests: [], connections: 0 });
    for (const name of ['Top', 'Script']) await frame.getByRole('link', { name }).click();
    await frame.getByRole('button', { name: 'Send' }).click();
    await frame.getByRole('button', { name: 'Handler' }).click();
    // By now a redirect would have happened: the frame has loaded, and taken four clicks.
    await frame.getByRole('heading', { name: 'Hostile' }).waitFor();

    expect(outside).toMatchObject({ requests: [], connections: 0 });
    expect(answered.filter((url) => !url.startsWith(server.url) && !url.startsWith('data:'))).toEqual([]);

    // What a person clicks on opens, in a window that has no hold of the page.
    for (const name of ['Outside', 'Self']) {
      const [opened] = await Promise.all([
        page.context().waitForEvent('page', (popup) => popup.url() !== 'about:blank'),
        frame.getByRole('link', { name }).click(),
      ]);
      await opened.waitForLoadState();
      expect(await opened.evaluate('[globalThis.opener, document.referrer]')).toEqual([null, '']);
      await opened.close();
    }
    expect(outside.requests).toEqual(['/link', '/blank']);
    expect(page.url().startsWith(`${server.url}/sandbox#`)).toBe(true);
    expect(await page.title()).toBe('Sandbox · Postillion');
    expect(await page.evaluate('globalThis.hacked')).toBeUndefined();
    expect(troubles.filter((trouble) => trouble.startsWith('dialog'))).toEqual([]);
    await page.context().close();
  });

  test('puts no element of its own into the page', async () => {
    const page = await openPage(getBrowser(), []);
    await page.goto(`${server.url}/sandbox`);
    await page.locator('iframe').waitFor();
    expect(await page.locator('#subject').textContent()).toBe(
      '<script>alert(1)</script><img src=x onerror=alert(1)>',
    );
    expect(await page.locator('#envelope').textContent()).toContain(
      '"<img src=x onerror=alert(1)>"@example.com',
    );
    for (const name of ['Text', 'Headers', 'Source', 'Attachments']) {
      await page.getByRole('tab', { name }).click();
      await page.locator('#panel').getByText('onerror').first().waitFor();
      expect(await page.locator('img, iframe, b b, #panel script').count()).toBe(0);
    }
    await page.getByRole('tab', { name: 'Text' }).click();
    expect(await page.locator('#panel a[href^="javascript"]').count()).toBe(0);
    await page.context().close();
  });

  test('gains nothing by being opened alone', async () => {
    const page = await openPage(getBrowser(), []);
    const before = outside.requests.length;
    await page.goto(`${server.url}/sandbox`);
    const [alone] = await Promise.all([
      page.context().waitForEvent('page'),
      page.getByRole('link', { name: 'Open alone' }).click(),
    ]);
    await alone.getByRole('heading', { name: 'Hostile' }).waitFor();
    await alone.getByRole('button', { name: 'Send' }).click();
    await alone.getByRole('button', { name: 'Handler' }).click();
    await alone.getByRole('heading', { name: 'Hostile' }).waitFor();
    expect(outside.requests.slice(before)).toEqual([]);
    expect(await alone.title()).not.toBe('hacked');
    await page.context().close();
  });
});

const transparentGif = 'R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7';

/** `troubles` gets everything that goes wrong in the page: it is to stay empty. */
async function openPage(
  browser: Browser,
  troubles: string[],
  options: BrowserContextOptions = {},
): Promise<Page> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.on('pageerror', (error) => troubles.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error') troubles.push(message.text());
  });
  page.on('dialog', (dialog) => {
    troubles.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return page;
}

/** No window of a headless browser is ever out of sight. */
async function setVisibility(page: Page, visibility: 'hidden' | 'visible'): Promise<void> {
  await page.evaluate(`
    Object.defineProperty(document, 'visibilityState', { value: '${visibility}', configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  `);
}

type Outside = { url: string; requests: string[]; connections: number; stop: () => Promise<void> };

/**
 * A server that hostile messages would like to hear from. What asks for something else than a path below its own is not
 * counted: another test's page may go on asking a server that has stopped, whose port this one has got.
 */
async function startOutside(): Promise<Outside> {
  const requests: string[] = [];
  const own = `/${randomUUID()}`;
  const strangers = new Set<Socket>();
  const listener = http.createServer((request, response) => {
    const { url = '', socket } = request;
    if (!url.startsWith(`${own}/`)) {
      if (!strangers.has(socket)) outside.connections -= 1;
      strangers.add(socket);
      response.writeHead(404).end();
      return;
    }
    const asked = url.slice(own.length);
    requests.push(asked);
    response.setHeader('access-control-allow-origin', '*');
    response.setHeader('content-type', asked === '/script' ? 'text/javascript' : 'text/html');
    response.end(asked === '/script' ? 'document.title = "hacked"; globalThis.hacked = true;' : 'outside');
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const outside: Outside = {
    url: `http://127.0.0.1:${(listener.address() as AddressInfo).port}${own}`,
    requests,
    connections: 0,
    stop: async () => {
      listener.close();
      listener.closeAllConnections();
      await once(listener, 'close');
    },
  };
  // A connection without a request would also tell that the message was opened.
  listener.on('connection', () => {
    outside.connections += 1;
  });
  return outside;
}

function hostileHtml(outside: string): string {
  return `<!doctype html><html><head>
<meta http-equiv="refresh" content="0;url=${outside}/refreshed">
<base href="${outside}/based/">
<link rel="stylesheet" href="${outside}/style"><link rel="prefetch" href="${outside}/prefetched">
<link rel="preconnect" href="${outside}"><link rel="dns-prefetch" href="${outside}">
<style>@import url(${outside}/imported); body { background: url(${outside}/background) }
@font-face { font-family: x; src: url(${outside}/font) } h1 { font-family: x }</style>
<script>parent.hacked = top.hacked = true; parent.document.title = top.document.title = 'hacked';</script>
<script src="${outside}/script"></script></head><body>
</iframe></script></style><h1>Hostile</h1>
<img src="${outside}/image"><img srcset="${outside}/set 1x"><img src="relative"><img src=x onerror="fetch('${outside}/onerror')">
<svg onload="fetch('${outside}/onload')"><image href="${outside}/svg"></image></svg>
<video src="${outside}/video" poster="${outside}/poster" autoplay></video>
<object data="${outside}/object"></object><embed src="${outside}/embed"><iframe src="${outside}/frame"></iframe>
<iframe srcdoc="<script>top.hacked = true</script><img src='${outside}/srcdoc'>"></iframe>
<p><a href="${outside}/link">Outside</a> <a href="${outside}/top" target="_top">Top</a>
<a href="javascript:top.hacked=true">Script</a> <a href="${outside}/blank" target="_blank" ping="${outside}/ping">Self</a></p>
<form action="${outside}/form-sent" method="get"><button>Send</button></form>
<button onclick="fetch('${outside}/onclick')">Handler</button>
</body></html>`;
}

function hostileSource(outside: string): string {
  return [
    'From: "<img src=x onerror=alert(1)>" <shop@postillion.test>',
    'Subject: <script>alert(1)</script><img src=x onerror=alert(1)>',
    'X-Hostile: <img src=x onerror=alert(1)>',
    'Content-Type: multipart/mixed; boundary=outer',
    '',
    '--outer',
    'Content-Type: multipart/alternative; boundary=inner',
    '',
    '--inner',
    'Content-Type: text/plain',
    '',
    `<img src=x onerror=alert(1)> javascript:alert(1) ${outside}/text`,
    '--inner',
    'Content-Type: text/html',
    '',
    hostileHtml(outside),
    '--inner--',
    '--outer',
    'Content-Type: text/html; name="<img src=x onerror=alert(1)>.html"',
    'Content-Disposition: attachment; filename="<img src=x onerror=alert(1)>.html"',
    '',
    '<script>alert(1)</script>',
    '--outer--',
    '',
  ].join('\r\n');
}
