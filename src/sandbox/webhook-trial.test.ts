import { Webhook } from 'standardwebhooks';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  authorize,
  createShiftedClock,
  eventually,
  send,
  type Sender,
  type ShiftedClock,
} from '../../test/support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../../test/support/server.ts';

let server: TestServer;
let other: Sender & { organizationId: string };
let clock: ShiftedClock;

beforeAll(async () => {
  clock = createShiftedClock();
  server = await startTestServer({ worker: true, clock });
  other = await createSender(server.installation, 'other.example');
});
afterAll(() => server.stop());

type Shown = { id: string; type: string; sequence: number; headers: Record<string, string>; body: string };
type Look = { kept: string[]; is_kept_by_page: boolean; secret: string; data: Shown[]; has_more: boolean };

/** As a page, which has no key. */
function ask<Body = unknown>(method: string, path: string, body?: unknown, on = server) {
  return on.request<Body>(method, `/sandbox/webhooks${path}`, body, { authorization: 'none' });
}

async function look(organizationId: string, before?: number): Promise<Look> {
  const more = before === undefined ? '' : `&before=${before}`;
  const { status, body } = await ask<Look>('GET', `/requests?organization=${organizationId}${more}`);
  expect(status).toBe(200);
  return body;
}

const setKept = (organization: string, kept: unknown) => ask('POST', '/kept', { organization, kept });

const untilShown = (organizationId: string, count: number) =>
  eventually(
    () => look(organizationId),
    ({ data }) => data.length >= count,
  );

test('the page is one of the sandbox, and names the organizations', async () => {
  const page = await ask<string>('GET', '');
  expect(page.headers.get('content-security-policy')).toContain("script-src 'self'");
  expect(page.text).not.toMatch(/<script(?! src)|<style|onclick/);
  const { body } = await ask<{ data: { id: string }[] }>('GET', '/organizations');
  expect(body.data.map(({ id }) => id)).toEqual(
    expect.arrayContaining([server.organizationId, other.organizationId]),
  );
});

test('what an endpoint would get is shown, signed at that moment, once it is asked to be kept', async () => {
  const { organizationId } = server;
  expect(await look(organizationId)).toMatchObject({ kept: [], is_kept_by_page: false, data: [] });
  for (let times = 0; times < 2; times += 1)
    expect((await setKept(organizationId, true)).body).toEqual({ kept: true });
  const id = await send(server);
  const foreign = await send(server, { from: 'a@other.example' }, other);
  const { data, secret, ...page } = await untilShown(organizationId, 1);
  expect(page).toEqual({ kept: ['*'], is_kept_by_page: true, has_more: false });
  expect(data.map(({ type }) => type)).toEqual(['email.delivered']);
  const [{ headers, body, sequence }] = data as [Shown];
  const verified = new Webhook(secret).verify(body, headers);
  const log = await server.request<{ data: unknown[] }>('GET', '/v1/webhook-events');
  expect([verified]).toEqual(log.body.data);
  expect(verified).toMatchObject({ sequence, data: { id } });
  expect(JSON.stringify(await look(other.organizationId))).not.toContain(foreign);

  // Ten minutes later a receiver believes that signature no more, and the one that is shown then.
  clock.putForward(600_000);
  const [again] = (await look(organizationId)).data;
  expect(again!.headers['webhook-timestamp']).not.toBe(headers['webhook-timestamp']);
  expect(again!.body).toBe(body);
});

test('all that is in the log is shown once, newest first', async () => {
  const { organizationId } = other;
  await setKept(organizationId, true);
  const to = Array.from({ length: 49 }, (_, index) => `reader-${index}@example.com`);
  for (let times = 0; times < 3; times += 1) await send(server, { from: 'a@other.example', to }, other);
  await eventually(
    () => look(organizationId),
    ({ data }) => data[0]?.sequence === 147,
  );
  const shown: number[] = [];
  let before: number | undefined;
  for (;;) {
    const page: Look = await look(organizationId, before);
    expect(page.data.length).toBeLessThanOrEqual(50);
    shown.push(...page.data.map(({ sequence }) => sequence));
    before = shown.at(-1);
    if (!page.has_more) break;
  }
  expect(shown).toEqual(Array.from({ length: 147 }, (_, index) => 147 - index));
  expect((await look(organizationId, 1)).data).toEqual([]);
});

test('only what the page has asked for is given up by it', async () => {
  const { organizationId } = server;
  for (const id of [organizationId, other.organizationId]) await setKept(id, true);
  const mine = { kind: 'poll', events: ['email.*'], description: 'mine' };
  await server.request('POST', '/v1/webhooks', mine, authorize(undefined));
  expect((await look(organizationId)).kept.sort()).toEqual(['*', 'email.*']);
  expect((await setKept(organizationId, false)).status).toBe(200);
  expect(await look(organizationId)).toMatchObject({ kept: ['email.*'], is_kept_by_page: false });
  expect((await look(other.organizationId)).kept).toEqual(['*']);
});

test('what is wrong, and who must not, is refused', async () => {
  const { organizationId } = server;
  const unknown = server.installation.newId();
  const refused: [Promise<{ status: number }>, number][] = [
    [ask('GET', '/requests'), 404],
    [ask('GET', `/requests?organization=${unknown}`), 404],
    [ask('GET', `/requests?organization=${organizationId}&before=x`), 422],
    [setKept(unknown, true), 404],
    [setKept(organizationId, 'yes'), 422],
    [
      server.request(
        'POST',
        '/sandbox/webhooks/kept',
        { organization: organizationId, kept: true },
        {
          authorization: 'none',
          origin: 'https://attacker.example',
        },
      ),
      403,
    ],
  ];
  for (const [answer, status] of refused) expect((await answer).status).toBe(status);
  expect((await look(organizationId)).is_kept_by_page).toBe(false);
});

test('nothing is shown where some of what is sent leaves the installation', async () => {
  const real = await startTestServer({ pushProvider: 'direct' });
  try {
    expect((await ask('GET', '', undefined, real)).status).toBe(200);
    const paths = ['/organizations', `/requests?organization=${real.organizationId}`];
    for (const path of paths) expect((await ask('GET', path, undefined, real)).status).toBe(403);
    const kept = { organization: real.organizationId, kept: true };
    expect((await ask('POST', '/kept', kept, real)).status).toBe(403);
  } finally {
    await real.stop();
  }
});
