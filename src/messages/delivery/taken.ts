import { dateOf } from '../../platform/clock.ts';
import { type Bound, sqlState } from '../../platform/postgres/database.ts';
import type { Job, MessageFacts } from '../channel.ts';
import { hasReaders, takenStatements } from '../recipients/taken.ts';
import type { Announced } from './hand-off-store.ts';
import {
  isReportedSoon,
  listFinished,
  listWritten,
  noteWritten,
  type Settled,
  type WriterTools,
} from './settlement-writer.ts';
import { deletionOfSlices } from './slice-store.ts';

/**
 * Outcomes of the usual kind: the first hand-off of a recipient of a slice, or of the only one of a message, which was
 * accepted, and of whom nothing else is known. Nothing that follows from such an outcome depends on what the statement
 * finds, so everything is sent at once.
 */
export function isPlainlyTaken(tools: WriterTools, { settlement, message, finding }: Settled): boolean {
  const { job, status, requeue, isAmbiguous } = settlement;
  return (
    (job.slice !== undefined || isAlone(job, message)) &&
    status === job.policy.acceptedStatus &&
    requeue === null &&
    !isAmbiguous &&
    finding === undefined &&
    !isReportedSoon(tools, job.channel)
  );
}

/** No other recipient and no earlier attempt has to do with its outcome, and nothing is cleared up after it. */
function isAlone({ isCampaign, attempts, ambiguities }: Job, message: MessageFacts | null): boolean {
  if (isCampaign || attempts > 0 || ambiguities > 0 || message === null) return false;
  return !message.isShared && !message.hasAttachments;
}

/**
 * `announcement` is stored in the same transaction; returns what it does. Null if a segment of an organization reads
 * messages: nothing is written then, and it must hear of the outcomes.
 */
export async function writeTaken(
  tools: WriterTools,
  epoch: number,
  items: readonly Settled[],
  announcement: Bound<Announced> | null = null,
): Promise<readonly Announced[] | null> {
  const settlements = items.map(({ settlement }) => settlement);
  const written = listWritten(items);
  const statements = [
    ...takenStatements(tools, settlements, { epoch, at: dateOf(tools.clock.nowMs()) }),
    ...deletionOfSlices(listFinished(written), epoch),
  ];
  let announced: readonly Announced[] = [];
  try {
    if (announcement === null) await tools.database.together(null, statements);
    else
      [announced] = await tools.database.together<[Announced, ...unknown[]]>(null, [
        announcement,
        ...statements,
      ]);
  } catch (cause) {
    if (sqlState(cause) === hasReaders) return null;
    throw cause;
  }
  noteWritten(written);
  if (written.size > 0) tools.onCampaignProgress();
  tools.observer?.onSettled(settlements);
  return announced;
}
