/** What was stored and sent before a rotation of the secret, as a node sees it that has the new secret alone. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { addSuppressions, toErasedKey } from '../../src/audience/audience.ts';
import { parseAddress, readReturnPathToken, writeReturnPath } from '../../src/channels/email/email.ts';
import {
  findOwnApp,
  loadChatAppAccounts,
  setAccount,
  showAccount,
} from '../../src/chat-templates/chat-templates.ts';
import {
  listCredentials,
  loadPushCredentials,
  makeSandboxCredentials,
  setCredentials,
  shareApnsToken,
} from '../../src/devices/devices.ts';
import { uncertainId } from '../../src/messages/recipients/provider-ids-store.ts';
import {
  keyRestMs,
  newDataKeyBytes,
  openSealedKeys,
  readSealedKeys,
  retireSecret,
  rotateSecret,
  takeUpSecret,
} from '../../src/platform/secret-keys.ts';
import { createKeyRing, type KeyRing } from '../../src/platform/secrets.ts';
import { startApi } from '../../src/roles/api.ts';
import { startWorker, type Worker } from '../../src/roles/worker.ts';
import type { HttpServer } from '../../src/platform/http/server.ts';
import { insertSentCampaign, type SentCampaign } from '../support/campaign-fixture.ts';
import {
  createShiftedClock,
  eventually,
  queueOf,
  rowsOf,
  send,
  settled,
  type ShiftedClock,
} from '../support/email-journey.ts';
import { createSender, startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender, readSms, sendSms, smsWithStatus } from '../support/sms-journey.ts';

const [oldSecret, newSecret] = ['the old secret', 'the new secret'].map((name) => name.padEnd(40, '.')) as [
  string,
  string,
];
const browser = 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0';
const number = '+4915112345678';
const attachedInBase64 = Buffer.from('a file that is under way').toString('base64');

let clock: ShiftedClock;
/** A node from before the rotation, which has learned the new key and keeps running. */
let server: TestServer;
let oldRing: KeyRing;
/** A node that was started with the new secret. */
let newRing: KeyRing;
let newApi: HttpServer;
let worker: Worker;
let second: { organizationId: string; key: string };

let queuedId: string;
let trackedPath: string;
let campaign: SentCampaign;
let contactId: string;
let returnPath: string;
let uncertain: string;
let erased: string;

const reference = () => ({ messageId: campaign.messageId, ordinal: 0 });
const erasure = () => ({ organizationId: server.organizationId, address: 'erased@example.com' });

async function ringOf(secret: string): Promise<KeyRing> {
  const opened = openSealedKeys(await readSealedKeys(server.installation.database), [secret]);
  return createKeyRing(opened!.keys, clock.nowMs);
}

/** That of the first organization, or a new one if there is none. */
async function shareApnsTokenOf(secrets: KeyRing, signed: string): Promise<string | undefined> {
  const { installation, organizationId } = server;
  const [credentials] = await listCredentials(installation.database, organizationId);
  return (await shareApnsToken({ ...installation, secrets }, credentials!, () => signed))?.token;
}

async function sourceOf(messageId: string): Promise<string> {
  const [row] = await rowsOf<{ source: Buffer }>(
    server,
    'select source from sandbox_messages where message_id = $1',
    [messageId],
  );
  return row!.source.toString().replaceAll('=\r\n', '').replaceAll('=3D', '=');
}

