import { createHmac } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { signBody } from '../../../../../test/support/graph.ts';
import type { ProviderApp } from '../../../provider-callbacks.ts';
import type { ToldByCallback } from '../../provider.ts';
import { isSigned, whatsAppCallbacks } from './callbacks.ts';

const appSecret = 'the secret of the app';
const account = '102290129340398';
const wamid = 'wamid.HBgLMTY1MDM4Nzk0MzkVAgARGBI=';
const own: ProviderApp = {
  accountId: '2002',
  organizationId: 'o',
  appSecret: 'the secret of their own',
  verifyToken: 'theirs',
};
const [shared, ofOrganizations] = whatsAppCallbacks({ appSecret, verifyToken: 'ours' });

const referenceOf = (token: string) =>
  token.startsWith('token ') ? { organizationId: token.slice(6), messageId: 'm', ordinal: 1 } : null;

function post(
  callback: typeof shared,
  body: string | Buffer,
  signature: string | undefined,
  app: ProviderApp | null = null,
) {
  if (callback?.rawBytesMax === undefined) throw new Error('takes no raw body');
  return callback.read({
    url: 'https://post.test/callbacks/whatsapp',
    header: (name) => (name === 'x-hub-signature-256' ? signature : undefined),
    body: Buffer.from(body),
    reference: null,
    readToken: referenceOf,
    findApp: () => Promise.resolve(app),
  });
}

async function tellByShared(webhook: unknown): Promise<readonly ToldByCallback[]> {
  const body = JSON.stringify(webhook);
  const told = await post(shared, body, signBody(appSecret, body));
  if (typeof told === 'string') throw new Error(told);
  return told;
}

const webhookOf = (...changes: unknown[]) => ({
  object: 'whatsapp_business_account',
  entry: [{ id: account, time: 1, changes }],
});
const messagesOf = (value: object) =>
  webhookOf({ field: 'messages', value: { messaging_product: 'whatsapp', ...value } });

const delivered = {
  ...{ id: wamid, status: 'delivered', timestamp: '1795262400', recipient_id: '16505551234' },
  ...{ recipient_user_id: 'US.13491208655302741918', biz_opaque_callback_data: 'token o' },
};

describe('the question of Meta whether the address is ours', () => {
  const ask = (query: Record<string, string>, callback = shared, app: ProviderApp | null = null) =>
    callback?.greet?.({ query, findApp: () => Promise.resolve(app) });
  const asked = { 'hub.mode': 'subscribe', 'hub.challenge': '1158201444', 'hub.verify_token': 'ours' };

  test('is answered by its challenge alone', async () => {
    expect(await ask(asked)).toBe('1158201444');
  });

  test.each([
    ['another word', { ...asked, 'hub.verify_token': 'theirs' }],
    ['the beginning of the word', { ...asked, 'hub.verify_token': 'our' }],
    ['no word', { 'hub.mode': 'subscribe', 'hub.challenge': '1' }],
    ['another mode', { ...asked, 'hub.mode': 'unsubscribe' }],
    ['no challenge', { 'hub.mode': 'subscribe', 'hub.verify_token': 'ours' }],
    ['a challenge that is a page', { ...asked, 'hub.challenge': '<script>' }],
    ['nothing', {}],
  ])('is not answered with %s', async (_, query) => {
    expect(await ask(query)).toBeNull();
  });

  test('is not answered where no word is set, not even with an empty one', async () => {
    const [unset] = whatsAppCallbacks({ appSecret: '', verifyToken: '' });
    expect(await ask({ ...asked, 'hub.verify_token': '' }, unset)).toBeNull();
  });

  test('is answered to an organization by its own word, and not by that of the installation', async () => {
    const theirs = { ...asked, 'hub.verify_token': 'theirs' };
    expect(await ask(theirs, ofOrganizations, own)).toBe('1158201444');
    expect(await ask(asked, ofOrganizations, own)).toBeNull();
    expect(await ask({ ...asked, 'hub.verify_token': '' }, ofOrganizations, null)).toBeNull();
  });
});

