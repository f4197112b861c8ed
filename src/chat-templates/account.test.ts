import { beforeEach, describe, expect, test } from 'vitest';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import {
  type AccountContent,
  findAccountHolders,
  findOwnApp,
  loadChatAppAccounts,
  parseAccount,
  setAccount,
} from './account.ts';

let database: Database;
const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
const otherSecrets = createSecrets('another secret of the tests, and of no more');

useTestDatabase({ connectionsMax: 4, hasNeighbour: true }, (opened) => {
  database = opened.database;
});

let own: string;
let other: string;
beforeEach(() => {
  [own, other] = [newId(), newId()];
});

const file = {
  business_account_id: '102290129340398',
  phone_number_id: '106540352242922',
  access_token: 'EAAJB-secret-of-the-file',
};
const withApp = { ...file, app_secret: 'app-secret-of-the-file', verify_token: 'verify-token-of-the-file' };

function contentOf(given: Record<string, unknown>): AccountContent {
  const parsed = parseAccount(JSON.stringify(given));
  if (parsed.kind !== 'parsed') throw new Error(parsed.problem);
  return parsed.content;
}

let numbers = 0;
/** Of a business account that no other test has. */
const fresh = (given: Record<string, unknown> = withApp) =>
  contentOf({ ...given, business_account_id: `${5_000_000 + (numbers += 1)}` });

const tools = () => ({ database, clock: systemClock, newId, secrets });
const set = (organizationId: string, content: AccountContent) => setAccount(tools(), organizationId, content);

describe('the file of an account', () => {
  test('is read with one number or several, and with an app of its own or without', () => {
    expect(contentOf(file)).toEqual({
      businessAccountId: file.business_account_id,
      phoneNumberIds: [file.phone_number_id],
      accessToken: file.access_token,
      ownApp: null,
    });
    const { phone_number_id: _one, ...rest } = withApp;
    expect(contentOf({ ...rest, phone_number_ids: ['1', '2'] })).toMatchObject({
      phoneNumberIds: ['1', '2'],
      ownApp: { appSecret: withApp.app_secret, verifyToken: withApp.verify_token },
    });
    expect(parseAccount(`\ufeff${JSON.stringify(file)}`).kind).toBe('parsed');
  });

  test.each<[string, Record<string, unknown>, string]>([
    ['without a business account', { business_account_id: undefined }, 'business_account_id is required'],
    [
      'with an id that is a number of JSON',
      { business_account_id: 1 },
      'business_account_id must be a string',
    ],
    ['with an id of letters', { phone_number_id: '10x-not-shown' }, 'phone_number_id must match'],
    ['without a number', { phone_number_id: undefined }, 'either phone_number_id or phone_number_ids'],
    [
      'with both ways to say numbers',
      { phone_number_ids: ['1'] },
      'either phone_number_id or phone_number_ids',
    ],
    ['with a number twice', { phone_number_id: undefined, phone_number_ids: ['1', '1'] }, 'same id twice'],
    [
      'with no numbers',
      { phone_number_id: undefined, phone_number_ids: [] },
      'phone_number_ids must have at least',
    ],
    ['with an empty token', { access_token: '' }, 'access_token must not be empty'],
    ['with a token of two lines', { access_token: 'not-shown\r\nX: y' }, 'access_token must match'],
    [
      'with an app secret alone',
      { app_secret: 'not-shown' },
      'app_secret and verify_token must be given together',
    ],
    [
      'with a verify token alone',
      { verify_token: 'not-shown' },
      'app_secret and verify_token must be given together',
    ],
    ['with a name that is not known', { acces_token: 'not-shown' }, 'acces_token is not a known field'],
  ])('%s is refused, and no value is told', (_what, change, problem) => {
    const parsed = parseAccount(JSON.stringify({ ...file, ...change }));
    expect(parsed).toMatchObject({ kind: 'refused', problem: expect.stringContaining(problem) as string });
    expect(JSON.stringify(parsed)).not.toMatch(/not-shown|secret-of-the-file/);
  });

  test.each(['', 'null', '[]', '"x"', '{', '{"__proto__":{}}'])('that holds %s is refused', (json) => {
    expect(parseAccount(json).kind).toBe('refused');
  });
});

