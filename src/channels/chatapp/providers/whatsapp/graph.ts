import type { Clock } from '../../../../platform/clock.ts';
import { type Answer, type Call, type Client, createClient } from '../../../http1/exchange.ts';
import type { ChatAppAccount } from '../../provider.ts';

/** Requests to Meta's Graph API. What it tells of limits, a client keeps for the requests that can wait. */

export type GraphRequest = {
  method: 'GET' | 'POST' | 'DELETE';
  /** Below the version, with its query, and without a slash at its beginning. */
  path: string;
  accessToken: string;
};

export type Graph = {
  /** The host, for what is told of answers. */
  remote: string;
  client: Client;
  /** Null if the access token could not stand in a header. */
  callOf: (request: GraphRequest) => Call | null;
  /** Carries out a request that is no hand-off. Never rejects. */
  ask: (request: GraphRequest, body?: string) => Promise<Asked>;
  destroy: () => void;
};

/** `unsent`: nothing was written. */
export type Asked = Answer | { kind: 'unsent'; detail: string };

export type GraphOptions = {
  clock: Clock;
  origin: string;
  /** As in `v25.0`. */
  version: string;
  connectionsMax: number;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string;
};

export function createGraph({ clock, origin, version, connectionsMax, authorities }: GraphOptions): Graph {
  const client = createClient({ clock, origin, connectionsMax, authorities: authorities ?? null });
  const callOf = ({ method, path, accessToken }: GraphRequest): Call | null => {
    if (!/^[\x21-\x7e]{1,2000}$/.test(accessToken)) return null;
    return {
      method,
      path: `/${version}/${path}`,
      headers: {
        authorization: `Bearer ${accessToken}`,
        accept: 'application/json',
        // Nothing is unpacked here, so that no small answer can become a large one.
        'accept-encoding': 'identity',
        'user-agent': 'postillion',
        ...(method === 'POST' && { 'content-type': 'application/json' }),
      },
    };
  };
  return {
    remote: new URL(origin).hostname,
    client,
    callOf,
    ask: async (request, body = '') => {
      const call = callOf(request);
      if (call === null) return { kind: 'unsent', detail: unusableToken };
      const opening = await client.open(call);
      if (opening.kind !== 'open') return { kind: 'unsent', detail: opening.detail };
      return opening.exchange.complete(body);
    },
    destroy: client.destroy,
  };
}

export const unusableToken = 'The access token of the account is none.';

/** Ids become parts of paths: an account with others would lead elsewhere. */
export function isGraphId(id: string): boolean {
  return /^\d{1,32}$/.test(id);
}

/** Whether an account can be asked about at all. */
export function hasUsableIds({ businessAccountId, phoneNumberIds }: ChatAppAccount): boolean {
  return isGraphId(businessAccountId) && phoneNumberIds.length > 0 && phoneNumberIds.every(isGraphId);
}
