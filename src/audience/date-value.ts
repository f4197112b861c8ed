import { dateOf, parseTimestamp } from '../platform/clock.ts';

/**
 * Values of properties of type `date`. Stored as text in one of two forms: a calendar date as it was given
 * (`2026-11-21`), which means midnight UTC, or an instant as `2026-11-21T10:00:00.000Z`.
 *
 * Texts of both forms are compared octet by octet (collate "C"), and come in the order of time: the year has four
 * digits always, and a date, being the beginning of every instant of its day, stands before all of them. Where this
 * differs from time is midnight alone, which both forms can name: `2026-11-21` stands before
 * `2026-11-21T00:00:00.000Z`, and nothing stands between the two. A comparison therefore takes the form of its bound
 * that leaves both on the same side, see `dateBounds`.
 */

const calendarDatePattern = /^\d{4}-\d{2}-\d{2}$/;
const midnight = 'T00:00:00.000Z';

/**
 * A calendar date `YYYY-MM-DD` or an RFC 3339 time with an offset or Z, as it is stored (see above; instants are
 * cut to milliseconds). Null if the text is neither, names a day that does not exist, or lies outside of the years
 * 0001 to 9999 in UTC. Takes text of any length.
 */
export function parseDateValue(text: string): string | null {
  if (text.length === 10) return isCalendarDate(text) ? text : null;
  const epochMs = parseTimestamp(text);
  if (epochMs === null) return null;
  const instant = dateOf(epochMs).toISOString();
  // Years that need more than four digits are written with a sign.
  if (instant.startsWith('0000') || /^[+-]/.test(instant)) return null;
  return instant;
}

/** By arithmetic: imports ask for millions of them. */
function isCalendarDate(text: string): boolean {
  if (!calendarDatePattern.test(text)) return false;
  const [year = 0, month = 0, day = 0] = text.split('-').map(Number);
  if (year < 1 || month < 1 || month > 12 || day < 1) return false;
  const isLeapYear = year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0);
  return day <= (month === 2 && isLeapYear ? 29 : (daysOfMonths[month - 1] ?? 0));
}

const daysOfMonths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/** The least and the greatest text that mean one instant. */
export type DateBounds = {
  /** For `<` and `>=`: the calendar date where the instant is midnight UTC. */
  lowest: string;
  /** For `>` and `<=`: always the instant in full. */
  highest: string;
};

/** What stored values are compared with in order to be compared with `dateValue`, which is one itself. */
export function dateBounds(dateValue: string): DateBounds {
  const highest = calendarDatePattern.test(dateValue) ? dateValue + midnight : dateValue;
  return { lowest: highest.endsWith(midnight) ? highest.slice(0, 10) : highest, highest };
}
