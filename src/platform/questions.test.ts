import { expect, test } from 'vitest';
import { createManualClock } from '../../test/support/manual-clock.ts';
import { createQuestions } from './questions.ts';

test('each question gets its own answer, in whatever order they come', async () => {
  const sent: [number, string][] = [];
  const questions = createQuestions<string>(createManualClock(), (id, question) => sent.push([id, question]));
  const asked = ['a', 'b', 'c'].map((question) => questions.ask(question));
  for (const [id, question] of sent.toReversed()) questions.answer(id, question.toUpperCase());
  expect(await Promise.all(asked)).toEqual(['A', 'B', 'C']);
});

test('a question without an answer ends with the time, or with whoever was asked', async () => {
  const clock = createManualClock();
  const sent: number[] = [];
  const questions = createQuestions<string>(clock, (id) => sent.push(id));
  const late = questions.ask('late');
  clock.advance(4_000);
  expect(await late).toBeNull();
  // What comes after that is nobody's.
  questions.answer(sent[0]!, 'too late');
  const left = [questions.ask('a'), questions.ask('b')];
  questions.end();
  expect(await Promise.all(left)).toEqual([null, null]);
});
