/** Texts through an account at Twilio, and Twilio's callbacks, with a server of our own in its place. */
import { createHmac } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createShiftedClock, eventually, queueOf, rowsOf } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import { addApprovedSender, readSms, sendSms, smsWithStatus } from '../support/sms-journey.ts';

const accountSid = `AC${'0123456789abcdef'.repeat(2)}`;
const authToken = 'token';
/** As Twilio was given it; its callbacks to that name reach the server by another. */
const publicUrl = 'https://post.test';

type Request = { authorization: string | undefined; form: URLSearchParams };
type Reaction = 'take' | 'take_and_hang_up' | 'take_and_wait' | 'throttle' | 'refuse_as_opted_out';

let twilio: Server;
let server: TestServer;
const clock = createShiftedClock();
const requests: Request[] = [];
/** Reactions to the next requests; all others are accepted. */
const reactions: Reaction[] = [];
/** One for each request that waits. */
const hangUps: (() => void)[] = [];

beforeAll(async () => {
  twilio = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const form = new URLSearchParams(Buffer.concat(chunks).toString('utf8'));
      requests.push({ authorization: request.headers.authorization, form });
      switch (reactions.shift() ?? 'take') {
        case 'take':
          response.writeHead(201, { 'content-type': 'application/json' });
          response.end(JSON.stringify({ sid: sidOf(requests.length), status: 'queued' }));
          return;
        case 'take_and_hang_up':
          request.socket.destroy();
          return;
        case 'take_and_wait':
          hangUps.push(() => request.socket.destroy());
          return;
        case 'throttle':
          response.writeHead(429, { 'content-type': 'application/json', 'retry-after': '1' });
          response.end(JSON.stringify({ code: 20429, message: 'Too Many Requests' }));
          return;
        case 'refuse_as_opted_out':
          response.writeHead(400, { 'content-type': 'application/json' });
          response.end(
            JSON.stringify({
              code: 21610,
              message: 'Attempt to send to unsubscribed recipient',
              status: 400,
            }),
          );
      }
    });
  });
  await new Promise<void>((resolve) => {
    twilio.listen(0, '127.0.0.1', resolve);
  });
  const { port } = twilio.address() as AddressInfo;
  server = await startTestServer({
    worker: true,
    clock,
    smsProvider: 'twilio',
    providerSettings: {
      POSTILLION_TWILIO_URL: `http://${accountSid}:${authToken}@127.0.0.1:${port}`,
    },
    publicUrl,
  });
  await addApprovedSender(server, 'Acme');
  await addApprovedSender(server, '+14155550100');
});
afterAll(async () => {
  await server.stop();
  twilio.closeAllConnections();
  await new Promise((resolve) => twilio.close(resolve));
});
beforeEach(() => {
  requests.length = 0;
});

function sidOf(number: number): string {
  return `SM${number.toString(16).padStart(32, '0')}`;
}

/** https://www.twilio.com/docs/usage/security */
function sign(url: string, form: Readonly<Record<string, string>>): string {
  const names = Object.keys(form).sort();
  const signed = url + names.map((name) => `${name}${form[name] ?? ''}`).join('');
  return createHmac('sha1', authToken).update(signed, 'utf8').digest('base64');
}

type Forgery = { signature?: string | null; body?: Record<string, string> };

/** Calls as Twilio would, unless `forged` says otherwise; returns the status and the text of the answer. */
async function call(
  path: string,
  form: Readonly<Record<string, string>>,
  forged: Forgery = {},
): Promise<[number, string]> {
  const { signature = sign(`${publicUrl}${path}`, form), body = form } = forged;
  const response = await fetch(`${server.url}${path}`, {
    method: 'POST',
    headers: {
      'content-type': 'application/x-www-form-urlencoded',
      ...(signature === null ? {} : { 'x-twilio-signature': signature }),
    },
    body: new URLSearchParams(body),
  });
  return [response.status, await response.text()];
}

