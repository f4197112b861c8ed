import type { Transaction } from '../../platform/postgres/database.ts';
import { continueByIndex } from '../../platform/postgres/lookup.ts';
import type { RecipientKey } from '../keys.ts';
import { cancelRecipients } from './cancelling-store.ts';
import {
  applyToldEngagements,
  type NotedEngagement,
  noteEngagements,
  type ToldEngagement,
} from './engagement-store.ts';
import {
  type ErasedAddress,
  type ErasedRecipient,
  eraseRecipients,
  eraseRecipientsOfAddress,
} from './erasure-store.ts';
import { insertCampaignRecipients, type NewRecipients } from './member-store.ts';
import { raiseStatuses, type ReportedChange } from './report-store.ts';
import { settleJobs, type Settlement } from './settlement-store.ts';
import type { ChangedRecipient } from './store.ts';

/** What is written of recipients: all the ways in which their rows change, but for those of `takenStatements`. */
export type RecipientWrite =
  /** Outcomes of hand-offs, and reasons for which there was none, of jobs that are claimed under this epoch. */
  | { kind: 'outcomes'; settlements: readonly Settlement[]; epoch: number }
  /** What providers have reported, or recipients themselves. */
  | { kind: 'reports'; reports: readonly ReportedChange[]; isDeliveryFinal?: boolean }
  /** What is seen of recipients as it happens. They must be locked, and each given once. */
  | { kind: 'noted_engagements'; engaged: readonly NotedEngagement[] }
  /** What devices tell of recipients later on. They must be locked, and each given once. */
  | { kind: 'told_engagements'; engaged: readonly ToldEngagement[] }
  /** They get nothing: their jobs were taken out of the queue before anything was announced. */
  | { kind: 'cancellation'; recipients: readonly RecipientKey[] }
  /** The address is erased from so many recipients at most, found by it. */
  | { kind: 'erasure_of_address'; erased: ErasedAddress; recipientsMax: number }
  /** Their addresses are erased. */
  | { kind: 'erasure'; recipients: readonly ErasedRecipient[] }
  /** Members of the audience of a campaign become its recipients; those that are dropped at once count as changed. */
  | { kind: 'campaign_recipients'; recipients: NewRecipients };

/** Returns the recipients that were changed. */
export async function writeRecipients(
  transaction: Transaction,
  write: RecipientWrite,
  at: Date,
): Promise<readonly ChangedRecipient[]> {
  switch (write.kind) {
    case 'outcomes':
      return settleJobs(transaction, write.settlements, { epoch: write.epoch, at });
    case 'reports': {
      const { reports, isDeliveryFinal = false } = write;
      return raiseStatuses(transaction, reports, { at, isDeliveryFinal });
    }
    case 'noted_engagements':
      return noteEngagements(transaction, write.engaged, at);
    case 'told_engagements':
      return applyToldEngagements(transaction, write.engaged);
    case 'cancellation':
      return cancelRecipients(transaction, write.recipients, at);
    case 'erasure_of_address':
      return thenByIndex(
        transaction,
        eraseRecipientsOfAddress(transaction, write.erased, write.recipientsMax),
      );
    case 'erasure':
      return eraseRecipients(transaction, write.recipients);
    case 'campaign_recipients':
      return thenByIndex(transaction, insertCampaignRecipients(transaction, write.recipients, at));
  }
}

/** The statement may read as it likes; what follows from it looks up keys. */
async function thenByIndex<Written>(transaction: Transaction, writing: Promise<Written>): Promise<Written> {
  const written = await writing;
  await continueByIndex(transaction);
  return written;
}
