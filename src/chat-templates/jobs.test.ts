import { setImmediate } from 'node:timers/promises';
import { beforeEach, describe, expect, test } from 'vitest';
import { createReviewer, type Reviewer } from '../../test/support/chat-app-reviewer.ts';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import { type Database, unpreparedStatement } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import { parseAccount, setAccount } from './account.ts';
import { findAccounts } from './account-store.ts';
import { startTemplateWork, workOnTemplates } from './jobs.ts';
import { createTemplate, deleteTemplate } from './keeping.ts';
import { showTemplate } from './record.ts';
import { applyTemplateReviews, noteTemplateFinding } from './reviewing.ts';
import type { TemplateBody } from './schema.ts';
import { findTemplate, findTemplates, type TemplateRow } from './store.ts';

let database: Database;
let clock: ManualClock;
let reviewer: Reviewer;
let own: string;
let account: string;
const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
const minuteMs = 60_000;
const hourMs = 60 * minuteMs;

useTestDatabase({ connectionsMax: 8, hasNeighbour: true, isForEachTest: true }, (opened) => {
  database = opened.database;
});

let accounts = 700_000;
beforeEach(async () => {
  clock = createManualClock();
  reviewer = createReviewer();
  own = newId();
  account = await giveAccount(own);
});

const tools = () => ({ database, clock, newId, secrets, log: silentLog, provider: reviewer });

async function giveAccount(
  organizationId: string,
  businessAccountId = `${(accounts += 1)}`,
): Promise<string> {
  const parsed = parseAccount(
    JSON.stringify({ business_account_id: businessAccountId, phone_number_id: '1', access_token: 'x' }),
  );
  if (parsed.kind !== 'parsed') throw new Error(parsed.problem);
  const outcome = await setAccount(tools(), organizationId, parsed.content);
  if (outcome.kind !== 'set') throw new Error(outcome.kind);
  return outcome.businessAccountId;
}

const bodyOf = (name: string, more: Partial<TemplateBody> = {}): TemplateBody => ({
  name,
  language: 'en_US',
  category: 'utility',
  components: [{ type: 'body', text: 'It is on its way.' }],
  ...more,
});

async function create(
  name: string,
  more: Partial<TemplateBody> = {},
  organizationId = own,
): Promise<TemplateRow> {
  const created = await createTemplate(
    { ...tools(), isAccountNeeded: () => reviewer.needsAccount },
    organizationId,
    bodyOf(name, more),
  );
  if (created.kind !== 'created') throw new Error(created.kind);
  return created.template;
}

/** All that is due, by one node or two. */
async function workThrough(nodes = 1): Promise<void> {
  const work = async () => {
    // Ends with the work.
    for (let rounds = 0; rounds < 1_000; rounds += 1)
      if (!(await workOnTemplates(tools(), new AbortController().signal))) return;
    throw new Error('the work has no end');
  };
  await Promise.all(Array.from({ length: nodes }, work));
}

async function read({ id, organization_id: organizationId }: TemplateRow): Promise<TemplateRow> {
  const [row] = await database.asOrganizationsByIndex([organizationId], (transaction) =>
    findTemplates(transaction, [{ organizationId, id }]),
  );
  return row!;
}

const show = async (template: TemplateRow) => showTemplate(await read(template));
const remove = (template: TemplateRow) =>
  deleteTemplate(tools(), { organizationId: template.organization_id, id: template.id });
const callsOf = (kind: string) => reviewer.calls.filter((call) => call.kind === kind);
const tell = (organizationId: string, ...reviewed: Parameters<typeof applyTemplateReviews>[3][number][]) =>
  database.transaction((transaction) =>
    applyTemplateReviews({ clock, log: silentLog }, transaction, organizationId, reviewed),
  );