async function requestNumber(number: number): Promise<Request> {
  await eventually(
    () => requests.length,
    (count) => count >= number,
  );
  return requests[number - 1]!;
}

/** The callback URL that Twilio was given for the status of a text. */
function callbackPathOf({ form }: Request): string {
  const url = form.get('StatusCallback') ?? '';
  expect(url.startsWith(`${publicUrl}/callbacks/twilio/status/`)).toBe(true);
  return url.slice(publicUrl.length);
}

function statusForm(status: string, more: Readonly<Record<string, string>> = {}) {
  return {
    MessageSid: sidOf(1),
    SmsSid: sidOf(1),
    AccountSid: accountSid,
    ApiVersion: '2010-04-01',
    From: 'Acme',
    To: '+4915112345678',
    MessageStatus: status,
    SmsStatus: status,
    ...more,
  };
}

/** Resolves once all callbacks have been applied. */
async function whenApplied(): Promise<void> {
  await eventually(
    () => rowsOf(server, 'select from sms_events union all select from provider_events'),
    (events) => events.length === 0,
  );
}

/** Handed to Twilio, which has said no more than that it took it. */
async function sendOne(more: Record<string, unknown> = {}): Promise<{ id: string; path: string }> {
  const number = requests.length + 1;
  const id = await sendSms(server, more);
  const request = await requestNumber(number);
  await smsWithStatus(server, id, 'sent');
  return { id, path: callbackPathOf(request) };
}

describe('a text', () => {
  test('is handed to the account, and is delivered when Twilio says so', async () => {
    const { id, path } = await sendOne({ body: 'Hello, {{name}} €', variables: { name: 'Zoë' } });
    const [request] = requests;
    expect(request!.authorization).toBe(
      `Basic ${Buffer.from(`${accountSid}:${authToken}`).toString('base64')}`,
    );
    expect(Object.fromEntries(request!.form)).toEqual({
      To: '+4915112345678',
      From: 'Acme',
      Body: 'Hello, Zoë €',
      StatusCallback: `${publicUrl}${path}`,
    });
    for (const status of ['queued', 'sending', 'sent', 'delivered'])
      expect(await call(path, statusForm(status)), status).toEqual([204, '']);
    expect(await smsWithStatus(server, id, 'delivered')).toMatchObject({
      error: null,
      uncertain: false,
      sent_at: expect.stringMatching(/Z$/) as string,
      delivered_at: expect.stringMatching(/Z$/) as string,
    });
    expect(requests).toHaveLength(1);
  });

  test('of a number leaves with its plus', async () => {
    await sendOne({ from: '14155550100' });
    expect(requests[0]!.form.get('From')).toBe('+14155550100');
  });

  test('that was not delivered says why, in the words for its code', async () => {
    const { id, path } = await sendOne();
    await call(path, statusForm('undelivered', { ErrorCode: '30005' }));
    expect(await smsWithStatus(server, id, 'undelivered')).toMatchObject({
      error: { code: 'unknown_subscriber', message: expect.stringContaining('30005') as string },
      delivered_at: null,
    });
  });

  test('that was put off at first is sent by the second request, and nothing is held against it', async () => {
    reactions.push('throttle');
    const id = await sendSms(server);
    expect(await smsWithStatus(server, id, 'sending')).toMatchObject({ error: { code: 'rate_limited' } });
    clock.putForward(1_100);
    const request = await requestNumber(2);
    expect(await smsWithStatus(server, id, 'sent')).toMatchObject({ error: null });
    await call(callbackPathOf(request), statusForm('delivered', { MessageSid: sidOf(2) }));
    expect(await smsWithStatus(server, id, 'delivered')).toMatchObject({ error: null });
  });

  test('that Twilio says is delivered before we know that it was taken has no error of an earlier attempt', async () => {
    reactions.push('throttle');
    const id = await sendSms(server);
    await smsWithStatus(server, id, 'sending');
    // As if the worker had not yet written the answer down.
    await call(callbackPathOf(await requestNumber(1)), statusForm('delivered'));
    expect(await smsWithStatus(server, id, 'delivered')).toMatchObject({ error: null });
    await rowsOf(server, 'delete from delivery_queue where message_id = $1', [id]);
  });
});

