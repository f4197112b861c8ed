import { type AbortWatch, createAbortWatch, untilAborted } from '../../../../abort-watch.ts';
import type { HttpPermit, HttpRequest } from '../../../../http2/client.ts';
import type { RemoteReply } from '../../../../outcome.ts';
import { composeForApns } from '../../../notification.ts';
import type { PushCredentials, PushHandOff, PushOutcome, PushTarget } from '../../../provider.ts';
import {
  outcomeOfSilence,
  ownWords,
  permitFurtherRequest,
  postponeForSlowness,
  probeHost,
  spread,
} from '../exchanges.ts';
import { createPlaces, type Places } from '../places.ts';
import type { PushService, ServiceTools } from '../service.ts';
import { outcomeOf, readAnswer, type Reading } from './answers.ts';
import { type ApnsConnections, openApnsConnections } from './connections.ts';
import {
  createProviderTokens,
  type ProviderToken,
  type ProviderTokens,
  type ShareApnsToken,
} from './provider-tokens.ts';

/**
 * Pushes to apps on iOS by the Apple Push Notification service
 * (https://developer.apple.com/documentation/usernotifications/sending-notification-requests-to-apns).
 *
 * A hand-off takes one request, unless one of these leads to more; nothing was sent by then, and nothing is confirmed
 * twice:
 *
 * - Our token is called expired: it is renewed, and the request made once again.
 * - The token of the device is unknown: it may be of the other environment, which apps do not always know themselves.
 *   That one is asked once. If it takes the push, the outcome says so, and the next push goes there at once.
 */

export type ApnsTools = ServiceTools & { shareApnsToken: ShareApnsToken };

export type ApnsHandOff = PushHandOff & {
  target: Extract<PushTarget, { platform: 'ios' }>;
  credentials: Extract<PushCredentials, { platform: 'ios' }>;
};

type Environment = ApnsHandOff['target']['environment'];

const origins: Readonly<Record<Environment, string>> = {
  production: 'https://api.push.apple.com',
  sandbox: 'https://api.sandbox.push.apple.com',
};

/** Pushes may leave by credentials that were replaced for up to a minute. */
const replacedPauseMs = 30_000;

type Sender = ApnsTools & {
  connections: ApnsConnections;
  tokens: ProviderTokens;
  places: Readonly<Record<Environment, Places>>;
  abortWatch: AbortWatch;
};

/** Rejects also as `shareApnsToken` does, but then nothing is confirmed. */
export function createApnsService(tools: ApnsTools): PushService<ApnsHandOff> {
  const connections = openApnsConnections(tools);
  const tokens = createProviderTokens(tools.clock, tools.shareApnsToken);
  const places = { production: createPlaces(tools.clock), sandbox: createPlaces(tools.clock) };
  const sender = { ...tools, connections, tokens, places, abortWatch: createAbortWatch() };
  return {
    handOff: (handOff) => sendInPlace(sender, handOff),
    // A token may be of either, whatever the app says.
    probe: async () => {
      const problems = await Promise.all(Object.values(origins).map((origin) => probeOrigin(tools, origin)));
      return problems.find((problem) => problem !== null) ?? null;
    },
    close: connections.close,
  };
}

async function probeOrigin({ createClient }: ApnsTools, origin: string): Promise<string | null> {
  const client = createClient(origin);
  const problem = await probeHost(client, origin);
  await client.close();
  return problem;
}

/** What one environment says: an answer, or an outcome without any. */
type Tried = { reading: Reading; token: string } | { outcome: PushOutcome };

function sendInPlace(sender: Sender, handOff: ApnsHandOff): Promise<PushOutcome> {
  const { environment } = handOff.target;
  const free = sender.places[environment].take();
  if (free !== null) return send(sender, handOff).finally(free);
  return Promise.resolve(postponeForSlowness(new URL(origins[environment]).host, sender.random()));
}

async function send(sender: Sender, handOff: ApnsHandOff): Promise<PushOutcome> {
  const { reference, credentials, target, signal } = handOff;
  signal.throwIfAborted();
  // It becomes part of a path. Apple sets no length; those of today have 64 digits.
  if (!/^(?:[0-9a-f]{2}){1,256}$/i.test(target.token))
    return {
      kind: 'rejected',
      reason: 'invalid_token',
      reply: ownWords('The token is not hexadecimal.', null),
    };
  const asked = sender.tokens.get(reference.organizationId, credentials);
  const given = asked instanceof Promise ? await untilAborted(sender.abortWatch, signal, asked) : asked;
  if (given.kind !== 'token') return outcomeWithoutToken(sender, given.kind);
  const first = await tryEnvironment(sender, handOff, target.environment, given.token, handOff);
  if ('outcome' in first) return first.outcome;
  if (first.reading.meaning.kind !== 'not_here') return conclude(sender, handOff, first.reading);

  const other = target.environment === 'production' ? 'sandbox' : 'production';
  const second = await tryEnvironment(sender, handOff, other, first.token, permitFurtherRequest());
  return concludeElsewhere(sender, handOff, first.reading, other, second);
}

