import type { Connection } from '../platform/postgres/database.ts';
import type { DescribeEvents, LoggedEvent } from './log.ts';

/** Tells of events by what they happened to, each of which is read once. Of what is not there any more, the id is told. */
export function describeBy<Row extends { id: string }>(
  find: (connection: Connection, organizationId: string, ids: readonly string[]) => Promise<readonly Row[]>,
  tell: (row: Row, event: LoggedEvent) => object,
): DescribeEvents {
  return async (connection, organizationId, events) => {
    const ids = [...new Set(events.map(({ subjectId }) => subjectId))];
    const found = await find(connection, organizationId, ids);
    const rows = new Map(found.map((row) => [row.id, row]));
    return new Map(
      events.flatMap((event) => {
        const row = rows.get(event.subjectId);
        return row === undefined ? [] : [[event, tell(row, event)]];
      }),
    );
  };
}
