import type { ReviewedTemplate } from '../channels/chatapp/chatapp.ts';
import { sanitiseDiagnostic } from '../channels/diagnostic.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { Log } from '../platform/log.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { logTemplateChange } from './logged-events.ts';
import { applyReview, findUnsendability, type ReviewSource } from './review.ts';
import * as store from './store.ts';

/**
 * Stores what the provider told by itself of an organization's templates. Templates that are not ours, and what was
 * told before, change nothing. Returns the ids of those that can be sent now and could not before, or the other way
 * round.
 */
export async function applyTemplateReviews(
  tools: { clock: Clock; log: Log },
  transaction: Transaction,
  organizationId: string,
  reviewed: readonly ReviewedTemplate[],
): Promise<string[]> {
  if (reviewed.length === 0) return [];
  const source: ReviewSource = { at: now(tools.clock), source: 'told' };
  return transaction.asOrganizations([organizationId], async () => {
    const rows = await store.lockNamedTemplates(transaction, organizationId, reviewed);
    const changed: string[] = [];
    for (const row of rows) {
      const after = reviewed.reduce(
        (change: store.TemplateRow, told) =>
          isMeant(change, told) ? applyReview(change, told, source) : change,
        row,
      );
      if (after === row) continue;
      if (await saveReview(transaction, row, after, source.at)) changed.push(row.id);
      logMove(tools.log, row, after);
    }
    return changed;
  });
}

/**
 * Saves what became of a template, whose row must be locked. Returns whether it can be sent now and could not before, or
 * the other way round: then campaigns that are made of it stop or go on soon after.
 */
export async function saveReview(
  transaction: Transaction,
  before: store.TemplateRow,
  change: store.TemplateChange,
  at: Date,
): Promise<boolean> {
  const { organization_id: organizationId, id } = before;
  await store.saveTemplate(transaction, { organizationId, id, change, at });
  await logTemplateChange(transaction, before, change, at);
  const hasTurned = findUnsendability(before) !== findUnsendability(change);
  if (hasTurned) await wakeOnce(transaction, 'campaigns');
  return hasTurned;
}

/** Says that the provider moves a template to marketing, or has done so; which costs more, and needs consent. */
export function logMove(log: Log, before: store.TemplateRow, after: store.TemplateChange): void {
  const { organization_id, id: template_id, name, language } = before;
  if (before.marketing_from !== null || after.marketing_from === null) return;
  log.warn(
    { organization_id, template_id, name, language, from: after.marketing_from },
    'a chat-app template becomes marketing at its provider',
  );
}

/**
 * Whether the provider speaks of this template. By its own id, where that is known: a template that was deleted and made
 * again at the provider has the same name, and another text.
 */
export function isMeant(
  row: store.TemplateRow,
  { providerTemplateId, name, language }: ReviewedTemplate,
): boolean {
  if (row.name !== name || row.language !== language) return false;
  if (row.provider_template_id !== null) return row.provider_template_id === providerTemplateId;
  const mayBeThere = row.next_step !== 'submit' || row.is_uncertain;
  return mayBeThere && row.deleted_at === null;
}

/** What a hand-off found out about a template: it is not taken any more, or not for now. */
export type TemplateFinding = store.TemplateKey & {
  /** Null: nothing is known, but it must be looked at. */
  state: 'paused' | 'disabled' | 'rejected' | null;
  /** The provider's. */
  words: string;
};

/** Stores that, and has the template looked at soon. Unknown templates, and deleted ones, are passed over. */
export async function noteTemplateFinding(
  tools: { clock: Clock },
  transaction: Transaction,
  { organizationId, id, state, words }: TemplateFinding,
): Promise<void> {
  const at = now(tools.clock);
  await transaction.asOrganizations([organizationId], async () => {
    const row = await store.lockTemplate(transaction, { organizationId, id }, 'for no key update');
    if (row?.deleted_at !== null) return;
    const reviewed: ReviewedTemplate = {
      providerTemplateId: row.provider_template_id ?? '',
      name: row.name,
      language: row.language,
      state,
      category: null,
      rejectionReason: sanitiseDiagnostic(words),
      quality: null,
    };
    const change = {
      ...applyReview(row, reviewed, { at, source: 'told' }),
      provider_template_id: row.provider_template_id,
    };
    await saveReview(transaction, row, change, at);
  });
}