describe('a signature', () => {
  const body = JSON.stringify(messagesOf({ statuses: [delivered] }));
  const right = signBody(appSecret, body);

  test('over the octets is taken', async () => {
    expect(await post(shared, body, right)).toHaveLength(1);
  });

  test.each([
    ['missing', undefined],
    ['empty', ''],
    ['without its algorithm', right.slice(7)],
    ['of SHA-1', `sha1=${createHmac('sha1', appSecret).update(body).digest('hex')}`],
    ['cut short', right.slice(0, -2)],
    ['too long', `${right}00`],
    ['of another secret', signBody('another', body)],
    ['of an empty secret', signBody('', body)],
    ['of the same content in other octets', signBody(appSecret, JSON.stringify(JSON.parse(body), null, 1))],
    ['no hexadecimal', `sha256=${'g'.repeat(64)}`],
    ['two of them', `${right}, ${right}`],
  ])('that is %s is forged', async (_, signature) => {
    expect(await post(shared, body, signature)).toBe('forged');
  });

  test('is forged where no secret is set', () => {
    expect(isSigned('', Buffer.from(body), signBody('', body))).toBe(false);
  });

  test('is asked for before anything is read', async () => {
    expect(await post(shared, '{', undefined)).toBe('forged');
    expect(await post(shared, '{', signBody(appSecret, '{'))).toBe('unreadable');
  });

  test('of an organization counts at its own address, and nowhere else', async () => {
    const signed = signBody(own.appSecret, body);
    expect(await post(ofOrganizations, body, signed, own)).toMatchObject([{ organizationId: 'o' }]);
    expect(await post(ofOrganizations, body, right, own)).toBe('forged');
    expect(await post(ofOrganizations, body, signed, null)).toBe('forged');
    expect(await post(shared, body, signed, own)).toBe('forged');
  });
});

test('an organization cannot tell what became of the message of another', async () => {
  const foreign = { ...delivered, biz_opaque_callback_data: 'token another' };
  const body = JSON.stringify(messagesOf({ statuses: [foreign, delivered] }));
  const told = await post(ofOrganizations, body, signBody(own.appSecret, body), own);
  expect(told).toMatchObject([{ report: { reference: { organizationId: 'o' } } }]);
});

test('at its own address, an organization hears of templates, accounts and limits of its own business account alone', async () => {
  const template = {
    ...{ message_template_id: 1, message_template_name: 'x', message_template_language: 'en' },
    event: 'PAUSED',
  };
  const changes = [
    { field: 'business_capability_update', value: { max_daily_conversations_per_business: 250 } },
    { field: 'message_template_status_update', value: template },
    { field: 'messages', value: { messaging_product: 'whatsapp', statuses: [delivered] } },
  ];
  const entry = [account, own.accountId].map((id) => ({ id, time: 1, changes }));
  const body = JSON.stringify({ object: 'whatsapp_business_account', entry });
  const told = await post(ofOrganizations, body, signBody(own.appSecret, body), own);
  if (typeof told === 'string') throw new Error(told);
  expect(told.map(({ kind, businessAccountId }) => [kind, businessAccountId])).toEqual([
    ['status', account],
    ['account', own.accountId],
    ['people_limit', own.accountId],
    ['template', own.accountId],
    ['status', own.accountId],
  ]);
});

test('a status says whose message it is, what became of it, and by what the person is known', async () => {
  expect(await tellByShared(messagesOf({ statuses: [delivered] }))).toEqual([
    {
      kind: 'status',
      organizationId: null,
      businessAccountId: account,
      report: {
        providerMessageId: wamid,
        reference: { organizationId: 'o', messageId: 'm', ordinal: 1 },
        to: null,
        senderName: null,
        status: 'delivered',
        failure: null,
        diagnostic: null,
      },
      person: { waId: '16505551234', userId: 'US.13491208655302741918' },
      finding: null,
    },
  ]);
});

