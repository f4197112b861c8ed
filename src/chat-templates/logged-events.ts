import type { Connection } from '../platform/postgres/database.ts';
import { type EventType, type HappenedEvent, logEvents } from '../webhooks/webhooks.ts';
import { findUnsendability, type Unsendability } from './review.ts';
import type { TemplateChange, TemplateKey, TemplateRow } from './store.ts';

type TemplateEventType = Extract<EventType, `chatapp.template.${string}`>;

/** What of the template may be otherwise by the time it is told. */
export type TemplateFacts = { sendable_reason: Unsendability | null };

/** Tells programs what became of a template, in the transaction that writes it. */
export async function logTemplateChange(
  connection: Connection,
  before: TemplateRow,
  after: TemplateChange,
  at: Date,
): Promise<void> {
  const key = { organizationId: before.organization_id, id: before.id };
  await logEvents(
    connection,
    listTypes(before, after).map((type) => happenedTo(key, type, after, at)),
  );
}

/** The same of those that are sent again because their pauses are over. */
export async function logPauseEnds(
  connection: Connection,
  rows: readonly TemplateRow[],
  at: Date,
): Promise<void> {
  const sendable = rows.filter((row) => findUnsendability(row) === null);
  await logEvents(
    connection,
    sendable.map((row) =>
      happenedTo({ organizationId: row.organization_id, id: row.id }, 'chatapp.template.approved', row, at),
    ),
  );
}

function happenedTo(
  { organizationId, id }: TemplateKey,
  type: TemplateEventType,
  template: TemplateChange,
  at: Date,
): HappenedEvent {
  const facts: TemplateFacts = { sendable_reason: findUnsendability(template) };
  return { organizationId, type, at, ofCampaign: false, subjectId: id, ordinal: null, facts };
}

function listTypes(before: TemplateRow, after: TemplateChange): TemplateEventType[] {
  if (after.deleted_at !== null) return [];
  const [was, is] = [findUnsendability(before), findUnsendability(after)];
  const types: TemplateEventType[] = [];
  if (was !== is && is === null) types.push('chatapp.template.approved');
  if (was !== is && is === 'rejected') types.push('chatapp.template.rejected');
  // A review that begins again after an edit is the author's own doing.
  if (was !== is && is !== null && is !== 'rejected' && is !== 'pending')
    types.push('chatapp.template.paused');
  const hasMoved = categoryOf(before, before) !== categoryOf(before, after);
  const isToMove = before.marketing_from === null && after.marketing_from !== null;
  if (hasMoved || isToMove) types.push('chatapp.template.recategorized');
  return types;
}

/** At the provider. */
function categoryOf({ category }: TemplateRow, { provider_category: moved }: TemplateChange): string {
  return moved ?? category;
}
