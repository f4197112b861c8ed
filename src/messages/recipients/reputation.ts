import { suspendForReputation, warnOfReputation } from '../../accounts/accounts.ts';
import { type Clock, dateOf } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import type { Connection, Transaction } from '../../platform/postgres/database.ts';
import type { MessageChannel } from '../channel.ts';
import { logSuspensions } from '../told-organizations.ts';
import * as store from './reputation-store.ts';
import type { ReportedFate } from './suppressing.ts';

/**
 * The reputation guard. Mail servers judge an installation by everything it sends: an organization that writes to many
 * addresses that do not exist, or whose recipients complain, harms all others. Its rates over a rolling day lead first
 * to a warning, and then to its suspension until the operator lifts it. Counting then starts again at zero.
 */
export type ReputationTools = { clock: Clock; log: Log; random: () => number };

const dayMs = 24 * 60 * 60 * 1_000;

/** With fewer hand-offs, a handful of mistyped addresses would already be a high rate. */
const sentMin = 500;
/** Shares of what was handed off. */
export const reputationLimits = {
  suspend: { bounced: 0.1, complained: 0.005 },
  warn: { bounced: 0.05, complained: 0.001 },
} as const;

const shards = 8;

/** Any of the rows that an organization's counts of an hour are divided into, so that few wait for the same one. */
export function shardOf({ random }: Pick<ReputationTools, 'random'>): number {
  return Math.floor(random() * shards) % shards;
}

/** Adds hand-offs and reports to an organization's counts. Only addresses that do not exist count as bounces. */
export async function countFates(
  transaction: Transaction,
  tools: ReputationTools,
  { judgement, words }: MessageChannel,
  fates: readonly (ReportedFate & { wasHandedOff: boolean })[],
): Promise<void> {
  if (judgement === null) return;
  const counts = new Map<string, store.FateCounts>();
  for (const { job, addressKey, status, failure, wasHandedOff } of fates) {
    // Simulated addresses count neither as bounces nor as hand-offs: they must not suspend an organization, nor lower
    // its bounce rate.
    if (judgement.isSimulated(addressKey)) continue;
    const isBounced = status === 'bounced' && failure?.type === 'hard';
    const isComplained = status === 'complained';
    if (!wasHandedOff && !isBounced && !isComplained) continue;
    const count = counts.get(job.organizationId) ?? { sent: 0, bounced: 0, complained: 0 };
    count.sent += Number(wasHandedOff);
    count.bounced += Number(isBounced);
    count.complained += Number(isComplained);
    counts.set(job.organizationId, count);
  }
  if (counts.size === 0) return;
  const atMs = tools.clock.nowMs();
  await store.addFates(transaction, { at: dateOf(atMs), shard: shardOf(tools), counts });
  for (const [organizationId, { bounced, complained }] of counts) {
    if (bounced > 0 || complained > 0)
      await guard(transaction, tools, organizationId, { atMs, medium: words.medium });
  }
}

async function guard(
  transaction: Transaction,
  tools: ReputationTools,
  organizationId: string,
  { atMs, medium }: { atMs: number; medium: string },
): Promise<void> {
  const day = await store.sumFates(transaction, organizationId, dateOf(atMs - dayMs));
  const verdict = judgeReputation(day);
  if (verdict === 'good') return;
  const at = dateOf(atMs);
  const hasChanged =
    verdict === 'suspend'
      ? await suspendForReputation(transaction, organizationId, { at, ...day })
      : await warnOfReputation(transaction, organizationId, { at, since: dateOf(atMs - dayMs) });
  if (!hasChanged) return;
  if (verdict === 'suspend')
    await logSuspensions(transaction, {
      organizationId,
      channels: ['email'],
      isSuspended: true,
      reason: 'reputation',
      at,
    });
  const message =
    verdict === 'suspend'
      ? `the organization is suspended for ${medium}: too many bounces or complaints`
      : 'the bounces or complaints of the organization come near to a suspension';
  tools.log.warn({ organization_id: organizationId, ...day }, message);
}

/** Decides on a warning or a suspension from a day's counts. The rates are shares of what was handed off. */
export function judgeReputation({
  sent,
  bounced,
  complained,
}: store.FateCounts): 'good' | 'warn' | 'suspend' {
  if (sent < sentMin) return 'good';
  const passes = (limit: { bounced: number; complained: number }) =>
    bounced / sent > limit.bounced || complained / sent > limit.complained;
  if (passes(reputationLimits.suspend)) return 'suspend';
  return passes(reputationLimits.warn) ? 'warn' : 'good';
}

/** Called when the operator lifts a suspension: earlier counts no longer matter. */
export async function forgiveReputation(connection: Connection, organizationId: string): Promise<void> {
  await store.forgetFates(connection, organizationId);
}

/** Housekeeping: deletes counts older than the rolling day. */
export async function deleteOldReputation(
  connection: Connection,
  atMs: number,
  rowsMax?: number,
): Promise<void> {
  await store.deleteOldFates(connection, dateOf(atMs - 2 * dayMs), rowsMax);
}