test.each([
  ['sent', 'sent'],
  ['delivered', 'delivered'],
  ['read', 'opened'],
  ['played', 'opened'],
  ['failed', 'failed'],
])('%s is told as %s', async (status, expected) => {
  const told = await tellByShared(messagesOf({ statuses: [{ ...delivered, status }] }));
  expect(told).toMatchObject([{ report: { status: expected } }]);
});

test('the reason of a failure is read by its code', async () => {
  const errors = [
    { code: 131_050, title: 'Stopped', message: 'Stopped', error_data: { details: 'The person said so.' } },
  ];
  const told = await tellByShared(messagesOf({ statuses: [{ ...delivered, status: 'failed', errors }] }));
  expect(told).toMatchObject([
    {
      report: { failure: 'blocked', diagnostic: '131050 Stopped: The person said so.' },
      finding: { kind: 'stopped_marketing' },
    },
  ]);
});

test.each([
  ['no errors', {}],
  ['an unknown code', { errors: [{ code: 139_999, title: 'New' }] }],
  ['errors that are no list', { errors: { code: 131_026 } }],
])('a failure with %s has the reason other', async (_, more) => {
  const told = await tellByShared(messagesOf({ statuses: [{ ...delivered, ...more, status: 'failed' }] }));
  expect(told).toMatchObject([{ report: { failure: 'other' }, finding: null }]);
});

test('a person without a number is known by their id, and nobody at all is no obstacle', async () => {
  const { recipient_id: _, ...hidden } = delivered;
  const { recipient_user_id: __, ...nobody } = hidden;
  const told = await tellByShared(messagesOf({ statuses: [hidden, nobody] }));
  expect(told).toMatchObject([
    { person: { waId: null, userId: 'US.13491208655302741918' } },
    { person: { waId: null, userId: null } },
  ]);
});

const written = { from: '16505551234', id: wamid, timestamp: '1795262400' };

test.each([
  ['a text', { type: 'text', text: { body: 'STOP' } }, 'STOP'],
  ['a quick reply', { type: 'button', button: { payload: 'x', text: 'Stop' } }, 'Stop'],
  ['a button', { type: 'interactive', interactive: { button_reply: { id: '1', title: 'Yes' } } }, 'Yes'],
  ['a line of a list', { type: 'interactive', interactive: { list_reply: { id: '1', title: 'No' } } }, 'No'],
  ['a NUL and half a pair', { type: 'text', text: { body: 'S\0T\ud800OP' } }, 'STOP'],
  ['more than a text may have', { type: 'text', text: { body: '👋'.repeat(5_000) } }, '👋'.repeat(2_048)],
])('what a person says is told: %s', async (_, message, text) => {
  expect(await tellByShared(messagesOf({ messages: [{ ...written, ...message }] }))).toEqual([
    {
      kind: 'inbound',
      ...{ organizationId: null, businessAccountId: account, providerMessageId: wamid, text },
      person: { waId: '16505551234', userId: null },
      at: new Date('2026-11-21T12:00:00.000Z'),
    },
  ]);
});

test.each(['image', 'reaction', 'unsupported', 'constructor', '__proto__'])(
  'of a message of the type %s there is nothing to tell',
  async (type) => {
    expect(await tellByShared(messagesOf({ messages: [{ ...written, type }] }))).toEqual([]);
  },
);

test('who writes without a number is known by the id beside the message', async () => {
  const { from: _, ...hidden } = written;
  const message = { ...hidden, type: 'text', text: { body: 'STOP' } };
  const contacts = [{ profile: { name: 'Ana' }, user_id: 'US.ENT.506847293015824' }];
  expect(await tellByShared(messagesOf({ contacts, messages: [message] }))).toMatchObject([
    { person: { waId: null, userId: 'US.ENT.506847293015824' } },
  ]);
  // With two messages and two contacts, nobody knows which is whose.
  const two = { contacts: [...contacts, { user_id: 'US.2' }], messages: [message, message] };
  expect(await tellByShared(messagesOf(two))).toEqual([]);
});

