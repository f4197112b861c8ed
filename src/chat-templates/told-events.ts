import type { DescribeEvents } from '../webhooks/webhooks.ts';
import type { TemplateFacts } from './logged-events.ts';
import { showTemplate } from './record.ts';
import { findTemplates } from './store.ts';

/** What programs are told of templates: their record as the API has it by then, sendable or not as the event left it. */
export const describeTemplateEvents: DescribeEvents = async (connection, organizationId, events) => {
  const ids = [...new Set(events.map(({ subjectId }) => subjectId))];
  const found = await findTemplates(
    connection,
    ids.map((id) => ({ organizationId, id })),
  );
  const records = new Map(
    found
      .filter((row) => row.deleted_at === null)
      .map((row) => [row.id, { object: 'chatapp_template', ...showTemplate(row) }]),
  );
  return new Map(
    events.flatMap((event) => {
      const record = records.get(event.subjectId);
      if (record === undefined) return [];
      const { sendable_reason: reason } = event.facts as TemplateFacts; // As logTemplate made them.
      return [[event, { ...record, sendable: reason === null, sendable_reason: reason }]];
    }),
  );
};
