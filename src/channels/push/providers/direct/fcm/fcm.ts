import { type AbortWatch, createAbortWatch, untilAborted } from '../../../../abort-watch.ts';
import type { HttpAnswer, HttpClient, HttpRequest } from '../../../../http2/client.ts';
import type { RemoteReply } from '../../../../outcome.ts';
import { composeForFcm } from '../../../notification.ts';
import type { PushCredentials, PushHandOff, PushOutcome, PushTarget } from '../../../provider.ts';
import {
  outcomeOfSilence,
  ownWords,
  permitFurtherRequest,
  postponeForSlowness,
  probeHost,
} from '../exchanges.ts';
import { createPlaces, type Places } from '../places.ts';
import type { PushService, ServiceTools } from '../service.ts';
import { type AccessGrant, type AccessTokens, createAccessTokens, tokenOrigin } from './access-tokens.ts';
import { isTokenRefused, outcomeOf } from './answers.ts';

/**
 * Pushes to Android apps by the HTTP v1 API of Firebase Cloud Messaging
 * (https://firebase.google.com/docs/reference/fcm/rest/v1/projects.messages/send). FCM knows no id of ours: a push that
 * is repeated after a lost answer is a second one to it, and the device folds the two.
 */

export type FcmHandOff = PushHandOff & {
  target: Extract<PushTarget, { platform: 'android' }>;
  credentials: Extract<PushCredentials, { platform: 'android' }>;
};

const origin = 'https://fcm.googleapis.com';
const remote = new URL(origin).host;

/** FCM stores a push no longer. */
const ttlSecondsMax = 2_419_200;

type Sender = ServiceTools & {
  client: HttpClient;
  tokens: AccessTokens;
  places: Places;
  abortWatch: AbortWatch;
};

export function createFcmService(tools: ServiceTools): PushService<FcmHandOff> {
  const client = tools.createClient(origin);
  const tokenClient = tools.createClient(tokenOrigin);
  const tokens = createAccessTokens(tools.clock, tokenClient);
  const sender = {
    ...tools,
    client,
    tokens,
    places: createPlaces(tools.clock),
    abortWatch: createAbortWatch(),
  };
  return {
    handOff: (handOff) => sendInPlace(sender, handOff),
    probe: async () => (await probeHost(client, origin)) ?? (await probeHost(tokenClient, tokenOrigin)),
    close: async () => {
      await Promise.all([client.close(), tokenClient.close()]);
    },
  };
}

function sendInPlace(sender: Sender, handOff: FcmHandOff): Promise<PushOutcome> {
  const free = sender.places.take();
  if (free === null) return Promise.resolve(postponeForSlowness(remote, sender.random()));
  return send(sender, handOff).finally(free);
}

async function send(sender: Sender, handOff: FcmHandOff): Promise<PushOutcome> {
  const { client, tokens, abortWatch } = sender;
  const { credentials, signal } = handOff;
  signal.throwIfAborted();
  const path = pathOf(credentials.projectId);
  if (path === null) return unavailable(ownWords('The id of the Firebase project is none.', null));
  const asked = tokens.get(credentials);
  const grant = asked instanceof Promise ? await untilAborted(abortWatch, signal, asked) : asked;
  if (grant.kind === 'refused') return outcomeWithoutToken(grant);
  const answer = await client.exchange(writeRequest(sender, handOff, path, grant.token), handOff);
  if (!isTokenRefused(answer)) return conclude(sender, handOff, answer);

  // Revoked, or ended before its time. FCM has taken nothing, and a new token may be good.
  const renewed = await tokens.get(credentials, grant.token);
  if (renewed.kind === 'refused') return outcomeWithoutToken(renewed);
  const request = writeRequest(sender, handOff, path, renewed.token);
  return conclude(sender, handOff, await client.exchange(request, permitFurtherRequest()));
}

/** Null of what would lead elsewhere. A project of a domain has a colon: `example.com:shop`. */
function pathOf(projectId: string): string | null {
  return /^[a-z0-9][a-z0-9.:-]{0,99}$/.test(projectId) ? `/v1/projects/${projectId}/messages:send` : null;
}

function writeRequest(
  { clock }: Sender,
  { messageId, target, content, expiresAt }: FcmHandOff,
  path: string,
  accessToken: string,
): HttpRequest {
  const leftSeconds = Math.floor((expiresAt.getTime() - clock.nowMs()) / 1_000);
  const ttlSeconds = Math.min(Math.max(leftSeconds, 0), ttlSecondsMax);
  const composed = composeForFcm(messageId, content, target.isInstrumented);
  const message = {
    token: target.token,
    ...composed,
    // What is left of it, so that a repetition lives no longer than the first would have.
    android: { ...composed.android, ttl: `${ttlSeconds}s` },
  };
  return {
    method: 'POST',
    path,
    headers: {
      authorization: `Bearer ${accessToken}`,
      'content-type': 'application/json',
      accept: 'application/json',
    },
    body: Buffer.from(JSON.stringify({ message })),
  };
}

function outcomeWithoutToken({
  reply,
  retryAfterMs,
}: Extract<AccessGrant, { kind: 'refused' }>): PushOutcome {
  return unavailable(reply, retryAfterMs);
}

function unavailable(reply: RemoteReply, retryAfterMs?: number): PushOutcome {
  const wait = retryAfterMs === undefined ? {} : { retryAfterMs };
  return { kind: 'deferred', reason: 'provider_unavailable', ...wait, reply };
}

function conclude({ proven, random }: Sender, { credentials }: FcmHandOff, answer: HttpAnswer): PushOutcome {
  if (answer.kind !== 'answered') return outcomeOfSilence(answer, remote, random());
  const areCredentialsProven = proven.isProven(credentials.id);
  const outcome = outcomeOf(answer, { areCredentialsProven, remote, random: random() });
  if (outcome.kind === 'accepted') proven.note(credentials.id);
  return outcome;
}
