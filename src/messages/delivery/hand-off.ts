import { dateOf } from '../../platform/clock.ts';
import type { Job } from '../channel.ts';
import { attempt } from './attempt.ts';
import type { ChannelSession, LeaseSession } from './lease-session.ts';
import { endOf, tellAttempt } from './observer.ts';
import { settlementOf } from './settlement.ts';
import type { Settled } from './settlement-writer.ts';

/** Hands one job off, tells of it, and returns what to write. No fault of the job makes it reject. */
export async function handOffJob(
  session: LeaseSession,
  channelSession: ChannelSession,
  job: Job,
): Promise<Settled> {
  const { tools } = session;
  const startedAtMs = tools.clock.monotonicMs();
  const { result, facts } = await attempt(session, channelSession, job);
  const settlement = settlementOf(job, result, {
    atMs: tools.clock.nowMs(),
    random: tools.random(),
    dateOf,
    expiresAt: facts?.expiresAt,
  });
  const end = endOf(result);
  if (end !== null)
    tellAttempt(tools, channelSession.provider, {
      settlement,
      end,
      durationMs: tools.clock.monotonicMs() - startedAtMs,
    });
  return { settlement, message: facts, ...(result.kind === 'outcome' && { finding: result.finding }) };
}
