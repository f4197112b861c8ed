import { findSets, type SegmentFacts, type ShowTools, tellContacts } from '../audience/audience.ts';
import type { DescribeEvents } from '../webhooks/webhooks.ts';

/** What programs are told of a contact that entered or left a segment: the segment, and the contact as the API has it by then. */
export function createSegmentDescriber(tools: ShowTools): DescribeEvents {
  return async (connection, organizationId, events) => {
    const told = events.map((event) => {
      const { segment_id: segmentId } = event.facts as SegmentFacts; // As syncMembers made them.
      return { event, segmentId, contactId: event.subjectId };
    });
    const [segments, contacts] = await Promise.all([
      findSets(connection, organizationId, [...new Set(told.map(({ segmentId }) => segmentId))]),
      tellContacts(connection, tools, organizationId, [...new Set(told.map(({ contactId }) => contactId))]),
    ]);
    return new Map(
      told.map(({ event, segmentId, contactId }) => [
        event,
        {
          object: 'segment',
          id: segmentId,
          name: segments.get(segmentId)?.name ?? null,
          contact: contacts.get(contactId) ?? { object: 'contact', id: contactId },
        },
      ]),
    );
  };
}
