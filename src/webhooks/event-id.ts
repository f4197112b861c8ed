import { randomBytes } from 'node:crypto';
import { v7 } from 'uuid';

/**
 * Ids of events. A row of the log has up to some hundred events, and the id of the first, of which the last three digits are
 * zero: those of the others count up from it.
 */
const countedDigits = 3;

/** Of an instant, in milliseconds. */
export function createRowId(epochMs: number): string {
  const id = v7({ msecs: epochMs, random: randomBytes(16) });
  return id.slice(0, -countedDigits) + '0'.repeat(countedDigits);
}

/** The id of the event at this place in its row. */
export function eventIdOf(rowId: string, place: number): string {
  return rowId.slice(0, -countedDigits) + place.toString(16).padStart(countedDigits, '0');
}

/** The row of an event, and the position of the first event there. */
export function firstPlaceOf(eventId: string, position: number): { rowId: string; position: number } {
  const place = Number.parseInt(eventId.slice(-countedDigits), 16);
  return { rowId: eventIdOf(eventId, 0), position: position - place };
}