describe('what Twilio tells of a text', () => {
  test('out of order or twice leaves it delivered since the first time', async () => {
    const { id, path } = await sendOne();
    await call(path, statusForm('delivered'));
    const delivered = await smsWithStatus(server, id, 'delivered');
    clock.putForward(2_000);
    for (const status of ['sent', 'sending', 'delivered', 'delivered'])
      expect(await call(path, statusForm(status))).toEqual([204, '']);
    await whenApplied();
    expect(await readSms(server, id)).toEqual(delivered);
  });

  test('is believed under its signature alone', async () => {
    const [mine, other] = [await sendOne(), await sendOne()];
    const form = statusForm('failed', { ErrorCode: '30003' });
    const signature = sign(`${publicUrl}${mine.path}`, form);
    const forgeries: [string, string, Forgery][] = [
      ['without a signature', mine.path, { signature: null }],
      ['with an empty signature', mine.path, { signature: '' }],
      ['with another key', mine.path, { signature: createHmac('sha1', 'other').update('').digest('base64') }],
      ['with other fields', mine.path, { signature, body: { ...form, ErrorCode: '30005' } }],
      ['with a field more', mine.path, { signature, body: { ...form, Extra: '1' } }],
      ["under another recipient's token", other.path, { signature }],
      ['for what comes in', '/callbacks/twilio/inbound', { signature }],
    ];
    for (const [how, path, forged] of forgeries) {
      expect((await call(path, form, forged))[0], how).toBe(403);
    }
    await whenApplied();
    for (const { id } of [mine, other]) expect(await readSms(server, id)).toMatchObject({ status: 'sent' });
  });

  test('about a token that this installation has not written changes nothing', async () => {
    const { id, path } = await sendOne();
    const token = path.split('/').at(-1)!;
    const last = token.endsWith('A') ? 'B' : 'A';
    for (const wrong of [`${token.slice(0, -1)}${last}`, 'x', '%00', `${token}A`]) {
      const wrongPath = `/callbacks/twilio/status/${wrong}`;
      // The signature is right: only the token shows that it belongs to no text of ours.
      expect([204, 403, 404]).toContain((await call(wrongPath, statusForm('failed')))[0]);
    }
    await whenApplied();
    expect(await readSms(server, id)).toMatchObject({ status: 'sent' });
  });

  test('in a form of many megabytes is not read', async () => {
    const { path } = await sendOne();
    const form = statusForm('delivered', { Body: 'a'.repeat(3_000_000) });
    const [status] = await call(path, form).catch(() => [413, '']);
    expect(status).toBe(413);
  });
});

describe('a text whose answer was lost', () => {
  test('is uncertain until Twilio tells of it, and is not sent again', async () => {
    reactions.push('take_and_hang_up');
    const id = await sendSms(server);
    const request = await requestNumber(1);
    expect(await smsWithStatus(server, id, 'sending')).toMatchObject({ uncertain: true });
    await call(callbackPathOf(request), statusForm('sent'));
    expect(await smsWithStatus(server, id, 'sent')).toMatchObject({ uncertain: false });
    await call(callbackPathOf(request), statusForm('delivered'));
    expect(await smsWithStatus(server, id, 'delivered')).toMatchObject({ uncertain: false });
    clock.putForward(120_000);
    await sendOne({ to: '+4915100000001' });
    expect(requests.map(({ form }) => form.get('To'))).toEqual(['+4915112345678', '+4915100000001']);
  });

  test('is certain after a callback for it, for then Twilio has taken it', async () => {
    reactions.push('take_and_wait');
    const id = await sendSms(server);
    const request = await requestNumber(1);
    await call(callbackPathOf(request), statusForm('delivered'));
    expect(await smsWithStatus(server, id, 'delivered')).toMatchObject({
      sent_at: expect.stringMatching(/Z$/) as string,
    });
    hangUps.shift()!();
    await eventually(
      () => queueOf(server, id),
      (jobs) => jobs.length === 0,
    );
    expect(await readSms(server, id)).toMatchObject({ status: 'delivered', uncertain: false });
  });
});

