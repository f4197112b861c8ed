import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { findUnwillingContacts } from '../audience/audience.ts';
import { pushServiceOf } from '../channels/push/endpoint.ts';
import type { PushFailure, PushOutcome, PushProvider } from '../channels/push/provider.ts';
import {
  type DeadToken,
  type LoadedCredentials,
  type LoadedDevice,
  loadDevices,
  loadPushCredentials,
} from '../devices/devices.ts';
import { type Batcher, createBatcher } from '../platform/batcher.ts';
import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import {
  type Attempt,
  type ChannelDelivery,
  type DeliverableMessage,
  type DropReason,
  type HandOffPermit,
  type Job,
  loadDeliverableMessages,
  type MessageFacts,
  sealedUnderUnknownKey,
  textOfKey,
  uniqueMessages,
} from '../messages/messages.ts';
import { pushChannel, type PushFinding } from './channel.ts';
import { readPushAddress } from './address.ts';
import { compilePush, type CompiledPush, type FilledPush, fillPush } from './rendering.ts';
import { expiryOf, type StoredPushContent, toPushContent } from './stored.ts';

export type PushDeliveryTools = {
  database: Database;
  clock: Clock;
  secrets: Secrets;
  pushProvider: PushProvider;
  /** The push services of browsers that are allowed, as `isPushHostPattern` takes them. */
  webPushHosts: readonly string[];
};

/** How pushes are delivered: a recipient is a device, which is looked up again shortly before each hand-off. */
export function createPushDelivery(tools: PushDeliveryTools): ChannelDelivery {
  return {
    channel: pushChannel,
    provider: tools.pushProvider.name,
    concurrency: tools.pushProvider.concurrency,
    // Revoked credentials, or a service that is down, delay nobody else.
    accountOf: ({ organizationId, address }) =>
      `${organizationId} ${serviceOf(readPushAddress(address)?.account ?? '', tools.webPushHosts)}`,
    isReportedById: false,
    isReportedByRecipients: true,
    begin: () => {
      const session = openSession(tools);
      return {
        prepare: (jobs) => prepare(session, jobs),
        handOff: (job, permit) => handOff(session, job, permit),
      };
    },
  };
}

/** Some services of browsers have hundreds of hosts, and a browser may name others: they are one account. */
function serviceOf(account: string, webPushHosts: readonly string[]): string {
  const host = account.startsWith('web ') ? account.slice('web '.length) : null;
  if (host === null) return account;
  return `web ${pushServiceOf(host, webPushHosts) ?? host}`;
}

type PushMessage = {
  stored: StoredPushContent;
  /** Of a campaign, which says something else to each contact. */
  compiled: CompiledPush | null;
  facts: MessageFacts;
};

/** A device as it was a moment ago, or why nothing may be sent to it. */
type Reach = { device: LoadedDevice } | { dropReason: DropReason };

type PushSession = {
  tools: PushDeliveryTools;
  messages: LRUCache<string, PushMessage>;
  /** By recipient. */
  reaches: LRUCache<string, Reach>;
  /** By organization and platform. */
  credentials: LRUCache<string, LoadedCredentials>;
  /** Loads again what jobs have waited for too long since, for many at a time. */
  renewals: Batcher<Job, void>;
};

/** A few kilobytes each. */
const messagesMax = 5_000;
const reachesMax = 10_000;
const credentialsMax = 2_000;
/** A contact that opted out longer ago than this gets nothing more, nor does a device that was retired. */
const reachMaxAgeMs = 2_000;
/** How long pushes may still leave by credentials that were replaced. */
const credentialsMaxAgeMs = 60_000;

function openSession(tools: PushDeliveryTools): PushSession {
  const perf = { now: () => tools.clock.monotonicMs() };
  const session: PushSession = {
    tools,
    messages: new LRUCache({ max: messagesMax }),
    reaches: new LRUCache({ max: reachesMax, ttl: reachMaxAgeMs, ttlResolution: 0, perf }),
    // Those that grow too old between a look and their use are good all the same.
    credentials: new LRUCache({
      max: credentialsMax,
      ttl: credentialsMaxAgeMs,
      ttlResolution: 0,
      perf,
      allowStale: true,
    }),
    renewals: createBatcher({
      itemsMax: 500,
      concurrency: 2,
      run: async (jobs) => {
        await prepare(session, jobs);
        return jobs.map(() => undefined);
      },
    }),
  };
  return session;
}

/** Loads what a batch of jobs needs: messages, then devices with the consents of their contacts, then credentials. */
async function prepare(session: PushSession, jobs: readonly Job[]): Promise<void> {
  await loadMessages(session, jobs);
  await loadReaches(session, jobs);
  await loadCredentials(
    session,
    jobs.flatMap((job) => {
      const reach = session.reaches.get(textOfKey(job));
      return reach !== undefined && 'device' in reach ? [reach.device] : [];
    }),
  );
}

