import { randomBytes } from 'node:crypto';
import { Type } from 'typebox';
import type { ChatAppAccount } from '../channels/chatapp/chatapp.ts';
import { type Clock, now } from '../platform/clock.ts';
import { createValidation, type Validator } from '../platform/http/validation.ts';
import type { NewId } from '../platform/ids.ts';
import {
  type Connection,
  type Database,
  DatabaseUnavailableError,
  violatedIndex,
} from '../platform/postgres/database.ts';
import { wakeOnce } from '../platform/queue/wake.ts';
import { type Secrets, UnknownKeyError } from '../platform/secrets.ts';
import * as store from './account-store.ts';
import { findBudget, findPeopleLimit, type PeopleLimit } from './budget.ts';
import { deleteLimit } from './budget-store.ts';
import { type CampaignsHeld, readCampaignsHeld } from './holding.ts';
import { bringForward } from './work-store.ts';

/**
 * What an organization is at the provider of chat-app messages, given by the operator. It is sealed as a whole, and
 * never shown again but for the ids in it.
 */
export type AccountContent = {
  businessAccountId: string;
  phoneNumberIds: readonly string[];
  accessToken: string;
  /** Of an app of its own, which reports to an address of its own; null where it is the installation's. */
  ownApp: { appSecret: string; verifyToken: string } | null;
};

/** What an operator's file comes to. */
export type ParsedAccount =
  { kind: 'parsed'; content: AccountContent } | { kind: 'refused'; problem: string };

/** Ids of the Graph API are numbers, written as text. */
const graphId = Type.String({ pattern: '^[0-9]{1,32}$' });

/** What goes into a header or a comparison: visible, and of one line. */
const secretText = Type.String({ minLength: 1, maxLength: 4_096, pattern: '^[!-~]*$' });

/** An organization has a handful of numbers. */
const phoneNumbersMax = 100;

/** A name that is not known is refused: it may be one that was mistyped. */
const fileShape = Type.Object(
  {
    business_account_id: graphId,
    phone_number_id: Type.Optional(graphId),
    phone_number_ids: Type.Optional(Type.Array(graphId, { minItems: 1, maxItems: phoneNumbersMax })),
    access_token: secretText,
    app_secret: Type.Optional(secretText),
    verify_token: Type.Optional(secretText),
  },
  { additionalProperties: false },
);

type AccountFile = {
  business_account_id: string;
  phone_number_id?: string;
  phone_number_ids?: string[];
  access_token: string;
  app_secret?: string;
  verify_token?: string;
};

let validator: Validator | null = null;

