import type { TemplateCategory, TemplateContent } from '../channels/chatapp/chatapp.ts';
import { isUuid } from '../platform/ids.ts';
import type { Connection, Transaction } from '../platform/postgres/database.ts';
import { isOnTrial } from './refusals.ts';
import { findUnsendability, isChangingParameters } from './review.ts';
import * as store from './store.ts';

/** What the other rooms may know of templates of chat-app messages, and of accounts at their provider. */
export {
  type AccountContent,
  type AccountTools,
  findAccountHolders,
  findOwnApp,
  type LoadedAccount,
  loadChatAppAccounts,
  makeStandInAccount,
  type OwnApp,
  parseAccount,
  readAccounts,
  type StoredAccount,
  setAccount,
  type SetAccountOutcome,
  showAccount,
  type ShownAccount,
} from './account.ts';
export {
  type Budget,
  countReached,
  deleteOldReached,
  findBudget,
  findPeopleLimit,
  findReachedAddresses,
  forgetReached,
  isUsedUp,
  loadBudgets,
  lockBudget,
  notePeopleLimit,
  type PeopleLimit,
} from './budget.ts';
export {
  type CampaignsHeld,
  findCampaignsHeld,
  holdCampaigns,
  releaseCampaigns,
  findMarketingRefusal,
  noteMarketingRefusal,
} from './holding.ts';
export { hasAccount as hasChatAppAccount } from './account-store.ts';
export { noteVerdicts, refusalsMax, type TemplateVerdict } from './refusals.ts';
export { chatTemplateRules } from './rules.ts';
export { findRefusedTemplates } from './store.ts';
export { describeTemplateEvents } from './told-events.ts';
export { applyTemplateReviews, noteTemplateFinding, type TemplateFinding } from './reviewing.ts';

/** A template, as a message that is made of it needs it. */
export type ChatTemplate = {
  organizationId: string;
  id: string;
  name: string;
  language: string;
  category: TemplateCategory;
  content: TemplateContent;
  status: store.TemplateStatus;
  sendable: boolean;
  /** Why it cannot be sent: `pending`, `rejected`, `paused` and so on. Null if it can. */
  sendableReason: string | null;
  reviewedAt: Date | null;
  /**
   * The provider has moved a template of another category to marketing: it charges for that, so that consent is asked for,
   * and from this time on it is sent in campaigns alone. Null for all others.
   */
  marketingFrom: Date | null;
  /** Whether an edit is under way after which messages must give values for other names. */
  isChangingParameters: boolean;
  /** Whether its last hand-off was refused because of what the message said: an acceptance is to be told of then. */
  wasRefused: boolean;
  /** It was paused for such refusals, and is tried again. */
  isOnTrial: boolean;
};

/** Null for one that does not exist, was deleted, or is another organization's. Locks nothing. */
export async function findChatTemplate(
  transaction: Transaction,
  organizationId: string,
  wanted: store.WantedTemplate,
): Promise<ChatTemplate | null> {
  if ('id' in wanted && !isUuid(wanted.id)) return null;
  const row = await store.findTemplate(transaction, organizationId, wanted);
  return row && toTemplate(row);
}

/** Whether the organization had a template of that id, which was deleted. */
export async function wasChatTemplateDeleted(
  transaction: Transaction,
  { organizationId, id }: store.TemplateKey,
): Promise<boolean> {
  if (!isUuid(id)) return false;
  const [row] = await store.findTemplates(transaction, [{ organizationId, id }]);
  return row !== undefined && row.deleted_at !== null;
}

/** The same, and kept from being deleted until the transaction ends. */
export async function keepChatTemplate(
  transaction: Transaction,
  template: store.TemplateKey,
): Promise<ChatTemplate | null> {
  if (!isUuid(template.id)) return null;
  const row = await store.keepTemplate(transaction, template);
  return row && toTemplate(row);
}

/**
 * Those that there are, of any organizations, also deleted ones, which are not sendable. The transaction should plan by
 * indexes.
 */
export async function loadChatTemplates(
  connection: Connection,
  wanted: readonly store.TemplateKey[],
): Promise<ChatTemplate[]> {
  const rows = await store.findTemplates(connection, wanted);
  return rows.map(toTemplate);
}

/** Those in which a template is never sent again, or not without its author. A pause, and a review, end by themselves. */
const finalReasons: ReadonlySet<string> = new Set(['rejected', 'disabled', 'archived', 'deleted']);

/** Whether what keeps a template from being sent does not end by itself. */
export function isStoppedForGood(sendableReason: string): boolean {
  return finalReasons.has(sendableReason);
}

function toTemplate(row: store.TemplateRow): ChatTemplate {
  const unsendability = findUnsendability(row);
  return {
    organizationId: row.organization_id,
    id: row.id,
    name: row.name,
    language: row.language,
    category: row.category,
    content: row.content,
    status: row.status,
    sendable: unsendability === null,
    sendableReason: unsendability,
    reviewedAt: row.reviewed_at,
    marketingFrom: row.provider_category === 'marketing' ? row.marketing_from : null,
    isChangingParameters: isChangingParameters(row),
    wasRefused: row.refused_hand_offs > 0,
    isOnTrial: isOnTrial(row),
  };
}