describe('an account', () => {
  const load = (organizationIds: readonly string[], opener = secrets) =>
    database.asOrganizationsByIndex(organizationIds, (transaction) =>
      loadChatAppAccounts({ secrets: opener, clock: systemClock }, transaction, organizationIds),
    );

  test('is loaded for the organizations that have one, and its tokens are not stored readable', async () => {
    const content = fresh();
    expect(await set(own, content)).toMatchObject({
      kind: 'set',
      businessAccountId: content.businessAccountId,
      callbackToken: expect.stringMatching(/^[\w-]{32}$/) as string,
    });
    expect(await load([own, other])).toEqual([
      {
        organizationId: own,
        isKeyUnknown: false,
        campaignsHeld: null,
        account: {
          id: expect.any(String) as string,
          organizationId: own,
          businessAccountId: content.businessAccountId,
          phoneNumberIds: content.phoneNumberIds,
          accessToken: content.accessToken,
        },
      },
    ]);
    const [stored] = await database.rows(
      unpreparedStatement<{ text: string }>(
        `select a::text || encode(a.content_sealed, 'escape') as text from chat_app_accounts a where organization_id = $1`,
      ),
      [own],
    );
    expect(stored?.text).not.toContain('of-the-file');
  });

  test('that is replaced has another id and the same address for its reports', async () => {
    const content = fresh();
    const first = await set(own, content);
    const [before] = await load([own]);
    const second = await set(own, { ...content, accessToken: 'another' });
    const [after] = await load([own]);
    expect(second).toEqual(first);
    expect(after?.account).toMatchObject({ accessToken: 'another' });
    expect((after?.account as { id: string }).id).not.toBe((before?.account as { id: string }).id);
  });

  test('that was sealed under another secret is unreadable, and troubles no other organization', async () => {
    await set(own, fresh());
    expect(await load([own], otherSecrets)).toEqual([
      { organizationId: own, account: 'unreadable', isKeyUnknown: false, campaignsHeld: null },
    ]);
  });

  test('belongs to one organization alone, which can be found by it', async () => {
    const content = fresh();
    await set(own, content);
    expect(await set(other, content)).toEqual({ kind: 'taken' });
    expect(await load([other])).toEqual([]);
    expect(await findAccountHolders(database, [content.businessAccountId, '1', "' or true"])).toEqual(
      new Map([[content.businessAccountId, own]]),
    );
    expect(await findAccountHolders(database, [])).toEqual(new Map());
  });

  test('of two organizations that give the same one at once is taken by one of them', async () => {
    const content = fresh();
    const outcomes = await Promise.all([set(own, content), set(other, content)]);
    expect(outcomes.map(({ kind }) => kind).sort()).toEqual(['set', 'taken']);
  });

  test('with an app of its own is found by the address of its reports, and no other is', async () => {
    const outcome = await set(own, fresh());
    if (outcome.kind !== 'set' || outcome.callbackToken === null) throw new Error('it has no address');
    expect(await findOwnApp({ secrets }, database, outcome.callbackToken)).toEqual({
      organizationId: own,
      accountId: outcome.businessAccountId,
      appSecret: withApp.app_secret,
      verifyToken: withApp.verify_token,
    });
    for (const token of ['', 'x', `${outcome.callbackToken}x`, 'a'.repeat(32), `${'a'.repeat(31)}\0`])
      expect(await findOwnApp({ secrets }, database, token)).toBeNull();
    expect(await findOwnApp({ secrets: otherSecrets }, database, outcome.callbackToken)).toBeNull();
    expect(await set(own, fresh(file))).toMatchObject({ kind: 'set', callbackToken: null });
    expect(await findOwnApp({ secrets }, database, outcome.callbackToken)).toBeNull();
  });
});