function isPrepared({ messages, reaches, credentials }: PushSession, job: Job): boolean {
  const reach = reaches.get(textOfKey(job));
  if (reach === undefined || !messages.has(job.messageId)) return false;
  const platform = 'device' in reach ? reach.device.target?.platform : undefined;
  return platform === undefined || credentials.has(`${job.organizationId} ${platform}`);
}

async function loadMessages(session: PushSession, jobs: readonly Job[]): Promise<void> {
  const wanted = uniqueMessages(jobs.filter(({ messageId }) => !session.messages.has(messageId)));
  if (wanted.length === 0) return;
  for (const message of await loadDeliverableMessages(session.tools.database, wanted))
    session.messages.set(message.messageId, readMessage(message));
}

function readMessage(message: DeliverableMessage): PushMessage {
  const stored = message.content as StoredPushContent; // As send.ts or campaigns.ts stored it.
  return {
    stored,
    // What is already filled may contain a value that looks like a placeholder. It stays as it is.
    compiled: message.isPersonalised ? compilePush(stored) : null,
    facts: { isShared: message.isPersonalised || message.recipientCount > 1, hasAttachments: false },
  };
}

async function loadReaches(session: PushSession, jobs: readonly Job[]): Promise<void> {
  const wanted = jobs.filter((job) => !session.reaches.has(textOfKey(job)));
  if (wanted.length === 0) return;
  const organizationIds = [...new Set(wanted.map(({ organizationId }) => organizationId))];
  const found = await session.tools.database.asOrganizationsByIndex(organizationIds, async (transaction) => {
    const devices = await loadDevices(
      transaction,
      wanted.flatMap(({ organizationId, address }) => {
        const id = readPushAddress(address)?.deviceId;
        return id === undefined ? [] : [{ organizationId, id }];
      }),
    );
    const bars = await findUnwillingContacts(
      transaction,
      'push',
      devices.map(({ organizationId, contactId: id }) => ({ organizationId, id })),
    );
    return new Map(
      devices.map((device, index) => [
        keyOfDevice(device.organizationId, device.id),
        { device, bar: bars.get(index) },
      ]),
    );
  });
  for (const job of wanted) {
    const deviceId = readPushAddress(job.address)?.deviceId ?? '';
    const { device, bar } = found.get(keyOfDevice(job.organizationId, deviceId)) ?? {};
    session.reaches.set(textOfKey(job), judge(job, device, bar));
  }
}

function judge(job: Job, device: LoadedDevice | undefined, bar: DropReason | undefined): Reach {
  if (device === undefined) return { dropReason: 'contact_deleted' };
  if (bar !== undefined) return { dropReason: bar };
  const isReachable =
    device.status === 'ACTIVE' &&
    device.isEnabled &&
    device.target !== null &&
    // Somebody else may have signed in on it.
    device.contactId === job.addressKey;
  return isReachable ? { device } : { dropReason: 'no_address' };
}

function keyOfDevice(organizationId: string, id: string): string {
  return `${organizationId} ${id}`;
}

async function loadCredentials(session: PushSession, devices: readonly LoadedDevice[]): Promise<void> {
  const wanted = new Map(
    devices.flatMap(({ organizationId, target }) => {
      if (target === null) return [];
      const key = `${organizationId} ${target.platform}`;
      return session.credentials.has(key)
        ? []
        : [[key, { organizationId, platform: target.platform }] as const];
    }),
  );
  if (wanted.size === 0) return;
  const { database, secrets } = session.tools;
  const organizationIds = [...new Set([...wanted.values()].map(({ organizationId }) => organizationId))];
  const loaded = await database.asOrganizationsByIndex(organizationIds, (transaction) =>
    loadPushCredentials({ secrets }, transaction, [...wanted.values()]),
  );
  // Too old ones would be found as long as nothing takes their place.
  for (const key of wanted.keys()) session.credentials.delete(key);
  for (const credentials of loaded)
    session.credentials.set(`${credentials.organizationId} ${credentials.platform}`, credentials);
}

