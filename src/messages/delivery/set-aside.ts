import { dateOf } from '../../platform/clock.ts';
import { wakeOnce } from '../../platform/queue/wake.ts';
import { type RecipientKey, uniqueMessages } from '../keys.ts';
import { lockMessagesOf } from '../status-store.ts';
import { claimSetAside, listSetAside, type SetAsideFilter, unsetAside } from './set-aside-store.ts';
import { giveUpSetAside } from './settlement.ts';
import { settleWithin, type WriterTools } from './settlement-writer.ts';

/**
 * What becomes of jobs that were set aside, which only an operator decides. A job that is **retried** keeps its count of
 * crashes: it is a poison job, tried alone, and set aside again by one more crash. The recipient of one that is **given
 * up** has failed, by the same transaction that writes any outcome, so that all that follows from a failure does.
 *
 * Both may run beside workers and beside each other: each job has one of the two done to it, once.
 */
export type SetAsideTools = Omit<WriterTools, 'deliveries' | 'recoveryItemsMax'>;

/** As many as a worker's recovery settles at once. */
const batchJobsMax = 500;

/** Returns how many there were. */
export async function retrySetAside(tools: SetAsideTools, filter: SetAsideFilter): Promise<number> {
  const jobs = await inBatches(tools, filter, (batch) =>
    tools.database.transactionByIndex((transaction) =>
      unsetAside(transaction, batch, dateOf(tools.clock.nowMs())),
    ),
  );
  if (jobs > 0) await wakeOnce(tools.database, 'deliveries');
  return jobs;
}

/** Those whose hand-off was cut off before may have arrived: their recipients stay uncertain. */
export type GivenUp = { failed: number; uncertain: number };

export async function giveUpAllSetAside(tools: SetAsideTools, filter: SetAsideFilter): Promise<GivenUp> {
  const sums: GivenUp = { failed: 0, uncertain: 0 };
  await inBatches(tools, filter, async (batch) => {
    const { failed, uncertain } = await giveUpBatch(tools, batch);
    sums.failed += failed;
    sums.uncertain += uncertain;
    return failed + uncertain;
  });
  return sums;
}

async function giveUpBatch(tools: SetAsideTools, batch: readonly RecipientKey[]): Promise<GivenUp> {
  const given = await tools.database.transactionByIndex(async (transaction) => {
    // Reports lock messages before they end jobs in the queue.
    await lockMessagesOf(transaction, uniqueMessages(batch));
    const { epoch, jobs } = await claimSetAside(transaction, tools.channels, batch);
    const items = jobs.map((job) => ({ settlement: giveUpSetAside(job), message: null }));
    const haveContactsChanged =
      jobs.length > 0 &&
      (await settleWithin(
        transaction,
        { ...tools, deliveries: [] },
        { epoch, items, finished: [], isLast: false },
      ));
    return { jobs, haveContactsChanged };
  });
  if (given.haveContactsChanged) tools.onContactsChanged();
  if (given.jobs.some(({ isCampaign }) => isCampaign)) tools.onCampaignProgress();
  const uncertain = given.jobs.filter(({ ambiguities }) => ambiguities > 0).length;
  return { failed: given.jobs.length - uncertain, uncertain };
}

/** Ends because each batch begins after the one before, also if a job is set aside again meanwhile. */
async function inBatches(
  { database }: SetAsideTools,
  filter: SetAsideFilter,
  work: (batch: readonly RecipientKey[]) => Promise<number>,
): Promise<number> {
  let after: RecipientKey | null = null;
  let jobs = 0;
  for (;;) {
    const batch: RecipientKey[] = await listSetAside(database, filter, { after, limit: batchJobsMax });
    after = batch.at(-1) ?? null;
    if (after === null) return jobs;
    jobs += await work(batch);
  }
}