describe('a template', () => {
  test('is submitted, looked at until its review is over, and once a day from then on', async () => {
    const template = await create('order_shipped');
    await workThrough();
    expect(await show(template)).toMatchObject({
      status: 'pending',
      sendable: false,
      sendable_reason: 'pending',
    });
    expect(reviewer.calls).toEqual([{ kind: 'submit', account, what: ['order_shipped en_US'] }]);

    clock.advance(minuteMs);
    await workThrough();
    expect(callsOf('review')).toHaveLength(1);
    reviewer.put(account, 'order_shipped en_US', { state: 'approved', quality: 'green' });
    clock.advance(minuteMs);
    await workThrough();
    expect(await show(template)).toMatchObject({
      status: 'approved',
      sendable: true,
      sendable_reason: null,
      quality: 'green',
      reviewed_at: new Date(clock.nowMs()).toISOString(),
    });

    const before = reviewer.calls.length;
    clock.advance(23 * hourMs);
    await workThrough();
    expect(reviewer.calls).toHaveLength(before);
    reviewer.put(account, 'order_shipped en_US', { state: 'disabled' });
    clock.advance(hourMs);
    await workThrough();
    expect(await show(template)).toMatchObject({
      status: 'approved',
      sendable: false,
      sendable_reason: 'disabled',
    });
    expect(callsOf('submit')).toHaveLength(1);
  });

  test('that is rejected has the reason in the words of the provider, and is left alone', async () => {
    const template = await create('buy_now');
    await workThrough();
    reviewer.put(account, 'buy_now en_US', { state: 'rejected', rejectionReason: 'Promotional content.' });
    clock.advance(minuteMs);
    await workThrough();
    expect(await show(template)).toMatchObject({
      status: 'rejected',
      rejection_reason: 'Promotional content.',
    });
    const before = reviewer.calls.length;
    clock.advance(48 * hourMs);
    await workThrough();
    expect(reviewer.calls).toHaveLength(before);
  });

  test('that is refused at once is rejected, with words that are fit to be shown', async () => {
    reviewer.mishaps.push({ kind: 'refused', words: `Too many\u0000variables.\r\n${'x'.repeat(2_000)}` });
    const template = await create('refused');
    await workThrough();
    const shown = await show(template);
    expect(shown).toMatchObject({ status: 'rejected', sendable_reason: 'rejected' });
    expect(shown.rejection_reason).toMatch(/^Too many variables\. x+$/);
    expect(shown.rejection_reason!.length).toBeLessThanOrEqual(500);
  });

  test('that the provider has already, made by somebody else, is rejected and not taken over', async () => {
    reviewer.templatesOf(account).set('ours en_US', {
      providerTemplateId: 'foreign',
      name: 'ours',
      language: 'en_US',
      state: 'approved',
      category: 'utility',
      rejectionReason: null,
      quality: null,
      template: null,
    });
    const template = await create('ours');
    await workThrough();
    expect(await show(template)).toMatchObject({
      status: 'rejected',
      rejection_reason: expect.stringContaining('already') as string,
    });
    await remove(template);
    await workThrough();
    expect(callsOf('delete')).toEqual([]);
  });

  test('that is recategorised is sendable as before, and says so', async () => {
    const template = await create('order_news');
    await workThrough();
    reviewer.put(account, 'order_news en_US', { state: 'approved', category: 'marketing' });
    clock.advance(minuteMs);
    await workThrough();
    expect(await show(template)).toMatchObject({
      category: 'utility',
      provider_category: 'marketing',
      sendable: true,
      warnings: [expect.stringContaining('marketing')],
    });
  });

  test('that is gone at the provider is not sendable, and rejected if it was still under review', async () => {
    const [approved, pending] = [await create('one'), await create('two')];
    await workThrough();
    reviewer.put(account, 'one en_US', { state: 'approved' });
    clock.advance(minuteMs);
    await workThrough();
    reviewer.templatesOf(account).clear();
    for (let looks = 0; looks < 3; looks += 1) {
      clock.advance(10 * minuteMs);
      await workThrough();
    }
    expect((await show(pending)).status, 'it may appear yet').toBe('pending');
    clock.advance(24 * hourMs);
    await workThrough();
    expect(await show(approved), 'a list may leave it out once').toMatchObject({ sendable: true });
    clock.advance(minuteMs);
    await workThrough();
    expect(await show(approved)).toMatchObject({
      status: 'approved',
      sendable: false,
      sendable_reason: 'deleted',
    });
    expect(await show(pending)).toMatchObject({
      status: 'rejected',
      rejection_reason: expect.stringContaining('deleted') as string,
    });
  });
});

