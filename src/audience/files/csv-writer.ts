import type { PropertyValue } from '../schema.ts';

/**
 * Writes cells that spreadsheets take for what they are. A text that begins like a formula is run as one when
 * the file is opened, and can send the cells beside it elsewhere (OWASP, "CSV Injection"): such texts get an
 * apostrophe in front, phone numbers too, which a spreadsheet would else take for numbers and store without their
 * plus. `unguardText` takes off what was put on, so that what is exported is imported again as it was.
 */

/**
 * `=`, `+`, `-`, `@`, each also in the full width that East Asian spreadsheets read as the same, a tab or a line end,
 * and apostrophes in front of them: the latter, so that each text has its way back.
 */
const formulaPattern = /^'*[=+\-@＝＋－＠\t\r\n]/;

const guardedPattern = /^'+[=+\-@＝＋－＠\t\r\n]/;

export function guardText(text: string): string {
  return formulaPattern.test(text) ? `'${text}` : text;
}

/** The text that `guardText` was given. */
export function unguardText(cell: string): string {
  return cell.startsWith("'") && guardedPattern.test(cell) ? cell.slice(1) : cell;
}

/** One line, without its end. Numbers are no formulas, also where they begin with a minus sign. */
export function writeRecord(values: readonly (PropertyValue | null)[]): string {
  return values.map(writeCell).join(',');
}

function writeCell(value: PropertyValue | null): string {
  if (value === null) return '';
  return typeof value === 'string' ? quoteText(guardText(value)) : `${value}`;
}

/** What any of the usual delimiters would cut, and blanks at the ends, which readers may drop. */
const unsafePattern = /[",;\t\r\n]|^\s|\s$/;

function quoteText(text: string): string {
  return unsafePattern.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Several texts in one cell, as `splitCell` reads them. */
export function joinTexts(texts: readonly string[]): string {
  return texts.map(quoteText).join(';');
}
