/** Templates that are edited: what the provider is asked for, what messages are made of meanwhile, and what is shown. */
import { beforeEach, describe, expect, test } from 'vitest';
import { createReviewer, type Reviewer } from '../../test/support/chat-app-reviewer.ts';
import { createManualClock, type ManualClock } from '../../test/support/manual-clock.ts';
import { useTestDatabase } from '../../test/support/test-database.ts';
import { replaceHolds } from '../audience/audience.ts';
import { systemClock } from '../platform/clock.ts';
import { createIds } from '../platform/ids.ts';
import { silentLog } from '../platform/log.ts';
import type { Database } from '../platform/postgres/database.ts';
import { createSecrets } from '../platform/secrets.ts';
import { type EditOutcome, editTemplate } from './editing.ts';
import { workOnTemplates } from './jobs.ts';
import { createTemplate, deleteTemplate } from './keeping.ts';
import { showTemplate } from './record.ts';
import { applyTemplateReviews } from './reviewing.ts';
import type { TemplatePatch, TemplateRecord } from './schema.ts';
import { findTemplates, type TemplateRow } from './store.ts';

let database: Database;
let clock: ManualClock;
let reviewer: Reviewer;
let own: string;
const newId = createIds(systemClock);
const secrets = createSecrets('a secret of the tests, and of nothing else');
const minuteMs = 60_000;
const dayMs = 86_400_000;

useTestDatabase({ connectionsMax: 8, hasNeighbour: true, isForEachTest: true }, (opened) => {
  database = opened.database;
});

beforeEach(() => {
  clock = createManualClock();
  // Its account is the organization.
  reviewer = createReviewer({ needsAccount: false });
  own = newId();
});

const tools = () => ({
  ...{ database, clock, newId, secrets, log: silentLog, provider: reviewer },
  isAccountNeeded: () => false,
});

const saying = (text: string): TemplatePatch => ({ components: [{ type: 'body', text }] });

