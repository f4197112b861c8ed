/**
 * A whole installation in this process, for tests that cross rooms: a database of its own, the API and a key, beside an
 * organization whose data clash with those of the test (neighbour.ts).
 */
import { setTimeout as delay } from 'node:timers/promises';
import { createApiKey, createOrganization } from '../../src/accounts/accounts.ts';
import { type Config, readConfig } from '../../src/config.ts';
import { sandboxDomain, verifyByOperator } from '../../src/domains/domains.ts';
import { sealKeyPair } from '../../src/domains/key-pair.ts';
import { insertDomain } from '../../src/domains/store.ts';
import { type Clock, now, systemClock } from '../../src/platform/clock.ts';
import { createResolver } from '../../src/platform/dns/dns.ts';
import type { HttpLimits } from '../../src/platform/http/server.ts';
import { createValidation } from '../../src/platform/http/validation.ts';
import { createIds, type NewId } from '../../src/platform/ids.ts';
import { type Log, silentLog } from '../../src/platform/log.ts';
import {
  type Database,
  type DatabaseAddress,
  DatabaseUnavailableError,
  openDatabase,
} from '../../src/platform/postgres/database.ts';
import { createPartitions, withPartitionsOnDemand } from '../../src/platform/postgres/partitions.ts';
import { admitServingUser } from '../../src/platform/postgres/serving-role.ts';
import { createSecrets, type Secrets } from '../../src/platform/secrets.ts';
import { type ApiServer, listRoutes, startApi } from '../../src/roles/api.ts';
import { type Installation, instanceHostsOf } from '../../src/installation/opening.ts';
import { fieldRules } from '../../src/roles/field-rules.ts';
import { textFormats } from '../../src/roles/text-formats.ts';
import { startWorker, type Worker } from '../../src/roles/worker.ts';
import { createErrorCheck, type ErrorCheck } from './listed-errors.ts';
import { nextDkimKeyPair } from './dkim-key-pairs.ts';
import { findErasedContacts } from './erased-contacts.ts';
import { findUntoldChanges } from './untold-changes.ts';
import { findHeld, type MadeByHand, sweepDatabase } from './sweep.ts';
import { addressOfRequests, createTestDatabase } from './test-database.ts';
import { watchTenantWall } from './wall-watch.ts';

/**
 * Settings are those of the program, less what depends on the machine: with `smtpUrl` mail leaves by SMTP, without
 * it goes into the sandbox.
 */
export type TestServerOptions = Partial<Omit<Config, 'providerSettings'>> & {
  smtpUrl?: string;
  providerSettings?: Partial<Config['providerSettings']>;
  /** Where its lines go; nowhere unless given. */
  log?: Log;
  /** Also deliver what is accepted. Without it everything stays in the queue. */
  worker?: boolean;
  clock?: Clock;
  /** In the order of time unless given. */
  newId?: NewId;
  limits?: Partial<HttpLimits>;
  /** Instead of a database of the run's own server; the caller removes it. */
  database?: DatabaseAddress;
  secrets?: Secrets;
  /** Rows that the test writes by itself and the sweep at the end would take for faults; read when the server stops. */
  madeByHand?: readonly MadeByHand[];
};

export type TestServer = {
  /** For example `http://127.0.0.1:41873`; the API is below its `/v1`. */
  url: string;
  /** May send from `postillion.test`. */
  organizationId: string;
  /** Of that organization, with `full_access`. */
  key: string;
  installation: Installation;
  /** What the API has instead: of the user that may do no more than requests need. */
  databaseOfRequests: Database;
  /**
   * Asks with the key, unless `headers` hold another `authorization`. Texts and bytes are sent as they are, anything
   * else as JSON, and always as `application/json` unless `headers` say otherwise.
   */
  request: <Body = unknown>(
    method: string,
    path: string,
    body?: unknown,
    headers?: Readonly<Record<string, string>>,
  ) => Promise<TestResponse<Body>>;
  /** Null without `submission` in the options. */
  submission: ApiServer['submission'];
  /** What requests hold of each limit at present. */
  held: ApiServer['held'];
  /** Ends worker and API in good order, looks whether anything is left that must not be, and removes the database. */
  stop: () => Promise<void>;
};

/** `body` is what the JSON says, or the text itself where it is none. */
export type TestResponse<Body> = { status: number; headers: Headers; body: Body; text: string };

