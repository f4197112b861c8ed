import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type ReviewedTemplate,
  templateQualities,
  type TemplateState,
  templateStates,
} from '../channels/chatapp/chatapp.ts';
import { noRefusals } from './refusals.ts';
import { applyReview, findUnsendability, nextReviewAtMs, type ReviewedRow } from './review.ts';

const submittedAt = new Date('2026-11-20T10:00:00Z');
const at = new Date('2026-11-20T10:00:30Z');

const pending: ReviewedRow = {
  category: 'utility',
  status: 'pending',
  rejection_reason: null,
  reviewed_at: null,
  provider_template_id: 'p-1',
  provider_state: 'pending',
  provider_category: 'utility',
  quality: 'unknown',
  next_step: 'review',
  due_at: at,
  is_uncertain: false,
  submitted_at: submittedAt,
  problem: null,
  content: { kind: 'written', components: [{ type: 'body', text: 'Hello.' }], examples: {} },
  edited_content: null,
  is_edit_uncertain: false,
  edited_at: null,
  edit_refusal: null,
  edits: [],
  marketing_from: null,
  missing_since: null,
  ...noRefusals,
  deleted_at: null,
};

const told = (state: TemplateState | null, more: Partial<ReviewedTemplate> = {}): ReviewedTemplate => ({
  providerTemplateId: 'p-1',
  name: 'order_shipped',
  language: 'en_US',
  state,
  category: null,
  rejectionReason: null,
  quality: null,
  ...more,
});

const after = (before: ReviewedRow, ...states: (TemplateState | null)[]) =>
  states.reduce((template, state) => applyReview(template, told(state), { at, source: 'told' }), before);

describe('a template under review', () => {
  test.each<[TemplateState, string, string | null]>([
    ['pending', 'pending', 'pending'],
    ['approved', 'approved', null],
    ['rejected', 'rejected', 'rejected'],
    ['paused', 'approved', 'paused'],
    ['disabled', 'approved', 'disabled'],
    ['archived', 'approved', 'archived'],
    ['locked', 'approved', 'locked'],
    ['flagged', 'approved', 'flagged'],
    ['deleted', 'rejected', 'rejected'],
  ])('that is %s at the provider is %s, and not sendable because it is %s', (state, status, reason) => {
    const result = after(pending, state);
    expect(result.status).toBe(status);
    expect(findUnsendability(result)).toBe(reason);
    expect(result.reviewed_at).toEqual(status === 'pending' ? null : at);
  });

  test('keeps the words of its rejection, and loses them with an approval', () => {
    const rejected = applyReview(pending, told('rejected', { rejectionReason: 'Scam.' }), {
      at,
      source: 'told',
    });
    expect(rejected.rejection_reason).toBe('Scam.');
    expect(after(rejected, 'rejected').rejection_reason).toBe('Scam.');
    expect(after(rejected, 'approved').rejection_reason).toBeNull();
  });

  test('is looked at every minute, then every ten, then every hour for three days, and daily after that', () => {
    const minutes = (age: number) => (nextReviewAtMs(0, age * 60_000) - age * 60_000) / 60_000;
    expect([0, 9.9, 10, 69, 70, 60 * 71, 60 * 72, 60 * 24 * 30].map(minutes)).toEqual([
      1, 1, 10, 10, 60, 60, 1_440, 1_440,
    ]);
  });

  test('is looked at earlier where the provider says when, but never at once without end', () => {
    const look = (reviewedAfterMs: number) =>
      applyReview(pending, told('pending'), { at, source: 'asked', reviewedAfterMs }).due_at!.getTime() -
      at.getTime();
    expect([3_000, 0, -5, 9_000_000].map(look)).toEqual([3_000, 100, 100, 60_000]);
  });
});

describe('a template whose review is over', () => {
  test.each(['approved', 'rejected'] as const)(
    'is not pending again when it was %s, whatever is told late',
    (state) => {
      expect(after(pending, state, 'pending').status).toBe(state);
      expect(after(pending, state, 'pending').provider_state).toBe(state);
    },
  );

  test('can be sent again once a pause is over', () => {
    const paused = after(pending, 'approved', 'paused');
    expect(findUnsendability(paused)).toBe('paused');
    expect(findUnsendability(after(paused, 'approved'))).toBeNull();
    expect(after(paused, 'approved').reviewed_at).toEqual(at);
  });

  test('is looked at soon after what may have come out of order, and so ends as the provider has it', () => {
    const wrong = after(pending, 'approved', 'paused', 'approved');
    expect(wrong.due_at!.getTime() - at.getTime()).toBe(60_000);
    const looked = applyReview(wrong, told('paused'), { at, source: 'asked' });
    expect(findUnsendability(looked)).toBe('paused');
    expect(looked.due_at!.getTime() - at.getTime()).toBe(3_600_000);
  });

  test('stays as it is by a word that is not known', () => {
    const approved = after(pending, 'approved');
    expect(after(approved, null)).toMatchObject({ status: 'approved', provider_state: 'approved' });
  });

  test('can be sent although the provider has another category for it now', () => {
    const approved = after(pending, 'approved');
    const moved = applyReview(approved, told(null, { category: 'marketing' }), { at, source: 'told' });
    expect(moved.provider_category).toBe('marketing');
    expect(findUnsendability(moved)).toBeNull();
  });
});

const anyReview = fc.record({
  providerTemplateId: fc.constant('p-1'),
  name: fc.constant('order_shipped'),
  language: fc.constant('en_US'),
  state: fc.option(fc.constantFrom(...templateStates)),
  category: fc.option(fc.constantFrom('marketing', 'utility', 'authentication')),
  rejectionReason: fc.option(fc.string({ maxLength: 50 })),
  quality: fc.option(fc.constantFrom(...templateQualities)),
});

test('whatever is told in whatever order, a row can be stored, and it ends as the last look finds it', () => {
  fc.assert(
    fc.property(fc.array(anyReview, { maxLength: 12 }), anyReview, (reviews, last) => {
      const before = reviews.reduce(
        (template, review) => applyReview(template, review, { at, source: 'told' }),
        pending,
      );
      const result = applyReview(before, last, { at, source: 'asked' });
      for (const { status, reviewed_at, next_step, due_at } of [before, result]) {
        expect(status === 'pending').toBe(reviewed_at === null);
        expect(next_step === null).toBe(due_at === null);
        if (status === 'pending') expect(next_step).toBe('review');
      }
      // Told once more, it changes nothing but when it is looked at.
      const again = applyReview(result, last, { at, source: 'asked' });
      expect(again).toEqual(result);
      if (last.state !== null) expect(findUnsendability(result) === null).toBe(last.state === 'approved');
    }),
  );
});
