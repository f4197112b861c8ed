import { type Clock, within } from './clock.ts';

/** Questions to another process, over a channel on which answers come in any order, or never. */
export type Questions<Question> = {
  /** Resolves with the answer; with null if there is none in time, or the process ends. */
  ask: (question: Question) => Promise<unknown>;
  answer: (id: number, answer: unknown) => void;
  /** Nobody answers any more. */
  end: () => void;
};

/** A process that is busy answers late; one that hangs never does. */
const answerMaxMs = 4_000;

export function createQuestions<Question>(
  clock: Clock,
  send: (id: number, question: Question) => void,
): Questions<Question> {
  const waiting = new Map<number, (answer: unknown) => void>();
  let lastId = 0;
  const answer = (id: number, given: unknown) => {
    waiting.get(id)?.(given);
    waiting.delete(id);
  };
  return {
    ask: async (question) => {
      lastId += 1;
      const id = lastId;
      const answered = new Promise<unknown>((resolve) => waiting.set(id, resolve));
      send(id, question);
      try {
        return await within(clock, answerMaxMs, answered, null);
      } finally {
        waiting.delete(id);
      }
    },
    answer,
    end: () => {
      for (const id of [...waiting.keys()]) answer(id, null);
    },
  };
}
