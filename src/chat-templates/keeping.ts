import { findHolder, type Holder } from '../audience/audience.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import { type Database, violatedIndex } from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { hasAccount } from './account-store.ts';
import { noEdit } from './editing.ts';
import type { TemplateBody } from './schema.ts';
import * as store from './store.ts';
import { readContent } from './template-body.ts';

export type TemplateTools = {
  database: Database;
  clock: Clock;
  newId: NewId;
  /** Whether the provider takes templates only from organizations that have an account there. */
  isAccountNeeded: () => boolean;
};

export type CreatedTemplate =
  | { kind: 'created'; template: store.TemplateRow }
  | { kind: 'account_missing' }
  | { kind: 'limit_reached' }
  /** There is one of that name and language. */
  | { kind: 'taken' };

/** What Meta lets a verified business have. Those that were deleted do not count. */
export const templatesMax = 6_000;

/** It is submitted by a worker soon after. */
export async function createTemplate(
  tools: TemplateTools,
  organizationId: string,
  body: TemplateBody,
): Promise<CreatedTemplate> {
  const { name, language, category } = body;
  try {
    return await tools.database.asOrganizations(
      [organizationId],
      async (transaction): Promise<CreatedTemplate> => {
        if (tools.isAccountNeeded() && !(await hasAccount(transaction, organizationId)))
          return { kind: 'account_missing' };
        if ((await store.findTemplate(transaction, organizationId, { name, language })) !== null)
          return { kind: 'taken' };
        if (await store.hasTemplates(transaction, organizationId, templatesMax))
          return { kind: 'limit_reached' };
        const template = await store.insertTemplate(transaction, {
          organizationId,
          id: tools.newId(),
          name,
          language,
          category,
          content: readContent(body),
          at: now(tools.clock),
        });
        await wakeOnce(transaction, 'chat_templates');
        return { kind: 'created', template };
      },
    );
  } catch (cause) {
    // Another request was first, between the look and the insert.
    if (violatedIndex(cause) === 'chat_templates_name') return { kind: 'taken' };
    throw cause;
  }
}

/** What was accepted shows it for ever; what is still to be sent with it holds it. At the provider a worker deletes it. */
export async function deleteTemplate(
  tools: Pick<TemplateTools, 'database' | 'clock'>,
  template: store.TemplateKey,
): Promise<'deleted' | 'not_found' | Holder> {
  const { organizationId } = template;
  return tools.database.asOrganizations([organizationId], async (transaction) => {
    const row = await store.lockTemplate(transaction, template, 'for update');
    if (row?.deleted_at !== null) return 'not_found';
    const holder = await findHolder(transaction, template);
    if (holder !== null) return holder;
    const at = now(tools.clock);
    const change = { ...row, ...noEdit, ...planDeletion(row, at), deleted_at: at };
    await store.saveTemplate(transaction, { ...template, change, at });
    if (change.next_step !== null) await wakeOnce(transaction, 'chat_templates');
    return 'deleted';
  });
}

/** What the provider never had need not be deleted there. */
function planDeletion(row: store.TemplateRow, at: Date): Pick<store.TemplateChange, 'next_step' | 'due_at'> {
  const mayBeThere = row.provider_template_id !== null || row.is_uncertain;
  if (!mayBeThere || row.provider_state === 'deleted') return { next_step: null, due_at: null };
  // A submission or an edit may be under way: until then it has come to its end.
  const isBegun = row.next_step === 'look_up' || row.is_edit_uncertain;
  const isUnderWay = isBegun && row.due_at !== null && row.due_at > at;
  return { next_step: 'delete', due_at: isUnderWay ? row.due_at : at };
}