/** Reads the JSON that an operator gives. A problem names what is wrong, and never a value. */
export function parseAccount(json: string): ParsedAccount {
  let value: unknown;
  try {
    // RFC 8259 §8.1: Windows has programs that put a byte order mark before it.
    value = JSON.parse(json.replace(/^\ufeff/, ''));
  } catch {
    return refused('it is not JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return refused('it is not a JSON object');
  validator ??= createValidation({}).compile(fileShape);
  const issues = validator(value);
  if (issues.length > 0) return refused(issues.join(', '));
  const file = value as AccountFile; // Its shape was checked.
  if ((file.phone_number_id === undefined) === (file.phone_number_ids === undefined))
    return refused('it must have either phone_number_id or phone_number_ids');
  const phoneNumberIds = file.phone_number_ids ?? [file.phone_number_id ?? ''];
  if (new Set(phoneNumberIds).size < phoneNumberIds.length)
    return refused('phone_number_ids has the same id twice');
  if ((file.app_secret === undefined) !== (file.verify_token === undefined))
    return refused('app_secret and verify_token must be given together, or neither of them');
  return {
    kind: 'parsed',
    content: {
      businessAccountId: file.business_account_id,
      phoneNumberIds,
      accessToken: file.access_token,
      ownApp:
        file.app_secret === undefined || file.verify_token === undefined
          ? null
          : { appSecret: file.app_secret, verifyToken: file.verify_token },
    },
  };
}

function refused(problem: string): ParsedAccount {
  return { kind: 'refused', problem };
}

export type AccountTools = { database: Database; clock: Clock; newId: NewId; secrets: Secrets };

export type SetAccountOutcome =
  | { kind: 'set'; businessAccountId: string; callbackToken: string | null }
  /** Another organization has the business account. */
  | { kind: 'taken' };

/** Gives an organization its account, in the place of the one that it had. */
export async function setAccount(
  tools: AccountTools,
  organizationId: string,
  content: AccountContent,
): Promise<SetAccountOutcome> {
  const id = tools.newId();
  try {
    const row = await tools.database.asOrganizations([organizationId], async (transaction) => {
      const at = now(tools.clock);
      const [before] = await store.findAccounts(transaction, [organizationId]);
      // The limit of another portfolio says nothing of this one's.
      if (before !== undefined && before.business_account_id !== content.businessAccountId)
        await deleteLimit(transaction, organizationId);
      const saved = await store.upsertAccount(transaction, {
        organizationId,
        id,
        businessAccountId: content.businessAccountId,
        contentSealed: tools.secrets.encrypt(Buffer.from(JSON.stringify(content)), sealContext(id)),
        callbackToken: randomBytes(callbackTokenBytes).toString('base64url'),
        at,
      });
      // Templates may have waited for it; and another account may have others. Campaigns go on, unless it is held again.
      await bringForward(transaction, organizationId, at);
      await wakeOnce(transaction, 'chat_templates');
      await wakeOnce(transaction, 'campaigns');
      return saved;
    });
    return {
      kind: 'set',
      businessAccountId: row.business_account_id,
      callbackToken: content.ownApp === null ? null : row.callback_token,
    };
  } catch (cause) {
    if (violatedIndex(cause) === 'chat_app_accounts_business_account') return { kind: 'taken' };
    throw cause;
  }
}

/** 32 characters of base64url, which nobody guesses. */
const callbackTokenBytes = 24;

/** What may be shown of an account. */
export type ShownAccount = {
  businessAccountId: string;
  /** Null where the account cannot be read. */
  phoneNumberIds: readonly string[] | null;
  /** Null where it has no app of its own. */
  callbackToken: string | null;
  /** What must be mended, in the provider's words. */
  problem: string | null;
  /** Null if campaigns may leave. */
  campaignsHeld: CampaignsHeld | null;
  /** To how many people it may write; null where the provider has told nothing. */
  peopleLimit: PeopleLimit | null;
  /** To how many of them it has written in the last 24 hours; null where they are not counted. */
  reached: number | null;
  createdAt: Date;
  updatedAt: Date;
};

/** That of an organization; null if it has none. */
export async function showAccount(
  { database, clock, secrets }: { database: Database; clock: Clock; secrets: Secrets },
  organizationId: string,
): Promise<ShownAccount | null> {
  const at = now(clock);
  const found = await database.asOrganizations([organizationId], async (transaction) => {
    const [row] = await store.findAccounts(transaction, [organizationId]);
    if (row === undefined) return null;
    const budget = await findBudget(transaction, organizationId, at);
    return { row, budget, peopleLimit: await findPeopleLimit(transaction, organizationId) };
  });
  if (found === null) return null;
  const { row, budget, peopleLimit } = found;
  const { content } = await openRow(secrets, row);
  return {
    businessAccountId: row.business_account_id,
    phoneNumberIds: content === 'unreadable' ? null : content.phoneNumberIds,
    callbackToken: content === 'unreadable' || content.ownApp === null ? null : row.callback_token,
    problem: content === 'unreadable' ? unreadableWords : row.problem,
    campaignsHeld: readCampaignsHeld(row, at),
    peopleLimit,
    reached: budget === null ? null : budget.reached,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  };
}

const unreadableWords = 'it was sealed under another secret, or is damaged';

/** An account as it is stored. */
export type StoredAccount = {
  organizationId: string;
  account: ChatAppAccount | 'unreadable';
  campaignsHeld: CampaignsHeld | null;
};

/** Larger holds more in memory, smaller takes more round trips. */
const readBatch = 500;

/** Those of all organizations, the first `countMax` of them at most; for the operator. */
export async function readAccounts(
  { secrets, clock }: { secrets: Secrets; clock: Clock },
  connection: Connection,
  countMax: number,
): Promise<{ accounts: StoredAccount[]; isWhole: boolean }> {
  const accounts: StoredAccount[] = [];
  let after: string | null = null;
  // Ends at the last row.
  while (accounts.length < countMax) {
    const limit = Math.min(readBatch, countMax - accounts.length);
    const rows: store.AccountRow[] = await store.readAccountsBatch(connection, after, limit);
    for (const row of rows) {
      const { content } = await openRow(secrets, row);
      accounts.push({
        organizationId: row.organization_id,
        account: content === 'unreadable' ? content : toAccount(row, content),
        campaignsHeld: readCampaignsHeld(row, now(clock)),
      });
    }
    const last = rows.at(-1);
    if (last === undefined || rows.length < limit) return { accounts, isWhole: true };
    after = last.organization_id;
  }
  return { accounts, isWhole: false };
}

/** An account for a delivery, or for the work on templates. */
export type LoadedAccount = {
  organizationId: string;
  account: ChatAppAccount | 'unreadable';
  /** Whether it is unreadable because this process does not know the key that it is sealed under, and others may. */
  isKeyUnknown: boolean;
  campaignsHeld: CampaignsHeld | null;
};

/**
 * Those that there are. One that cannot be read, because it was sealed under another secret for instance, is its own
 * organization's trouble.
 */
export async function loadChatAppAccounts(
  { secrets, clock }: { secrets: Secrets; clock: Clock },
  connection: Connection,
  organizationIds: readonly string[],
): Promise<LoadedAccount[]> {
  const rows = await store.findAccounts(connection, organizationIds);
  return Promise.all(
    rows.map(async (row) => {
      const opened = await openRow(secrets, row);
      return {
        organizationId: row.organization_id,
        account: opened.content === 'unreadable' ? opened.content : toAccount(row, opened.content),
        isKeyUnknown: opened.isKeyUnknown,
        campaignsHeld: readCampaignsHeld(row, now(clock)),
      };
    }),
  );
}

function toAccount(row: store.AccountRow, content: AccountContent): ChatAppAccount {
  return {
    id: row.id,
    organizationId: row.organization_id,
    businessAccountId: content.businessAccountId,
    phoneNumberIds: content.phoneNumberIds,
    accessToken: content.accessToken,
  };
}

/** For a provider that needs none, in an organization that has none: it stands for the organization. */
export function makeStandInAccount(organizationId: string): ChatAppAccount {
  return {
    id: organizationId,
    organizationId,
    businessAccountId: organizationId,
    phoneNumberIds: [organizationId],
    accessToken: '',
  };
}

/** Which organizations have these business accounts, of which each belongs to one. */
export async function findAccountHolders(
  connection: Connection,
  businessAccountIds: readonly string[],
): Promise<Map<string, string>> {
  return businessAccountIds.length === 0 ? new Map() : store.findHolders(connection, businessAccountIds);
}

/** The app of an organization that reports to an address of its own. */
export type OwnApp = {
  organizationId: string;
  /** Of the business account. */
  accountId: string;
  appSecret: string;
  verifyToken: string;
};

const callbackTokenPattern = /^[\w-]{32}$/;

/** Null for a token that is nobody's, or of an organization without an app, or whose account cannot be read. */
export async function findOwnApp(
  tools: { secrets: Secrets },
  connection: Connection,
  callbackToken: string,
): Promise<OwnApp | null> {
  if (!callbackTokenPattern.test(callbackToken)) return null;
  const row = await store.findAccountByCallbackToken(connection, callbackToken);
  if (row === null) return null;
  const { content } = await openRow(tools.secrets, row);
  if (content === 'unreadable' || content.ownApp === null) return null;
  const { organization_id: organizationId, business_account_id: accountId } = row;
  return { organizationId, accountId, ...content.ownApp };
}

async function openRow(
  secrets: Secrets,
  row: store.AccountRow,
): Promise<{ content: AccountContent | 'unreadable'; isKeyUnknown: boolean }> {
  try {
    const opened = await secrets.decryptInSteps(row.content_sealed, sealContext(row.id));
    const content = JSON.parse(opened.toString('utf8')) as AccountContent; // What `setAccount` wrote.
    return { content, isKeyUnknown: false };
  } catch (cause) {
    // Of the look for new keys: it says nothing of this one.
    if (cause instanceof DatabaseUnavailableError) throw cause;
    return { content: 'unreadable', isKeyUnknown: cause instanceof UnknownKeyError };
  }
}

function sealContext(id: string): string {
  return `chat-app account ${id}`;
}
