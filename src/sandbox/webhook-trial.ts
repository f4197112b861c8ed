import { forbidden, PublicError, resourceNotFound, validationError } from '../platform/http/errors.ts';
import type { PageRequest, PageResponse, WebPage } from '../platform/http/route.ts';
import { isUuid } from '../platform/ids.ts';
import { readSandboxPage, respondJson } from './page.ts';
import { readFields } from './posted-json.ts';
import { createTurns } from './turns.ts';

/**
 * The page that shows what an endpoint of one's own would have got: the events of an organization as requests, with a
 * signature. Webhooks can be tried with it where there is no address yet.
 */

/** What the page asks for. Rejects with a PublicError, as the API does. */
export type WebhookTrial = {
  /** Why it shows nothing here, as a sentence; null if it does. */
  obstacle: string | null;
  /** The newest, a hundred at most. */
  listOrganizations: () => Promise<{ id: string; name: string }[]>;
  /** `before`: a position of the log; null for its end. */
  look: (organizationId: string, before: number | null) => Promise<ShownRequests>;
  /** Whether all that happens to messages is to be logged, for this page. */
  setKept: (organizationId: string, isKept: boolean) => Promise<void>;
};

export type ShownRequests = {
  /** The types and patterns that some webhook asks for: nothing else is in the log. */
  kept: string[];
  is_kept_by_page: boolean;
  /** What the signatures are made with. */
  secret: string;
  /** Newest first, at most 50. `sequence` is the position in the log. */
  data: ShownRequest[];
  /** Whether there are older ones. */
  has_more: boolean;
};

export type ShownRequest = {
  id: string;
  type: string;
  sequence: number;
  timestamp: string;
  /** Signed at the moment of this answer: a receiver believes it for five minutes. */
  headers: Readonly<Record<string, string>>;
  /** The octets that were signed, as text. */
  body: string;
};

/** Each may have a page of events in memory. */
const waitingMax = 100;
/** An id and a switch. */
const bodyBytesMax = 1_024;

/** As `pushTrialPages`. */
export function webhookTrialPages(
  trial: WebhookTrial,
  welcome: (request: PageRequest, page: PageResponse) => PageResponse,
): WebPage[] {
  const files = readSandboxPage('webhooks');
  const inTurn = createTurns(waitingMax);
  const work = <Result>(ask: () => Promise<Result>) => {
    if (trial.obstacle !== null) throw new PublicError(forbidden, trial.obstacle);
    return inTurn(ask);
  };
  return [
    { path: '/sandbox/webhooks', handle: (request) => Promise.resolve(welcome(request, files.html)) },
    { path: '/sandbox/webhooks/page.css', isRoutine: true, handle: () => Promise.resolve(files.css) },
    { path: '/sandbox/webhooks/page.js', isRoutine: true, handle: () => Promise.resolve(files.script) },
    {
      path: '/sandbox/webhooks/organizations',
      isRoutine: true,
      handle: async () => respondJson({ data: await work(trial.listOrganizations) }),
    },
    {
      path: '/sandbox/webhooks/requests',
      isRoutine: true,
      handle: async ({ query }) => {
        const organizationId = readOrganization(query.organization);
        const before = readPosition(query.before);
        return respondJson(await work(() => trial.look(organizationId, before)));
      },
    },
    {
      method: 'POST',
      path: '/sandbox/webhooks/kept',
      rawBytesMax: bodyBytesMax,
      handle: async (request) => {
        const { organization, kept } = readFields(request);
        if (typeof kept !== 'boolean') throw new PublicError(validationError, 'kept must be true or false');
        const organizationId = readOrganization(organization);
        await work(() => trial.setKept(organizationId, kept));
        return respondJson({ kept });
      },
    },
  ];
}

function readOrganization(given: unknown): string {
  if (typeof given !== 'string' || !isUuid(given)) throw resourceNotFound();
  return given;
}

function readPosition(given = ''): number | null {
  if (given === '') return null;
  if (!/^\d{1,15}$/.test(given)) throw new PublicError(validationError, 'before must be a position');
  return Number(given);
}
