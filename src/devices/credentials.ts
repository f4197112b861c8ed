import { createECDH, createPrivateKey, type KeyObject } from 'node:crypto';
import { Type } from 'typebox';
import { insertContactChange } from '../audience/audience.ts';
import { generateVapidKeys, type VapidKeys } from '../channels/push/web-push/vapid.ts';
import { type Clock, now } from '../platform/clock.ts';
import { createValidation, type Validator } from '../platform/http/validation.ts';
import type { NewId } from '../platform/ids.ts';
import {
  type Connection,
  type Database,
  DatabaseUnavailableError,
  type Transaction,
} from '../platform/postgres/database.ts';
import { type Secrets, UnknownKeyError } from '../platform/secrets.ts';
import * as store from './credential-store.ts';
import type { PlatformKey, PublicPart } from './credential-store.ts';
import type { Platform } from './schema.ts';

/**
 * What an organization needs at the service of a platform, so that its pushes are taken. It is sealed as a whole, and
 * never shown again; what may be shown of it is its public part.
 */

/** Of a service account of Firebase, what its file calls by the same names. */
export type AndroidCredentials = {
  platform: 'android';
  projectId: string;
  clientEmail: string;
  privateKeyId: string;
  /** PEM, RSA. */
  privateKey: string;
};

/** A key of an Apple developer team for token-based connections to APNs. */
export type IosCredentials = {
  platform: 'ios';
  keyId: string;
  teamId: string;
  /** The bundle id of the app. */
  topic: string;
  /** PEM, P-256. */
  privateKey: string;
};

export type WebCredentials = { platform: 'web' } & VapidKeys;

export type CredentialsContent = AndroidCredentials | IosCredentials | WebCredentials;

/** What an operator's file comes to. */
export type ParsedCredentials =
  { kind: 'parsed'; content: CredentialsContent } | { kind: 'refused'; problem: string };

const text = (description: string) => Type.String({ minLength: 1, maxLength: 16_384, description });

/** More may stand in a file, and is not looked at: `token_uri` above all, to which a signed assertion would be sent. */
const fileShapes = {
  android: Type.Object({
    type: Type.Literal('service_account'),
    project_id: Type.String({ pattern: '^[a-z0-9][a-z0-9.:-]{0,99}$' }),
    client_email: text('Who signs.'),
    private_key_id: text('Which key signs.'),
    private_key: text('PEM.'),
  }),
  ios: Type.Object({
    key: text('PEM, as the .p8 file has it.'),
    key_id: Type.String({ pattern: '^[A-Z0-9]{10}$' }),
    team_id: Type.String({ pattern: '^[A-Z0-9]{10}$' }),
    topic: Type.String({ pattern: '^[A-Za-z0-9.-]{1,155}$' }),
  }),
  web: Type.Object({
    publicKey: Type.String({ pattern: '^[A-Za-z0-9_-]{87}$' }),
    privateKey: Type.String({ pattern: '^[A-Za-z0-9_-]{43}$' }),
  }),
} as const;

let validators: Readonly<Record<Platform, Validator>> | null = null;

function validatorOf(platform: Platform): Validator {
  validators ??= compileShapes();
  return validators[platform];
}

function compileShapes(): Readonly<Record<Platform, Validator>> {
  const { compile } = createValidation({});
  return {
    android: compile(fileShapes.android),
    ios: compile(fileShapes.ios),
    web: compile(fileShapes.web),
  };
}

