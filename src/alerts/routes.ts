import { defineRoute, json, type Route } from '../platform/http/route.ts';
import { type Alerts, readAlerts, saveAlertAddresses } from './keeping.ts';
import { alertPatch, type AlertRecord, alertRecord } from './schema.ts';
import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';

const tag = 'Webhooks';

export function alertRoutes(tools: { database: Database; clock: Clock }): Route[] {
  return [
    defineRoute({
      method: 'GET',
      path: '/organization/alerts',
      operationId: 'getAlerts',
      scope: 'webhooks:read',
      tag,
      summary: 'Read who is alerted by email',
      success: { statusCode: 200, schema: alertRecord, when: 'Whom alerts are sent to, and what waits.' },
      errors: [],
      handle: async ({ caller: { organizationId } }) => json(show(await readAlerts(tools, organizationId))),
    }),
    defineRoute({
      method: 'PATCH',
      path: '/organization/alerts',
      operationId: 'updateAlerts',
      scope: 'webhooks:write',
      tag,
      summary: 'Change who is alerted by email',
      description:
        'They are told when an endpoint of webhooks fails for long, a domain lacks records, sending is suspended, a quota comes to its end, or a chat-app template or a campaign is paused: of each kind by one email an hour at most.',
      body: alertPatch,
      success: { statusCode: 200, schema: alertRecord, when: 'As it is now.' },
      errors: [],
      handle: async ({ caller: { organizationId }, body: { addresses } }) =>
        json(
          show(
            addresses === undefined
              ? await readAlerts(tools, organizationId)
              : await saveAlertAddresses(tools, organizationId, addresses),
          ),
        ),
    }),
  ];
}

function show({ addresses, waiting }: Alerts): AlertRecord {
  return {
    object: 'alerts',
    addresses,
    waiting: waiting.map((alert) => ({
      kind: alert.kind,
      count: alert.waiting,
      since: alert.waiting_since.toISOString(),
      next_attempt_at: alert.due_at.toISOString(),
      problem: alert.problem,
    })),
  };
}