describe('a number that Twilio writes to no more', () => {
  const suppressionsOf = (number: string) =>
    rowsOf(
      server,
      'select channel, scope, reason from suppressions where organization_id = $1 and address = $2',
      [server.organizationId, number],
    );

  test.each([
    ['is opted out by its answer', '+491701234601', false],
    ['is opted out by a status that comes later', '+491701234602', true],
  ])('since its owner has said STOP %s', async (_how, number, isLate) => {
    const { body: contact } = await server.request<{ id: string; consent: { sms: string } }>(
      'POST',
      '/v1/contacts',
      { phone_number: number },
    );
    expect(contact.consent.sms).toBe('subscribed');
    if (isLate) {
      const { id, path } = await sendOne({ to: number });
      await call(path, statusForm('failed', { ErrorCode: '21610', To: number }));
      expect(await smsWithStatus(server, id, 'failed')).toMatchObject({ error: { code: 'blocked' } });
    } else {
      reactions.push('refuse_as_opted_out');
      const id = await sendSms(server, { to: number });
      expect(await smsWithStatus(server, id, 'failed')).toMatchObject({ error: { code: 'blocked' } });
    }
    await whenApplied();
    expect(await suppressionsOf(number)).toEqual([{ channel: 'sms', scope: 'all', reason: 'unsubscribe' }]);
    const { body } = await server.request<{ consent: { sms: string } }>('GET', `/v1/contacts/${contact.id}`);
    expect(body.consent.sms).toBe('unsubscribed');
    const barred = await sendSms(server, { to: number });
    expect(await smsWithStatus(server, barred, 'failed')).toMatchObject({ error: { code: 'opted_out' } });
    expect(requests).toHaveLength(1);
  });

  test.each([
    ['their START', '+491701234604'],
    ['a consent by the API', '+491701234605'],
  ])(
    'is not opted out again by a status of a text from before %s, but by one of a later text',
    async (way, number) => {
      const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
        phone_number: number,
        consent: { sms: 'unsubscribed' },
      });
      await rowsOf(server, 'delete from suppressions where organization_id = $1 and address = $2', [
        server.organizationId,
        number,
      ]);
      const fail = async ({ path }: { path: string }) => {
        await call(path, statusForm('failed', { ErrorCode: '21610', To: number }));
        await whenApplied();
      };
      const older = await sendOne({ to: number });
      if (way === 'their START') {
        const inbound = { MessageSid: sidOf(4_712), AccountSid: accountSid, To: '+14155550100' };
        await call('/callbacks/twilio/inbound', { ...inbound, From: number, Body: 'START' });
        await whenApplied();
      } else await server.request('PATCH', `/v1/contacts/${contact.id}`, { consent: { sms: 'subscribed' } });
      await fail(older);
      expect(await suppressionsOf(number)).toEqual([]);
      const { body } = await server.request<{ consent: { sms: string } }>(
        'GET',
        `/v1/contacts/${contact.id}`,
      );
      expect(body.consent.sms).toBe('subscribed');

      await fail(await sendOne({ to: number }));
      expect(await suppressionsOf(number)).toHaveLength(1);
    },
  );

  test('for another reason has said nothing', async () => {
    const { id, path } = await sendOne({ to: '+491701234603' });
    await call(path, statusForm('undelivered', { ErrorCode: '30004', To: '+491701234603' }));
    expect(await smsWithStatus(server, id, 'undelivered')).toMatchObject({ error: { code: 'blocked' } });
    await whenApplied();
    expect(await suppressionsOf('+491701234603')).toEqual([]);
  });
});