test('a person who has another number is told with both', async () => {
  const system = { body: 'changed', type: 'user_changed_number', wa_id: '12195555358', user_id: 'US.2' };
  const told = await tellByShared(messagesOf({ messages: [{ ...written, type: 'system', system }] }));
  expect(told).toMatchObject([
    {
      kind: 'changed_number',
      person: { waId: '16505551234', userId: null },
      newPerson: { waId: '12195555358', userId: 'US.2' },
    },
  ]);
});

test.each(['messages', 'user_preferences'])(
  'what a person sets in the app is told, from %s',
  async (field) => {
    const preference = { wa_id: '16505551234', category: 'marketing_messages', timestamp: 1_795_262_400 };
    const user_preferences = [
      { ...preference, value: 'stop' },
      { ...preference, value: 'resume' },
      { ...preference, value: 'pause' },
      { ...preference, value: 'stop', category: 'another' },
    ];
    expect(await tellByShared(webhookOf({ field, value: { user_preferences } }))).toMatchObject([
      { kind: 'marketing_preference', value: 'stop' },
      { kind: 'marketing_preference', value: 'resume' },
    ]);
  },
);

describe('of a template', () => {
  const template = {
    message_template_id: 594_425_479_261_596,
    message_template_name: 'order_shipped',
    message_template_language: 'en_US',
  };
  const tell = (field: string, value: object) =>
    tellByShared(webhookOf({ field, value: { ...template, ...value } }));

  test.each([
    ['APPROVED', 'approved'],
    ['REJECTED', 'rejected'],
    ['PENDING', 'pending'],
    ['IN_APPEAL', 'pending'],
    ['LIMIT_EXCEEDED', 'pending'],
    ['PAUSED', 'paused'],
    ['DISABLED', 'disabled'],
    ['ARCHIVED', 'archived'],
    ['UNARCHIVED', 'approved'],
    ['REINSTATED', 'approved'],
    ['LOCKED', 'locked'],
    ['FLAGGED', 'flagged'],
    ['PENDING_DELETION', 'deleted'],
    ['DELETED', 'deleted'],
    ['SOMETHING_NEW', null],
  ])('%s is told as %s', async (event, state) => {
    expect(await tell('message_template_status_update', { event, reason: 'NONE' })).toMatchObject([
      {
        kind: 'template',
        businessAccountId: account,
        template: { providerTemplateId: '594425479261596', name: 'order_shipped', language: 'en_US', state },
      },
    ]);
  });

  test.each([
    [{ reason: 'INVALID_FORMAT' }, /^The form is not valid.*\(INVALID_FORMAT\)$/],
    [{ reason: 'SOMETHING_NEW' }, /^SOMETHING_NEW$/],
    [
      { reason: 'SCAM', rejection_info: { reason: 'It begs.', recommendation: 'Do not.' } },
      /^It begs\. Do not\.$/,
    ],
    [{ reason: `No\u0000\n${'x'.repeat(9_999)}` }, /^No x{1,497}$/],
  ])('a rejection with %j has words for its author', async (value, words) => {
    const told = await tell('message_template_status_update', { event: 'REJECTED', ...value });
    expect(told).toMatchObject([{ template: { rejectionReason: expect.stringMatching(words) } }]);
  });

  test('the quality and a new category are told, and nothing else changes', async () => {
    expect(await tell('message_template_quality_update', { new_quality_score: 'YELLOW' })).toMatchObject([
      { template: { state: null, category: null, quality: 'yellow' } },
    ]);
    expect(await tell('template_category_update', { new_category: 'MARKETING' })).toMatchObject([
      { template: { state: null, category: 'marketing', quality: null } },
    ]);
  });

  test('a category that is only announced is told as that, with its time where there is one', async () => {
    const value = { new_category: 'UTILITY', correct_category: 'MARKETING' };
    const words = 'template_category_update: order_shipped MARKETING';
    for (const [category_update_timestamp, atMs] of [
      [1_746_169_200, 1_746_169_200_000],
      [undefined, null],
      ['soon', null],
    ])
      expect(await tell('template_category_update', { ...value, category_update_timestamp })).toMatchObject([
        { kind: 'account', words, areCampaignsHeld: null },
        { template: { state: null, category: 'utility', announced: { category: 'marketing', atMs } } },
      ]);
    expect(await tell('template_category_update', { ...value, correct_category: 'NEW' })).toHaveLength(1);
  });

  test('one that is not named is skipped', async () => {
    const value = { event: 'APPROVED', message_template_name: '../x' };
    expect(await tell('message_template_status_update', value)).toEqual([]);
  });
});

