/** Texts, from their acceptance to what became of them, through the sandbox. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { updateOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions, readSuppressions, removeSuppressions } from '../../src/audience/audience.ts';
import { createIntake } from '../../src/roles/providers/sms.ts';
import { rejectSender } from '../../src/senders/senders.ts';
import { createShiftedClock, type ErrorBody, eventually, queueOf, rowsOf } from '../support/email-journey.ts';
import { startTestServer, type TestServer } from '../support/server.ts';
import {
  addApprovedSender,
  anSms,
  postSms,
  readSms,
  sendSms,
  smsWithStatus,
} from '../support/sms-journey.ts';

let server: TestServer;
const clock = createShiftedClock();
beforeAll(async () => {
  server = await startTestServer({ worker: true, clock });
  await addApprovedSender(server, 'Acme');
  await addApprovedSender(server, '+14155550100');
});
afterAll(() => server.stop());

type Sms = Awaited<ReturnType<typeof readSms>>;
type List = { has_more: boolean; data: Sms[] };

test('a text is filled with its variables, delivered, and can be read and listed', async () => {
  const id = await sendSms(server, {
    body: 'Your code is {{ code }}, {{{name}}} {{unknown}}',
    variables: { code: 123456, name: '<Ann> {{code}}' },
    category: 'codes',
  });
  await smsWithStatus(server, id, 'delivered');
  // The receipt may be faster than the outcome, which is written after it.
  await eventually(
    () => queueOf(server, id),
    (jobs) => jobs.length === 0,
  );
  const sms = await readSms(server, id);
  expect(sms).toEqual({
    id,
    metadata: {},
    tags: [],
    scheduled_at: null,
    from: 'Acme',
    to: '+4915112345678',
    body: 'Your code is 123456, <Ann> {{code}} {{unknown}}',
    category: 'codes',
    status: 'delivered',
    encoding: 'gsm7',
    segments: 1,
    error: null,
    uncertain: false,
    created_at: expect.stringMatching(/Z$/) as string,
    sent_at: expect.stringMatching(/Z$/) as string,
    delivered_at: expect.stringMatching(/Z$/) as string,
    updated_at: expect.stringMatching(/Z$/) as string,
  });
  const { body } = await server.request<List>('GET', '/v1/sms?category=codes');
  expect(body).toEqual({ object: 'list', has_more: false, data: [sms] });
  const { body: inbox } = await server.request<{ data: unknown[] }>(
    'GET',
    '/sandbox/messages?channel=sms&to=%2B4915112345678',
  );
  expect(inbox.data[0]).toMatchObject({ message_id: id, from: 'Acme', text: sms.body, outcome: 'delivered' });
});

test.each([
  ['+15005550001', 'failed', 'unknown_subscriber'],
  ['+15005550004', 'failed', 'blocked'],
  ['+15005550010', 'undelivered', 'unreachable'],
  ['+15005550011', 'expired', 'expired'],
])('of a text to %s it is known that it is %s, and why', async (to, status, code) => {
  const id = await sendSms(server, { to });
  const { error, delivered_at: deliveredAt } = await smsWithStatus(server, id, status);
  expect(error).toMatchObject({ code, message: expect.stringMatching(/\. \(.+\)$/) as string });
  expect(deliveredAt).toBeNull();
});

test('a text is sent until its receipt comes, and sending while it is uncertain or put off', async () => {
  const [slow, unknown, deferred] = [
    await sendSms(server, { to: '+15005550012' }),
    await sendSms(server, { to: '+15005550013' }),
    await sendSms(server, { to: '+15005550014' }),
  ];
  expect(await smsWithStatus(server, slow, 'sent')).toMatchObject({ delivered_at: null, uncertain: false });
  expect(await smsWithStatus(server, unknown, 'sending')).toMatchObject({ uncertain: true });
  await smsWithStatus(server, deferred, 'sending');
  clock.putForward(6_000);
  await smsWithStatus(server, slow, 'delivered');
  expect(await smsWithStatus(server, unknown, 'delivered')).toMatchObject({ uncertain: false });
  // Cut off, and not repeated.
  const [{ count }] = (await rowsOf<{ count: number }>(
    server,
    'select count(*) as count from sandbox_messages where message_id = $1',
    [unknown],
  )) as [{ count: number }];
  expect(count).toBe(1);
  expect(await queueOf(server, deferred)).toHaveLength(1);
  await rowsOf(server, `update delivery_queue set accepted_at = now() - interval '25 hours', due_at = now()`);
  clock.putForward(6_000);
  expect(await smsWithStatus(server, deferred, 'expired')).toMatchObject({ error: { code: 'expired' } });
});

describe('a text is refused', () => {
  const refusals: [string, Record<string, unknown>, number, string][] = [
    ['without a sender', { from: undefined }, 422, 'from is required'],
    ['of a sender that nobody has approved', { from: 'Nobody' }, 400, 'not an approved sender'],
    ['of a sender in other letters', { from: 'ACME' }, 400, 'not an approved sender'],
    ['without a recipient', { to: undefined }, 422, 'to is required'],
    ['to what is no number', { to: '0151 1234567' }, 422, 'to must be a phone number in E.164'],
    ['that says nothing', { body: '' }, 422, 'body must'],
    ['that is too long', { body: 'a'.repeat(1_601) }, 422, 'body must have 1 to 1600 characters'],
    [
      'that is too long with its values',
      { body: '{{a}}{{a}}', variables: { a: 'a'.repeat(801) } },
      422,
      'body must have 1 to 1600 characters',
    ],
    ['of blanks', { body: ' \n\u00a0 ' }, 422, 'body must have 1 to 1600 characters'],
    ['of blanks with its values', { body: '{{a}} ', variables: { a: ' ' } }, 422, 'and not only blanks'],
    ['that is empty with its values', { body: '{{a}}', variables: { a: '' } }, 422, 'body must have 1'],
    ['with a value of a wrong type', { variables: { a: null } }, 422, 'variables.a must be'],
    [
      'with a category of blanks',
      { category: '  ' },
      422,
      'category must be a single line that is not blank',
    ],
    [
      'with a name of a value that is too long',
      { variables: { ['a'.repeat(256)]: 1 } },
      422,
      'variables.aaa',
    ],
    ['with a category that is too long', { category: 'a'.repeat(101) }, 422, 'category must'],
    ['with a field that nobody knows', { text: 'Hello' }, 422, 'text is not'],
  ];
  test.each(refusals)('%s', async (_case, more, status, message) => {
    const response = await postSms<ErrorBody>(server, anSms(more));
    expect(response.status).toBe(status);
    expect(response.body.message).toContain(message);
  });

  test('while the organization is suspended for SMS, and sends email all the same', async () => {
    const suspend = (channels: string) =>
      rowsOf(server, 'update organizations set suspended_channels = $2 where id = $1', [
        server.organizationId,
        channels,
      ]);
    await suspend('{sms}');
    const { status, body } = await postSms<ErrorBody>(server, anSms());
    await suspend('{}');
    expect([status, body.name]).toEqual([403, 'sending_suspended']);
  });
});

test('1,600 characters are sent, a number with a plus is a sender, and each segment counts', async () => {
  const usage = async () =>
    (
      await rowsOf<{ used: string }>(
        server,
        `select coalesce(sum(used), 0) as used from quota_usage where organization_id = $1 and channel = 'sms'`,
        [server.organizationId],
      )
    ).map(({ used }) => Number(used))[0]!;
  const before = await usage();
  const id = await sendSms(server, { from: '+14155550100', body: '€'.repeat(800) });
  expect(await readSms(server, id)).toMatchObject({ from: '14155550100', encoding: 'gsm7', segments: 11 });
  expect(await usage()).toBe(before + 11);
  await updateOrganization(server.installation, server.organizationId, { quotas: { sms: before + 13 } });
  const refused = await postSms<ErrorBody>(server, anSms({ body: 'ж'.repeat(135) }));
  const fitting = await postSms(server, anSms({ body: 'ж'.repeat(134) }));
  await updateOrganization(server.installation, server.organizationId, { quotas: { sms: null } });
  expect([refused.status, refused.body.name]).toEqual([429, 'monthly_quota_exceeded']);
  expect(refused.body.message).toContain(
    `: ${(before + 11).toLocaleString('en-US')} of ${(before + 13).toLocaleString('en-US')} segments are used, and this message takes 3.`,
  );
  expect(fitting.status).toBe(202);
  expect(await readSms(server, fitting.body.id)).toMatchObject({ encoding: 'ucs2', segments: 2 });
});

test('a variable without a value is named in a header', async () => {
  const body = 'Hello {{name}}, {{code}} {{name}}';
  const response = await postSms(server, anSms({ body, variables: { code: '1' } }));
  expect([response.status, Object.keys(response.body)]).toEqual([202, ['id']]);
  expect(response.headers.get('postillion-missing-variables')).toBe('name');
});

test('an idempotency key sends once, and belongs to its endpoint', async () => {
  const headers = { 'idempotency-key': 'sms-1' };
  const first = await postSms(server, anSms(), headers);
  const second = await postSms(server, anSms(), headers);
  expect(second.text).toBe(first.text);
  expect(second.headers.get('postillion-missing-variables')).toBeNull();
  expect(second.headers.get('idempotent-replayed')).toBe('true');
  expect((await postSms<ErrorBody>(server, anSms({ body: 'Other' }), headers)).status).toBe(409);
});

test('texts are found by the beginning of their recipient or sender, and by their status', async () => {
  const id = await sendSms(server, { from: '14155550100', to: '+33612345678' });
  await smsWithStatus(server, id, 'delivered');
  const search = async (query: string) =>
    (await server.request<List>('GET', `/v1/sms?${query}`)).body.data.map((sms) => sms.id);
  for (const text of ['%2B336', '+336', '336', '33612345678', '%2B33 612 34', '%2B33612345678'])
    expect([text, await search(`search=${text}`)]).toEqual([text, [id]]);
  for (const text of ['1415', '%2B1415', '%2B1 415']) expect(await search(`search=${text}`)).toContain(id);
  expect(await search('search=acm')).not.toHaveLength(0);
  expect(await search('search=nobody')).toEqual([]);
  expect(await search('status=delivered&search=336')).toEqual([id]);
  expect(await search('status=failed&search=336')).toEqual([]);
});

test('what no number begins with is not looked for among the addresses of recipients', async () => {
  const id = await sendSms(server, { from: 'Acme', to: '+33612345679' });
  // As if it were one of the many addresses of emails in the same index.
  await rowsOf(server, `update recipients set address_key = 'reader.1@example.com' where message_id = $1`, [
    id,
  ]);
  const { body } = await server.request<List>('GET', '/v1/sms?search=reader.1');
  expect(body.data).toEqual([]);
});

describe('a text that comes in', () => {
  const number = '+491701234567';
  const intake = () => createIntake(server.installation);
  const comeIn = (text: string) =>
    intake().takeInbound({ providerMessageId: null, from: number, senderName: '14155550100', text });
  const replies = async () =>
    (await server.request<List>('GET', '/v1/sms?category=keyword_reply')).body.data.filter(
      ({ to }) => to === number,
    );

  test('stops texts to its number, is answered, and starts them again', async () => {
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
      phone_number: number,
    });
    const consent = async () =>
      (await server.request<{ consent: { sms: string } }>('GET', `/v1/contacts/${contact.id}`)).body.consent
        .sms;
    await comeIn('Stop!');
    await eventually(consent, (word) => word === 'unsubscribed');
    const [stopped] = await eventually(replies, (texts) => texts.length === 1);
    expect(stopped).toMatchObject({ from: '14155550100', body: expect.stringContaining('START') as string });
    await smsWithStatus(server, stopped!.id, 'delivered');

    const barred = await sendSms(server, { to: number });
    expect(await smsWithStatus(server, barred, 'failed')).toMatchObject({
      error: { code: 'opted_out' },
      sent_at: null,
    });
    await comeIn('STOP');
    await comeIn('unstop');
    await eventually(consent, (word) => word === 'subscribed');
    // A second STOP gets no second answer.
    expect(await eventually(replies, (texts) => texts.length === 2)).toHaveLength(2);
    await smsWithStatus(server, await sendSms(server, { to: number }), 'delivered');
  });

  test('asks for help and gets it; one without a keyword is ignored', async () => {
    const before = (await replies()).length;
    await comeIn('Where is my parcel? Please do not stop.');
    await comeIn(' help ');
    const texts = await eventually(replies, (found) => found.length > before);
    expect(texts).toHaveLength(before + 1);
    expect(texts[0]!.body).toContain('STOP');
  });

  const allApplied = () =>
    eventually(
      () => rowsOf(server, 'select from sms_events'),
      (events) => events.length === 0,
    );

  test('that is reported twice is answered once, and one ten minutes later again', async () => {
    const asker = '+491701234571';
    const ask = () =>
      intake().takeInbound({
        providerMessageId: null,
        from: asker,
        senderName: '14155550100',
        text: 'HELP',
      });
    const answers = async () =>
      (await server.request<List>('GET', '/v1/sms?category=keyword_reply')).body.data.filter(
        ({ to }) => to === asker,
      ).length;
    await ask();
    await ask();
    await allApplied();
    expect(await answers()).toBe(1);
    clock.putForward(11 * 60_000);
    await ask();
    await allApplied();
    expect(await answers()).toBe(2);
  });

  test('asks again and again, and is answered five times a day', async () => {
    for (let asking = 1; asking <= 8; asking += 1) {
      await comeIn('HELP');
      await allApplied();
      clock.putForward(11 * 60_000);
    }
    expect(await replies()).toHaveLength(5);
  });

  test('with START is not promised texts to a number that the operator has suppressed', async () => {
    // A number of its own: another may have used up its answers of the day.
    const asker = '+491701234573';
    const address = { organizationId: server.organizationId, address: asker };
    const { installation } = server;
    const { body: contact } = await server.request<{ id: string }>('POST', '/v1/contacts', {
      phone_number: asker,
      consent: { sms: 'unsubscribed' },
    });
    await addSuppressions(installation.database, installation, 'sms', [{ ...address, reason: 'operator' }]);
    await intake().takeInbound({
      providerMessageId: null,
      from: asker,
      senderName: '14155550100',
      text: 'START',
    });
    await allApplied();
    const { body } = await server.request<{ consent: { sms: string } }>('GET', `/v1/contacts/${contact.id}`);
    expect(body.consent.sms).toBe('subscribed');
    const answers = (await server.request<List>('GET', '/v1/sms?category=keyword_reply')).body.data;
    expect(answers.filter(({ to }) => to === asker)).toEqual([]);
    expect(await removeSuppressions(installation.database, installation, 'sms', address)).toBe(true);
  });

  test('with STOP holds after the operator has lifted what he had suppressed, with a contact or without', async () => {
    const asker = '+491701234569';
    const address = { organizationId: server.organizationId, address: asker };
    const { installation } = server;
    const reasonLeft = async () =>
      (await readSuppressions(installation.database, installation, 'sms', address))[0]?.reason;
    await addSuppressions(installation.database, installation, 'sms', [{ ...address, reason: 'operator' }]);
    const say = async (text: string) => {
      await intake().takeInbound({ providerMessageId: null, from: asker, senderName: '14155550100', text });
      await eventually(
        () => rowsOf(server, 'select from sms_events'),
        (events) => events.length === 0,
      );
    };
    await say('STOP');
    expect(await reasonLeft()).toBe('operator');
    await removeSuppressions(installation.database, installation, 'sms', address);
    expect(await reasonLeft()).toBe('unsubscribe');
    const barred = await sendSms(server, { to: asker });
    expect(await smsWithStatus(server, barred, 'failed')).toMatchObject({ error: { code: 'opted_out' } });
    await say('START');
    expect(await reasonLeft()).toBeUndefined();
  });

  test('stops the texts of the organization that had the sender last, and is not answered from there', async () => {
    const [gone, asker] = ['+14155550107', '+491701234568'];
    const id = await addApprovedSender(server, gone);
    await rejectSender(server.installation, id);
    const toGone = { providerMessageId: null, from: asker, senderName: gone.slice(1) };
    await intake().takeInbound({ ...toGone, text: 'STOP' });
    await eventually(
      () => rowsOf(server, 'select from sms_events'),
      (events) => events.length === 0,
    );
    const barred = await sendSms(server, { to: asker });
    expect(await smsWithStatus(server, barred, 'failed')).toMatchObject({ error: { code: 'opted_out' } });
    const answers = (await server.request<List>('GET', '/v1/sms?category=keyword_reply')).body.data;
    expect(answers.filter(({ to }) => to === asker)).toEqual([]);
  });

  test('with STOP is heard by a short code that was taken for a number without its country', async () => {
    const asker = '+491701234572';
    await addApprovedSender(server, '19123456');
    await intake().takeInbound({
      providerMessageId: null,
      from: asker,
      senderName: '6119123456',
      senderNameAsWritten: '19123456',
      text: 'STOP',
    });
    await allApplied();
    const barred = await sendSms(server, { to: asker });
    expect(await smsWithStatus(server, barred, 'failed')).toMatchObject({ error: { code: 'opted_out' } });
  });

  test('for an unknown sender changes nothing', async () => {
    await intake().takeInbound({ providerMessageId: null, from: number, senderName: '999', text: 'STOP' });
    await eventually(
      () => rowsOf(server, 'select from sms_events'),
      (events) => events.length === 0,
    );
    await smsWithStatus(server, await sendSms(server, { to: number }), 'delivered');
  });
});

describe('a receipt', () => {
  const takeReceipt = (more: Partial<Parameters<ReturnType<typeof createIntake>['takeReceipt']>[0]>) =>
    createIntake(server.installation).takeReceipt({
      providerMessageId: null,
      reference: null,
      to: null,
      senderName: null,
      status: 'delivered',
      failure: null,
      diagnostic: null,
      ...more,
    });

  test('that comes before its hand-off is known waits for it', async () => {
    await takeReceipt({ providerMessageId: 'early-1' });
    await eventually(
      () => rowsOf<{ attempts: number }>(server, 'select attempts from provider_events'),
      ([event]) => (event?.attempts ?? 0) > 0,
    );
    const id = await sendSms(server, { to: '+15005550012' });
    await smsWithStatus(server, id, 'sent');
    await rowsOf(server, `update provider_ids set provider_message_id = 'early-1' where message_id = $1`, [
      id,
    ]);
    await smsWithStatus(server, id, 'delivered');
  });

  test('under an unknown id settles a hand-off that was cut off, if number and sender agree', async () => {
    const id = await sendSms(server, { to: '+15005550013' });
    await smsWithStatus(server, id, 'sending');
    await takeReceipt({ providerMessageId: 'lost-1', to: '+15005550013', senderName: 'Other' });
    await takeReceipt({
      providerMessageId: 'lost-2',
      to: '+15005550013',
      senderName: 'Acme',
      status: 'undelivered',
      failure: 'unreachable',
      diagnostic: 'ABSENT',
    });
    expect(await smsWithStatus(server, id, 'undelivered')).toMatchObject({
      uncertain: false,
      error: { code: 'unreachable' },
    });
  });
});
