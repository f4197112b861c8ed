import { LRUCache } from 'lru-cache';
import type { Resolver } from '../../../../../platform/dns/dns.ts';
import type { HttpAnswer, HttpClient, HttpRequest } from '../../../../http2/client.ts';
import { isPushHost, mayBeMadeUp, parseEndpoint } from '../../../endpoint.ts';
import { composeForWeb, webPayloadBytesMax } from '../../../notification.ts';
import type { PushCredentials, PushHandOff, PushOutcome, PushTarget } from '../../../provider.ts';
import { encryptForSubscription } from '../../../web-push/encryption.ts';
import { readStoredKeys } from '../../../web-push/subscription-keys.ts';
import { createVapidTokens, type VapidTokens } from '../../../web-push/vapid.ts';
import { outcomeOfSilence, ownWords, postponeForSlowness, probeHost, spread } from '../exchanges.ts';
import { createPlaces, type Places } from '../places.ts';
import type { PushService, ServiceTools } from '../service.ts';
import { outcomeOf } from './answers.ts';
import { isUnknownHost, wellKnownHosts } from './unknown-host.ts';

/** Pushes to browsers (RFC 8030): each is encrypted for its subscription, and posted to the endpoint of it. */

export type WebPushTools = ServiceTools & {
  /** Who runs this installation, as `isVapidSubject` takes it; null where nobody has said. */
  vapidSubject: string | null;
  /** The push services that are allowed, as `isPushHostPattern` takes them. */
  hosts: readonly string[];
  resolver: Pick<Resolver, 'a' | 'cname'>;
};

export type WebPushHandOff = PushHandOff & {
  target: Extract<PushTarget, { platform: 'web' }>;
  credentials: Extract<PushCredentials, { platform: 'web' }>;
};

/**
 * Each has a connection. There are four large services, with some hundred hosts in all; more, such as names made up
 * below an allowed one, take the places of each other only.
 */
const originsMax = 100;

type Origin = {
  client: HttpClient;
  places: Places;
  /** Whether it has answered a push since it became known: nobody made it up. */
  hasAnswered: boolean;
};

type Sender = WebPushTools & { origins: Origins; tokens: VapidTokens };

export function createWebPushService(tools: WebPushTools): PushService<WebPushHandOff> {
  const origins = openOrigins(tools);
  const sender = { ...tools, origins, tokens: createVapidTokens(tools.clock) };
  return {
    handOff: (handOff) => send(sender, handOff),
    probe: () => probeOrigins(tools.hosts, origins),
    close: origins.close,
  };
}

/** The clients in use, and how busy they are. */
type Origins = {
  get: (origin: string) => Origin;
  close: () => Promise<void>;
};

function openOrigins({ clock, createClient }: ServiceTools): Origins {
  /** Of clients that gave their place to another: what they have under way ends first. */
  const closing = new Set<Promise<void>>();
  const known = new LRUCache<string, Origin>({
    max: originsMax,
    dispose: ({ client }) => {
      const ending = client.close().finally(() => closing.delete(ending));
      closing.add(ending);
    },
  });
  return {
    get: (name) => {
      const found = known.get(name);
      if (found !== undefined) return found;
      const made: Origin = { client: createClient(name), places: createPlaces(clock), hasAnswered: false };
      known.set(name, made);
      return made;
    },
    close: async () => {
      known.clear();
      await Promise.all(closing);
    },
  };
}

async function send(sender: Sender, handOff: WebPushHandOff): Promise<PushOutcome> {
  handOff.signal.throwIfAborted();
  const prepared = prepare(sender, handOff);
  if ('kind' in prepared) return prepared;
  const { url } = prepared;
  const origin = sender.origins.get(url.origin);
  const free = origin.places.take();
  if (free === null) return postponeForSlowness(url.host, sender.random());
  try {
    const answer = await origin.client.exchange(writeRequest(sender, handOff, prepared), handOff);
    if (answer.kind === 'answered') origin.hasAnswered = true;
    if (answer.kind === 'unreachable' && !origin.hasAnswered && mayBeMadeUp(url, sender.hosts))
      return await concludeOnStranger(sender, answer.detail, url);
    return conclude(sender, handOff, answer, url.host);
  } finally {
    free();
  }
}

/** What a push takes to be sent. */
type Prepared = { url: URL; body: Buffer };