test.each([
  ['account_update', { event: 'DISABLED_UPDATE', ban_info: { waba_ban_state: 'DISABLE' } }, true],
  ['account_update', { event: 'DISABLED_UPDATE', ban_info: { waba_ban_state: 'REINSTATE' } }, false],
  ['account_update', { event: 'ACCOUNT_RESTRICTION' }, true],
  ['account_update', { event: 'VERIFIED_ACCOUNT' }, null],
  ['phone_number_quality_update', { event: 'FLAGGED', current_limit: 'TIER_2K' }, null],
  ['account_alerts', { alert_type: 'OBA_APPROVED' }, null],
])('%s with %j holds campaigns: %s', async (field, value, areCampaignsHeld) => {
  const told = await tellByShared(webhookOf({ field, value }));
  expect(told).toMatchObject([{ kind: 'account', areCampaignsHeld }]);
  expect(told[0]).toMatchObject({ words: expect.stringMatching(`^${field}: `) });
});

test.each([
  ['business_capability_update', { max_daily_conversations_per_business: 2_000 }, 2_000],
  ['business_capability_update', { max_daily_conversations_per_business: '10000' }, 10_000],
  ['business_capability_update', { max_daily_conversations_per_business: 'TIER_100K' }, 100_000],
  ['business_capability_update', { max_daily_conversations_per_business: -1 }, 'unlimited'],
  ['business_capability_update', { max_daily_conversation_per_phone: 250 }, 250],
  [
    'business_capability_update',
    { max_daily_conversations_per_business: 'TIER_2K', max_daily_conversation_per_phone: 250 },
    2_000,
  ],
  [
    'phone_number_quality_update',
    { event: 'UPGRADE', max_daily_conversations_per_business: 'TIER_2K' },
    2_000,
  ],
  ['phone_number_quality_update', { max_daily_conversations_per_business: 'TIER_UNLIMITED' }, 'unlimited'],
  // Nothing that is known to be the limit of a portfolio.
  ['phone_number_quality_update', { event: 'FLAGGED', current_limit: 'TIER_2K' }, null],
  ['business_capability_update', { max_phone_numbers_per_business: 25 }, null],
  ['business_capability_update', { max_daily_conversations_per_business: 'TIER_NEW' }, null],
  ['business_capability_update', { max_daily_conversations_per_business: 0 }, null],
  ['business_capability_update', { max_daily_conversations_per_business: 1e21 }, null],
  ['business_capability_update', { max_daily_conversations_per_business: { toString: 'x' } }, null],
])('%s with %j says that so many people may be written to in a day: %s', async (field, value, limit) => {
  const told = await tellByShared(webhookOf({ field, value }));
  expect(told[0]).toMatchObject({ kind: 'account' });
  expect(told.slice(1)).toMatchObject(
    limit === null ? [] : [{ kind: 'people_limit', peoplePerDayMax: limit }],
  );
});