function trackedPathIn(source: string): string {
  return /https:\/\/mail\.postillion\.test(\/c\/[^"]+)"/.exec(source)![1]!;
}

const tracked = { html: '<body><a href="https://shop.example/order">Order</a></body>' };

beforeAll(async () => {
  clock = createShiftedClock();
  oldRing = createKeyRing([{ id: 1, bytes: newDataKeyBytes(), usableFromMs: 0 }], clock.nowMs);
  const first = newDataKeyBytes();
  oldRing.replaceKeys([{ id: 1, bytes: first, usableFromMs: 0 }]);
  server = await startTestServer({ clock, publicUrl: 'https://mail.postillion.test', secrets: oldRing });
  const { installation, organizationId } = server;
  const { database } = installation;
  await rowsOf(server, 'truncate secret_keys');
  await database.transaction((transaction) =>
    takeUpSecret(transaction, { secret: oldSecret, bytes: first, at: new Date(0) }),
  );
  second = await createSender(installation, 'second.test');
  await rowsOf(server, 'update domains set click_tracking = true');
  await addApprovedSender(server, 'Acme');

  // Before the rotation, by the old node.
  const before = await startWorker(installation);
  const sentId = await send(server, { ...tracked, text: undefined });
  await settled(server, sentId);
  trackedPath = trackedPathIn(await sourceOf(sentId));
  await before.stop();
  const suppress = (channel: 'email' | 'sms', address: string) =>
    addSuppressions(database, installation, channel, [{ organizationId, address, reason: 'unsubscribe' }]);
  await suppress('email', 'gone@example.com');
  await suppress('email', toErasedKey(installation, erasure()));
  await suppress('sms', number);
  queuedId = await send(server, {
    attachments: [{ filename: 'a.txt', content: attachedInBase64 }],
  });
  const contact = await server.request<{ id: string }>('POST', '/v1/contacts', { email: 'jane@example.com' });
  contactId = contact.body.id;
  campaign = await insertSentCampaign(installation, {
    organizationId,
    contacts: [{ id: contactId, email: 'jane@example.com' }],
  });
  await setCredentials(installation, organizationId, await makeSandboxCredentials('ios'), {
    replacesPair: false,
  });
  await shareApnsTokenOf(oldRing, 'made before');
  await setAccount(installation, organizationId, {
    businessAccountId: '1',
    phoneNumberIds: ['2'],
    accessToken: 'given before',
    ownApp: { appSecret: 'secret', verifyToken: 'word' },
  });
  returnPath = writeReturnPath(oldRing, organizationId, reference(), 'send.postillion.test');
  uncertain = uncertainId(oldRing, number);
  erased = toErasedKey(installation, erasure());

  const rotated = await database.transaction((transaction) =>
    rotateSecret(transaction, { secrets: [oldSecret], next: newSecret, at: new Date(clock.nowMs()) }),
  );
  expect(rotated).toMatchObject({ kind: 'rotated', keyId: 2 });
  oldRing.replaceKeys(openSealedKeys(await readSealedKeys(database), [oldSecret])!.keys);
  await database.transaction((transaction) =>
    retireSecret(transaction, { secretId: 1, secrets: [newSecret] }),
  );
  clock.putForward(keyRestMs);

  newRing = await ringOf(newSecret);
  const node = { ...installation, secrets: newRing };
  newApi = await startApi(node, { drainMs: 0 });
  worker = await startWorker(node);
});
afterAll(async () => {
  await newApi.stop();
  await worker.stop();
  await server.stop();
});

test('the old secret opens nothing any more', async () => {
  expect(openSealedKeys(await readSealedKeys(server.installation.database), [oldSecret])).toBeNull();
});

test('suppressed addresses are still dropped, and only for the organization that they opted out from', async () => {
  const id = await send(server, { to: ['gone@example.com', 'erased@example.com', 'stays@example.com'] });
  const { to } = await settled(server, id);
  expect(to.map(({ email, dropped, drop_reason }) => [email, dropped, drop_reason])).toEqual([
    ['gone@example.com', true, 'suppressed'],
    ['erased@example.com', true, 'suppressed'],
    ['stays@example.com', false, null],
  ]);
  const others = await send(server, { from: 'hello@second.test', to: ['gone@example.com'] }, second);
  expect((await settled(server, others, second)).to[0]).toMatchObject({
    dropped: false,
    status: 'delivered',
  });
});

test('a number that opted out is not texted, and another one is', async () => {
  const suppressed = await sendSms(server, { to: number });
  const other = await sendSms(server, { to: '+4915112345679' });
  await smsWithStatus(server, other, 'delivered');
  await eventually(
    () => queueOf(server, suppressed),
    (jobs) => jobs.length === 0,
  );
  expect(await readSms(server, suppressed)).toMatchObject({
    status: 'failed',
    error: { code: 'opted_out' },
  });
  const kept = await rowsOf<{ recipient: string }>(
    server,
    "select recipient from sandbox_messages where channel = 'sms'",
  );
  expect(kept.map(({ recipient }) => recipient)).toEqual(['+4915112345679']);
});

test('a message that was on its way arrives with its attachment, signed with the key of its domain', async () => {
  await settled(server, queuedId);
  const source = await sourceOf(queuedId);
  expect(source).toContain(attachedInBase64);
  expect(source).toMatch(/^DKIM-Signature: /m);
});

test('links from before the rotation lead where they led, and those of the new node do on the old one', async () => {
  const visit = (url: string, path: string) =>
    fetch(`${url}${path}`, { redirect: 'manual', headers: { 'user-agent': browser } });
  const old = await visit(newApi.url, trackedPath);
  expect([old.status, old.headers.get('location')]).toEqual([302, 'https://shop.example/order']);

  const sentId = await send(server, { ...tracked, text: undefined });
  await settled(server, sentId);
  const path = trackedPathIn(await sourceOf(sentId));
  expect((await visit(server.url, path)).status).toBe(302);
  const changed = path.replace(/[\w-](?=\/\d+$)/, (character) => (character === 'A' ? 'B' : 'A'));
  expect((await visit(newApi.url, changed)).status).toBe(404);
});

test('a link to unsubscribe from before the rotation unsubscribes', async () => {
  const token = campaign.tokens[0]!;
  const post = (path: string) =>
    fetch(`${newApi.url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: 'List-Unsubscribe=One-Click',
    });
  expect((await post(`/u/${token.tracking}`)).status, 'a token for something else').toBe(404);
  expect((await post(`/u/${token.unsubscribe}`)).status).toBe(200);
  const { body } = await server.request<{ consent: { email: string } }>('GET', `/v1/contacts/${contactId}`);
  expect(body.consent.email).toBe('unsubscribed');
});

test('return paths are read by either node, whichever wrote them, and for their organization only', () => {
  const isSigned = (ring: KeyRing, address: string, organizationId: string) =>
    readReturnPathToken(parseAddress(address)!.normalised.split('@')[0]!)!.isSignedFor(ring, organizationId);
  const newPath = writeReturnPath(newRing, server.organizationId, reference(), 'send.postillion.test');
  expect(newPath).not.toBe(returnPath);
  for (const address of [returnPath, newPath]) {
    for (const ring of [oldRing, newRing]) {
      expect(isSigned(ring, address, server.organizationId)).toBe(true);
      expect(isSigned(ring, address, second.organizationId)).toBe(false);
    }
  }
});

test('what stands for an unknown id, and for an erased address, is what it was', () => {
  expect(uncertainId(newRing, number)).toBe(uncertain);
  expect(toErasedKey({ ...server.installation, secrets: newRing }, erasure())).toBe(erased);
});

test('push credentials are opened, and so is the token that nodes share', async () => {
  const { database } = server.installation;
  const wanted = [{ organizationId: server.organizationId, platform: 'ios' as const }];
  const [loaded] = await loadPushCredentials({ secrets: newRing }, database, wanted);
  expect(loaded).toMatchObject({ isKeyUnknown: false, content: { platform: 'ios', keyId: 'SANDBOXKEY' } });
  await rowsOf(
    server,
    `update push_credentials set apns_token_made_at = $1 where apns_token_made_at is not null`,
    [new Date(clock.nowMs())],
  );
  expect(await shareApnsTokenOf(newRing, 'made afterwards')).toBe('made before');
});

test('accounts for chat-app messages are opened, and the app of one is known by its address', async () => {
  const { database } = server.installation;
  const [loaded] = await loadChatAppAccounts({ secrets: newRing, clock }, database, [server.organizationId]);
  expect(loaded).toMatchObject({ isKeyUnknown: false, account: { accessToken: 'given before' } });
  const shown = await showAccount({ database, clock, secrets: newRing }, server.organizationId);
  expect(await findOwnApp({ secrets: newRing }, database, shown!.callbackToken!)).toMatchObject({
    organizationId: server.organizationId,
    verifyToken: 'word',
  });
});

test('a domain that is registered afterwards has its key sealed under the new one, and is signed for', async () => {
  const third = await createSender({ ...server.installation, secrets: newRing }, 'third.test');
  const [row] = await rowsOf<{ sealed: Buffer }>(
    server,
    "select dkim_private_key_sealed as sealed from domains where name = 'third.test'",
  );
  expect(row!.sealed.subarray(0, 4)).toEqual(Buffer.from('PSK\u0002'));
  const id = await send(server, { from: 'hello@third.test' }, third);
  await settled(server, id, third);
  expect(await sourceOf(id)).toMatch(/^DKIM-Signature: .*d=third\.test/m);
});
