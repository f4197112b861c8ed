import type { BodyPreparation } from '../platform/http/body-threads.ts';
import {
  createValidation,
  defineRule,
  type FieldRule,
  type RuleFacts,
  type Validator,
} from '../platform/http/validation.ts';
import { parseTimestamp } from '../platform/clock.ts';
import { nounOfAddress, normaliseAddress } from './suppressed-address.ts';
import {
  addressLengthMax,
  type CheckBody,
  suppressionBody,
  type SuppressionBody,
} from './suppression-schema.ts';

/** What is to hold for longer has no end. */
const holdsMsMax = 100 * 365.25 * 86_400_000;

/** Rules that the schemas of suppressions name. */
export const suppressionRules: Record<'suppression' | 'suppression-check', FieldRule> = {
  suppression: defineRule<SuppressionBody>(
    ({ channel, address, expires_at: expiresAt }, _isGiven, { at }) => {
      const issues: string[] = [];
      if (channel !== undefined && address !== undefined && normaliseAddress(channel, address) === null)
        issues.push(`address must be ${nounOfAddress(channel)}`);
      const end = typeof expiresAt === 'string' ? parseTimestamp(expiresAt) : null;
      if (end !== null && end <= at.getTime()) issues.push('expires_at must be in the future');
      if (end !== null && end > at.getTime() + holdsMsMax)
        issues.push('expires_at must be at most 100 years ahead');
      return issues;
    },
  ),
  'suppression-check': defineRule<CheckBody>(({ channel, addresses = [] }) =>
    channel === undefined
      ? []
      : addresses.flatMap((address, index) =>
          normaliseAddress(channel, address) === null
            ? [`addresses[${index}] must be ${nounOfAddress(channel)}`]
            : [],
        ),
  ),
};

/** One of a bulk, as far as its schema and rules tell. */
export type ReadSuppression =
  { kind: 'read'; body: SuppressionBody } | { kind: 'invalid'; address: string | null; issues: string[] };

let validator: Validator | null = null;

/** Reads each by itself. Large requests are read in the thread for large bodies. */
export function readSuppressionBodies(suppressions: readonly unknown[], facts: RuleFacts): ReadSuppression[] {
  const validate = (validator ??= createValidation({}, suppressionRules).compile(suppressionBody));
  return suppressions.map((suppression) => {
    const issues = validate(suppression, facts);
    return issues.length === 0
      ? { kind: 'read', body: suppression as SuppressionBody } // Its schema has checked it.
      : { kind: 'invalid', address: findAddress(suppression), issues };
  });
}

/** Says which one is wrong, if that much is right. */
function findAddress(suppression: unknown): string | null {
  if (typeof suppression !== 'object' || suppression === null || !Object.hasOwn(suppression, 'address'))
    return null;
  const { address } = suppression as { address: unknown };
  return typeof address === 'string' && address.length <= addressLengthMax ? address : null;
}

/** What the thread that reads large bodies makes of them, by the key of the route. */
export const suppressionPreparations: Readonly<Record<string, BodyPreparation>> = {
  // The route's schema has checked it.
  'POST /suppressions/bulk': (body, facts) =>
    readSuppressionBodies((body as { suppressions: unknown[] }).suppressions, facts),
};
