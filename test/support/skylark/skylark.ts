import { sanitiseDiagnostic } from '../../../src/channels/diagnostic.ts';
import type { EmailHandOff, EmailProvider } from '../../../src/channels/email/provider.ts';
import type { RecipientKey, RemoteReply, SendOutcome } from '../../../src/channels/outcome.ts';
// This HTTP client is for any provider that must not write a request before it is confirmed.
import { type Answer, type Client, createClient } from '../../../src/channels/http1/exchange.ts';
import { createUnderWay } from '../../../src/channels/under-way.ts';
import type { Clock } from '../../../src/platform/clock.ts';

const connectionsMax = 8;

type SkylarkOptions = { url: string; clock: Clock; writeToken: (reference: RecipientKey) => string };

/** Hands everything to one account, whose key is the user of the URL. */
export function createSkylarkProvider({ url, clock, writeToken }: SkylarkOptions): EmailProvider {
  const { origin, username: key } = new URL(url);
  const client = createClient({ clock, origin, connectionsMax, authorities: null });
  const underWay = createUnderWay(connectionsMax);
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  let isClosed = false;
  return {
    name: 'skylark',
    isReportedById: true,
    concurrency: connectionsMax,
    handOff: async (handOff) => {
      handOff.signal.throwIfAborted();
      if (isClosed) return unavailable('closing down');
      return underWay.run(() => handOffEmail(client, headers, handOff, writeToken(handOff.reference)));
    },
    probe: async () => {
      const opening = await client.open({ method: 'GET', path: '/v1/account', headers });
      if (opening.kind !== 'open') return opening.detail;
      const answer = await opening.exchange.complete('');
      return answer.kind === 'answered' && answer.status === 200 ? null : 'it does not answer';
    },
    close: async () => {
      isClosed = true;
      await underWay.end();
      client.destroy();
    },
  };
}

async function handOffEmail(
  client: Client,
  headers: Readonly<Record<string, string>>,
  { envelopeFrom: from, recipient: to, content, confirm, signal }: EmailHandOff,
  token: string,
): Promise<SendOutcome> {
  const opening = await client.open({ method: 'POST', path: '/v1/emails', headers }, signal);
  if (opening.kind !== 'open') return unavailable(opening.detail);
  try {
    await confirm();
  } catch (error) {
    opening.exchange.abandon();
    throw error;
  }
  if (!opening.exchange.isOpen()) return unavailable('the connection was closed');
  const source = Buffer.concat(content).toString('base64');
  return outcomeOf(await opening.exchange.complete(JSON.stringify({ from, to, source, token })));
}

function outcomeOf(answer: Answer): SendOutcome {
  if (answer.kind === 'unanswered') return { kind: 'unknown', reply: replyOf(null, answer.detail) };
  const { id, message = '' } = JSON.parse(answer.body ?? '{}') as { id?: string; message?: string };
  const reply = replyOf(answer.status, message);
  if (answer.status === 202 && id !== undefined) return { kind: 'accepted', providerMessageId: id, reply };
  if (answer.status === 422) return { kind: 'rejected', reason: 'mailbox_not_found', reply };
  if (answer.status === 429) return { kind: 'deferred', reason: 'rate_limited', reply };
  return { kind: 'unknown', reply };
}

function unavailable(detail: string): SendOutcome {
  return { kind: 'deferred', reason: 'provider_unavailable', reply: replyOf(null, detail) };
}

function replyOf(code: number | null, detail: string): RemoteReply {
  return { code, enhancedCode: null, diagnostic: sanitiseDiagnostic(detail), remote: null };
}
