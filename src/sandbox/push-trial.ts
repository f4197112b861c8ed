import type { PageRequest, PageResponse, WebPage } from '../platform/http/route.ts';
import { readSandboxPage, respondJson } from './page.ts';
import { type Fields, readFields } from './posted-json.ts';

/**
 * The page on which a person has the browser that they look with sent a push. It uses the SDK as any site does, and asks
 * this room instead of a server of its own, which asks the API.
 */

/** What the page has done. All of it is of one contact, made for the purpose. Rejects with a PublicError, as the API does. */
export type PushTrial = {
  describe: () => Promise<TrialDescription>;
  /** What the SDK says of the browser, as JSON. Resolves with what the API answers, for the SDK. */
  register: (device: Fields) => Promise<unknown>;
  /** A title, a body and a link. Resolves with the push, or its reference. */
  send: (content: Fields) => Promise<unknown>;
  /** The devices of the contact, and what became of a push on them. */
  look: (pushId: string | null) => Promise<unknown>;
};

export type TrialDescription = {
  /** By name. */
  provider: string;
  /** Whether pushes stay in the inbox, so that the browser gets none. */
  is_sandbox: boolean;
  /** Whose contact it is; null if no organization can send to browsers. */
  organization: { id: string; name: string } | null;
  /** What the browser subscribes with. */
  public_key: string | null;
};

/** A registration has some 600 bytes, and a push with all that the page lets one write some 5,000 in any script. */
const bodyBytesMax = 16_384;

/**
 * The caller asks who may open them, and keeps a browser welcome that came by a link (`welcome`). Throws if the files of
 * the page are missing.
 */
export function pushTrialPages(
  trial: PushTrial,
  welcome: (request: PageRequest, page: PageResponse) => PageResponse,
): WebPage[] {
  const files = readSandboxPage('push');
  return [
    { path: '/sandbox/push', handle: (request) => Promise.resolve(welcome(request, files.html)) },
    { path: '/sandbox/push/page.css', isRoutine: true, handle: () => Promise.resolve(files.css) },
    { path: '/sandbox/push/page.js', isRoutine: true, handle: () => Promise.resolve(files.script) },
    { path: '/sandbox/push/setup', isRoutine: true, handle: async () => respondJson(await trial.describe()) },
    {
      path: '/sandbox/push/state',
      isRoutine: true,
      handle: async ({ query }) => respondJson(await trial.look(query.push ?? null)),
    },
    takeJson('/sandbox/push/devices', trial.register),
    takeJson('/sandbox/push/messages', trial.send),
  ];
}

function takeJson(path: string, take: (fields: Fields) => Promise<unknown>): WebPage {
  return {
    method: 'POST',
    path,
    rawBytesMax: bodyBytesMax,
    handle: async (request): Promise<PageResponse> => respondJson(await take(readFields(request))),
  };
}
