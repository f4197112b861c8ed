import { findOrganizations, listOrganizationNames } from '../accounts/accounts.ts';
import { hasSandboxAlone, type Installation } from '../installation/installation.ts';
import { resourceNotFound } from '../platform/http/errors.ts';
import type { WebhookTrial } from '../sandbox/routes.ts';
import { composeHeaders, type EventPage } from '../webhooks/webhooks.ts';
import { createInsideClient, type InsideClientTools } from './inside-client.ts';

/** By it the page knows its own webhook again. */
const description = 'The page of webhooks in the sandbox';

/** More are not chosen from a list. */
const organizationsMax = 100;
/** An event has some kilobytes at most, and there are two copies of it on the page. */
const pageSize = 50;

/** Whoever may open the sandbox sees what stayed there, and no more. */
const realPeople =
  'Some of what is sent leaves this installation, and its events are about real people: they are shown to API keys alone.';

type ListedWebhooks = { data: { id: string; kind: string; events: string[]; description: string | null }[] };

/**
 * What the sandbox's page of webhooks shows of an organization: its log, as the requests that an endpoint would get. It goes
 * through the routes of the API, without a key; the page is guarded as the inbox is.
 */
export function createWebhookTrial(
  { config, clock, database, secrets }: Installation,
  tools: Omit<InsideClientTools, 'clock'>,
): WebhookTrial {
  const ask = createInsideClient({ ...tools, clock });
  const requireOrganization = async (organizationId: string) => {
    const [found] = await database.asOrganizations([organizationId], (transaction) =>
      findOrganizations(transaction, organizationId),
    );
    if (found?.deletion !== null) throw resourceNotFound();
  };
  // As the schemas of the routes say.
  const listWebhooks = async (organizationId: string) =>
    ((await ask(organizationId, 'listWebhooks', { query: { limit: '100' } })) as ListedWebhooks).data;
  const readEvents = async (organizationId: string, from: string, limit: number) =>
    (await ask(organizationId, 'listWebhookEvents', { query: { from, limit: `${limit}` } })) as EventPage;
  const isOfPage = (webhook: ListedWebhooks['data'][number]) =>
    webhook.kind === 'poll' && webhook.description === description;
  // Signs nothing that anybody trusts but a program that is tried out with it.
  const secret = () => `whsec_${secrets.sign('', 'secret of webhooks in the sandbox').toString('base64')}`;

  const showRequest = ({ id, ...event }: EventPage['data'][number]) => {
    const body = Buffer.from(JSON.stringify({ id, ...event }));
    return {
      id,
      type: event.type,
      sequence: event.sequence,
      timestamp: event.timestamp,
      headers: composeHeaders({ id, body, atMs: clock.nowMs() }, [secret()]),
      body: body.toString('utf8'),
    };
  };

  return {
    obstacle: hasSandboxAlone(config) ? null : realPeople,
    listOrganizations: () => listOrganizationNames(database, organizationsMax),
    look: async (organizationId, before) => {
      await requireOrganization(organizationId);
      const webhooks = await listWebhooks(organizationId);
      const { next: end } = await readEvents(organizationId, 'now', 1);
      const to = Math.min(before ?? end, end);
      const from = Math.max(to - pageSize, 1);
      const { data, oldest } =
        from < to ? await readEvents(organizationId, `${from}`, to - from) : { data: [], oldest: null };
      return {
        kept: [...new Set(webhooks.flatMap(({ events }) => events))],
        is_kept_by_page: webhooks.some(isOfPage),
        secret: secret(),
        // Where the oldest were dropped, the page has later ones in their place.
        data: data
          .filter(({ sequence }) => sequence < to)
          .reverse()
          .map(showRequest),
        has_more: oldest !== null && oldest < from,
      };
    },
    setKept: async (organizationId, isKept) => {
      await requireOrganization(organizationId);
      const own = (await listWebhooks(organizationId)).filter(isOfPage);
      if (!isKept) for (const { id } of own) await ask(organizationId, 'deleteWebhook', { params: { id } });
      else if (own.length === 0)
        await ask(organizationId, 'createWebhook', { body: { kind: 'poll', events: ['*'], description } });
    },
  };
}
