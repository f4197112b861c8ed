/** The page that a link to unsubscribe opens, used as by a person who wants less mail. */
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { describeInBrowser } from '../support/browser.ts';
import { insertSentCampaign } from '../support/campaign-fixture.ts';
import { rowsOf } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';

const hostileName = '<script>document.title="hacked"</script><img src=x onerror=alert(1)>';

type Contact = { consent: { email: string }; list_ids: string[] };

describeInBrowser('the page to unsubscribe by', (getBrowser) => {
  let server: TestServer;
  let page: Page;
  const troubles: string[] = [];

  beforeAll(async () => {
    server = await startTestServer();
    page = await openPage(getBrowser(), troubles);
  });
  afterAll(() => server.stop());

  beforeEach(() => {
    troubles.length = 0;
  });
  afterEach(() => {
    expect(troubles).toEqual([]);
  });

  const createList = async (name: string) =>
    (await server.request<{ id: string }>('POST', '/v1/lists', { name })).body.id;
  const readContact = async (id: string) => (await server.request<Contact>('GET', `/v1/contacts/${id}`)).body;
  const heading = (name: string) => page.getByRole('heading', { name, exact: true }).waitFor();
  const press = (name: string) => page.getByRole('button', { name, exact: true }).click();
  const buttons = () => page.getByRole('button').allInnerTexts();

  /** Opens the page of a contact in the lists `member`, by the link of a mail that went to the lists `sentTo`. */
  async function visit(
    email: string,
    lists: { member?: string[]; sentTo?: string[]; fromName?: string } = {},
  ) {
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
      email,
      list_ids: lists.member ?? [],
    });
    const { tokens } = await insertSentCampaign(server.installation, {
      organizationId: server.organizationId,
      contacts: [{ id: contact.id, email }],
      listIds: lists.sentTo ?? [],
      ...(lists.fromName !== undefined && { fromName: lists.fromName }),
    });
    const response = await page.goto(`${server.url}/u/${tokens[0]!.unsubscribe}`);
    return { id: contact.id, token: tokens[0]!.unsubscribe, response };
  }

  test('says who writes to whom, changes nothing by being looked at, unsubscribes, and takes it back', async () => {
    const { id } = await visit('jane.doe@example.com');
    await heading('Unsubscribe?');
    const text = await page.getByRole('main').innerText();
    expect(text).toContain('Fern & Way sends newsletters to j•••@example.com.');
    expect(text).not.toContain('jane');
    expect((await readContact(id)).consent.email).toBe('subscribed');

    await press('Unsubscribe');
    await heading('You are unsubscribed');
    expect((await readContact(id)).consent.email).toBe('unsubscribed');
    await page.goto(page.url());
    await heading('You are unsubscribed');

    await press('Subscribe again');
    await heading('You are subscribed again');
    expect((await readContact(id)).consent.email).toBe('subscribed');
    await press('Unsubscribe');
    await heading('You are unsubscribed');
    const changes = await rowsOf<{ contact_ids: string[] }>(
      server,
      'select contact_ids from contact_changes',
    );
    expect(changes.filter(({ contact_ids }) => contact_ids.includes(id))).toHaveLength(4);
  });

  test('offers to leave a list that the mail went to, and only that', async () => {
    const [deals, other, elsewhere] = await Promise.all(['Deals', 'Other', hostileName].map(createList));
    const { id, token } = await visit('lists@example.com', {
      member: [deals!, other!, elsewhere!],
      sentTo: [deals!, elsewhere!],
    });
    expect(await buttons()).toEqual(['Unsubscribe', `Only from ${hostileName}`, 'Only from Deals']);
    await press('Only from Deals');
    await heading('You have left the list');
    expect(await buttons()).toEqual(['Unsubscribe', `Only from ${hostileName}`]);
    expect(await readContact(id)).toMatchObject({
      consent: { email: 'subscribed' },
      list_ids: expect.not.arrayContaining([deals]),
    });

    // The link leaves only lists that the mail went to, and a wrong list does not unsubscribe the contact.
    for (const listId of [other!, 'x', '']) {
      const response = await fetch(`${server.url}/u/${token}`, {
        method: 'POST',
        body: new URLSearchParams({ action: 'leave_list', list_id: listId }),
      });
      expect(await response.text()).toContain('<h1>Unsubscribe?</h1>');
    }
    expect((await readContact(id)).list_ids).toContain(other);
    expect((await readContact(id)).consent.email).toBe('subscribed');
  });

  test('shows names from outside as text, on a small screen too', async () => {
    await page.setViewportSize({ width: 320, height: 600 });
    await visit('hostile@example.com', { fromName: hostileName });
    await heading('Unsubscribe?');
    expect(await page.getByRole('main').innerText()).toContain(hostileName);
    expect(await page.title()).toBe('Unsubscribe?');
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(320);
  });

  test('holds nothing that could be run, framed or found, and says so to the browser', async () => {
    const { response } = await visit('policy@example.com');
    const headers = response!.headers();
    expect(headers['content-security-policy']).toMatch(
      /^default-src 'none'; style-src 'sha256-[\w+/=]+'; .*form-action 'self'; frame-ancestors 'none'/,
    );
    expect(headers).toMatchObject({
      'cache-control': 'no-store',
      'referrer-policy': 'no-referrer',
      'x-robots-tag': 'noindex',
      'x-content-type-options': 'nosniff',
    });
    // The style applies: the policy names its digest.
    const radius = "getComputedStyle(document.querySelector('button')).borderRadius";
    expect(await page.evaluate(radius)).toBe('10px');
  });

  test('says of a link that is cut off that it does not work', async () => {
    const { token } = await visit('cut@example.com');
    const response = await page.goto(`${server.url}/u/${token.slice(0, -1)}`);
    expect(response!.status()).toBe(404);
    await heading('This link does not work');
    expect(await buttons()).toEqual([]);
    // The browser reports the 404 as well.
    expect(troubles.splice(0)).toEqual([expect.stringContaining('404')]);
  });
});

/** `troubles` gets all errors of the browser. */
async function openPage(browser: Browser, troubles: string[]): Promise<Page> {
  const context = await browser.newContext({ viewport: { width: 900, height: 700 } });
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