/** Takes about as long as cloning the database, 100 ms. */
export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const {
    worker: hasWorker = false,
    clock = systemClock,
    newId = createIds(clock),
    log = silentLog,
    limits = {},
    secrets = createSecrets(secret),
    database: given,
    madeByHand = [],
    smtpUrl,
    providerSettings,
    ...settings
  } = options;
  const testDatabase = given
    ? { address: given, drop: () => Promise.resolve() }
    : await createTestDatabase({ hasNeighbour: true });
  const database = withPartitionsOnDemand(
    openDatabase({
      address: testDatabase.address,
      connectionsMax: settings.databaseConnectionsMax ?? connectionsMax,
    }),
    clock,
  );
  const databaseOfRequests = withPartitionsOnDemand(
    openDatabase({
      address: addressOfRequests(testDatabase.address),
      servesRequests: true,
      connectionsMax: settings.databaseConnectionsMax ?? connectionsMax,
    }),
    clock,
  );
  const config: Config = {
    ...defaultConfig,
    emailProvider: smtpUrl === undefined ? 'sandbox' : 'smtp',
    ...settings,
    providerSettings: {
      ...defaultConfig.providerSettings,
      ...(smtpUrl !== undefined && { POSTILLION_SMTP_URL: smtpUrl }),
      ...providerSettings,
    },
  };
  const resolver = createResolver({ servers: config.dnsServers, clock });
  const installation: Installation = {
    config,
    database,
    secrets,
    clock,
    newId,
    random: Math.random,
    log,
    resolver,
    hosts: instanceHostsOf(config),
    close: async () => {
      resolver.close();
      await Promise.all([database.close(), databaseOfRequests.close()]);
      await testDatabase.drop();
    },
  };
  try {
    // A database that is given may be on another server.
    await admitServingUser(database);
    // The template has partitions for the time at which it was made, and not for a test's own.
    if (options.clock !== undefined) await createPartitions(database, now(clock));
    const { organizationId, key } = await createSender(installation);
    // Only the program's own statements are watched: tests read tables of all organizations.
    const watch = await watchTenantWall(database);
    const watchOfRequests = await watchTenantWall(databaseOfRequests);
    const api = await startApi(
      { ...installation, database: watchOfRequests.database },
      { drainMs: 0, ...limits },
      validation,
    );
    const worker = hasWorker ? await startWorker({ ...installation, database: watch.database }) : null;
    return {
      url: api.url,
      organizationId,
      key,
      installation,
      databaseOfRequests,
      request: createClient(api.url, key, createErrorCheck(listRoutes(installation))),
      submission: api.submission,
      held: api.held,
      stop: async () => {
        await Promise.all([api.stop(), worker?.stop()]);
        const found = await sweep({ api, worker, database, madeByHand });
        // In a database that is given, another server may go on.
        if (given === undefined) {
          found.push(...(await unlessUnavailable(findUntoldChanges(database))));
          found.push(...(await unlessUnavailable(findErasedContacts(installation))));
        }
        await installation.close();
        found.push(
          ...[...watch.breaches(), ...watchOfRequests.breaches()].map(
            (breach) => `run outside of the second wall, see wall-watch.ts: ${breach}`,
          ),
        );
        if (found.length > 0) throw new Error(found.join('\n'));
      },
    };
  } catch (cause) {
    await installation.close();
    throw cause;
  }
}

/** What a stopped server has left and must not. A handler whose client has left may take another moment. */
async function sweep({
  api,
  worker,
  database,
  madeByHand,
}: {
  api: ApiServer;
  worker: Worker | null;
  database: Database;
  madeByHand: readonly MadeByHand[];
}): Promise<string[]> {
  const held = () => findHeld({ ...api.held(), workerContentBytes: worker?.heldBytes() ?? 0 });
  for (let tries = 1; tries <= heldTriesMax && held().length > 0; tries += 1) await delay(heldPauseMs);
  return [...held(), ...(await unlessUnavailable(sweepDatabase(database, madeByHand)))];
}

/** Some tests take the database away: then nothing is found. */
async function unlessUnavailable(finding: Promise<string[]>): Promise<string[]> {
  return finding.catch((cause: unknown) => {
    if (cause instanceof DatabaseUnavailableError) return [];
    throw cause;
  });
}

const heldTriesMax = 100;
const heldPauseMs = 20;

const secret = 'a secret of the tests, and of nothing else';

/** Test files run side by side on one PostgreSQL, which has a hundred connections. */
const connectionsMax = 5;

/** Compiling schemas would take more time than all else that a server needs to start. */
const validation = createValidation(textFormats, fieldRules);

const defaultConfig: Config = { ...readConfig({ POSTILLION_SECRET: secret, LOG_LEVEL: 'silent' }), port: 0 };

/** An organization with a domain that no other has, and a key of it. */
export async function createSender(
  installation: Installation,
  domain: string = sandboxDomain,
): Promise<{ organizationId: string; key: string }> {
  const organization = await createOrganization(installation, 'Test organization');
  const { key } = await createApiKey(installation, {
    organizationId: organization.id,
    name: 'Test key',
    scopes: ['full_access'],
    expiresAt: null,
  });
  // Registered here with a ready key: making one, as `verifyByOperator` would, takes longer than all else.
  await insertDomain(installation.database, {
    organizationId: organization.id,
    id: installation.newId(),
    name: domain,
    returnPathSubdomain: 'send',
    trackingSubdomain: null,
    openTracking: false,
    clickTracking: false,
    dkim: sealKeyPair(installation, nextDkimKeyPair()),
    nextCheckAt: null,
    createdAt: now(installation.clock),
  });
  const verification = await verifyByOperator(installation, {
    organizationId: organization.id,
    name: domain,
  });
  if (verification.kind !== 'verified') throw new Error(`${domain} is ${verification.kind}`);
  return { organizationId: organization.id, key };
}

function createClient(url: string, key: string, checkError: ErrorCheck): TestServer['request'] {
  return async <Body>(
    method: string,
    path: string,
    body?: unknown,
    headers: Readonly<Record<string, string>> = {},
  ) => {
    const isRaw = typeof body === 'string' || body instanceof Uint8Array;
    const response = await fetch(`${url}${path}`, {
      method,
      redirect: 'manual',
      headers: {
        authorization: `Bearer ${key}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: isRaw ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    const { status, headers: answered } = response;
    const parsed = parse(text);
    checkError({ method, path, status, body: parsed });
    // The one who asks says what is expected, and asserts it.
    return { status, headers: answered, body: parsed as Body, text };
  };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text;
  }
}