describe('an approved template that a list leaves out', () => {
  const hide = () => {
    const hidden = new Map(reviewer.templatesOf(account));
    reviewer.templatesOf(account).clear();
    return () => {
      for (const [key, value] of hidden) reviewer.templatesOf(account).set(key, value);
    };
  };
  const arrange = async () => {
    const template = await create('left_out');
    await workThrough();
    reviewer.put(account, 'left_out en_US', { state: 'approved' });
    clock.advance(minuteMs);
    await workThrough();
    return template;
  };
  const lookAfter = async (ms: number) => {
    clock.advance(ms);
    await workThrough();
  };

  test('once is sent as before, also when it is left out again another day', async () => {
    const template = await arrange();
    for (let day = 0; day < 2; day += 1) {
      const showAgain = hide();
      await lookAfter(24 * hourMs);
      expect(await show(template)).toMatchObject({ sendable: true });
      showAgain();
      await lookAfter(minuteMs);
      expect(await show(template)).toMatchObject({ sendable: true });
    }
  });

  test('twice is not sendable, and is looked for every hour of that day, and daily from then on', async () => {
    const template = await arrange();
    const showAgain = hide();
    await lookAfter(24 * hourMs);
    await lookAfter(minuteMs);
    expect(await show(template)).toMatchObject({ sendable: false, sendable_reason: 'deleted' });
    showAgain();
    await lookAfter(hourMs);
    expect(await show(template)).toMatchObject({ sendable: true });
    hide();
    await lookAfter(24 * hourMs);
    await lookAfter(minuteMs);
    for (let hour = 0; hour < 24; hour += 1) await lookAfter(hourMs);
    const before = callsOf('review').length;
    await lookAfter(23 * hourMs);
    expect(callsOf('review').length).toBeLessThanOrEqual(before + 1);
  });
});

describe('a template that becomes marketing at the provider', () => {
  const arrange = async (category: 'utility' | 'marketing' = 'utility') => {
    const template = await create('news', { category });
    await workThrough();
    reviewer.put(account, 'news en_US', { state: 'approved' });
    clock.advance(minuteMs);
    await workThrough();
    return template;
  };
  const present = () => reviewer.templatesOf(account).get('news en_US')!;
  const announce = (atMs: number | null = null, state: 'approved' | null = null) =>
    tell(own, { ...present(), state, category: 'utility', announced: { category: 'marketing', atMs } });
  const move = (category: 'utility' | 'marketing') => {
    reviewer.put(account, 'news en_US', { category });
    return tell(own, { ...present(), state: null, category });
  };
  const fromOf = async (template: TemplateRow) => (await read(template)).marketing_from?.getTime() ?? null;

  test('after a notice has a day from the notice on, however late the change comes, and says when', async () => {
    const template = await arrange();
    const startMs = clock.nowMs();
    await announce();
    const until = new Date(startMs + 24 * hourMs).toISOString();
    expect(await show(template)).toMatchObject({
      ...{ provider_category: 'utility', sendable: true },
      warnings: [expect.stringContaining(`category marketing on ${until}`)],
    });
    clock.advance(hourMs);
    await announce();
    await move('marketing');
    clock.advance(30 * hourMs);
    await workThrough();
    expect(await fromOf(template)).toBe(startMs + 24 * hourMs);
    expect(await show(template)).toMatchObject({
      ...{ provider_category: 'marketing', sendable: true },
      warnings: [expect.stringContaining(`sent as utility until ${until}`)],
    });
  });

  test('without a notice has a day from when it was heard of, by a look as well', async () => {
    const template = await arrange();
    reviewer.put(account, 'news en_US', { category: 'marketing' });
    clock.advance(24 * hourMs);
    await workThrough();
    expect(await fromOf(template)).toBe(clock.nowMs() + 24 * hourMs);
  });

  test.each([
    [3 * 24 * hourMs, 3 * 24 * hourMs],
    [-hourMs, 24 * hourMs],
    [400 * 24 * hourMs, 24 * hourMs],
  ])('at a time that is %i ms away has %i ms', async (awayMs, ms) => {
    const template = await arrange();
    await announce(clock.nowMs() + awayMs);
    expect(await fromOf(template)).toBe(clock.nowMs() + ms);
  });

  test('and is taken back, or is never moved, is as before', async () => {
    const template = await arrange();
    await move('marketing');
    await move('utility');
    expect(await show(template)).toMatchObject({ provider_category: 'utility', warnings: [] });
    await announce();
    clock.advance(24 * hourMs);
    await workThrough();
    expect((await show(template)).warnings).toHaveLength(1);
    clock.advance(8 * 24 * hourMs);
    await workThrough();
    expect((await show(template)).warnings).toEqual([]);
  });

  test('that is marketing anyway has no notice, and one of another organization none of this', async () => {
    const template = await arrange('marketing');
    const elsewhere = newId();
    await giveAccount(elsewhere);
    const other = await create('news', {}, elsewhere);
    await announce();
    await move('marketing');
    expect([await fromOf(template), await fromOf(other)]).toEqual([null, null]);
  });
});

