import { groupBy } from '../grouping.ts';

/**
 * What one organization tells, of things that nobody knows yet, waits for them. Fewer, and what comes before the thing that
 * it speaks of is lost: the STOP of a person whose first status comes late. More, and whoever signs for an app of their own
 * could fill the table with people and messages that do not exist.
 */
const unknownMax = 10_000;

/**
 * Of what nobody knows yet, that for which there is room. The rest is dropped, and `onDropped` is told how much.
 * `organizationOf` is null for what no single organization has told, which is not limited. `countWaiting` counts what waits
 * already, no further than it is told.
 */
export async function keepRoom<Event>(
  unknown: readonly Event[],
  {
    organizationOf,
    countWaiting,
    onDropped,
  }: {
    organizationOf: (event: Event) => string | null;
    countWaiting: (organizationId: string, countMax: number) => Promise<number>;
    onDropped: (dropped: { organization_id: string; dropped: number }) => void;
  },
): Promise<Event[]> {
  const kept: Event[] = [];
  for (const [organizationId, events] of groupBy(unknown, organizationOf)) {
    const room =
      organizationId === null ? Infinity : unknownMax - (await countWaiting(organizationId, unknownMax));
    kept.push(...events.slice(0, room));
    if (organizationId !== null && events.length > room)
      onDropped({ organization_id: organizationId, dropped: events.length - room });
  }
  return kept;
}
