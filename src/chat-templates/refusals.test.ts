import { expect, test } from 'vitest';
import { applyVerdicts, describeRefusals, isOnTrial, noRefusals, type TemplateVerdict } from './refusals.ts';

const at = new Date('2026-11-20T10:00:00Z');
const anHourLater = new Date('2026-11-20T11:00:00Z');

type Refusals = Parameters<typeof applyVerdicts>[0];
const fresh: Refusals = { ...noRefusals };

/** `r` refused, `a` accepted; `R` reported as refused, `D` as delivered; each of another message. */
function verdictsOf(letters: string): TemplateVerdict[] {
  return [...letters].map((letter, index) => ({
    source: letter === 'r' || letter === 'a' ? 'answer' : 'report',
    refusal: letter.toLowerCase() === 'r' ? 'A parameter is missing' : null,
    recipient: `message ${index}`,
  }));
}

const after = (letters: string, before = fresh) => applyVerdicts(before, verdictsOf(letters), at);
const pausedUntil = (letters: string, before = fresh) => after(letters, before).paused_until;

test.each([
  ['rrrr', null],
  ['rrrrr', anHourLater],
  ['rrrrrrrr', anHourLater],
  ['rrrra', null],
  ['rrarrr', null],
  ['rrrrarrrrr', anHourLater],
  ['rrrrra', null],
  ['RRRR', null],
  ['RRRRR', anHourLater],
  ['RRRDR', null],
  ['RRRRRD', null],
])('of %s, in this order, a pause until %j comes', (letters, until) => {
  expect(pausedUntil(letters)).toEqual(until);
  // One batch after the other comes to the same.
  const singly = verdictsOf(letters).reduce((row, verdict) => applyVerdicts(row, [verdict], at), fresh);
  expect(singly).toEqual(after(letters));
});

test('an acceptance says nothing of what is reported later, nor a delivery of what is refused at once', () => {
  expect(pausedUntil('aRaRaRaRaR')).toEqual(anHourLater);
  expect(pausedUntil('rDrDrDrDrD')).toEqual(anHourLater);
  expect(pausedUntil('rRrRrRr')).toBeNull();
});

test('a report that is repeated counts once', () => {
  const [once] = verdictsOf('R');
  expect(
    applyVerdicts(
      fresh,
      Array.from({ length: 9 }, () => once!),
      at,
    ),
  ).toMatchObject({
    refused_reports: ['message 0'],
    paused_until: null,
  });
});

test('what says nothing new leaves the very row, so that nothing is written', () => {
  expect(after('aaDD')).toBe(fresh);
});

test('a pause is not made longer by what was on its way when it began', () => {
  const paused = after('rrrrr');
  const later = new Date('2026-11-20T10:00:30Z');
  expect(applyVerdicts(paused, verdictsOf('rr'), later).paused_until).toEqual(anHourLater);
});

test('after the pause one refusal pauses it again, and one acceptance ends all of it', () => {
  const onTrial = { ...after('rrrrr'), paused_until: null };
  expect(isOnTrial(onTrial)).toBe(true);
  expect(pausedUntil('r', onTrial)).toEqual(anHourLater);
  expect(after('a', onTrial)).toMatchObject({ refused_hand_offs: 0, paused_until: null });
  expect(isOnTrial(after('a', onTrial))).toBe(false);
});

test('a template that was refused by reports is on trial until something is delivered', () => {
  const onTrial = { ...after('RRRRR'), paused_until: null };
  expect(isOnTrial(after('a', onTrial))).toBe(true);
  expect(after('D', onTrial)).toMatchObject({ refused_reports: [], paused_until: null });
});

test('no more is kept than decides', () => {
  expect(after('r'.repeat(300)).refused_hand_offs).toBe(5);
  expect(after('R'.repeat(300)).refused_reports).toEqual(
    [295, 296, 297, 298, 299].map((n) => `message ${n}`),
  );
});

test('the author reads why, until when, and what to do; and nothing of four refusals', () => {
  expect(describeRefusals(after('rrrr'))).toBeNull();
  const paused = after('rrrrr');
  expect(describeRefusals(paused)).toBe(
    'The provider refused 5 of its messages in a row (A parameter is missing), so that it is paused until 2026-11-20T11:00:00.000Z. One message is tried then. Compare its placeholders, and the values that are sent, with the template at the provider; an edit ends the pause.',
  );
  expect(describeRefusals({ ...paused, paused_until: null })).toMatch(/tried one by one now/);
});