describe('a submission whose answer is lost', () => {
  test('and that was taken is found by a look, and not made again', async () => {
    reviewer.mishaps.push('taken_and_lost');
    const template = await create('lost_answer');
    await workThrough();
    expect((await show(template)).warnings).toEqual([expect.stringContaining('the answer was lost')]);
    clock.advance(minuteMs);
    await workThrough();
    expect(callsOf('submit')).toHaveLength(1);
    expect(await read(template)).toMatchObject({
      next_step: 'review',
      is_uncertain: false,
      provider_template_id: expect.any(String) as string,
    });
    expect((await show(template)).warnings).toEqual([]);
  });

  test('and that was not taken is made again, after a look', async () => {
    reviewer.mishaps.push('lost');
    await create('lost_request');
    await workThrough();
    clock.advance(minuteMs);
    await workThrough();
    expect(reviewer.calls.map(({ kind }) => kind)).toEqual(['submit', 'review', 'submit']);
    expect(reviewer.templatesOf(account).size).toBe(1);
  });

  test('because the process died is looked up once its lease is over', async () => {
    const template = await create('crash');
    const dying = new Error('the process dies');
    reviewer.onSubmit = () => Promise.reject(dying);
    await expect(workThrough()).rejects.toBe(dying);
    reviewer.onSubmit = null;
    clock.advance(4 * minuteMs);
    await workThrough();
    expect(reviewer.calls).toHaveLength(1);
    clock.advance(minuteMs);
    await workThrough();
    expect(callsOf('submit')).toHaveLength(1);
    expect(await read(template)).toMatchObject({ next_step: 'review' });
  });

  test('is taken over when the provider says then that it is there', async () => {
    reviewer.mishaps.push('taken_and_lost', { kind: 'exists' });
    const template = await create('twice');
    await workThrough();
    // A list that does not show it yet.
    const hidden = new Map(reviewer.templatesOf(account));
    reviewer.templatesOf(account).clear();
    clock.advance(minuteMs);
    await workThrough();
    for (const [key, value] of hidden) reviewer.templatesOf(account).set(key, value);
    clock.advance(minuteMs);
    await workThrough();
    expect(await read(template)).toMatchObject({ status: 'pending', next_step: 'review' });
  });

  test('is taken over all the same if the account was to be left alone in between', async () => {
    const delayed = { kind: 'delayed', retryAfterMs: minuteMs, words: 'x', isAccountAtFault: false } as const;
    reviewer.mishaps.push('taken_and_lost', delayed, { kind: 'exists' });
    const template = await create('twice');
    await workThrough();
    const hidden = new Map(reviewer.templatesOf(account));
    reviewer.templatesOf(account).clear();
    for (let minutes = 0; minutes < 2; minutes += 1) {
      clock.advance(minuteMs);
      await workThrough();
    }
    expect(callsOf('submit')).toHaveLength(3);
    for (const [key, value] of hidden) reviewer.templatesOf(account).set(key, value);
    clock.advance(minuteMs);
    await workThrough();
    expect(await read(template)).toMatchObject({ status: 'pending', next_step: 'review' });
  });

  test('is told by the provider itself before the answer, which then changes nothing', async () => {
    const template = await create('early_word');
    reviewer.onSubmit = async () => {
      const [present] = reviewer.templatesOf(account).values();
      expect(await tell(own, { ...present!, state: 'approved' })).toEqual([template.id]);
    };
    await workThrough();
    expect(await show(template)).toMatchObject({ status: 'approved', sendable: true });
  });
});

