import type { Connection } from '../platform/postgres/database.ts';
import { describeBy } from '../webhooks/webhooks.ts';
import type { TemplateFacts } from './logged-events.ts';
import { showTemplate } from './record.ts';
import { findTemplates, type TemplateRow } from './store.ts';

/** What programs are told of templates: their record as the API has it by then, sendable or not as the event left it. */
export const describeTemplateEvents = describeBy(findShown, (row, event) => {
  const { sendable_reason: reason } = event.facts as TemplateFacts; // As happenedTo made them.
  return {
    object: 'chatapp_template',
    ...showTemplate(row),
    sendable: reason === null,
    sendable_reason: reason,
  };
});

async function findShown(
  connection: Connection,
  organizationId: string,
  ids: readonly string[],
): Promise<TemplateRow[]> {
  const found = await findTemplates(
    connection,
    ids.map((id) => ({ organizationId, id })),
  );
  return found.filter((row) => row.deleted_at === null);
}
