import type { Channel } from '../channels/channel.ts';
/** What a key may do. Lists, tags, segments and properties belong to `contacts`, the gallery to `templates`. */
export const scopes = [
  'email:send',
  'email:read',
  'sms:send',
  'sms:read',
  'push:send',
  'push:read',
  'devices:write',
  'chatapp:send',
  'chatapp:read',
  'chatapp:write',
  'campaigns:read',
  'campaigns:write',
  'campaigns:send',
  'domains:read',
  'domains:write',
  'contacts:read',
  'contacts:write',
  'suppressions:read',
  'suppressions:write',
  'templates:read',
  'templates:write',
  'events:read',
  'events:write',
  'events:send',
  'webhooks:read',
  'webhooks:write',
  'logs:read',
] as const;

export type Scope = (typeof scopes)[number];

/** Names for several scopes at once; a key keeps the name, so that a bundle grows with the service. */
export const scopeBundles = {
  full_access: scopes,
  sending_access: scopes.filter((scope) => scope.endsWith(':send') || scope.endsWith(':read')),
  read_only: scopes.filter((scope) => scope.endsWith(':read')),
} as const satisfies Record<string, readonly Scope[]>;

export type Organization = { id: string; name: string; deletion: DeletionState; createdAt: Date };

/** How far the deletion of an organization is (deletion.ts); null where nobody has asked for it. */
export type DeletionState = 'requested' | 'under_way' | 'gone' | null;

/** Monthly quotas and other limits: null is no limit. Emails count recipients, SMS segments, the rest messages. */
export type Plan = {
  requestsPerWindow: number;
  eventsPerWindow: number;
  quotas: Record<Channel, number | null>;
  /** How many of each an organization may have. */
  limits: Record<LimitedNoun, number | null>;
  storageLimitBytes: number | null;
  /** For how many days events are kept after they happened. */
  eventsKeptDays: number | null;
  /** For how many days messages are kept, and what they say; null as long as the installation keeps them. */
  messagesKeptDays: number | null;
  contentKeptDays: number | null;
  suspendedChannels: Channel[];
  /** Set where the reputation guard is what suspends it for email; null where that is the operator. */
  guardSuspension: GuardSuspension | null;
  /** Whether too many bounces or complaints suspend it for email by themselves. */
  hasReputationGuard: boolean;
  /** When its bounces or complaints last came near to that. */
  reputationWarnedAt: Date | null;
  /** Whether what it asks of the API is logged for it. */
  hasRequestLog: boolean;
};

export const storageKinds = ['messages', 'attachments', 'audience', 'events', 'templates', 'other'] as const;

export type StorageKind = (typeof storageKinds)[number];

/** What is stored of an organization, as it was measured last. A kind of which there is nothing is left out. */
export type StorageUsage = {
  bytes: number;
  bytesByKind: Partial<Record<StorageKind, number>>;
  measuredAt: Date;
};

/** When the reputation guard suspended an organization, and what it had seen of the day before. */
export type GuardSuspension = { at: Date; sent: number; bounced: number; complained: number };

export type LimitedNoun = 'domains' | 'segments' | 'events';

export type PlanChange = {
  requestsPerWindow?: number;
  eventsPerWindow?: number;
  quotas?: Partial<Record<Channel, number | null>>;
  limits?: Partial<Record<LimitedNoun, number | null>>;
  storageLimitBytes?: number | null;
  eventsKeptDays?: number | null;
  messagesKeptDays?: number | null;
  contentKeptDays?: number | null;
  suspend?: Channel[];
  resume?: Channel[];
  hasReputationGuard?: boolean;
  hasRequestLog?: boolean;
};

export type ApiKey = {
  id: string;
  organizationId: string;
  name: string;
  prefix: string;
  scopes: string[];
  expiresAt: Date | null;
  revokedAt: Date | null;
  /** CIDR ranges that it may be used from; null for any address. */
  allowedNetworks: string[] | null;
  lastUsedAt: Date | null;
  /** Of the client that was seen at `lastUsedAt`. */
  lastUsedAddress: string | null;
  createdAt: Date;
};

/** The scopes that a key holds, bundles resolved. */
export function resolveScopes(names: readonly string[]): ReadonlySet<Scope> {
  const held = new Set<Scope>();
  for (const name of names) {
    if (isScope(name)) held.add(name);
    else if (isBundle(name)) for (const scope of scopeBundles[name]) held.add(scope);
  }
  return held;
}

export function isScopeOrBundle(name: string): boolean {
  return isScope(name) || isBundle(name);
}

function isScope(name: string): name is Scope {
  return (scopes as readonly string[]).includes(name);
}

function isBundle(name: string): name is keyof typeof scopeBundles {
  return Object.hasOwn(scopeBundles, name);
}
