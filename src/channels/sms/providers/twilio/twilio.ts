import type { Clock } from '../../../../platform/clock.ts';
import type { RecipientKey } from '../../../outcome.ts';
import type { SmsHandOff, SmsOutcome, SmsProvider, SmsSender } from '../../provider.ts';
import { createClient } from '../../../http1/exchange.ts';
import type { Call, Client } from '../../../http1/exchange.ts';
import { describeAnswer, outcomeOf, ownWords } from './outcomes.ts';
import type { TwilioUrl } from './url.ts';

/**
 * Texts by Twilio's REST API (https://www.twilio.com/docs/messaging/api/message-resource). Twilio has no idempotency
 * key: a request without a response stays `unknown` until a status callback, whose URL names the recipient, says what
 * became of it.
 */

export type TwilioProviderOptions = {
  url: TwilioUrl;
  /** The URL of the status callbacks of this text: public, and without a password or an underscore in its host. */
  callbackUrl: (reference: RecipientKey) => string;
  clock: Clock;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string;
};

/** An account may have about a hundred requests under way; a node must leave room for others. */
const connectionsMax = 32;

/** More hand-offs than this, waiting for a connection, are no queue but a mistake of the caller. */
const waitingMax = 64 * connectionsMax;

/** An SMS provider that hands everything to one account at Twilio. Opens nothing before the first hand-off. */
export function createTwilioProvider(options: TwilioProviderOptions): SmsProvider {
  const { url, clock, authorities = null } = options;
  const client = createClient({ clock, origin: url.origin, connectionsMax, authorities });
  const remote = new URL(url.origin).hostname;
  const underWay = new Set<Promise<unknown>>();
  let isClosing = false;

  const track = async <Result>(work: Promise<Result>): Promise<Result> => {
    underWay.add(work);
    try {
      return await work;
    } finally {
      underWay.delete(work);
    }
  };
  const refuse = (reason: 'provider_unavailable' | 'rate_limited', detail: string) =>
    ({ kind: 'deferred', reason, reply: ownWords(detail, remote) }) as const;

  return {
    name: 'twilio',
    // It keeps an opt-out list of its own (error 21610), and reports the keywords all the same.
    answersKeywords: true,
    isReportedById: true,
    concurrency: connectionsMax,
    handOff: async (handOff) => {
      handOff.signal.throwIfAborted();
      if (isClosing) return refuse('provider_unavailable', 'closing down');
      if (underWay.size >= waitingMax) return refuse('rate_limited', 'too many hand-offs at once');
      return track(handOffText(client, options, remote, handOff));
    },
    probe: () => track(probeAccount(client, url)),
    close: async () => {
      isClosing = true;
      await Promise.allSettled(underWay);
      client.destroy();
    },
  };
}

async function handOffText(
  client: Client,
  { url, callbackUrl }: TwilioProviderOptions,
  remote: string,
  { reference, sender, to, text, confirm, signal }: SmsHandOff,
): Promise<SmsOutcome> {
  const call: Call = {
    method: 'POST',
    path: `/2010-04-01/Accounts/${url.accountSid}/Messages.json`,
    headers: { ...headersOf(url), 'content-type': 'application/x-www-form-urlencoded' },
  };
  const form = new URLSearchParams({
    To: to,
    From: addressOf(sender),
    Body: text,
    StatusCallback: callbackUrl(reference),
    ...(url.messagingServiceSid === null ? {} : { MessagingServiceSid: url.messagingServiceSid }),
  }).toString();
  const unavailable = (detail: string): SmsOutcome => ({
    kind: 'deferred',
    reason: 'provider_unavailable',
    reply: ownWords(detail, remote),
  });

  const opening = await client.open(call, signal);
  if (opening.kind !== 'open') return unavailable(opening.detail);
  try {
    await confirm();
  } catch (error) {
    opening.exchange.abandon();
    throw error;
  }
  if (opening.exchange.isOpen()) return outcomeOf(await opening.exchange.complete(form), remote);

  // Closed by the far side while the confirmation was written, as it may close a connection that was kept. Nothing
  // was sent, so that another connection will do.
  const second = await client.open(call);
  if (second.kind !== 'open') return unavailable(second.detail);
  return outcomeOf(await second.exchange.complete(form), remote);
}

/** Asks for the account, which needs the credentials and costs nothing. */
async function probeAccount(client: Client, url: TwilioUrl): Promise<string | null> {
  const opening = await client.open({
    method: 'GET',
    path: `/2010-04-01/Accounts/${url.accountSid}.json`,
    headers: headersOf(url),
  });
  if (opening.kind !== 'open') return opening.detail;
  const answer = await opening.exchange.complete('');
  const isWell = answer.kind === 'answered' && answer.status >= 200 && answer.status < 300;
  return isWell ? null : describeAnswer(answer);
}

function headersOf({ accountSid, authToken }: TwilioUrl): Readonly<Record<string, string>> {
  return {
    authorization: `Basic ${Buffer.from(`${accountSid}:${authToken}`).toString('base64')}`,
    accept: 'application/json',
    // Nothing is unpacked here, so that no small answer can become a large one.
    'accept-encoding': 'identity',
    'user-agent': 'postillion',
  };
}

/** Twilio wants numbers in E.164, but short codes and names as they are. */
function addressOf({ name, type }: SmsSender): string {
  return type === 'long_code' || type === 'toll_free' ? `+${name}` : name;
}
