/**
 * What programs are told of, as `<what it happened to>.<what happened>`. The list only grows: somebody may have asked for
 * any of them. Where a channel has a status, its event is called like it.
 */
export const eventTypes = [
  'email.sent',
  'email.delayed',
  'email.delivered',
  'email.bounced',
  'email.failed',
  'email.dropped',
  'email.opened',
  'email.clicked',
  'email.complained',
  'email.unsubscribed',
  'sms.sent',
  'sms.delivered',
  'sms.undelivered',
  'sms.failed',
  'sms.expired',
  'push.sent',
  'push.delivered',
  'push.failed',
  'push.opened',
  'push.clicked',
  'chatapp.sent',
  'chatapp.delivered',
  'chatapp.failed',
  'chatapp.read',
  'campaign.progress',
  'campaign.scheduled',
  'campaign.queued',
  'campaign.sending',
  'campaign.paused',
  'campaign.sent',
  'campaign.failed',
  'campaign.cancelled',
  'contact.created',
  'contact.updated',
  'contact.deleted',
  'contact.consent_changed',
  'suppression.created',
  'suppression.deleted',
  'segment.entered',
  'segment.left',
  'chatapp.template.approved',
  'chatapp.template.rejected',
  'chatapp.template.paused',
  'chatapp.template.recategorized',
  'domain.verified',
  'domain.degraded',
  'domain.recovered',
  'event.conversion',
  'organization.sending_suspended',
  'organization.sending_resumed',
  'organization.quota_warning',
  'organization.quota_reached',
  'webhook.failing',
  'webhook.disabled',
] as const;

export type EventType = (typeof eventTypes)[number];

/** The first parts of the types: what events happen to. */
const eventGroups = [...new Set(eventTypes.map(groupOf))];

function groupOf(type: EventType): string {
  return type.slice(0, type.indexOf('.'));
}

/** What an event of this type happened to: `email`, and `chatapp.template` within its group. */
export function subjectOf(type: EventType): string {
  return type.slice(0, type.lastIndexOf('.'));
}

/** What was counted of a campaign. It is asked for by `campaign_events: summary` alone, and not by patterns. */
export const progressType = 'campaign.progress' satisfies EventType;

/** What webhooks want of the recipients of campaigns: each of them, what was counted of them, or nothing. */
export const campaignEventChoices = ['none', 'summary', 'all'] as const;

export type CampaignEvents = (typeof campaignEventChoices)[number];

/** The `object` of what an event of this type happened to: `email`, `chatapp_template`. */
export function objectOf(type: EventType): string {
  return subjectOf(type).replaceAll('.', '_');
}

/** What events happen to. */
export const eventSubjects = [...new Set(eventTypes.map(subjectOf))];

/** Types, `email.*` for all of a group, and `*` for all: those that come with later releases too. */
export const eventPatterns: readonly string[] = ['*', ...eventGroups.map(patternOf), ...eventTypes];

function patternOf(group: string): string {
  return `${group}.*`;
}

/** The types that are asked for by these patterns. */
export function typesOf(patterns: readonly string[]): readonly EventType[] {
  const wanted = new Set(patterns);
  return eventTypes.filter(
    (type) => wanted.has('*') || wanted.has(patternOf(groupOf(type))) || wanted.has(type),
  );
}

/** What a webhook may ask for. */
export const wantedPatterns = eventPatterns.filter((pattern) => pattern !== progressType);

/** SQL: the patterns by which a type is asked for. `type` is a column or a parameter. */
export function patternsOf(type: string): string {
  return `'*', split_part(${type}, '.', 1) || '.*', ${type}`;
}
