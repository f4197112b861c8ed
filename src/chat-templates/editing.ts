import { isDeepStrictEqual } from 'node:util';
import { findHolder } from '../audience/audience.ts';
import type { TemplateContent, TemplateState } from '../channels/chatapp/chatapp.ts';
import { type Clock, dateOf, now } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { hasAccount } from './account-store.ts';
import { hasSameParameters } from './review.ts';
import type { TemplatePatch } from './schema.ts';
import * as store from './store.ts';
import { readEdit } from './template-body.ts';

/**
 * Editing templates. What a template says changes when the provider has taken the edit, which a worker asks for
 * (jobs.ts): until then messages are made of it as before, and the edit is shown beside it. One that was rejected is
 * pending again at once, since nothing is made of it.
 *
 * Messages that were accepted before and leave after it say what the template says by then: the provider has no other
 * text any more. Values that it has no placeholder for are left out; one that is missing fails the message. So an edit
 * that changes the names of placeholders is refused as long as a campaign uses the template.
 */

/** No edit is under way. */
export const noEdit = { edited_content: null, is_edit_uncertain: false, edit_refusal: null } as const;

/** Its review begins anew. */
export const pendingAgain = { status: 'pending', reviewed_at: null, rejection_reason: null } as const;

export type EditOutcome =
  | { kind: 'edited'; template: store.TemplateRow }
  | { kind: 'not_found' }
  | { kind: 'invalid'; issues: readonly string[] }
  | { kind: 'account_missing' }
  /** Not as the template is now, in words. */
  | { kind: 'refused'; words: string };

type EditTools = { database: Database; clock: Clock; isAccountNeeded: () => boolean };

/** A worker edits it at the provider soon after. A patch that changes nothing is no edit. */
export async function editTemplate(
  tools: EditTools,
  key: store.TemplateKey,
  patch: TemplatePatch,
): Promise<EditOutcome> {
  const { organizationId } = key;
  return tools.database.asOrganizations([organizationId], async (transaction): Promise<EditOutcome> => {
    const row = await store.lockTemplate(transaction, key, 'for update');
    if (row?.deleted_at !== null) return { kind: 'not_found' };
    const content = row.edited_content ?? row.content;
    const read = readEdit({ ...row, content }, patch);
    if (read.kind === 'invalid') return read;
    if (isDeepStrictEqual(read.content, content)) return { kind: 'edited', template: row };
    if (tools.isAccountNeeded() && !(await hasAccount(transaction, organizationId)))
      return { kind: 'account_missing' };
    const at = now(tools.clock);
    const words = findObstacle(row, at) ?? (await findUse(transaction, row, read.content));
    if (words !== null) return { kind: 'refused', words };
    await store.saveTemplate(transaction, { ...key, change: planEdit(row, read.content, at), at });
    await wakeOnce(transaction, 'chat_templates');
    const template = await store.findTemplate(transaction, organizationId, { id: key.id });
    return template === null ? { kind: 'not_found' } : { kind: 'edited', template };
  });
}

const dayMs = 86_400_000;

/** What the provider lets be edited (Meta: template management). Rejected and paused ones as often as one likes. */
const editsMax = 10;
const editsPeriodMs = 30 * dayMs;
const editPauseMs = dayMs;

/** Why a template cannot be edited now, in words; null if it can. */
function findObstacle(row: store.TemplateRow, at: Date): string | null {
  if (row.is_edit_uncertain) return 'An edit of the template is under way. Wait until it has been made.';
  if (row.edited_content !== null || isNowhere(row)) return null;
  if (row.status === 'pending')
    return 'The template is under review. It can be edited when its review is over.';
  const state: TemplateState = row.provider_state ?? 'pending';
  if (state === 'rejected' || state === 'paused') return null;
  if (state !== 'approved')
    return `The provider lets no template be edited that is ${state}: only those that are approved, rejected or paused.`;
  const from = nextEditAt(row, at);
  return from === null
    ? null
    : `An approved template can be edited once in 24 hours, and ${editsMax} times in 30 days: this one again from ${from.toISOString()}.`;
}

/** From when on the provider takes another edit of an approved template; null if it does now. */
function nextEditAt({ edits }: store.TemplateRow, at: Date): Date | null {
  const last = edits.at(-1)?.getTime();
  const tenth = edits.at(-editsMax)?.getTime();
  const fromMs = Math.max(
    last === undefined ? 0 : last + editPauseMs,
    tenth === undefined ? 0 : tenth + editsPeriodMs,
  );
  return fromMs > at.getTime() ? dateOf(fromMs) : null;
}

/** Rejected, and not at the provider: what it refused at once, or has deleted. */
function isNowhere(row: store.TemplateRow): boolean {
  return row.status === 'rejected' && (row.provider_template_id === null || row.provider_state === 'deleted');
}

/** Whose messages would have no value for a placeholder that is new, or one too many. */
async function findUse(
  transaction: Transaction,
  row: store.TemplateRow,
  content: TemplateContent,
): Promise<string | null> {
  if (hasSameParameters(row.content, content)) return null;
  const holder = await findHolder(transaction, { organizationId: row.organization_id, id: row.id });
  return holder === null
    ? null
    : `The template is used by the ${holder.kind} ${holder.id}, which gives values for its present placeholders: the edit must keep their names.`;
}

function planEdit(row: store.TemplateRow, content: TemplateContent, at: Date): store.TemplateChange {
  // The provider has none, so that this is a first submission.
  if (isNowhere(row))
    return {
      ...row,
      ...noEdit,
      ...pendingAgain,
      content,
      provider_template_id: null,
      provider_state: null,
      provider_category: null,
      submitted_at: null,
      problem: null,
      next_step: 'submit',
      due_at: at,
    };
  return {
    ...row,
    ...(row.status === 'rejected' && pendingAgain),
    edited_content: content,
    edit_refusal: null,
    problem: null,
    next_step: 'edit',
    due_at: at,
  };
}
