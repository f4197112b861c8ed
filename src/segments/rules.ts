import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import { findFormIssues } from './conditions.ts';
import type { SegmentBody } from './schema.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const segmentRules: Record<'segment-conditions', FieldRule> = {
  // The route says with it what conditions mention and the account does not have.
  'segment-conditions': defineRule<SegmentBody>(
    ({ conditions }) => (conditions === undefined ? [] : findFormIssues(conditions)),
    { isLeftToRoute: true },
  ),
};