describe('an account', () => {
  test('takes a hundred submissions an hour, however many nodes there are', async () => {
    for (let index = 0; index < 230; index += 1) await create(`template_${index}`);
    await workThrough(3);
    expect(callsOf('submit')).toHaveLength(100);
    clock.advance(hourMs - 1);
    // Due at once, while the others wait for the end of the hour.
    await create('late');
    await workThrough(3);
    expect(callsOf('submit')).toHaveLength(100);
    clock.advance(1);
    await workThrough(3);
    expect(callsOf('submit')).toHaveLength(200);
    clock.advance(hourMs);
    await workThrough(3);
    expect(callsOf('submit')).toHaveLength(231);
    expect(new Set(callsOf('submit').flatMap(({ what }) => what)).size).toBe(231);
  }, 60_000);

  test('that is at fault delays everything, loses nothing, and says why until it works again', async () => {
    const present = await create('present');
    await workThrough();
    clock.advance(minuteMs);
    reviewer.calls.length = 0;
    const template = await create('waiting');
    reviewer.delay = {
      kind: 'delayed',
      retryAfterMs: 10 * minuteMs,
      words: 'The token has expired.',
      isAccountAtFault: true,
    };
    await workThrough();
    expect((await show(present)).warnings, 'the provider has it').toEqual([]);
    expect(await show(template)).toMatchObject({
      status: 'pending',
      warnings: [expect.stringContaining('The token has expired.')],
    });
    expect((await findAccounts(database, [own]))[0]!.problem).toBe('The token has expired.');
    clock.advance(5 * minuteMs);
    await workThrough();
    expect(reviewer.calls).toHaveLength(1);
    reviewer.delay = null;
    clock.advance(5 * minuteMs);
    await workThrough();
    expect((await show(template)).warnings).toEqual([]);
    expect((await findAccounts(database, [own]))[0]!.problem).toBeNull();
    expect(reviewer.templatesOf(account).size).toBe(2);
  });

  test('that is given again is tried at once', async () => {
    await create('waiting');
    reviewer.delay = { kind: 'delayed', retryAfterMs: 24 * hourMs, words: 'x', isAccountAtFault: true };
    await workThrough();
    reviewer.delay = null;
    await giveAccount(own, account);
    await workThrough();
    expect(reviewer.templatesOf(account).size).toBe(1);
  });

  test('that is given again has what may be there not looked up before a list can show it', async () => {
    reviewer.mishaps.push('taken_and_lost');
    await create('lost_answer');
    await workThrough();
    await giveAccount(own, account);
    await workThrough();
    expect(callsOf('review')).toEqual([]);
  });

  test.each([
    { asked: 0, waits: 1_000 },
    { asked: 30 * 24 * hourMs, waits: 24 * hourMs },
  ])('that is to be left alone for $asked ms is left alone for $waits', async ({ asked, waits }) => {
    await create('waiting');
    reviewer.delay = { kind: 'delayed', retryAfterMs: asked, words: 'x', isAccountAtFault: false };
    await workThrough();
    clock.advance(waits - 1);
    await workThrough();
    expect(reviewer.calls).toHaveLength(1);
    clock.advance(1);
    await workThrough();
    expect(reviewer.calls).toHaveLength(2);
  });

  test('that cannot be read delays its own organization alone', async () => {
    const other = newId();
    const otherAccount = await giveAccount(other);
    await create('mine');
    await create('theirs', {}, other);
    await database.rows(
      unpreparedStatement('update chat_app_accounts set content_sealed = $2 where organization_id = $1'),
      [own, Buffer.from('broken')],
    );
    await workThrough();
    expect(reviewer.calls.map((call) => call.account)).toEqual([otherAccount]);
    expect((await findAccounts(database, [own]))[0]!.problem).toContain('cannot be read');
  });

  test('that has none waits for one', async () => {
    const other = newId();
    const created = await createTemplate(
      { ...tools(), isAccountNeeded: () => false },
      other,
      bodyOf('early'),
    );
    if (created.kind !== 'created') throw new Error(created.kind);
    await workThrough();
    expect(reviewer.calls).toEqual([]);
    expect((await show(created.template)).warnings).toEqual([expect.stringContaining('has no account')]);
    const given = await giveAccount(other);
    await workThrough();
    expect(reviewer.calls).toMatchObject([{ kind: 'submit', account: given }]);
  });

  test('is not needed where the provider needs none', async () => {
    reviewer = createReviewer({ needsAccount: false });
    const other = newId();
    const template = await create('sandboxed', {}, other);
    await workThrough();
    expect(await read(template)).toMatchObject({ next_step: 'review' });
  });
});

