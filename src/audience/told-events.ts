import type { Connection } from '../platform/postgres/database.ts';
import type { DescribeEvents, LoggedEvent } from '../webhooks/webhooks.ts';
import { listContactsByIds, type ShowTools } from './contacts.ts';
import type { ConsentFacts, SuppressionFacts } from './logged-events.ts';
import { showSuppression } from './suppression-record.ts';
import { findSuppressionsByIds } from './suppression-store.ts';

/** What programs are told of contacts: their record as the API has it by then, or the id of one that is gone. */
export function createContactDescriber(tools: ShowTools): DescribeEvents {
  return async (connection, organizationId, events) => {
    const there = events.filter(({ type }) => type !== 'contact.deleted');
    const contacts = await tellContacts(connection, tools, organizationId, subjectsOf(there));
    return new Map(
      events.map((event) => [
        event,
        {
          ...(contacts.get(event.subjectId) ?? { object: 'contact', id: event.subjectId }),
          ...changedBy(event),
        },
      ]),
    );
  };
}

function subjectsOf(events: readonly LoggedEvent[]): string[] {
  return [...new Set(events.map(({ subjectId }) => subjectId))];
}

function changedBy({ type, facts }: LoggedEvent): { changed?: ConsentFacts } {
  // As logContacts made them.
  return type === 'contact.consent_changed' ? { changed: facts as ConsentFacts } : {};
}

/** Of one contact, in characters of JSON. A page of events has two hundred, and its answer has to fit into memory many times. */
const contactLengthMax = 20_000;

/** Those that are there, by their ids. Of one with more properties than a program is told, its id. */
export async function tellContacts(
  connection: Connection,
  tools: ShowTools,
  organizationId: string,
  ids: readonly string[],
): Promise<Map<string, object>> {
  const contacts = ids.length === 0 ? [] : await listContactsByIds(connection, tools, organizationId, ids);
  return new Map(
    contacts.map((contact) => {
      const told = { object: 'contact', ...contact };
      const isTold = JSON.stringify(told).length <= contactLengthMax;
      return [contact.id, isTold ? told : { object: 'contact', id: contact.id, data_truncated: true }];
    }),
  );
}

/** What programs are told of suppressions: their record as the API has it by then, or what is known of one that is gone. */
export const describeSuppressionEvents: DescribeEvents = async (connection, organizationId, events) => {
  const there = events.filter(({ type }) => type !== 'suppression.deleted');
  const ids = subjectsOf(there);
  const found = ids.length === 0 ? [] : await findSuppressionsByIds(connection, { organizationId, ids });
  const suppressions = new Map(found.map((suppression) => [suppression.id, suppression]));
  return new Map(
    events.map((event) => {
      const suppression = suppressions.get(event.subjectId);
      const { channel, reason, scope } = event.facts as SuppressionFacts; // As logSuppressions made them.
      const told =
        suppression === undefined
          ? { id: event.subjectId, channel, reason, scope }
          : showSuppression(suppression);
      return [event, { object: 'suppression', ...told }];
    }),
  );
};