let made = 0;
async function create(organizationId = own, name = `notice_${(made += 1)}`): Promise<TemplateRow> {
  const body = { name, language: 'en_US', category: 'utility', ...saying('Hello.') } as const;
  const created = await createTemplate(tools(), organizationId, body);
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

const keyOf = ({ name, language }: TemplateRow) => `${name} ${language}`;

/** After a review that comes to this. */
async function createReviewed(state: 'approved' | 'rejected' | 'paused' | 'disabled' = 'approved') {
  const template = await create();
  await workThrough();
  reviewer.put(own, keyOf(template), { state, rejectionReason: state === 'rejected' ? 'Spam.' : null });
  await pass(minuteMs);
  reviewer.calls.splice(0);
  return template;
}

/** Time passes, and what is due then is done. */
async function pass(ms: number): Promise<void> {
  clock.advance(ms);
  await workThrough();
}

async function read({ id, organization_id: organizationId }: TemplateRow): Promise<TemplateRow> {
  const [row] = await database.asOrganizationsByIndex([organizationId], (transaction) =>
    findTemplates(transaction, [{ organizationId, id }]),
  );
  return row!;
}

const show = async (template: TemplateRow) => showTemplate(await read(template));
const textOf = ({ components }: Pick<TemplateRecord, 'components'>) => components?.[0]?.text;
const edit = ({ organization_id: organizationId, id }: TemplateRow, patch: TemplatePatch) =>
  editTemplate(tools(), { organizationId, id }, patch);
const edited = async (template: TemplateRow, text: string): Promise<EditOutcome['kind']> =>
  (await edit(template, saying(text))).kind;
const tell = (template: TemplateRow, state: 'approved' | 'rejected') =>
  database.transaction((transaction) =>
    applyTemplateReviews({ clock, log: silentLog }, transaction, own, [
      { ...reviewer.templatesOf(own).get(keyOf(template))!, state },
    ]),
  );

describe('an edit', () => {
  test('is shown beside the template, of which messages are made as before until the provider has taken it', async () => {
    const template = await createReviewed();
    expect(await edited(template, 'Good day.')).toBe('edited');
    const waiting = await show(template);
    expect([textOf(waiting), textOf(waiting.edit!)]).toEqual(['Hello.', 'Good day.']);
    expect(waiting).toMatchObject({ status: 'approved', sendable: true });

    await workThrough();
    const taken = await show(template);
    expect([textOf(taken), taken.edit]).toEqual(['Good day.', null]);
    expect(taken).toMatchObject({
      ...{ status: 'pending', sendable: false, sendable_reason: 'pending', reviewed_at: null },
    });
    expect(reviewer.templatesOf(own).get(keyOf(template))?.template?.content).toEqual({
      ...{ kind: 'written', components: [{ type: 'body', text: 'Good day.' }], examples: {} },
    });

    reviewer.put(own, keyOf(template), { state: 'approved' });
    await pass(minuteMs);
    expect(await show(template)).toMatchObject({
      ...{ status: 'approved', sendable: true, reviewed_at: new Date(clock.nowMs()).toISOString() },
    });
    expect(reviewer.calls.map(({ kind }) => kind)).toEqual(['edit', 'review']);
  });

  test('that is approved at once leaves no time in which nothing can be sent, and is looked at soon', async () => {
    const template = await createReviewed();
    reviewer.editedState = 'approved';
    await edit(template, saying('Good day.'));
    await workThrough();
    expect(await show(template)).toMatchObject({ status: 'approved', sendable: true, edit: null });
    reviewer.put(own, keyOf(template), { state: 'rejected', rejectionReason: 'Scam.' });
    await pass(minuteMs);
    expect(await show(template)).toMatchObject({ status: 'rejected', rejection_reason: 'Scam.' });
  });

  test('of a rejected template makes it pending at once, and its review begins anew', async () => {
    const template = await createReviewed('rejected');
    await edit(template, saying('Good day.'));
    expect(await show(template)).toMatchObject({
      ...{ status: 'pending', rejection_reason: null, reviewed_at: null, sendable_reason: 'pending' },
    });
    await workThrough();
    expect(reviewer.editsTaken).toHaveLength(1);
    reviewer.put(own, keyOf(template), { state: 'approved' });
    await pass(minuteMs);
    expect(await show(template)).toMatchObject({ status: 'approved', sendable: true });
  });

  test('of what the provider refused at once, or has deleted, is a submission', async () => {
    reviewer.mishaps.push({ kind: 'refused', words: 'Too many variables.' });
    const refused = await create();
    await workThrough();
    await edit(refused, saying('Good day.'));
    await workThrough();
    expect(reviewer.calls.map(({ kind }) => kind)).toEqual(['submit', 'submit']);
    expect(await read(refused)).toMatchObject({
      status: 'pending',
      next_step: 'review',
      edited_content: null,
    });
    expect(reviewer.templatesOf(own).get(keyOf(refused))?.template?.content).toMatchObject({
      components: [{ text: 'Good day.' }],
    });
  });

  test('that is refused leaves an approved template as it is, with the words, until the next edit', async () => {
    const template = await createReviewed();
    reviewer.editMishaps.push({ kind: 'refused', words: 'Edited\u0000too often.' });
    await edit(template, saying('Good day.'));
    await workThrough();
    const shown = await show(template);
    expect(textOf(shown)).toBe('Hello.');
    expect(shown).toMatchObject({
      ...{ status: 'approved', sendable: true, edit: null },
      warnings: ['The provider refused its last edit: Edited too often.'],
    });
    await edit(template, saying('Good evening.'));
    await workThrough();
    expect((await show(template)).warnings).toEqual([]);
  });

  test('that is refused makes a rejected template rejected, with the words', async () => {
    const template = await createReviewed('rejected');
    reviewer.editMishaps.push({ kind: 'refused', words: 'Still spam.' });
    await edit(template, saying('Good day.'));
    await workThrough();
    const shown = await show(template);
    expect(textOf(shown)).toBe('Hello.');
    expect(shown).toMatchObject({ status: 'rejected', rejection_reason: 'Still spam.', edit: null });
  });

  test('takes all components that are given, keeps what is not, and the examples that are still needed', async () => {
    const template = await createReviewed();
    const components = [
      { type: 'header', format: 'text', text: 'Order {{number}}' },
      { type: 'body', text: 'Hello {{name}}, it is there.' },
    ] as const;
    const first = await edit(template, { components: [...components] });
    expect(first).toMatchObject({
      kind: 'invalid',
      issues: ['examples.number is required', 'examples.name is required'],
    });
    await edit(template, { components: [...components], examples: { number: '1', name: 'Ana' } });
    await edit(template, { components: [components[1]] });
    expect((await show(template)).edit).toEqual({
      ...{ components: [components[1]], examples: { name: 'Ana' }, authentication: null },
    });
    expect(
      await edit(template, { authentication: { button: { type: 'copy_code', text: 'Copy' } } }),
    ).toMatchObject({
      kind: 'invalid',
    });
  });

  test('that changes nothing is none', async () => {
    const template = await createReviewed();
    for (const patch of [{}, saying('Hello.'), { examples: {} }])
      expect(await edit(template, patch)).toMatchObject({
        kind: 'edited',
        template: { edited_content: null },
      });
    await workThrough();
    expect(reviewer.calls).toEqual([]);
  });

  test('replaces one that was not begun', async () => {
    const template = await createReviewed();
    await edit(template, saying('Good day.'));
    await edit(template, saying('Good evening.'));
    await workThrough(2);
    expect(reviewer.editsTaken).toHaveLength(1);
    expect(textOf(await show(template))).toBe('Good evening.');
  });

  test('of a template that is deleted meanwhile is not made, nor undoes the deletion', async () => {
    const [waiting, begun] = [await createReviewed(), await createReviewed()];
    const remove = ({ organization_id: organizationId, id }: TemplateRow) =>
      deleteTemplate(tools(), { organizationId, id });
    await edit(waiting, saying('Good day.'));
    await remove(waiting);
    await edit(begun, saying('Good day.'));
    reviewer.onEdit = async () => {
      await remove(begun);
    };
    await workThrough();
    expect(reviewer.editsTaken).toEqual([keyOf(begun)]);
    await pass(5 * minuteMs);
    expect(reviewer.templatesOf(own).size).toBe(0);
    expect(await read(begun)).toMatchObject({ edited_content: null, next_step: null });
  });

  test('changes neither the template of the same name of another organization, nor its row', async () => {
    const template = await createReviewed();
    const other = await create(newId(), template.name);
    await workThrough();
    await edit(template, saying('Good day.'));
    await workThrough();
    expect(textOf(await show(other))).toBe('Hello.');
    expect(await editTemplate(tools(), { organizationId: own, id: other.id }, saying('Mine.'))).toEqual({
      kind: 'not_found',
    });
  });
});

describe('an edit whose answer is lost', () => {
  test('and that was made is found by a look, and not made again', async () => {
    const template = await createReviewed();
    reviewer.editMishaps.push('taken_and_lost');
    await edit(template, saying('Good day.'));
    await workThrough();
    expect(await show(template)).toMatchObject({
      warnings: [expect.stringContaining('the answer was lost')],
    });
    await pass(minuteMs);
    expect(reviewer.editsTaken).toHaveLength(1);
    expect(await show(template)).toMatchObject({ status: 'pending', edit: null, warnings: [] });
  });

  test('and that was not made is made then', async () => {
    const template = await createReviewed();
    reviewer.editMishaps.push('lost');
    await edit(template, saying('Good day.'));
    await workThrough();
    expect(textOf(await show(template))).toBe('Hello.');
    await pass(minuteMs);
    expect(reviewer.editsTaken).toHaveLength(1);
    expect(textOf(await show(template))).toBe('Good day.');
  });

  test('because the process died is looked for once its lease is over', async () => {
    const template = await createReviewed();
    const dying = new Error('the process dies');
    reviewer.onEdit = () => Promise.reject(dying);
    await edit(template, saying('Good day.'));
    await expect(workThrough()).rejects.toBe(dying);
    reviewer.onEdit = null;
    await pass(4 * minuteMs);
    expect(textOf(await show(template))).toBe('Hello.');
    await pass(minuteMs);
    expect(reviewer.editsTaken).toHaveLength(1);
    expect(textOf(await show(template))).toBe('Good day.');
  });

  test('keeps messages from being made of it only if they might lack a value', async () => {
    const [text, names] = [await createReviewed(), await createReviewed()];
    reviewer.editMishaps.push('taken_and_lost', 'taken_and_lost');
    await edit(text, saying('Good day.'));
    await edit(names, { ...saying('Hello {{name}}, it is there.'), examples: { name: 'Ana' } });
    await workThrough();
    expect(await show(text)).toMatchObject({ status: 'approved', sendable: true });
    expect(await show(names)).toMatchObject({ sendable: false, sendable_reason: 'pending' });
  });

  test('and that was made is not made again if the account was to be left alone in between', async () => {
    const template = await createReviewed();
    reviewer.editMishaps.push('taken_and_lost');
    await edit(template, saying('Good day.'));
    await workThrough();
    reviewer.delay = { kind: 'delayed', retryAfterMs: minuteMs, words: 'x', isAccountAtFault: false };
    await pass(minuteMs);
    reviewer.delay = null;
    await pass(minuteMs);
    expect(reviewer.editsTaken).toHaveLength(1);
    expect((await show(template)).edit).toBeNull();
  });

  test('can be followed by no other edit before it is known', async () => {
    const template = await createReviewed();
    reviewer.editMishaps.push('lost');
    await edit(template, saying('Good day.'));
    await workThrough();
    expect(await edit(template, saying('Good evening.'))).toMatchObject({ kind: 'refused' });
  });

  test('because the provider is away waits, and says why', async () => {
    const template = await createReviewed();
    await edit(template, saying('Good day.'));
    reviewer.delay = {
      kind: 'delayed',
      retryAfterMs: minuteMs,
      words: 'It is away.',
      isAccountAtFault: false,
    };
    await workThrough();
    expect((await show(template)).warnings).toEqual([
      'It is not edited yet, which is tried again: It is away.',
    ]);
    reviewer.delay = null;
    await pass(minuteMs);
    expect(await show(template)).toMatchObject({ edit: null, warnings: [] });
  });
});

describe('what is told after an edit', () => {
  test.each(['approved', 'rejected'] as const)(
    'may be of the text before: %s is not believed, but looked at',
    async (state) => {
      const template = await createReviewed('rejected');
      await edit(template, saying('Good day.'));
      await tell(template, state);
      expect(await show(template)).toMatchObject({ status: 'pending' });
      await workThrough();
      await tell(template, state);
      expect(await show(template)).toMatchObject({ status: 'pending' });
      expect(reviewer.editsTaken).toHaveLength(1);
      reviewer.put(own, keyOf(template), { state });
      await pass(minuteMs);
      expect(await show(template)).toMatchObject({ status: state });
    },
  );

  test('does not keep the edit from being made', async () => {
    const template = await createReviewed();
    await edit(template, saying('Good day.'));
    await tell(template, 'approved');
    await workThrough();
    expect(reviewer.editsTaken).toHaveLength(1);
  });
});

describe('what the provider does not let be edited', () => {
  test('is a template under review, or one that is disabled', async () => {
    const pending = await create();
    for (const template of [pending, await createReviewed('disabled')])
      expect(await edit(template, saying('Good day.'))).toMatchObject({ kind: 'refused' });
    expect(await edited(await createReviewed('paused'), 'Good day.')).toBe('edited');
  });

  test('is an approved template twice within 24 hours, or more than ten times within 30 days', async () => {
    const template = await createReviewed();
    reviewer.editedState = 'approved';
    const startMs = clock.nowMs();
    for (let day = 0; day < 10; day += 1) {
      expect([day, await edited(template, `Hello ${day}.`)]).toEqual([day, 'edited']);
      await workThrough();
      expect([day, await edited(template, 'Once more.')]).toEqual([day, 'refused']);
      await pass(dayMs);
    }
    expect(await edit(template, saying('Once more.'))).toMatchObject({
      kind: 'refused',
      words: expect.stringContaining(new Date(startMs + 30 * dayMs).toISOString()) as string,
    });
    await pass(20 * dayMs);
    expect(await edited(template, 'Once more.')).toBe('edited');
    await workThrough();
    expect(await edited(template, 'And once more.'), 'the last ten are counted').toBe('refused');
  });

  test('does not count edits of a rejected template', async () => {
    const template = await createReviewed('rejected');
    reviewer.editedState = 'approved';
    for (const text of ['One.', 'Two.']) {
      expect(await edited(template, text)).toBe('edited');
      await workThrough();
    }
    expect(await edited(template, 'Three.')).toBe('refused');
  });

  test('is the name of a placeholder while a campaign gives a value for it; the text may change', async () => {
    const template = await createReviewed();
    const holder = { organizationId: own, kind: 'campaign', id: newId() } as const;
    await database.asOrganizations([own], (transaction) =>
      replaceHolds(transaction, holder, [{ kind: 'chat_template', id: template.id }]),
    );
    const more = { ...saying('Hello {{name}}, it is there.'), examples: { name: 'Ana' } };
    expect(await edit(template, more)).toMatchObject({
      kind: 'refused',
      words: expect.stringContaining(holder.id) as string,
    });
    expect(await edited(template, 'Good day.')).toBe('edited');
  });

  test('is one of an organization without an account, where one is needed', async () => {
    const template = await createReviewed();
    const key = { organizationId: own, id: template.id };
    expect(await editTemplate({ ...tools(), isAccountNeeded: () => true }, key, saying('Good day.'))).toEqual(
      { kind: 'account_missing' },
    );
  });
});
