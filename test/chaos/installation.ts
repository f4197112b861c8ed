import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer as createTcpServer, type AddressInfo } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Client } from 'pg';
import { createApiKey, createOrganization, updateOrganization } from '../../src/accounts/accounts.ts';
import { addSuppressions } from '../../src/audience/audience.ts';
import { makeVapidPair, setCredentials } from '../../src/devices/devices.ts';
import { createDefinition } from '../../src/events/definitions.ts';
import { verifyByOperator } from '../../src/domains/domains.ts';
import type { TemplateContent } from '../../src/channels/chatapp/template.ts';
import { type AccountTools, setAccount } from '../../src/chat-templates/chat-templates.ts';
import { insertTemplate } from '../../src/chat-templates/store.ts';
import { dateOf, systemClock } from '../../src/platform/clock.ts';
import { createIds } from '../../src/platform/ids.ts';
import {
  type DatabaseAddress,
  DatabaseUnavailableError,
  openDatabase,
  unpreparedStatement,
} from '../../src/platform/postgres/database.ts';
import { startEmbeddedPostgres } from '../../src/platform/postgres/embedded.ts';
import { migrate } from '../../src/platform/postgres/migrate.ts';
import { stopPostgres } from '../support/stopped-postgres.ts';
import { takeUpTestSecret } from '../support/taken-up-secret.ts';
import { addSender, approveSender, type SenderTools } from '../../src/senders/senders.ts';
import { mountSmallDisk, type SmallDisk } from './disk.ts';
import { chaosEvent } from './load.ts';
import { createServer, type Server } from './servers.ts';
import { type Sink, startSink } from './sink.ts';

export type Sender = {
  organizationId: string;
  key: string;
  domain: string;
  /** Whom its texts are from. */
  textsFrom: string;
  chatApp: ChatAppSender;
};

/** What an organization is at the provider of chat-app messages. */
export type ChatAppSender = {
  businessAccountId: string;
  phoneNumberId: string;
  accessToken: string;
  /** Below the URL of the API, where the provider reports, and the secret that signs it. */
  callbackPath: string;
  appSecret: string;
};

/** Of the installation's own app at the provider of chat-app messages. */
export const chatAppSecret = 'of the app of the installation';

/** Approved templates, of the same names in every organization. */
export const chatTemplates = { notice: 'chaos_notice', code: 'chaos_code' } as const;

/** Everything that a run needs, on a fresh data directory: PostgreSQL in full durability, processes, and a sink. */
export type Installation = {
  directory: string;
  apiUrl: string;
  senders: [Sender, ...Sender[]];
  /** No organization may ever write to these. */
  suppressed: [string, ...string[]];
  api: Server;
  workers: [Server, Server];
  sink: Sink;
  databaseAddress: DatabaseAddress;
  /** That of the data directory, if it was asked for and could be had. */
  disk: SmallDisk | null;
  /** Waits for at most a minute while PostgreSQL cannot be reached. */
  ask: <Row>(text: string, values?: readonly unknown[]) => Promise<Row[]>;
  /** For locks; the caller ends it. */
  connectAlone: () => Promise<Client>;
  /** `kill -9` of the server; resolves with the time, in epoch milliseconds, at which a new one took a connection. */
  killPostgres: () => Promise<number>;
  /** Stops every process of PostgreSQL where it stands; the result lets them go on. */
  stopPostgres: () => Promise<() => void>;
  /** Ends every process; a second call changes nothing. The directory stays only if it is wanted as evidence. */
  remove: (keepDirectory: boolean) => Promise<void>;
};

const secret = 'a secret of the fault injection, and of nothing else';
const sendersCount = 3;
const suppressedCount = 20;
const quotaMax = 100_000_000;