/** Reads the JSON that an operator gives for a platform. A problem names what is wrong, and never a value. */
export function parseCredentials(platform: Platform, json: string): ParsedCredentials {
  let value: unknown;
  try {
    // RFC 8259 §8.1: Windows has programs that put a byte order mark before it.
    value = JSON.parse(json.replace(/^\ufeff/, ''));
  } catch {
    return refused(json.includes('PRIVATE KEY-----') ? 'it is a key alone, and not JSON' : 'it is not JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return refused('it is not a JSON object');
  const issues = validatorOf(platform)(value);
  if (issues.length > 0) return refused(issues.join(', '));
  const content = toContent(platform, value as Record<string, string>); // Its shape was checked.
  const problem = findProblem(content);
  return problem === null ? { kind: 'parsed', content } : refused(problem);
}

function refused(problem: string): ParsedCredentials {
  return { kind: 'refused', problem };
}

function toContent(platform: Platform, file: Readonly<Record<string, string>>): CredentialsContent {
  const member = (name: string) => file[name] ?? '';
  switch (platform) {
    case 'android':
      return {
        platform,
        projectId: member('project_id'),
        clientEmail: member('client_email'),
        privateKeyId: member('private_key_id'),
        privateKey: member('private_key'),
      };
    case 'ios':
      return {
        platform,
        keyId: member('key_id'),
        teamId: member('team_id'),
        topic: member('topic'),
        privateKey: member('key'),
      };
    case 'web':
      return { platform, publicKey: member('publicKey'), privateKey: member('privateKey') };
  }
}

/** Below this, Google takes no key (RFC 7518 §3.3 neither). */
const rsaBitsMin = 2_048;

/** What keeps the keys from being used, without any of them; null for nothing. */
function findProblem(content: CredentialsContent): string | null {
  switch (content.platform) {
    case 'android': {
      const key = readPrivateKey(content.privateKey);
      if (key?.asymmetricKeyType !== 'rsa') return 'private_key is not an RSA key in PEM';
      const bits = key.asymmetricKeyDetails?.modulusLength ?? 0;
      return bits < rsaBitsMin ? `private_key must have at least ${rsaBitsMin} bits` : null;
    }
    case 'ios': {
      const key = readPrivateKey(content.privateKey);
      return key?.asymmetricKeyType === 'ec' && key.asymmetricKeyDetails?.namedCurve === 'prime256v1'
        ? null
        : 'key is not a P-256 key in PEM';
    }
    case 'web':
      return isPair(content) ? null : 'publicKey and privateKey are not a pair';
  }
}

function readPrivateKey(pem: string): KeyObject | null {
  try {
    return createPrivateKey(pem);
  } catch {
    return null;
  }
}

function isPair({ publicKey, privateKey }: VapidKeys): boolean {
  try {
    const pair = createECDH('prime256v1');
    pair.setPrivateKey(Buffer.from(privateKey, 'base64url'));
    return pair.getPublicKey('base64url') === publicKey;
  } catch {
    return false;
  }
}

/** What may be shown, as the API and commands call it. */
function publicPartOf(content: CredentialsContent): PublicPart {
  switch (content.platform) {
    case 'android':
      return {
        project_id: content.projectId,
        client_email: content.clientEmail,
        key_id: content.privateKeyId,
      };
    case 'ios':
      return { key_id: content.keyId, team_id: content.teamId, topic: content.topic };
    case 'web':
      return { public_key: content.publicKey };
  }
}

/** Of the public part, what tokens are good for: with another one, none of them is. */
const bindingNames = {
  android: ['project_id'],
  ios: ['team_id', 'topic'],
  web: ['public_key'],
} as const satisfies Record<Platform, readonly string[]>;

function isBoundAlike(platform: Platform, one: PublicPart, other: PublicPart): boolean {
  return bindingNames[platform].every((name) => one[name] === other[name]);
}

export type CredentialsTools = { database: Database; clock: Clock; newId: NewId; secrets: Secrets };

/** Credentials as they may be shown. */
export type ShownCredentials = PlatformKey & {
  id: string;
  publicPart: PublicPart;
  createdAt: Date;
  updatedAt: Date;
};

export type SetOutcome =
  | { kind: 'set'; credentials: ShownCredentials; retiredDevices: number }
  /** The organization has a VAPID pair, under which browsers are subscribed: how many of them, at most `countedMax`. */
  | { kind: 'held'; credentials: ShownCredentials; devices: number };

/** More are many, whatever their number. */
export const countedMax = 1_000_000;

/** A statement's worth of browsers; each batch takes its row in `contact_changes`. */
const retiredBatch = 1_000;

/**
 * Gives an organization its credentials for a platform, in the place of those that it had. Another VAPID pair ends all
 * subscriptions of its browsers, and is taken only with `replacesPair`.
 */
export async function setCredentials(
  tools: CredentialsTools,
  organizationId: string,
  content: CredentialsContent,
  { replacesPair }: { replacesPair: boolean },
): Promise<SetOutcome> {
  const { platform } = content;
  const key = { organizationId, platform };
  return tools.database.transaction(async (transaction) => {
    return transaction.asOrganizations([organizationId], async (): Promise<SetOutcome> => {
      await store.lockCredentials(transaction, organizationId, 'alone');
      const [held] = await store.findCredentials(transaction, [key]);
      const publicPart = publicPartOf(content);
      const isSameBinding = held !== undefined && isBoundAlike(platform, held.public_part, publicPart);
      if (platform === 'web' && held !== undefined && !isSameBinding && !replacesPair) {
        const devices = await store.countDevicesOfPlatform(transaction, key, countedMax);
        return { kind: 'held', credentials: show(held), devices };
      }
      const id = tools.newId();
      const row = await store.upsertCredentials(transaction, {
        ...key,
        id,
        contentSealed: seal(tools.secrets, id, content),
        publicPart,
        at: now(tools.clock),
      });
      if (held !== undefined && !isSameBinding) await store.forgetFailedTokens(transaction, key);
      const retiredDevices =
        content.platform === 'web' && held !== undefined && !isSameBinding
          ? await retireSubscriptions(tools, transaction, organizationId, content.publicKey)
          : 0;
      return { kind: 'set', credentials: show(row), retiredDevices };
    });
  });
}

/** Returns how many browsers with active devices were retired. */
async function retireSubscriptions(
  { clock, newId }: CredentialsTools,
  transaction: Transaction,
  organizationId: string,
  publicKey: string,
): Promise<number> {
  await transaction.allowTime(null);
  let count = 0;
  // Ends at the last subscription: each batch leaves as many fewer.
  for (;;) {
    const { contactIds, activeCount, isWhole } = await store.retireSubscriptions(transaction, {
      organizationId,
      publicKey,
      limit: retiredBatch,
      at: now(clock),
    });
    if (contactIds.length > 0)
      await insertContactChange(transaction, { organizationId, id: newId(), contactIds });
    count += activeCount;
    if (isWhole) return count;
  }
}

function show(row: store.CredentialsRow): ShownCredentials {
  return {
    organizationId: row.organization_id,
    platform: row.platform,
    id: row.id,
    publicPart: row.public_part,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  };
}

/** Those of an organization, by platform. */
export async function listCredentials(
  database: Database,
  organizationId: string,
): Promise<ShownCredentials[]> {
  const rows = await database.asOrganizations([organizationId], (transaction) =>
    store.listCredentials(transaction, organizationId),
  );
  return rows.map(show);
}

/** Whose VAPID pair is the oldest organization's that has one, and what browsers subscribe with; null if none has. */
export async function findFirstBrowserKey(
  connection: Connection,
): Promise<{ organizationId: string; publicKey: string } | null> {
  const found = await store.findFirstBrowserKey(connection);
  const publicKey = found?.publicPart.public_key;
  return found === null || publicKey === undefined
    ? null
    : { organizationId: found.organizationId, publicKey };
}

/** A VAPID pair that nobody else has. */
export function makeVapidPair(): WebCredentials {
  return { platform: 'web', ...generateVapidKeys() };
}

/** Credentials for a delivery. */
export type LoadedCredentials = PlatformKey & {
  id: string;
  content: CredentialsContent | 'unreadable';
  /** Whether it is unreadable because this process does not know the key that it is sealed under, and others may. */
  isKeyUnknown: boolean;
};

/**
 * Those of these that there are. Content that cannot be read, because it was sealed under another secret for instance,
 * is its own organization's trouble. Opens and parses, so keep what it returns, by its id.
 */
export async function loadPushCredentials(
  tools: { secrets: Secrets },
  connection: Connection,
  wanted: readonly PlatformKey[],
): Promise<LoadedCredentials[]> {
  const rows = await store.findCredentials(connection, wanted);
  return Promise.all(
    rows.map(async (row) => ({
      organizationId: row.organization_id,
      platform: row.platform,
      id: row.id,
      ...(await openContent(tools.secrets, row)),
    })),
  );
}

async function openContent(
  secrets: Secrets,
  row: store.CredentialsRow,
): Promise<Pick<LoadedCredentials, 'content' | 'isKeyUnknown'>> {
  try {
    return { content: await open(secrets, row), isKeyUnknown: false };
  } catch (cause) {
    // Of the look for new keys: it says nothing of this one.
    if (cause instanceof DatabaseUnavailableError) throw cause;
    return { content: 'unreadable', isKeyUnknown: cause instanceof UnknownKeyError };
  }
}

function seal(secrets: Secrets, id: string, content: CredentialsContent): Buffer {
  return secrets.encrypt(Buffer.from(JSON.stringify(content)), sealContext(id));
}

/** Rejects as `decryptInSteps` does. */
async function open(secrets: Secrets, row: store.CredentialsRow): Promise<CredentialsContent> {
  const opened = await secrets.decryptInSteps(row.content_sealed, sealContext(row.id));
  return JSON.parse(opened.toString('utf8')) as CredentialsContent; // What `seal` wrote.
}

function sealContext(id: string): string {
  return `push credentials ${id}`;
}

/** What is wrong with credentials that are stored. */
export type FaultyCredentials = PlatformKey & { problem: string };

/** Larger holds more in memory, smaller takes more round trips. */
const examinedBatch = 500;

/** Opens the credentials of all organizations, up to `batchesMax` batches of them, and looks whether they can be used. */
export async function examineCredentials(
  connection: Connection,
  secrets: Secrets,
  batchesMax: number,
): Promise<{ usable: number; faulty: FaultyCredentials[]; isWhole: boolean }> {
  let usable = 0;
  const faulty: FaultyCredentials[] = [];
  let after: PlatformKey | null = null;
  // Ends at the last row.
  for (let batches = 0; batches < batchesMax; batches += 1) {
    const rows: store.CredentialsRow[] = await store.readCredentialsBatch(connection, after, examinedBatch);
    for (const row of rows) {
      const problem = await findFault(secrets, row);
      if (problem === null) usable += 1;
      else faulty.push({ organizationId: row.organization_id, platform: row.platform, problem });
    }
    const last = rows.at(-1);
    if (last === undefined || rows.length < examinedBatch) return { usable, faulty, isWhole: true };
    after = { organizationId: last.organization_id, platform: last.platform };
  }
  return { usable, faulty, isWhole: false };
}

async function findFault(secrets: Secrets, row: store.CredentialsRow): Promise<string | null> {
  let content: CredentialsContent;
  try {
    content = await open(secrets, row);
  } catch {
    return 'they were sealed under another secret, or are damaged';
  }
  const problem = findProblem(content);
  if (problem !== null) return problem;
  return isBoundAlike(row.platform, row.public_part, publicPartOf(content))
    ? null
    : 'what is shown of them is not theirs';
}
