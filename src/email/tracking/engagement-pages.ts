import { now } from '../../platform/clock.ts';
import { PublicError, serviceUnavailable } from '../../platform/http/errors.ts';
import { respondPart } from '../../platform/http/page-response.ts';
import type { PageRate, PageRequest, PageResponse, WebPage } from '../../platform/http/route.ts';
import {
  DatabaseUnavailableError,
  isConflict,
  isStatementTimeout,
} from '../../platform/postgres/database.ts';
import type { EngagementRecorder } from './engagement.ts';
import { createLinkTargets } from './link-targets.ts';
import { isMachineRequest } from './machine-engagement.ts';
import { contactParameter, linkPaths } from './personal-copy.ts';
import { createUnsubscribePage } from './unsubscribe-page.ts';
import {
  type Choice,
  choose,
  type Reader,
  readSubscription,
  type UnsubscribingTools,
} from './unsubscribing.ts';
import { readContactToken, readRecipientToken, type RecipientKey } from '../../messages/messages.ts';

export type EngagementPageTools = UnsubscribingTools & {
  recorder: EngagementRecorder;
  /** Consents or memberships have changed. */
  onContactsChanged: () => void;
  /** Smaller in tests. */
  unsubscribesMax?: number;
};

/**
 * The pages that links in mail lead to. A request carries only a token of ours, which is checked before any query.
 * Throws if a file of the page is missing.
 */
export function engagementPages(tools: EngagementPageTools): WebPage[] {
  return [...trackingPages(tools), ...unsubscribePages(tools)].map((page) => ({ ...page, rate: linkRate }));
}

/** By the token of a recipient: mail services open and follow links for millions of people from few networks. */
const linkRate: PageRate = { by: 'token', perMinute: 600 };

function trackingPages(tools: EngagementPageTools): WebPage[] {
  const links = createLinkTargets(tools);
  const note = (request: PageRequest, recipient: RecipientKey | null, action: Action) => {
    if (recipient === null) return;
    tools.recorder.note({ recipient, action, isMachine: isMachineRequest(request), at: now(tools.clock) });
  };
  return [
    {
      path: `${linkPaths.open}:token`,
      // The image is sent even if the token is invalid: a broken image in a mail helps nobody.
      handle: async (request) => {
        note(request, readRecipientToken(tools.secrets, 'tracking', tokenOf(request)), 'opened');
        return respondImage();
      },
    },
    {
      path: `${linkPaths.click}:token/:number`,
      handle: async (request) => {
        const recipient = readRecipientToken(tools.secrets, 'tracking', tokenOf(request));
        const number = readNumber(request.params.number ?? '');
        if (recipient === null || number === null) return respondText(404, noSuchLink);
        return orUnavailable(async () => {
          const target = await links.find(recipient, number);
          if (target.kind === 'none') return respondText(404, noSuchLink);
          if (target.kind === 'gone') return respondText(410, linkIsGone);
          note(request, recipient, 'clicked');
          return redirectTo(target.address);
        }, respondLinkUnavailable);
      },
    },
  ];
}

type Action = 'opened' | 'clicked';

function tokenOf({ params }: PageRequest): string {
  return params.token ?? '';
}

function readNumber(text: string): number | null {
  return /^(?:0|[1-9]\d{0,6})$/.test(text) ? Number(text) : null;
}

/** A transparent GIF of one pixel. */
const image = Buffer.from('R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7', 'base64');

function respondImage(): PageResponse {
  const response = respondPart('image/gif', image, { cacheControl: 'no-store' });
  // Webmail shows mail in pages of other sites.
  return { ...response, headers: { ...response.headers, 'cross-origin-resource-policy': 'cross-origin' } };
}

function redirectTo(address: string): PageResponse {
  const response = respondText(302, '');
  return { ...response, headers: { ...response.headers, location: address } };
}

const noSuchLink = 'This link does not work. Open it once more from the email itself.\n';

/** The click is not noted: the reader got nowhere. */
const linkIsGone =
  'This email is too old: where its links lead is not kept any more. Look for it at the sender, or ask them.\n';

function respondLinkUnavailable(): PageResponse {
  const response = respondText(503, 'This link cannot be opened at the moment. Try again in a minute.\n');
  return { ...response, headers: { ...response.headers, 'retry-after': '5' } };
}

function respondText(statusCode: number, text: string): PageResponse {
  const response = respondPart('text/plain; charset=utf-8', text, { cacheControl: 'no-store' });
  return { ...response, statusCode, headers: { ...response.headers, 'x-robots-tag': 'noindex' } };
}

/** More at once would take too many database connections from the API. */
const defaultUnsubscribesMax = 200;

function unsubscribePages(tools: EngagementPageTools): WebPage[] {
  const { unsubscribesMax = defaultUnsubscribesMax } = tools;
  const page = createUnsubscribePage();
  let underWay = 0;

  const answer = async (
    request: PageRequest,
    work: (reader: Reader) => Promise<PageResponse>,
  ): Promise<PageResponse> => {
    const recipient = readRecipientToken(tools.secrets, 'unsubscribe', tokenOf(request));
    if (recipient === null) return page.notFound();
    if (underWay >= unsubscribesMax) return page.unavailable();
    underWay += 1;
    try {
      const contactId = readContactToken(tools.secrets, recipient, request.query[contactParameter] ?? '');
      return await orUnavailable(() => work({ recipient, contactId }), page.unavailable);
    } finally {
      underWay -= 1;
    }
  };

  return [
    {
      path: `${linkPaths.unsubscribe}:token`,
      // Changes nothing, since scanners follow every link.
      handle: (request) =>
        answer(request, async (reader) => {
          const subscription = await readSubscription(tools, reader);
          return subscription === null ? page.notFound() : page.show(subscription, null);
        }),
    },
    {
      method: 'POST',
      path: `${linkPaths.unsubscribe}:token`,
      handle: (request) =>
        answer(request, async (reader) => {
          const chosen = await choose(tools, reader, readChoice(request.form));
          if (chosen === null) return page.notFound();
          tools.onContactsChanged();
          return page.show(chosen.subscription, chosen.done);
        }),
    },
  ];
}

/** Any form that is not the page's own is a mail client's one click (RFC 8058 §3.2). */
function readChoice(form: PageRequest['form']): Choice {
  const action = form.get('action');
  if (action === 'resubscribe') return { kind: 'resubscribe' };
  if (action === 'leave_list') return { kind: 'leave_list', listId: form.get('list_id') ?? '' };
  return { kind: 'unsubscribe' };
}

async function orUnavailable(
  work: () => Promise<PageResponse>,
  unavailable: () => PageResponse,
): Promise<PageResponse> {
  try {
    return await work();
  } catch (cause) {
    const isBusy = cause instanceof PublicError && cause.definition.name === serviceUnavailable.name;
    if (isBusy || cause instanceof DatabaseUnavailableError || isConflict(cause) || isStatementTimeout(cause))
      return unavailable();
    throw cause;
  }
}