test('what a look finds for more than a hundred templates takes as many calls as hundreds', async () => {
  reviewer = createReviewer({ needsAccount: false });
  own = newId();
  for (let index = 0; index < 205; index += 1) await create(`template_${index}`);
  await workThrough();
  expect(reviewer.templatesOf(own).size).toBe(205);
  reviewer.calls.length = 0;
  clock.advance(minuteMs);
  await workThrough();
  expect(reviewer.calls.map(({ what }) => what.length)).toEqual([100, 100, 5]);
}, 60_000);

describe('a template that is deleted', () => {
  test('is deleted at the provider as well, in its language alone, and its row stays', async () => {
    const [english, german] = [await create('bye'), await create('bye', { language: 'de' })];
    await workThrough();
    expect(await remove(english)).toBe('deleted');
    expect(await remove(english)).toBe('not_found');
    await workThrough();
    expect([...reviewer.templatesOf(account).keys()]).toEqual(['bye de']);
    expect(await read(english)).toMatchObject({ name: 'bye', next_step: null });
    expect(await show(german)).toMatchObject({ status: 'pending' });
  });

  test('before it was submitted is never submitted', async () => {
    const template = await create('early');
    await remove(template);
    await workThrough();
    expect(reviewer.calls).toEqual([]);
  });

  test('while it is submitted is deleted there once the submission is over', async () => {
    const template = await create('meanwhile');
    reviewer.onSubmit = async () => {
      expect(await remove(template)).toBe('deleted');
    };
    await workThrough();
    expect(callsOf('delete')).toEqual([]);
    clock.advance(5 * minuteMs);
    await workThrough();
    expect(reviewer.templatesOf(account).size).toBe(0);
    expect(await read(template)).toMatchObject({ next_step: null });
  });

  test('while it is submitted is deleted there also if the answer is lost', async () => {
    const template = await create('meanwhile');
    reviewer.mishaps.push('taken_and_lost');
    reviewer.onSubmit = async () => {
      await remove(template);
    };
    await workThrough();
    clock.advance(minuteMs);
    await workThrough();
    expect(reviewer.calls.map(({ kind }) => kind)).toEqual(['submit', 'delete']);
    expect(reviewer.templatesOf(account).size).toBe(0);
  });

  test('and cannot be deleted there yet is deleted when the account may be asked again', async () => {
    const template = await create('later');
    await workThrough();
    await remove(template);
    reviewer.delay = { kind: 'delayed', retryAfterMs: minuteMs, words: 'x', isAccountAtFault: false };
    await workThrough();
    reviewer.delay = null;
    clock.advance(minuteMs);
    await workThrough();
    expect(reviewer.templatesOf(account).size).toBe(0);
  });

  test('keeps nobody waiting who has its name in another language', async () => {
    const first = await create('again');
    await workThrough();
    await remove(first);
    reviewer.delay = { kind: 'delayed', retryAfterMs: 10 * minuteMs, words: 'x', isAccountAtFault: false };
    await workThrough();
    reviewer.delay = null;
    await create('again', { language: 'de' });
    await workThrough();
    expect(reviewer.templatesOf(account).has('again de')).toBe(true);
  });

  test('makes room for another of its name, which is submitted after the deletion and not before', async () => {
    const first = await create('again');
    await workThrough();
    await remove(first);
    reviewer.delay = { kind: 'delayed', retryAfterMs: 10 * minuteMs, words: 'x', isAccountAtFault: false };
    await workThrough();
    reviewer.delay = null;
    reviewer.calls.length = 0;
    const second = await create('again');
    await workThrough();
    expect(reviewer.calls).toEqual([]);
    for (let minutes = 0; minutes < 12; minutes += 1) {
      clock.advance(minuteMs);
      await workThrough();
    }
    expect(reviewer.calls.map(({ kind }) => kind).slice(0, 2)).toEqual(['delete', 'submit']);
    expect(await read(second)).toMatchObject({ status: 'pending', next_step: 'review' });
    expect(reviewer.templatesOf(account).size).toBe(1);
  });
});