/** Refuses what is not to be sent, without asking anybody. */
function prepare(
  { hosts, vapidSubject }: WebPushTools,
  { target, messageId, content }: WebPushHandOff,
): Prepared | PushOutcome {
  const url = parseEndpoint(target.endpoint);
  // The endpoint was allowed when it was registered: the operator has allowed less since. That is no fault of the
  // device, which gets pushes again once the host is allowed again, and no repetition of this one changes it.
  if (url === null || !isPushHost(url, hosts))
    return refuse('other', 'POSTILLION_WEB_PUSH_HOSTS does not allow the host of its endpoint.');
  if (vapidSubject === null && isOfApple(url))
    return {
      kind: 'deferred',
      reason: 'provider_unavailable',
      reply: ownWords('Apple takes pushes only with POSTILLION_VAPID_SUBJECT, which is not set.', null),
    };
  const plaintext = composeForWeb(messageId, content);
  if (plaintext.length > webPayloadBytesMax)
    return refuse(
      'message_too_large',
      `${plaintext.length} bytes, of ${webPayloadBytesMax} that browsers take.`,
    );
  const body = encrypt(plaintext, target);
  return body === null ? refuse('invalid_token', 'The keys of the subscription are none.') : { url, body };
}

/** Null if the keys are none, which were good when the browser registered. */
function encrypt(plaintext: Buffer, target: WebPushHandOff['target']): Buffer | null {
  const keys = readStoredKeys(target);
  if (keys === null) return null;
  try {
    return encryptForSubscription(plaintext, keys);
  } catch {
    return null;
  }
}

function refuse(
  reason: Extract<PushOutcome, { kind: 'rejected' }>['reason'],
  diagnostic: string,
): PushOutcome {
  return { kind: 'rejected', reason, reply: ownWords(diagnostic, null) };
}

function isOfApple({ hostname }: URL): boolean {
  return hostname.endsWith('.push.apple.com');
}

function writeRequest(
  { clock, tokens, vapidSubject }: Sender,
  { messageId, credentials, content, expiresAt }: WebPushHandOff,
  { url, body }: Prepared,
): HttpRequest {
  const { priority } = content;
  return {
    method: 'POST',
    path: `${url.pathname}${url.search}`,
    headers: {
      // RFC 8030 §5.2. 0 has the service try once, and keep nothing.
      ttl: String(Math.max(0, Math.floor((expiresAt.getTime() - clock.nowMs()) / 1_000))),
      ...(priority !== null && { urgency: priority }),
      // RFC 8030 §5.4: replaces what the same message has left there, where a lost answer had it sent twice. Apple
      // wants characters that can be decoded, 32 at most: a UUID without its hyphens.
      topic: messageId.replaceAll('-', ''),
      'content-encoding': 'aes128gcm',
      'content-type': 'application/octet-stream',
      authorization: tokens.authorizationFor({ ...credentials, subject: vapidSubject }, url.origin),
    },
    body,
  };
}

function conclude(
  { proven, random }: WebPushTools,
  { notificationId, credentials }: WebPushHandOff,
  answer: HttpAnswer,
  remote: string,
): PushOutcome {
  if (answer.kind !== 'answered') return outcomeOfSilence(answer, remote, random());
  const areCredentialsProven = proven.isProven(credentials.id);
  const outcome = outcomeOf(answer, { notificationId, areCredentialsProven, remote, random: random() });
  if (outcome.kind === 'accepted') proven.note(credentials.id);
  return outcome;
}

/**
 * With a shorter pause, hosts that browsers have made up take more of the workers' time. With a longer one, pushes wait
 * longer after a real one is back.
 */
const strangerPauseMs = 60_000;

/**
 * What becomes of a push to a host that nobody has named, and that cannot be reached. That says nothing of the service:
 * otherwise a single browser with a host of its own making would have it told as away.
 */
async function concludeOnStranger(
  { resolver, random }: WebPushTools,
  detail: string,
  { host, hostname }: URL,
): Promise<PushOutcome> {
  if (await isUnknownHost(resolver, hostname))
    return refuse('invalid_token', `The host of its endpoint does not exist: ${host}`);
  return {
    kind: 'postponed',
    retryAfterMs: spread(strangerPauseMs, random()),
    reply: ownWords(detail, host),
  };
}

/** Null if any service can be reached: an installation whose contacts use one browser may allow no other way out. */
async function probeOrigins(hosts: readonly string[], origins: Origins): Promise<string | null> {
  const named = hosts.filter((host) => !host.startsWith('*.') && !isReserved(host));
  const urls = [...new Set([...named, ...wellKnownHosts])]
    .map((host) => new URL(`https://${host}`))
    .filter((url) => isPushHost(url, hosts));
  const reasons = await Promise.all(urls.map(({ origin }) => probeHost(origins.get(origin).client, origin)));
  return reasons.includes(null) ? null : (reasons[0] ?? null);
}

/** RFC 6761 §6.2: nobody has such a name. The sandbox's is among the hosts. */
function isReserved(host: string): boolean {
  return host.endsWith('.test');
}