function outcomeWithoutToken({ random }: Sender, kind: 'replaced' | 'unreadable'): PushOutcome {
  if (kind === 'unreadable') {
    const reply = ownWords('The key for APNs cannot be read: set it again.', null);
    return { kind: 'deferred', reason: 'provider_unavailable', reply };
  }
  const reply = ownWords('The credentials for APNs were replaced a moment ago.', null);
  return { kind: 'postponed', retryAfterMs: spread(replacedPauseMs, random()), reply };
}

/** With another token once, if ours is called expired. */
async function tryEnvironment(
  sender: Sender,
  handOff: ApnsHandOff,
  environment: Environment,
  token: string,
  permit: HttpPermit,
): Promise<Tried> {
  const first = await ask(sender, handOff, environment, token, permit);
  if ('outcome' in first || first.reading.meaning.kind !== 'stale') return first;
  const renewed = await renewToken(sender, handOff, token);
  if (renewed === null) return first;
  if (renewed.kind !== 'token') return { outcome: outcomeWithoutToken(sender, renewed.kind) };
  // It is too young to be replaced, so that the clock must be wrong.
  if (renewed.token === token) return first;
  return ask(sender, handOff, environment, renewed.token, permitFurtherRequest());
}

/** Null without a database. Now that the hand-off is confirmed, nothing may reject: it ends with what APNs said. */
async function renewToken(
  { tokens }: Sender,
  { reference, credentials }: ApnsHandOff,
  refused: string,
): Promise<ProviderToken | null> {
  try {
    return await tokens.get(reference.organizationId, credentials, refused);
  } catch {
    return null;
  }
}

async function ask(
  { connections, random }: Sender,
  handOff: ApnsHandOff,
  environment: Environment,
  token: string,
  permit: HttpPermit,
): Promise<Tried> {
  const origin = origins[environment];
  const remote = new URL(origin).host;
  const name = { credentialsId: handOff.credentials.id, origin };
  // There is one answer, which the connection judges as well.
  let reading: Reading | null = null;
  const answer = await connections.exchange(name, writeRequest(handOff, token), permit, (one) =>
    one.kind === 'answered' ? (reading ??= readAnswer(one, remote)).judgement : 'untold',
  );
  if (answer.kind !== 'answered') return { outcome: outcomeOfSilence(answer, remote, random()) };
  return { reading: reading ?? readAnswer(answer, remote), token };
}

function writeRequest(handOff: ApnsHandOff, token: string): HttpRequest {
  const { notificationId, messageId, target, credentials, content, expiresAt } = handOff;
  return {
    method: 'POST',
    path: `/3/device/${target.token.toLowerCase()}`,
    headers: {
      authorization: `bearer ${token}`,
      'apns-topic': credentials.topic,
      'apns-push-type': 'alert',
      // An identifier, and no promise that a second request is recognised.
      'apns-id': notificationId,
      // The device shows one notification of those that have the same.
      'apns-collapse-id': messageId,
      // Absolute, so that a repetition lives no longer than the first would have.
      'apns-expiration': String(Math.floor(expiresAt.getTime() / 1_000)),
      'apns-priority': content.priority === 'normal' ? '5' : '10',
      'content-type': 'application/json',
    },
    body: composeForApns(messageId, content),
  };
}

function conclude({ proven, random }: Sender, handOff: ApnsHandOff, reading: Reading): PushOutcome {
  const { notificationId, credentials } = handOff;
  const areCredentialsProven = proven.isProven(credentials.id);
  const outcome = outcomeOf(reading, { notificationId, areCredentialsProven, random: random() });
  if (outcome.kind === 'accepted') proven.note(credentials.id);
  return outcome;
}

/** After the environment of the target did not know the token. */
function concludeElsewhere(
  sender: Sender,
  handOff: ApnsHandOff,
  first: Reading,
  environment: Environment,
  second: Tried,
): PushOutcome {
  if ('outcome' in second)
    return second.outcome.kind === 'deferred' ? deferUntold(second.outcome.reply) : second.outcome;
  const { reading } = second;
  switch (reading.meaning.kind) {
    case 'accepted':
      return { ...conclude(sender, handOff, reading), environment };
    case 'not_here':
    case 'key_not_here':
      return conclude(sender, handOff, first);
    case 'stale':
    case 'unavailable':
      return deferUntold(reading.reply);
    case 'rejected':
    case 'gone':
    case 'foreign':
    case 'deferred':
    case 'postponed':
      return conclude(sender, handOff, reading);
  }
}

/** It may be of the other environment, which is of no use at the moment: no fault of the account that this one has. */
function deferUntold(reply: RemoteReply): PushOutcome {
  return { kind: 'deferred', reason: 'other', reply };
}
