/** The mutants of all rooms. */
import { accounts } from './list/accounts.ts';
import { audience } from './list/audience.ts';
import { batches } from './list/batches.ts';
import { compat } from './list/compat.ts';
import { backups } from './list/backups.ts';
import { campaigns } from './list/campaigns.ts';
import { chatApp } from './list/chat-app.ts';
import { chatAppHolds } from './list/chat-app-holds.ts';
import { chatAppRefusals } from './list/chat-app-refusals.ts';
import { messagingLimit } from './list/messaging-limit.ts';
import { copies } from './list/copies.ts';
import { chatTemplateEdits } from './list/chat-template-edits.ts';
import { channels } from './list/channels.ts';
import { chatTemplates } from './list/chat-templates.ts';
import { deliverySlices } from './list/delivery-slices.ts';
import { devices } from './list/devices.ts';
import { leases } from './list/leases.ts';
import { messages } from './list/messages.ts';
import { monitoring } from './list/monitoring.ts';
import { objections } from './list/objections.ts';
import { platform } from './list/platform.ts';
import { push } from './list/push.ts';
import { segments } from './list/segments.ts';
import { erasure } from './list/erasure.ts';
import { texts } from './list/texts.ts';
import { whatsapp } from './list/whatsapp.ts';
import { acceptance } from './list/acceptance.ts';
import { engagement } from './list/engagement.ts';
import { sandbox } from './list/sandbox.ts';
import { roles } from './list/roles.ts';
import { alertMutants } from './list/alerts.ts';
import { roundTrips } from './list/round-trips.ts';
import { events } from './list/events.ts';
import { http } from './list/http.ts';
import { imports } from './list/imports.ts';
import { requestLog } from './list/request-log.ts';
import { retention } from './list/retention.ts';
import { international } from './list/international.ts';
import { webhookAttempts } from './list/webhook-attempts.ts';
import { webhookEventsOfAudience } from './list/webhook-events-of-audience.ts';
import { webhookRounds } from './list/webhook-rounds.ts';
import { webhookEvents } from './list/webhook-events.ts';
import type { Mutant } from './mutant.ts';

export const allMutants: readonly Mutant[] = [
  ...messages,
  ...backups,
  ...requestLog,
  ...retention,
  ...campaigns,
  ...segments,
  ...audience,
  ...batches,
  ...compat,
  ...accounts,
  ...alertMutants,
  ...channels,
  ...copies,
  ...chatTemplates,
  ...push,
  ...chatApp,
  ...chatAppHolds,
  ...chatAppRefusals,
  ...messagingLimit,
  ...objections,
  ...chatTemplateEdits,
  ...whatsapp,
  ...deliverySlices,
  ...devices,
  ...platform,
  ...leases,
  ...monitoring,
  ...imports,
  ...international,
  ...events,
  ...http,
  ...sandbox,
  ...roles,
  ...engagement,
  ...acceptance,
  ...roundTrips,
  ...texts,
  ...erasure,
  ...webhookAttempts,
  ...webhookEventsOfAudience,
  ...webhookRounds,
  ...webhookEvents,
];