describe('a text that comes in', () => {
  const number = '+491701234567';
  const inboundForm = (body: string) => ({
    MessageSid: sidOf(4_711),
    SmsSid: sidOf(4_711),
    AccountSid: accountSid,
    From: number,
    To: '+14155550100',
    Body: body,
    NumMedia: '0',
  });
  const comeIn = (body: string, forged?: Forgery) =>
    call('/callbacks/twilio/inbound', inboundForm(body), forged);
  const consentOf = async (id: string) =>
    (await server.request<{ consent: { sms: string } }>('GET', `/v1/contacts/${id}`)).body.consent.sms;

  test('with STOP ends texts to its number until START, and is answered by Twilio and not by us', async () => {
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
      phone_number: number,
    });
    expect((await comeIn('STOP', { signature: 'forged' }))[0]).toBe(403);
    expect(await comeIn('Please do not stop, ever. \0')).toEqual([204, '']);
    await whenApplied();
    expect(await consentOf(contact.id)).toBe('subscribed');

    expect(await comeIn('Stop')).toEqual([204, '']);
    await eventually(
      () => consentOf(contact.id),
      (consent) => consent === 'unsubscribed',
    );
    const barred = await sendSms(server, { to: number });
    expect(await smsWithStatus(server, barred, 'failed')).toMatchObject({ error: { code: 'opted_out' } });

    expect(await comeIn('START')).toEqual([204, '']);
    await eventually(
      () => consentOf(contact.id),
      (consent) => consent === 'subscribed',
    );
    await whenApplied();
    await sendOne({ to: number });
    expect(requests).toHaveLength(1);
    const { body } = await server.request<{ data: unknown[] }>('GET', '/v1/sms?category=keyword_reply');
    expect(body.data).toEqual([]);
  });

  test('in words that Twilio alone takes for STOP or START counts as it does for Twilio', async () => {
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
      phone_number: '+491701234569',
    });
    const told = async (optOutType: string, body: string) => {
      const form = { ...inboundForm(body), From: '+491701234569', OptOutType: optOutType };
      expect(await call('/callbacks/twilio/inbound', form)).toEqual([204, '']);
      await whenApplied();
      return consentOf(contact.id);
    };
    expect(await told('STOP', 'Nimm mich raus')).toBe('unsubscribed');
    expect(await told('HELP', 'Was ist das?')).toBe('unsubscribed');
    expect(await told('START', 'Nimm mich rein')).toBe('subscribed');
    // An image, with a word on it for all we know.
    expect(await told('STOP', '')).toBe('unsubscribed');
    expect(await told('START', 'YES')).toBe('subscribed');
    // What is STOP to us stops, whatever Twilio has been told to take it for.
    expect(await told('START', 'STOP')).toBe('unsubscribed');
    expect(await told('UNKNOWN', 'Hello')).toBe('unsubscribed');
  });

  test('is not acknowledged before it is stored, and neither is the status of one that was sent', async () => {
    const { id, path } = await sendOne();
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
      phone_number: '+491701234568',
    });
    const stop = { ...inboundForm('STOP'), From: '+491701234568' };
    const told = async () => [
      await call('/callbacks/twilio/inbound', stop),
      await call(path, statusForm('delivered')),
    ];
    const tables = ['sms_events', 'provider_events'];
    for (const table of tables)
      await rowsOf(server, `alter table ${table} add constraint is_full check (false) not valid`);
    try {
      expect(await told()).toEqual([
        [503, ''],
        [503, ''],
      ]);
    } finally {
      for (const table of tables) await rowsOf(server, `alter table ${table} drop constraint is_full`);
    }
    expect(await told()).toEqual([
      [204, ''],
      [204, ''],
    ]);
    await smsWithStatus(server, id, 'delivered');
    await eventually(
      () => consentOf(contact.id),
      (consent) => consent === 'unsubscribed',
    );
  });
});
