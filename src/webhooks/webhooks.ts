/** The entry of this room: what happens, told to the programs of an organization. */
export {
  beginAlerts,
  type FailingWebhook,
  findFailingWebhooks,
  findWithAlerts,
  noteAlertsRead,
  setAlertTypes,
} from './alert-store.ts';
export { describeEvents, describeEventWebhooks } from './described-events.ts';
export { describeBy } from './describing.ts';
export { type EventType, eventTypes } from './event-types.ts';
export { type DescribeEvents, type EventDescribers, type LoggedEvent, readLog } from './log.ts';
export { describeEvents as describeLogged } from './log.ts';
export { eventsOfRowMax } from './log-store.ts';
export {
  type HappenedEvent,
  type HappenedTogether,
  insertIntoOutbox,
  isEventWanted,
  isProgressWanted,
  logEvents,
  logTogether,
  wakeNumbering,
} from './outbox-store.ts';
export { createWebhookSender } from './attempt.ts';
export { dropOldEvents } from './retention.ts';
export { webhookHostsSetting, webhookRules } from './rules.ts';
export { type EventPage, type WebhookEvent, webhookFormats } from './schema.ts';
export { composeHeaders, isWebhookSecret, type WebhookHeaders } from './signature.ts';
