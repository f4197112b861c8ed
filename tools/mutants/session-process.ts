/**
 * Sessions in processes of their own. A mutant may loop, take all memory or crash the process of its tests in ways
 * after which Vitest waits for ever: whoever does not answer in time is killed together with all that it started, and
 * the next mutant gets a new one.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { removeDeadRuns } from '../../test/support/postgres-for-tests.ts';
import type { Mutant } from './mutant.ts';
import { deadlineMs, openSession, type Session, type TestsOf, type Trial } from './session.ts';

type Request = { kind: 'unchanged'; wanted: readonly TestsOf[] } | { kind: 'mutant'; mutant: Mutant };
type Answer =
  { kind: 'open' } | { kind: 'failures'; failures: readonly string[] } | ({ kind: 'trial' } & Trial);

/** It starts PostgreSQL, on a machine that may be busy. */
const openMaxMs = 120_000;
/** The session's own deadline comes first. */
const trialMaxMs = deadlineMs + 30_000;
/** All tests of the list took four minutes. */
const unchangedMaxMs = 1_200_000;
const closeMaxMs = 30_000;

/** `root` is the project's directory. Takes seconds: it starts PostgreSQL. */
export async function startSession(root: string): Promise<Session> {
  let child: ChildProcess | null = await startProcess(root);

  const ask = async (request: Request, maxMs: number): Promise<Answer | null> => {
    child ??= await startProcess(root);
    child.send(request);
    const answer = await nextAnswer(child, maxMs);
    if (answer !== null) return answer;
    kill(child);
    child = null;
    return null;
  };

  return {
    runUnchanged: async (wanted) => {
      const answer = await ask({ kind: 'unchanged', wanted }, unchangedMaxMs);
      return answer?.kind === 'failures' ? answer.failures : ['The tests ended without an answer'];
    },
    tryMutant: async (mutant) => {
      const startedAtMs = performance.now();
      const answer = await ask({ kind: 'mutant', mutant }, trialMaxMs);
      if (answer?.kind === 'trial') return answer;
      return { verdict: 'killed', noticedBy: 'the end of its process', ms: performance.now() - startedAtMs };
    },
    close: async () => {
      if (child !== null) {
        const ended = nextAnswer(child, closeMaxMs);
        child.disconnect();
        await ended;
        kill(child);
      }
      // PostgreSQL outlives whoever started it and was killed.
      await removeDeadRuns();
    },
  };
}

async function startProcess(root: string): Promise<ChildProcess> {
  // A process group of its own, so that it can be killed together with its tests.
  const child = fork(import.meta.filename, [root], { detached: true, serialization: 'advanced' });
  const answer = await nextAnswer(child, openMaxMs);
  if (answer?.kind === 'open') return child;
  kill(child);
  throw new Error('Vitest does not start');
}

/** Null where it ends, or says nothing for so long. */
async function nextAnswer(child: ChildProcess, maxMs: number): Promise<Answer | null> {
  const over = new AbortController();
  const { signal } = over;
  const timer = setTimeout(() => {
    over.abort();
  }, maxMs);
  try {
    const answer = once(child, 'message', { signal }).then(([message]) => message as Answer);
    const end = once(child, 'exit', { signal }).then(() => null);
    return await Promise.race([answer, end]);
  } catch {
    return null;
  } finally {
    clearTimeout(timer);
    over.abort();
  }
}

function kill({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL');
  } catch {
    // All of the group have ended.
  }
}

async function serve(root: string): Promise<void> {
  const session = await openSession(root);
  const send = (answer: Answer) => process.send?.(answer);
  process.on('message', (request: Request) => {
    void answerTo(session, request).then(send);
  });
  process.once('disconnect', () => {
    void session.close().finally(() => process.exit());
  });
  send({ kind: 'open' });
}

async function answerTo(session: Session, request: Request): Promise<Answer> {
  switch (request.kind) {
    case 'unchanged':
      return { kind: 'failures', failures: await session.runUnchanged(request.wanted) };
    case 'mutant':
      return { kind: 'trial', ...(await session.tryMutant(request.mutant)) };
    default:
      return request satisfies never;
  }
}

const [, program, givenRoot] = process.argv;
if (program === import.meta.filename && givenRoot !== undefined) await serve(givenRoot);
