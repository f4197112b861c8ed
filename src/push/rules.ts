import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import { findCampaignIssues } from './campaigns.ts';
import type { EngagementEvent, PushContentBody } from './schema.ts';
import { findContentIssues } from './send.ts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const pushRules: Record<'push-content' | 'push-campaign' | 'push-event', FieldRule> = {
  'push-content': defineRule<PushContentBody>(({ title = '', body = '', ...rest }) =>
    findContentIssues({ title, body, ...rest }),
  ),
  // A campaign that is there has content as well, beside which a change has to fit.
  'push-campaign': defineRule<Record<string, unknown>>((fields) => findCampaignIssues(fields), {
    isLeftToRoute: true,
  }),
  'push-event': defineRule<EngagementEvent>(({ type, action_id: actionId }) =>
    actionId === undefined || type === undefined || type === 'clicked'
      ? []
      : [`action_id belongs to clicked, and not to ${type}`],
  ),
};