describe('a look', () => {
  const besideAnotherNode = async (meanwhile: () => Promise<unknown>) => {
    reviewer.onReview = async () => {
      reviewer.onReview = null;
      await meanwhile();
    };
    await workThrough();
  };
  const submitted = async (name: string) => {
    const template = await create(name);
    await workThrough();
    clock.advance(minuteMs);
    return template;
  };
  const tellThat = (state: 'approved' | 'rejected', name: string) =>
    tell(own, { ...reviewer.templatesOf(account).get(`${name} en_US`)!, state });

  test('of one node is not taken by another, which has nothing to do meanwhile', async () => {
    await submitted('looked_at');
    await besideAnotherNode(() => workThrough());
    expect(callsOf('review')).toHaveLength(1);
  });

  test('that is delayed is made when the account may be asked again', async () => {
    await submitted('looked_at');
    reviewer.delay = { kind: 'delayed', retryAfterMs: 2 * minuteMs, words: 'x', isAccountAtFault: false };
    await workThrough();
    reviewer.delay = null;
    clock.advance(2 * minuteMs);
    await workThrough();
    expect(callsOf('review')).toHaveLength(2);
  });

  test('that is delayed brings no work back that was over meanwhile', async () => {
    const template = await submitted('over');
    reviewer.delay = { kind: 'delayed', retryAfterMs: 2 * minuteMs, words: 'x', isAccountAtFault: false };
    await besideAnotherNode(() => tellThat('rejected', 'over'));
    expect(await read(template)).toMatchObject({ status: 'rejected', next_step: null, due_at: null });
  });

  test.each([
    { what: 'finds it as it was before', isListed: true },
    { what: 'does not find it', isListed: false },
  ])('that $what says nothing against what was told meanwhile', async ({ isListed }) => {
    const template = await submitted('told');
    const [key, present] = [...reviewer.templatesOf(account)][0]!;
    if (!isListed) {
      clock.advance(2 * hourMs);
      reviewer.templatesOf(account).clear();
    }
    await besideAnotherNode(async () => {
      reviewer.templatesOf(account).set(key, present);
      await tellThat('approved', 'told');
    });
    expect(await read(template)).toMatchObject({ provider_state: 'approved', missing_since: null });
    expect(await show(template)).toMatchObject({ status: 'approved', sendable: true });
  });

  test.each([
    { minutes: 59, status: 'pending' },
    { minutes: 61, status: 'rejected' },
  ])('that does not find one $minutes minutes old, twice, leaves it $status', async ({ minutes, status }) => {
    const template = await submitted('missing');
    reviewer.templatesOf(account).clear();
    clock.advance((minutes - 1) * minuteMs);
    await workThrough();
    clock.advance(minuteMs - 1);
    await workThrough();
    clock.advance(1);
    await workThrough();
    expect((await show(template)).status).toBe(status);
  });
});