async function handOff(session: PushSession, job: Job, permit: HandOffPermit): Promise<Attempt> {
  if (!isPrepared(session, job)) await session.renewals.add(job);
  const message = session.messages.get(job.messageId);
  if (message === undefined) return failed('other', 'What the push says is no longer stored.', null);
  const expiresAt = expiryOf(job.acceptedAt, message.stored);
  const facts = { ...message.facts, expiresAt };
  if (session.tools.clock.nowMs() >= expiresAt.getTime())
    return failed('expired', 'Its time was over before it could be handed over.', facts);
  const reach = session.reaches.get(textOfKey(job));
  if (reach === undefined) return { kind: 'outcome', outcome: unknownReach, facts };
  if ('dropReason' in reach) return { kind: 'objected', objection: reach.dropReason, facts };
  const { device } = reach;
  const { target, tokenSha256 } = device;
  if (target === null || tokenSha256 === null) return { kind: 'objected', objection: 'no_address', facts };
  const credentials = session.credentials.get(`${job.organizationId} ${target.platform}`);
  if (credentials === undefined)
    return failed(
      'credentials',
      `The organization has no credentials for ${target.platform} any more.`,
      facts,
    );
  const filled = fill(message, job);
  if (filled.kind === 'unfit') return failed(filled.reason, filled.diagnostic, facts);
  const { id, content: opened, isKeyUnknown } = credentials;
  if (isKeyUnknown) return { kind: 'outcome', outcome: sealedUnderUnknownKey, facts };
  if (opened === 'unreadable') return { kind: 'outcome', outcome: unreadableCredentials, facts };
  let outcome: PushOutcome;
  try {
    outcome = await session.tools.pushProvider.handOff({
      reference: job,
      notificationId: notificationIdOf(job.messageId, device.id),
      messageId: job.messageId,
      target,
      credentials: { id, ...opened },
      content: toPushContent(filled.content),
      expiresAt,
      confirm: () => confirmReachable(session, job, permit),
      signal: permit.signal,
    });
  } catch (cause) {
    if (!(cause instanceof OutOfReachError)) throw cause;
    const { dropReason } = cause;
    return dropReason === null
      ? { kind: 'outcome', outcome: unknownReach, facts }
      : { kind: 'objected', objection: dropReason, facts };
  }
  const finding = findingOf(outcome, { id: device.id, platform: target.platform, tokenSha256 });
  return { kind: 'outcome', outcome, facts, ...(finding !== null && { finding }) };
}

/** Nothing may be sent to the device any more; null if it could not be looked up in time. */
class OutOfReachError extends Error {
  override readonly name = 'OutOfReachError';
  readonly dropReason: DropReason | null;
  constructor(dropReason: DropReason | null) {
    super('the device is out of reach');
    this.dropReason = dropReason;
  }
}

/** A connection may have been waited for, or a token: meanwhile somebody else may have signed in on the device. */
async function confirmReachable(session: PushSession, job: Job, permit: HandOffPermit): Promise<void> {
  if (!session.reaches.has(textOfKey(job))) {
    await session.renewals.add(job);
    const reach = session.reaches.get(textOfKey(job));
    if (reach === undefined) throw new OutOfReachError(null);
    if ('dropReason' in reach) throw new OutOfReachError(reach.dropReason);
  }
  await permit.confirm();
}

/** A copy of a campaign is filled with the values that its contact had when it became a recipient. */
function fill({ stored, compiled }: PushMessage, { variables }: Job): FilledPush {
  return compiled === null
    ? { kind: 'filled', content: stored }
    : fillPush(compiled, { ...stored.defaults, ...variables });
}

/** The database took so long that what it said of the device has grown too old. */
const unknownReach: PushOutcome = {
  kind: 'postponed',
  retryAfterMs: 1_000,
  reply: {
    code: null,
    enhancedCode: null,
    diagnostic: 'The device could not be looked up in time.',
    remote: null,
  },
};

/** As if the account were away: other pushes go on, and these are tried again once the credentials can be read. */
const unreadableCredentials: PushOutcome = {
  kind: 'deferred',
  reason: 'provider_unavailable',
  reply: {
    code: null,
    enhancedCode: null,
    diagnostic: 'The credentials of the organization cannot be read: set them again.',
    remote: null,
  },
};

function failed(reason: PushFailure, diagnostic: string, facts: MessageFacts | null): Attempt {
  return { kind: 'failed', reason, diagnostic, facts };
}

/** The same in every attempt, so that services and devices know a repetition: a UUID of version 8 (RFC 9562). */
function notificationIdOf(messageId: string, deviceId: string): string {
  const hex = createHash('sha256').update(`${messageId} ${deviceId}`).digest('hex');
  const variant = ((parseInt(hex.charAt(16), 16) & 0x3) | 0x8).toString(16);
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    `8${hex.slice(13, 16)}`,
    variant + hex.slice(17, 20),
    hex.slice(20, 32),
  ].join('-');
}

function findingOf(
  outcome: PushOutcome,
  device: Pick<DeadToken, 'id' | 'platform' | 'tokenSha256'>,
): PushFinding | null {
  if (outcome.kind === 'accepted') {
    const { environment } = outcome;
    const { id, tokenSha256 } = device;
    return environment === undefined ? null : { kind: 'misplaced', id, tokenSha256, environment };
  }
  if (outcome.kind !== 'rejected') return null;
  const { reason } = outcome;
  const toldAt = outcome.deadSince ?? null;
  if (reason === 'unregistered') return { kind: 'dead', ...device, status: 'EXPIRED', reason, toldAt };
  if (reason === 'invalid_token') return { kind: 'dead', ...device, status: 'FAILED', reason, toldAt };
  return null;
}
