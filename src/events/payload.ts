import { parseDateValue } from '../audience/audience.ts';
import type { Conversion, EventSchema, FieldType, Payload } from './schema.ts';

export type CheckedPayload =
  | { kind: 'fits'; payload: Payload }
  /** Each issue begins with the path of its field. */
  | { kind: 'mismatch'; issues: string[] };

/**
 * Compares a payload with the schema of its event. A field that is null is as one that is not there. Dates are returned
 * as they are stored (`parseDateValue`), so that conditions can compare them; fields that are not declared stay as they
 * are.
 */
export function checkPayload(
  { schema, conversion }: { schema: EventSchema; conversion: Conversion },
  payload: Payload,
): CheckedPayload {
  const issues: string[] = [];
  const dates: [string, string][] = [];
  for (const { name, type, required } of schema.fields) {
    const value = Object.hasOwn(payload, name) ? payload[name] : null;
    if (value === null) {
      if (required) issues.push(`payload.${name} is required`);
    } else if (!typeChecks[type].test(value)) {
      issues.push(`payload.${name} must be ${typeChecks[type].mustBe}`);
    } else if (type === 'date') {
      const date = typeof value === 'string' ? parseDateValue(value) : null;
      if (date !== null && date !== value) dates.push([name, date]);
    }
  }
  if (issues.length === 0) issues.push(...findOtherCurrency(conversion, payload));
  if (issues.length > 0) return { kind: 'mismatch', issues };
  return {
    kind: 'fits',
    payload: dates.length === 0 ? payload : { ...payload, ...Object.fromEntries(dates) },
  };
}

const typeChecks: Readonly<Record<FieldType, { test: (value: unknown) => boolean; mustBe: string }>> = {
  string: { test: (value) => typeof value === 'string', mustBe: 'a string' },
  number: { test: (value) => typeof value === 'number', mustBe: 'a number' },
  integer: {
    test: (value) => Number.isSafeInteger(value),
    mustBe: 'an integer between -(2^53 - 1) and 2^53 - 1',
  },
  boolean: { test: (value) => typeof value === 'boolean', mustBe: 'true or false' },
  date: {
    test: (value) => typeof value === 'string' && parseDateValue(value) !== null,
    mustBe: 'a date such as 2026-11-21, or a time with an offset or Z',
  },
};

/** A currency that is mistyped would be revenue that nobody finds. */
function findOtherCurrency(conversion: Conversion, payload: Payload): string[] {
  const { enabled, currency_field: field, currencies } = conversion;
  if (!enabled || field === null || currencies === null) return [];
  const value = Object.hasOwn(payload, field) ? payload[field] : null;
  if (typeof value !== 'string' || currencies.includes(value)) return [];
  return [`payload.${field} must be one of ${currencies.join(', ')}`];
}