describe('what the provider tells', () => {
  const approvedTemplate = async (name: string) => {
    const template = await create(name);
    await workThrough();
    reviewer.put(account, `${name} en_US`, { state: 'approved' });
    clock.advance(minuteMs);
    await workThrough();
    return template;
  };
  const presentOf = (name: string) => reviewer.templatesOf(account).get(`${name} en_US`)!;

  test('of a pause is believed, and ends with a look', async () => {
    const template = await approvedTemplate('paused');
    expect(await tell(own, { ...presentOf('paused'), state: 'paused' })).toEqual([template.id]);
    expect(await show(template)).toMatchObject({ sendable: false, sendable_reason: 'paused' });
    clock.advance(minuteMs);
    await workThrough();
    expect(await show(template)).toMatchObject({ sendable: true });
  });

  test('to another organization changes nothing of a template with the same name and id', async () => {
    const template = await approvedTemplate('shared');
    const other = newId();
    await giveAccount(other);
    const theirs = await create('shared', {}, other);
    await workThrough();
    await database.rows(
      unpreparedStatement('update chat_templates set provider_template_id = $2 where id = $1'),
      [theirs.id, presentOf('shared').providerTemplateId],
    );
    await tell(other, { ...presentOf('shared'), state: 'disabled' });
    expect(await show(template)).toMatchObject({ sendable: true });
    expect((await read(theirs)).provider_state).toBe('disabled');
  });

  test('of templates that are not ours, or twice, or of nothing, changes nothing', async () => {
    const template = await approvedTemplate('mine');
    const before = await read(template);
    const foreign = { ...presentOf('mine'), name: 'unknown', state: 'rejected' as const };
    const another = { ...presentOf('mine'), providerTemplateId: 'another', state: 'rejected' as const };
    expect(await tell(own, foreign, another)).toEqual([]);
    expect(await tell(own)).toEqual([]);
    expect(await read(template)).toEqual(before);
    expect(await tell(own, presentOf('mine'), presentOf('mine'))).toEqual([]);
    expect(await show(template)).toMatchObject({ status: 'approved', sendable: true });
  });

  test('of a hand-off that it is not known there changes nothing, and has it looked at, which more such words do not put off', async () => {
    const template = await create('unknown_there');
    await workThrough();
    reviewer.put(account, 'unknown_there en_US', { state: 'approved' });
    clock.advance(minuteMs);
    await workThrough();
    const before = callsOf('review').length;
    for (let times = 0; times < 6; times += 1) {
      await database.transaction((transaction) =>
        noteTemplateFinding({ clock }, transaction, {
          ...{ organizationId: own, id: template.id, state: null, words: 'There is none.' },
        }),
      );
      expect(await show(template)).toMatchObject({ status: 'approved', sendable: true, warnings: [] });
      clock.advance(10_000);
    }
    await workThrough();
    expect(callsOf('review')).toHaveLength(before + 1);
  });

  test('in a hand-off is noted, and a look settles it', async () => {
    const template = await approvedTemplate('found_out');
    const note = (id: string, state: 'paused' | 'rejected') =>
      database.transaction((transaction) =>
        noteTemplateFinding({ clock }, transaction, {
          organizationId: own,
          id,
          state,
          words: 'Paused\u0000for quality.',
        }),
      );
    await note(template.id, 'paused');
    await note(newId(), 'paused');
    expect(await show(template)).toMatchObject({
      sendable: false,
      sendable_reason: 'paused',
      warnings: ['The provider says: Paused for quality.'],
    });
    clock.advance(minuteMs);
    await workThrough();
    expect(await show(template)).toMatchObject({ sendable: true, warnings: [] });
    await note(template.id, 'rejected');
    expect(await show(template)).toMatchObject({
      status: 'rejected',
      rejection_reason: 'Paused for quality.',
    });
  });
});

test('the work begins when a template is made, without waiting for the time', async () => {
  const submitted = new Promise<void>((resolve) => {
    reviewer.onSubmit = async () => {
      resolve();
    };
  });
  const running = startTemplateWork({ ...tools(), clock: systemClock });
  try {
    await create('at_once');
    await submitted;
  } finally {
    await running.stop();
  }
});

test('two requests for one name and language make one template', async () => {
  const outcomes = await Promise.all(
    Array.from({ length: 6 }, () =>
      createTemplate({ ...tools(), isAccountNeeded: () => true }, own, bodyOf('once')),
    ),
  );
  expect(outcomes.map(({ kind }) => kind).sort()).toEqual(['created', ...Array<string>(5).fill('taken')]);
  expect(await findTemplate(database, own, { name: 'once', language: 'en_US' })).not.toBeNull();
});

test('one whose name another gets at that moment is taken', async () => {
  const { id } = await create('twin');
  const creating = await database.transaction(async (transaction) => {
    await transaction.rows(
      unpreparedStatement("update chat_templates set name = 'once' where organization_id = $1 and id = $2"),
      [own, id],
    );
    const outcome = createTemplate({ ...tools(), isAccountNeeded: () => true }, own, bodyOf('once'));
    const waiting = unpreparedStatement(
      "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
    );
    while ((await database.rows(waiting)).length === 0) await setImmediate();
    return { outcome };
  });
  expect(await creating.outcome).toEqual({ kind: 'taken' });
});

test('without an account none is taken where one is needed', async () => {
  const outcome = await createTemplate({ ...tools(), isAccountNeeded: () => true }, newId(), bodyOf('none'));
  expect(outcome.kind).toBe('account_missing');
});