/** `prepare` may start more, before the processes, and returns settings for them. */
export async function createInstallation(
  prepare: (
    directory: string,
    reached: { apiUrl: string; senders: readonly Sender[] },
  ) => Promise<Readonly<Record<string, string>>> = () => Promise.resolve({}),
  { hasSmallDisk }: { hasSmallDisk: boolean } = { hasSmallDisk: false },
): Promise<Installation> {
  const directory = await mkdtemp(path.join(os.tmpdir(), 'postillion-chaos-'));
  // As root, PostgreSQL runs as another user, which needs to enter this directory.
  await chmod(directory, 0o711);
  const dataDirectory = path.join(directory, 'data');
  const disk = hasSmallDisk ? await mountSmallDisk(dataDirectory) : null;
  const postgres = await startEmbeddedPostgres({ dataDirectory });
  const database = openDatabase({ address: postgres.connection, connectionsMax: 4 });
  await migrate(database);

  const secrets = await takeUpTestSecret(database, secret);
  const tools = { database, clock: systemClock, newId: createIds(systemClock), secrets };
  const suppressed = Array.from({ length: suppressedCount }, (_none, index) => `gone-${index}@example.com`);
  const senders: Sender[] = [];
  for (let index = 1; index <= sendersCount; index += 1) {
    const domain = `chaos-${index}.test`;
    const { id: organizationId } = await createOrganization(tools, domain);
    // The last one has a quota, which is counted in another way.
    const quota =
      index === sendersCount
        ? { quotas: { email: quotaMax, sms: quotaMax, push: quotaMax, chatapp: quotaMax } }
        : {};
    await updateOrganization(tools, organizationId, {
      requestsPerWindow: 2_000_000_000,
      eventsPerWindow: 2_000_000_000,
      ...quota,
    });
    await createDefinition({ ...tools, findReadFields: () => Promise.resolve([]) }, organizationId, {
      name: chaosEvent,
    });
    await verifyByOperator(tools, { organizationId, name: domain });
    await setCredentials(tools, organizationId, makeVapidPair(), { replacesPair: false });
    await addSuppressions(
      database,
      tools,
      'email',
      suppressed.map((address) => ({ organizationId, address, reason: 'operator' as const })),
    );
    const key = { organizationId, name: 'Chaos', scopes: ['full_access'], expiresAt: null };
    const textsFrom = await addTextSender(tools, organizationId, index);
    const chatApp = await addChatAppAccount(tools, organizationId, index);
    senders.push({ organizationId, key: (await createApiKey(tools, key)).key, domain, textsFrom, chatApp });
  }

  const sink = await startSink(path.join(directory, 'deliveries.log'));
  const port = await findFreePort();
  const apiUrl = `http://127.0.0.1:${port}`;
  const environment = {
    POSTILLION_DATA_DIR: dataDirectory,
    POSTILLION_SECRET: secret,
    POSTILLION_EMAIL_PROVIDER: 'smtp',
    // The recipients' domains are in no DNS.
    POSTILLION_ADDRESS_CHECKS: 'off',
    POSTILLION_SMTP_URL: `smtp://127.0.0.1:${sink.port}?connections=8&tls=off`,
    PORT: `${port}`,
    ...(await prepare(directory, { apiUrl, senders })),
  };
  const server = (role: 'api' | 'worker', name: string) =>
    createServer({ role, environment, logFile: path.join(directory, `${name}.log`) });
  const servers = [server('api', 'api'), server('worker', 'worker-1'), server('worker', 'worker-2')] as const;
  const [api, ...workers] = servers;
  let removal: Promise<void> | null = null;
  let letPostgresGoOn: (() => void) | null = null;
  const connectAlone = () => database.connectAlone('chaos');

  return {
    directory,
    apiUrl,
    senders: senders as [Sender, ...Sender[]], // There are `sendersCount`.
    suppressed: suppressed as [string, ...string[]],
    api,
    workers,
    sink,
    databaseAddress: postgres.connection,
    disk,
    connectAlone,
    ask: <Row>(text: string, values: readonly unknown[] = []) =>
      untilItSucceeds(() => database.rows(unpreparedStatement<Row>(text), values)),
    killPostgres: async () => {
      const pidFile = await readFile(path.join(dataDirectory, 'postgres/cluster/postmaster.pid'), 'utf8');
      process.kill(Number(pidFile.split('\n')[0]), 'SIGKILL');
      const connection = await untilItSucceeds(connectAlone);
      const readyAtMs = Date.now();
      await connection.end().catch(() => undefined);
      return readyAtMs;
    },
    stopPostgres: async () => {
      letPostgresGoOn = await stopPostgres(dataDirectory);
      return letPostgresGoOn;
    },
    remove: (keepDirectory) => {
      removal ??= (async () => {
        letPostgresGoOn?.();
        await Promise.all(servers.map((each) => each.kill()));
        await sink.stop();
        await database.close();
        await postgres.stop();
        await disk?.remove();
        if (!keepDirectory) await rm(directory, { recursive: true, force: true });
      })();
      return removal;
    },
  };
}

