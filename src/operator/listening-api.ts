import type { EventPage } from '../webhooks/webhooks.ts';
import { describeProblem } from './forwarding.ts';

/** The part of the API that `listen` uses, asked for over HTTP with a key: the server may be on another machine. */

export type ListedWebhook = { id: string; kind: string; description: string | null };

export type ListeningApi = {
  /** Throws as the others do: an ApiRefusal for what asking again would not change, else an ApiFailure. */
  listWebhooks: () => Promise<ListedWebhook[]>;
  createWebhook: (webhook: object) => Promise<ListedWebhook>;
  /** One that is gone is no error. */
  deleteWebhook: (id: string) => Promise<void>;
  readEvents: (query: Readonly<Record<string, string>>) => Promise<EventPage>;
};

/** What the API refuses, in a sentence of its own. */
export class ApiRefusal extends Error {
  override name = 'ApiRefusal';
}

/** The API cannot be reached, or cannot answer now. */
export class ApiFailure extends Error {
  override name = 'ApiFailure';
}

/** A request is held back for 25 seconds at most. */
const answerMs = 60_000;

/** Too many requests, and what a server says that has just begun or is about to stop. */
const passingStatus = (status: number) => status === 408 || status === 429 || status >= 500;

/** `url` is everything before `/v1`. */
export function openListeningApi(
  { url, key }: { url: string; key: string },
  signal: AbortSignal,
): ListeningApi {
  const ask = async (method: string, path: string, body?: object): Promise<unknown> => {
    const { status, text } = await request(method, path, body);
    if (status >= 200 && status < 300) return readJson(text);
    if (method === 'DELETE' && status === 404) return null;
    const sentence = describeRefusal(status, readJson(text), url);
    throw passingStatus(status) ? new ApiFailure(sentence) : new ApiRefusal(sentence);
  };
  const request = async (method: string, path: string, body?: object) => {
    try {
      const response = await fetch(`${url}/v1${path}`, {
        method,
        headers: { authorization: `Bearer ${key}`, ...(body && { 'content-type': 'application/json' }) },
        ...(body && { body: JSON.stringify(body) }),
        signal: AbortSignal.any([signal, AbortSignal.timeout(answerMs)]),
      });
      return { status: response.status, text: await response.text() };
    } catch (cause) {
      signal.throwIfAborted();
      throw new ApiFailure(`Nothing answers at ${url}: ${describeProblem(cause)}`, { cause });
    }
  };
  // What the server answers is believed to be of the shapes that its description has.
  return {
    listWebhooks: async () => ((await ask('GET', '/webhooks?limit=100')) as { data: ListedWebhook[] }).data,
    createWebhook: async (webhook) => (await ask('POST', '/webhooks', webhook)) as ListedWebhook,
    deleteWebhook: async (id) => {
      await ask('DELETE', `/webhooks/${id}`);
    },
    readEvents: async (query) =>
      (await ask('GET', `/webhook-events?${new URLSearchParams(query).toString()}`)) as EventPage,
  };
}

function readJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function describeRefusal(status: number, answer: unknown, url: string): string {
  const message: unknown =
    typeof answer === 'object' && answer !== null ? Reflect.get(answer, 'message') : null;
  return typeof message === 'string' ? message : `${url} answered ${status}, and not as Postillion does.`;
}