test('everything in one body is read, and one bad item never loses the others', async () => {
  const bad = [
    null,
    7,
    'x',
    [],
    {},
    { id: {} },
    { ...delivered, status: 7 },
    { ...delivered, id: 1, biz_opaque_callback_data: [] },
  ];
  const statuses = bad.flatMap((item) => [item, delivered]);
  const change = {
    field: 'messages',
    value: { statuses, messages: [...bad, { ...written, type: 'text', text: { body: 'Hi' } }] },
  };
  const entry = {
    id: account,
    changes: [null, 'x', { field: 'messages' }, { field: {}, value: 1 }, change, change],
  };
  const webhook = {
    object: 'whatsapp_business_account',
    entry: [null, 1, { changes: [change] }, { id: '../x', changes: [change] }, entry, { ...entry, id: 2 }],
  };
  const told = await tellByShared(webhook);
  expect(told).toHaveLength(2 * 2 * (bad.length + 1));
  expect(new Set(told.map(({ businessAccountId }) => businessAccountId))).toEqual(new Set([account, '2']));
});

test.each(['', '{', 'null', '7', '"x"', '[]', '{}', '{"entry":{}}', '{"entry":null}', '\u0000'])(
  'the body %j is unreadable',
  async (body) => {
    expect(await post(shared, body, signBody(appSecret, body))).toBe('unreadable');
  },
);

test('a body of 3 MB, one 100,000 deep, and one with keys of prototypes are read without harm', async () => {
  const many = JSON.stringify(messagesOf({ statuses: Array(14_000).fill(delivered) }));
  expect(many.length).toBeGreaterThan(2_500_000);
  expect(await post(shared, many, signBody(appSecret, many))).toHaveLength(14_000);
  const deep = `{"entry":${'['.repeat(100_000)}${']'.repeat(100_000)}}`;
  expect(await post(shared, deep, signBody(appSecret, deep))).toEqual([]);
  const sly = `{"__proto__":{"entry":[1]},"constructor":{"prototype":{"id":"9"}},"entry":[{"__proto__":{"id":"${account}"},"changes":[]}]}`;
  expect(await post(shared, sly, signBody(appSecret, sly))).toEqual([]);
  expect(({} as { entry?: unknown }).entry).toBeUndefined();
});

test('a body of 3 MB is read in steps, between which others have their turn', async () => {
  const many = JSON.stringify(messagesOf({ statuses: Array(14_000).fill(delivered) }));
  let turns = 0;
  let isRead = false;
  const takeTurns = () => {
    turns += 1;
    if (!isRead) setImmediate(takeTurns);
  };
  setImmediate(takeTurns);
  const told = await post(shared, many, signBody(appSecret, many));
  isRead = true;
  expect(told).toHaveLength(14_000);
  expect(turns).toBeGreaterThan(100);
});

/** One pass over both takes 0.1 s; one over all contacts for each message took 70 s. */
const linearTimeMs = 20_000;

test(
  '12,000 messages beside 30,000 contacts do not keep the program busy',
  { timeout: linearTimeMs },
  async () => {
    // Whoever signs for an app of their own could otherwise keep the program busy for minutes with one body.
    const messages = Array.from({ length: 12_000 }, (_, at) => ({
      ...{ id: wamid, timestamp: '1', from: String(4_470_000 + at), type: 'text', text: { body: 'x' } },
    }));
    const contacts = Array.from({ length: 30_000 }, (_, at) => ({
      ...{ wa_id: String(4_470_000 + at), user_id: `US.${at}` },
    }));
    const body = JSON.stringify(messagesOf({ messages, contacts }));
    expect(body.length).toBeLessThan(3_145_728);
    const told = await post(shared, body, signBody(appSecret, body));
    expect(told).toHaveLength(12_000);
    expect(told.at(-1)).toMatchObject({ person: { waId: '4481999', userId: 'US.11999' } });
  },
);

test('whatever Meta signs, it is told as something that can be stored', async () => {
  const anything = fc.object({
    key: fc.constantFrom('statuses', 'messages', 'id', 'status', 'from', 'type', 'text', 'value', 'field'),
    maxDepth: 5,
  });
  await fc.assert(
    fc.asyncProperty(anything, async (value) => {
      for (const told of await tellByShared(webhookOf({ field: 'messages', value }, value)))
        expect(told.businessAccountId).toBe(account);
    }),
  );
});