/** The first has a number, the others names. */
async function addTextSender(tools: SenderTools, organizationId: string, index: number): Promise<string> {
  const name = index === 1 ? '14155550100' : `Chaos ${index}`;
  const added = await addSender(tools, { organizationId, name, type: null });
  if (added.kind !== 'added') throw new Error(`the sender ${name} is ${added.kind}`);
  await approveSender(tools, added.sender.id);
  return name;
}

/** The last organization has an app of its own at the provider. Both templates were approved before the run. */
async function addChatAppAccount(
  tools: AccountTools,
  organizationId: string,
  index: number,
): Promise<ChatAppSender> {
  const ownSecret = index === sendersCount ? `of-the-app-of-${index}` : null;
  const account = {
    businessAccountId: `1000${index}`,
    phoneNumberId: `2000${index}`,
    accessToken: `token-of-${index}`,
  };
  const { businessAccountId, phoneNumberId, accessToken } = account;
  const set = await setAccount(tools, organizationId, {
    businessAccountId,
    phoneNumberIds: [phoneNumberId],
    accessToken,
    ownApp: ownSecret === null ? null : { appSecret: ownSecret, verifyToken: 'verified' },
  });
  if (set.kind !== 'set') throw new Error(`the account of organization ${index} is ${set.kind}`);
  await addTemplates(tools, organizationId);
  return {
    ...account,
    callbackPath: `/callbacks/whatsapp${set.callbackToken === null ? '' : `/${set.callbackToken}`}`,
    appSecret: ownSecret ?? chatAppSecret,
  };
}

async function addTemplates({ database, clock, newId }: AccountTools, organizationId: string): Promise<void> {
  const notice: TemplateContent = {
    kind: 'written',
    components: [
      { type: 'header', text: 'Order {{order_number}}' },
      { type: 'body', text: 'Hello {{first_name}}, it is on its way.' },
      {
        type: 'buttons',
        buttons: [{ type: 'url', text: 'Track', url: 'https://example.com/t/{{track_id}}' }],
      },
    ],
    examples: { order_number: '1', first_name: 'Ana', track_id: 'a' },
  };
  const code: TemplateContent = {
    kind: 'code',
    addSecurityRecommendation: true,
    codeExpirationMinutes: 15,
    buttonText: 'Copy',
  };
  const templates = [
    { name: chatTemplates.notice, category: 'utility', content: notice },
    { name: chatTemplates.code, category: 'authentication', content: code },
  ] as const;
  for (const template of templates) {
    const key = { organizationId, id: newId() };
    const at = dateOf(clock.nowMs());
    await insertTemplate(database, { ...key, ...template, language: 'en_US', at });
    await database.rows(
      unpreparedStatement(
        `update chat_templates
         set status = 'approved', provider_state = 'approved', provider_template_id = id, reviewed_at = created_at,
           next_step = null, due_at = null
         where organization_id = $1 and id = $2`,
      ),
      [key.organizationId, key.id],
    );
  }
}

const patience = { pauseMs: 20, limitMs: 60_000 };

/** Waits while PostgreSQL is away; any other failure is the caller's at once. */
async function untilItSucceeds<Value>(attempt: () => Promise<Value>): Promise<Value> {
  const startedAtMs = performance.now();
  for (;;) {
    try {
      return await attempt();
    } catch (cause) {
      const isPassing = cause instanceof DatabaseUnavailableError;
      if (!isPassing || performance.now() - startedAtMs > patience.limitMs) throw cause;
      await delay(patience.pauseMs);
    }
  }
}

function findFreePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createTcpServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => {
        resolve(port);
      });
    });
  });
}
