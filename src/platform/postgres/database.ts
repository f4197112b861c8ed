import pg from 'pg';
import { type Clock, sleep, systemClock, within } from '../clock.ts';
import { createFairPlaces } from '../fair-places.ts';
import { type AnswerWatch, createAnswerWatch, type ProbeResult } from './answer-watch.ts';
import { querySequence } from './sequence.ts';

/** A statement with a name is prepared once a connection; `Row` is the shape of what it returns. */
export type Statement<Row> = { readonly text: string; readonly name?: string; readonly row?: Row };

/**
 * A hot statement: PostgreSQL plans it once a connection, which halves its cost there. `name` must be unique in
 * the program and at most 63 characters.
 */
export function statement<Row>(name: string, text: string): Statement<Row> {
  return { name, text };
}

/** A statement that is planned anew at each run: for rare ones, and where the best plan depends on the values. */
export function unpreparedStatement<Row>(text: string): Statement<Row> {
  return { text };
}

/** A statement with the values of its parameters. */
export type Bound<Row> = { statement: Statement<Row>; values: readonly unknown[] };

/** Something that runs statements: the pool, or one transaction. */
export type Connection = {
  rows: <Row>(statement: Statement<Row>, values?: readonly unknown[]) => Promise<Row[]>;
};

export type Transaction = Connection & {
  /**
   * Commits now. Sent together with the last statements (`Promise.all`), it spares a round trip; if one of them
   * fails, so does the commit. Nothing may follow it.
   */
  commit: () => Promise<void>;
  /**
   * How long each of the statements that follow in this transaction may take, before PostgreSQL ends it; null is
   * without limit.
   */
  allowTime: (statementMaxMs: number | null) => Promise<void>;
  /**
   * Runs a part of the transaction inside the second wall (see `Database`): for work that learns only by a statement of
   * its own which organizations it serves. Nothing that is not part of `work` may be sent meanwhile. The settings that
   * `work` makes for the transaction stay.
   */
  asOrganizations: <Result>(
    organizationIds: readonly string[],
    work: () => Promise<Result>,
  ) => Promise<Result>;
};

export type Database = Connection & {
  /** Runs `work` in a transaction; whatever it throws rolls back. */
  transaction: <Result>(work: (transaction: Transaction) => Promise<Result>) => Promise<Result>;
  /** Like `transaction`, for hot statements that find each of their rows by an index: they are never planned again. */
  transactionByIndex: <Result>(work: (transaction: Transaction) => Promise<Result>) => Promise<Result>;
  /**
   * Like `transaction`, inside the second wall: under a role that row-level security holds to the rows of these
   * organizations, whatever the statements say. Everything that works on data of organizations does it here, be it for
   * a request or in the background, but for the few statements that serve all of them at once: finding who has work,
   * claiming and settling hand-offs, finding whose a number or a provider's id is.
   *
   * Of an organization whose deletion is under way, or over, it sees nothing, as if it were not there. What writes a row for it
   * rejects with an OrganizationDeletedError.
   */
  asOrganizations: <Result>(
    organizationIds: readonly string[],
    work: (transaction: Transaction) => Promise<Result>,
  ) => Promise<Result>;
  /** `asOrganizations` with the plans of `transactionByIndex`. */
  asOrganizationsByIndex: <Result>(
    organizationIds: readonly string[],
    work: (transaction: Transaction) => Promise<Result>,
  ) => Promise<Result>;
  /**
   * Statements of which none needs the answer of another, as one transaction: PostgreSQL gets all of them at once and
   * answers once, when they are committed, with the rows of each. Each sees what those before it did, and what others
   * have committed until it begins. With the plans of `transactionByIndex`, and inside the second wall if organizations
   * are given.
   */
  together: <Rows extends readonly unknown[]>(
    organizationIds: readonly string[] | null,
    statements: { readonly [Index in keyof Rows]: Bound<Rows[Index]> },
  ) => Promise<{ [Index in keyof Rows]: Rows[Index][] }>;
  /** A connection of its own, outside the pool: for advisory locks and `listen`. The caller ends it. */
  connectAlone: (applicationName: string) => Promise<pg.Client>;
  /** Runs a statement on such a connection, which ends, as those of the pool do, if PostgreSQL does not answer in time. */
  rowsAlone: <Row>(
    client: pg.Client,
    statement: Statement<Row>,
    values?: readonly unknown[],
  ) => Promise<Row[]>;
  /**
   * Runs a statement that waits for a lock, for as long as that takes. The connection ends once PostgreSQL says that it
   * is not at work on the statement any more, and no answer has come: the network has forgotten it. While PostgreSQL
   * answers no connection it is left alone.
   */
  waitAlone: <Row>(
    client: pg.Client,
    statement: Statement<Row>,
    values?: readonly unknown[],
  ) => Promise<Row[]>;
  /**
   * Ends such a connection, of which no statement may take longer than `heartbeatMs`, once it does not answer although
   * PostgreSQL does: the network has forgotten it, and it would be silent for ever. While PostgreSQL answers no
   * connection it is left alone, since what it holds is still held.
   */
  watchOver: (client: pg.Client) => void;
  /**
   * Whether PostgreSQL finds no room on its disk. Asks it by a trial, which takes some milliseconds and leaves rows in its
   * catalogue, and so only once a statement has failed for it, until a trial succeeds.
   */
  isOutOfSpace: () => Promise<boolean>;
  /** The connections of the pool at this moment, and how many callers wait for one. */
  connections: () => { used: number; idle: number; waiting: number; max: number };
  close: () => Promise<void>;
};

/** Where PostgreSQL is: a URL, or the private socket of the embedded one. */
export type DatabaseAddress = { url: string } | { host: string; user: string; database: string };

export type DatabaseOptions = {
  address: DatabaseAddress;
  /** Of the same database, for connections of their own, where a pooler that keeps no session stands before `address`. */
  sessionAddress?: DatabaseAddress;
  /** Connections in the pool. Fewer: requests wait for each other. More: PostgreSQL's memory, and no more speed. */
  connectionsMax: number;
  applicationName?: string;
  /**
   * Whether it is used for requests alone. Inside the second wall they run as `postillion_request`, which may do no more
   * than requests need (serving-role.ts); all else there runs as `postillion_tenant`.
   */
  servesRequests?: boolean;
  /** False where a pooler in transaction mode stands between, which loses prepared statements. */
  usePreparedStatements?: boolean;
  clock?: Clock;
  /** Called when PostgreSQL stops answering, and when it answers again. */
  onSilence?: (isSilent: boolean) => void;
};

/** No connection could be had, or it broke, or PostgreSQL does not answer. */
export class DatabaseUnavailableError extends Error {
  override readonly name = 'DatabaseUnavailableError';
  /** False where certainly nothing was changed: no statement was sent, or a transaction without its commit. */
  readonly mayBeCarriedOut: boolean;

  constructor(message: string, options: { cause?: unknown; mayBeCarriedOut?: boolean } = {}) {
    super(message, 'cause' in options ? { cause: options.cause } : {});
    this.mayBeCarriedOut = options.mayBeCarriedOut ?? true;
  }
}

/** A row was to be written for an organization that is being deleted, in a transaction of its own. Nothing was written. */
export class OrganizationDeletedError extends Error {
  override readonly name = 'OrganizationDeletedError';
  constructor(options: { cause: unknown }) {
    super('the organization is being deleted', options);
  }
}

/** The NOLOGIN role that migrations create: it owns nothing and does not bypass row-level security. */
export const tenantRole = 'postillion_tenant';

/** Another such role, for requests, and the one whose members serve them (serving-role.ts). */
export const requestRole = 'postillion_request';
export const servingRole = 'postillion_serving';

/** A waiting request is better refused with 503 than left hanging. */
const connectTimeoutMs = 3_000;
/** For its turn at a connection it may wait longer: PostgreSQL answers, and serves others meanwhile. */
const turnTimeoutMs = 10_000;

/** Nothing on a request path may take long; jobs that may raise it for their own transaction. */
const statementTimeoutMs = 30_000;

/**
 * How much longer than the time limit of a statement its answer is waited for, on a connection that alone is silent:
 * the largest message has to get there first, even over a slow network.
 */
const answerGraceMs = 30_000;

const sessionSettings = [
  `statement_timeout=${statementTimeoutMs}`,
  'lock_timeout=10000',
  // A process that stops inside a transaction must not hold its locks for ever.
  'idle_in_transaction_session_timeout=60000',
  // What a machine that lost its power held is free within half a minute, and not after the system's two hours.
  'tcp_keepalives_idle=15',
  'tcp_keepalives_interval=5',
  'tcp_keepalives_count=3',
  'tcp_user_timeout=30000',
];

/** The same from this side: with Node.js's ten probes a second apart, a cut connection ends after 20 s without use. */
const keepAlive = { keepAlive: true, keepAliveInitialDelayMillis: 10_000 };

export function openDatabase(options: DatabaseOptions): Database {
  const usePreparedStatements = options.usePreparedStatements ?? true;
  const entry = options.servesRequests === true ? entryOfRequests : entryOfTenants;
  const clock = options.clock ?? systemClock;
  let isIdleAsked = false;
  /** On an open connection of a pool: a new one may be refused although all is well. */
  const askIdle = async (): Promise<ProbeResult> => {
    const idle = pools.find(({ connections }) => connections.idleCount > 0);
    if (isIdleAsked || idle === undefined) return 'unclear';
    isIdleAsked = true;
    try {
      const client = await idle.connections.connect();
      const cause = await ask(watch, client, { text: 'select 1' }).then(
        () => undefined,
        (error: unknown) => error,
      );
      client.release(cause !== undefined);
      return cause === undefined || cause instanceof pg.DatabaseError ? 'answers' : 'unclear';
    } catch {
      return 'unclear';
    } finally {
      isIdleAsked = false;
    }
  };
  const probe = async (): Promise<ProbeResult> => {
    const [result, idle] = await Promise.all([
      askOnce(options.address, clock),
      within<ProbeResult, ProbeResult>(clock, probeMaxMs, askIdle(), 'unclear'),
    ]);
    return idle === 'answers' ? idle : result;
  };
  const watch = createAnswerWatch<pg.ClientBase>({
    clock,
    probe,
    cut: (client) => {
      end(client, new DatabaseUnavailableError('PostgreSQL did not answer in time'));
    },
    answerMaxMs: statementTimeoutMs + answerGraceMs,
    onChange: options.onSilence ?? (() => undefined),
  });
  let hasRunOutOfSpace = false;
  /** Connections whose session plans by index, which no transaction on them has to ask for. */
  const plannedByIndex = new WeakSet<pg.ClientBase>();
  /** No caller has to wait again for what the last one has found out. */
  const refuseWhileSilent = () => {
    if (watch.isSilent()) throw new Error('PostgreSQL does not answer');
  };
  const openPool = (connectionsMax: number, plans: Plans): Pool => {
    const opened = new pg.Pool({
      ...clientConfig(options.address, {
        applicationName: options.applicationName ?? 'postillion',
        settings: plans === 'by_index' ? [...sessionSettings, ...settingsByIndex] : sessionSettings,
      }),
      ...keepAlive,
      max: connectionsMax,
      pipeline: true,
      connectionTimeoutMillis: connectTimeoutMs,
      idleTimeoutMillis: 60_000,
      ...(plans === 'by_index' && {
        // And not by `verify`: a client that is verified when nobody waits for it any more is never released.
        // eslint-disable-next-line @typescript-eslint/no-misused-promises -- the pool waits for it, unlike its type
        onConnect: async (client: pg.ClientBase) => {
          // A pooler may have left them out.
          const { rows: found } = await ask(watch, client, { text: isPlannedByIndex });
          if ((found as { is_so: boolean }[])[0]?.is_so === true) plannedByIndex.add(client);
        },
      }),
    });
    // The pool drops a broken idle connection by itself; without a listener Node.js would end the process.
    opened.on('error', () => undefined);
    // Nor may one that breaks between two statements of a transaction: the next statement fails.
    opened.on('connect', (client) => {
      client.on('error', () => undefined);
      // Here all errors come by, whoever sent the statement.
      (client as pg.Client).connection.on('errorMessage', (message: { code?: string }) => {
        if (message.code === diskFull) hasRunOutOfSpace = true;
      });
    });
    const places = createFairPlaces(clock, { placesMax: connectionsMax, waitMaxMs: turnTimeoutMs });
    const leaving = new WeakMap<pg.ClientBase, () => void>();
    opened.on('release', (_cause, client: pg.ClientBase) => {
      leaving.get(client)?.();
      leaving.delete(client);
    });
    return {
      connections: opened,
      waiting: () => places.waiting() + opened.waitingCount,
      connect: async (organizationIds) => {
        let leave: (() => void) | null = null;
        try {
          refuseWhileSilent();
          leave = await places.take(holderOf(organizationIds));
          if (leave === null) throw new Error('all connections were in use');
          refuseWhileSilent();
          const client = await opened.connect();
          leaving.set(client, leave);
          return client;
        } catch (cause) {
          leave?.();
          throw noConnection(cause);
        }
      },
    };
  };
  const byIndexConnectionsMax =
    options.connectionsMax < splitConnectionsMin ? 0 : Math.ceil(options.connectionsMax / 2);
  const pool = openPool(options.connectionsMax - byIndexConnectionsMax, 'plainly');
  const poolByIndex = byIndexConnectionsMax === 0 ? pool : openPool(byIndexConnectionsMax, 'by_index');
  const pools = [...new Set([pool, poolByIndex])];

  const prepare = <Row>({ name, text }: Statement<Row>) =>
    usePreparedStatements && name !== undefined ? { name, text } : { text };

  /** The statement that a transaction begins with, if it needs one. */
  const openingOf = (client: pg.ClientBase, plans: Plans, organizationIds: readonly string[] | null) => {
    const isPlanned = plans === 'plainly' || plannedByIndex.has(client);
    if (organizationIds === null) return isPlanned ? null : { ...prepare(planByIndex), values: [] };
    return {
      ...prepare(isPlanned ? entry.plainly : entry.byIndex),
      values: [organizationIds.join(',')],
    };
  };

  /**
   * PostgreSQL goes on with what it was sent before the connection broke, the commit among it: whoever looks up what
   * became of a transaction must not look too early. Gives up where nothing can be found out.
   */
  const whenSessionIsOver = async (client: pg.ClientBase): Promise<void> => {
    const { processID: pid } = client as pg.Client & { processID: number | null }; // Its type leaves it out.
    for (let tries = 1; tries <= sessionTriesMax; tries += 1) {
      const [found] = await rows(sessionUnderWay, [pid]).catch(() => []);
      if (found?.is_under_way !== true) return;
      await sleep(clock, sessionPauseMs);
    }
  };

  const begin = async <Result>(
    plans: Plans,
    organizationIds: readonly string[] | null,
    work: (transaction: Transaction) => Promise<Result>,
  ): Promise<Result> => {
    const client = await (plans === 'by_index' ? poolByIndex : pool).connect(organizationIds);
    shareWrite(client);
    // Sent without waiting: if it fails, so does every statement after it on the same connection.
    let failure: Error | null = null;
    const note = (cause: unknown) => {
      const converted = asDatabaseError(cause);
      if (converted instanceof Error && sqlState(converted) !== inFailedTransaction) failure = converted;
    };
    let served = organizationIds;
    const enter = (ids: readonly string[] | null) => {
      const entering =
        ids === null ? prepare(leaveTenantRole) : { ...prepare(entry.plainly), values: [ids.join(',')] };
      served = ids ?? served;
      ask(watch, client, entering).catch(note);
    };
    ask(watch, client, { text: 'begin' }).catch(note);
    const opening = openingOf(client, plans, organizationIds);
    if (opening !== null) ask(watch, client, opening).catch(note);

    let entered = organizationIds;
    let isCommitSent = false;
    let isCommitted = false;
    const commit = async () => {
      isCommitSent = true;
      const { command } = await ask(watch, client, { text: 'commit' }).catch((cause: unknown) => {
        throw asDatabaseError(cause);
      });
      // PostgreSQL answers ROLLBACK to the commit of a transaction in which a statement failed.
      if (command !== 'COMMIT') throw failure ?? new Error('the transaction was rolled back by PostgreSQL');
      isCommitted = true;
    };
    const transaction: Transaction = {
      rows: async <Row>(given: Statement<Row>, values: readonly unknown[] = []) => {
        try {
          return await runOn<Row>(watch, client, prepare(given), values);
        } catch (cause) {
          // Of statements that were sent together, any may be the first whose failure its caller sees: the one that
          // says why, or one that PostgreSQL only skipped after it.
          note(cause);
          throw failure ?? cause;
        }
      },
      commit,
      allowTime: async (statementMaxMs) => {
        watch.allow(client, statementMaxMs === null ? Infinity : statementMaxMs + answerGraceMs);
        await transaction.rows(limitStatements, [`${statementMaxMs ?? 0}`]);
      },
      asOrganizations: async (ids, part) => {
        const outer = entered;
        enter(ids);
        entered = ids;
        try {
          return await part();
        } finally {
          // Where a statement has failed this fails as well, and nothing follows it.
          enter(outer);
          entered = outer;
        }
      },
    };

    try {
      const result = await work(transaction);
      if (!isCommitted) await commit();
      client.release();
      return result;
    } catch (cause) {
      if (isCommitted) {
        client.release();
      } else {
        // A connection whose rollback fails is of no further use.
        await ask(watch, client, { text: 'rollback' }).then(
          () => {
            client.release(isReadOnlyFailure(cause));
          },
          () => {
            client.release(true);
          },
        );
      }
      const converted = await explainRefusal(asDatabaseError(cause), served);
      if (!isCommitSent) throw asNotCarriedOut(converted);
      if (converted instanceof DatabaseUnavailableError) await whenSessionIsOver(client);
      throw converted;
    } finally {
      watch.allow(client, null);
    }
  };

  const rows: Database['rows'] = async <Row>(given: Statement<Row>, values: readonly unknown[] = []) => {
    const client = await pool.connect(null);
    try {
      const found = await runOn<Row>(watch, client, prepare(given), values);
      client.release();
      return found;
    } catch (cause) {
      client.release(cause instanceof DatabaseUnavailableError);
      throw cause;
    }
  };
  /** Of what row-level security has refused: whether that is since an organization is being deleted. */
  const explainRefusal = async (cause: unknown, organizationIds: readonly string[] | null) => {
    if (sqlState(cause) !== insufficientPrivilege || organizationIds === null) return cause;
    const deleted = await rows(selectDeleted, [organizationIds]).catch(() => []);
    return deleted.length > 0 ? new OrganizationDeletedError({ cause }) : cause;
  };
  const together: Database['together'] = async (organizationIds, statements) => {
    const client = await poolByIndex.connect(organizationIds);
    shareWrite(client);
    const opening = openingOf(client, 'by_index', organizationIds);
    const answered = watch.sent(client);
    try {
      const results = await querySequence(client, [
        ...(opening === null ? [] : [opening]),
        ...statements.map(({ statement: given, values }) => ({ ...prepare(given), values })),
      ]);
      answered(true);
      client.release();
      return results.slice(opening === null ? 0 : 1) as never; // In the order of the statements, whose rows these are.
    } catch (cause) {
      const isAnswered = cause instanceof pg.DatabaseError;
      answered(isAnswered);
      client.release(!isAnswered || isReadOnlyFailure(cause));
      const converted = await explainRefusal(asDatabaseError(cause), organizationIds);
      if (isReadOnlyFailure(cause)) throw asNotCarriedOut(converted);
      if (converted instanceof DatabaseUnavailableError) await whenSessionIsOver(client);
      throw converted;
    }
  };
  const isOutOfSpace = async () => {
    if (hasRunOutOfSpace)
      hasRunOutOfSpace = await findsNoSpace({ transaction: (work) => begin('plainly', null, work) });
    return hasRunOutOfSpace;
  };
  const rowsAlone: Database['rowsAlone'] = (client, { text }, values = []) =>
    runOn(watch, client, { text }, values);

  return {
    rows,
    transaction: (work) => begin('plainly', null, work),
    transactionByIndex: (work) => begin('by_index', null, work),
    asOrganizations: (organizationIds, work) => begin('plainly', organizationIds, work),
    asOrganizationsByIndex: (organizationIds, work) => begin('by_index', organizationIds, work),
    together,
    isOutOfSpace,
    connectAlone: async (applicationName) => {
      const client = new pg.Client({
        ...clientConfig(options.sessionAddress ?? options.address, {
          applicationName,
          settings: sessionSettings,
        }),
        ...keepAlive,
        connectionTimeoutMillis: connectTimeoutMs,
      });
      client.on('error', () => undefined);
      try {
        await client.connect();
      } catch (cause) {
        throw noConnection(cause);
      }
      return client;
    },
    rowsAlone,
    waitAlone: async <Row>(client: pg.Client, given: Statement<Row>, values: readonly unknown[] = []) => {
      const [session] = await rowsAlone(client, sessionOfConnection);
      const over = new AbortController();
      void keepLooking(client, clock, over.signal, async () => {
        const [found] = await rows(sessionAtWork, [session?.pid]);
        return found?.is_at_work === true;
      });
      try {
        return await runUnwatched(client, given, values);
      } finally {
        over.abort();
      }
    },
    watchOver: (client) => {
      void keepAsking(client, clock, probe);
    },
    connections: () => ({
      used: sumOf(pools, ({ connections: { totalCount, idleCount } }) => totalCount - idleCount),
      idle: sumOf(pools, ({ connections }) => connections.idleCount),
      waiting: sumOf(pools, (each) => each.waiting()),
      max: options.connectionsMax,
    }),
    close: async () => {
      await Promise.all(pools.map(({ connections }) => connections.end()));
    },
  };
}

/**
 * The planner would rather read all of a table that was small when it was last analyzed, and for statements over arrays
 * it finds a plan for just these arrays cheaper, and plans anew each time. Measured in PostgreSQL, on
 * a busy machine: by index a job was claimed in 35 µs instead of 60 to 80, and with the plan kept a lone outcome was
 * written in 0.7 ms instead of 1.9. Operators cost nothing, since the choice between two indexes of a small table would
 * else depend on the height of their trees, or on what it was when the session last looked.
 */
const settingsByIndex = [
  'plan_cache_mode=force_generic_plan',
  'enable_seqscan=off',
  'enable_hashjoin=off',
  'enable_mergejoin=off',
  'cpu_operator_cost=0',
];

type Plans = 'plainly' | 'by_index';

type Pool = {
  connections: pg.Pool;
  /** A connection, in the turn of the organization that it is for; null for what is for none, or not known to be. */
  connect: (organizationIds: readonly string[] | null) => Promise<pg.PoolClient>;
  waiting: () => number;
};

/** What is for several, such as a transaction that their requests share, is as good as for all. */
function holderOf(organizationIds: readonly string[] | null): string | null {
  const [first = null, ...others] = organizationIds ?? [];
  return others.length === 0 ? first : null;
}

function sumOf(pools: readonly Pool[], count: (pool: Pool) => number): number {
  return pools.reduce((sum, pool) => sum + count(pool), 0);
}

/**
 * From this number of connections on, half of them belong to sessions that plan by index from their beginning. Asked for
 * by each transaction, that was five of the twelve statements from the request of a lone mail to its outcome. With fewer
 * connections, work of one kind would wait while those of the other are idle.
 */
const splitConnectionsMin = 8;

const isPlannedByIndex = `select ${settingsByIndex
  .map((setting) => setting.split('='))
  .map(([name, value]) => `current_setting('${name}') = '${value}'`)
  .join(' and ')} as is_so`;

/** For the rest of a transaction. */
const localSettingsByIndex = settingsByIndex
  .map((setting) => setting.split('='))
  .map(([name, value]) => `set_config('${name}', '${value}', true)`)
  .join(', ');

/** In one statement: five of `set local` cost twice as much. */
export const planByIndex = statement('plan_by_index', `select ${localSettingsByIndex}`);

/**
 * Whether the role exists, and the user may enter it, is checked each time, which takes microseconds: it may be gone
 * after a restore, and come back while servers run. Without it row-level security stays off, and `doctor` says so.
 */
export function canEnter(role: typeof tenantRole | typeof requestRole): string {
  return `pg_has_role(
    session_user,
    to_regrole('${role}'),
    -- From PostgreSQL 16 on the creator of a role is a member of it, which alone does not allow to enter it.
    case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end
  )`;
}

const selectDeleted = unpreparedStatement(
  `select id from organizations where id = any ($1::uuid[]) and deletion <> 'requested' limit 1`,
);

/**
 * Enters the first of the roles that may be entered. Both settings last until the end of the transaction; session-wide
 * ones would leak through the pool. The role comes last: within it, no organization is seen that is not named yet.
 */
function createEntry(name: string, roles: readonly Parameters<typeof canEnter>[0][]) {
  const choices = roles.map((role) => `when ${canEnter(role)} then '${role}'`).join(' ');
  const settings = `set_config('postillion.organization_ids', organizations_in_service($1), true),
     set_config('role', case ${choices} else 'none' end, true)`;
  return {
    plainly: statement(`enter_${name}_role`, `select ${settings}`),
    byIndex: statement(`enter_${name}_role_by_index`, `select ${settings}, ${localSettingsByIndex}`),
  };
}

const entryOfTenants = createEntry('tenant', [tenantRole]);
/** Whoever made the one role before the first start, and not the other, has the wall as well. */
const entryOfRequests = createEntry('request', [requestRole, tenantRole]);

/** For what follows a part of a transaction that was held to its organizations. */
const leaveTenantRole = statement(
  'leave_tenant_role',
  "select set_config('role', 'none', true), set_config('postillion.organization_ids', '', true)",
);

const limitStatements = unpreparedStatement("select set_config('statement_timeout', $1, true)");

/** A trivial statement on an open connection that is not answered for this long will not be answered at all. */
const probeMaxMs = 3_000;

/** A refusal is an answer, too, for instance because all connections are taken. */
export async function askOnce(address: DatabaseAddress, clock: Clock): Promise<ProbeResult> {
  const client = new pg.Client(
    clientConfig(address, { applicationName: 'postillion-watch', settings: sessionSettings }),
  );
  client.on('error', () => undefined);
  const asked = client
    .connect()
    .then(() => client.query('select 1'))
    .then((): ProbeResult => 'answers', resultOfFailure);
  const result = await within<ProbeResult, ProbeResult>(clock, probeMaxMs, asked, 'silent');
  client.connection.stream.destroy();
  return result;
}

const refusals = ['ECONNREFUSED', 'ENOENT'];
/** As good as no answer: routers in between report this of a server that is off. */
const unreachables = ['EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH', 'ETIMEDOUT'];

function resultOfFailure(cause: unknown): ProbeResult {
  // For instance too many connections (53300).
  if (cause instanceof pg.DatabaseError) return 'answers';
  // Of a name with several addresses each has its error.
  const causes: unknown[] = cause instanceof AggregateError ? cause.errors : [cause];
  const areAllOf = (codes: readonly string[]) =>
    causes.every((each) => each instanceof Error && 'code' in each && codes.includes(String(each.code)));
  if (areAllOf(refusals)) return 'refuses';
  return areAllOf([...refusals, ...unreachables]) ? 'silent' : 'unclear';
}

/** More often is more statements for nothing; less often, a connection that is gone is found out later. */
const heartbeatMs = 15_000;

/** Runs until the connection has ended. */
async function keepAsking(client: pg.Client, clock: Clock, probe: () => Promise<ProbeResult>): Promise<void> {
  const ended = new AbortController();
  client.once('end', () => {
    ended.abort();
  });
  while (!ended.signal.aborted) {
    try {
      await sleep(clock, heartbeatMs, ended.signal);
    } catch {
      return;
    }
    const heartbeat = { isAnswered: false };
    const note = () => (heartbeat.isAnswered = true);
    const answered = client.query('select 1').then(note, note);
    while (!(await within(clock, probeMaxMs, answered, false))) {
      const result = await probe();
      // Others are answered, and this one meanwhile was not.
      if ((result === 'answers' || result === 'refuses') && !heartbeat.isAnswered)
        end(client, new Error('connection terminated: no answer'));
    }
  }
}

/** Asked of PostgreSQL itself: the number that the connection knows may be a pooler's own. */
const sessionOfConnection = unpreparedStatement<{ pid: number }>('select pg_backend_pid() as pid');

/** Behind a pooler the number is the pooler's own, and nothing is found. */
const sessionUnderWay = unpreparedStatement<{ is_under_way: boolean }>(
  "select exists (select from pg_stat_activity where pid = $1 and state <> 'idle') as is_under_way",
);

/** A transaction of ours that is about to commit takes milliseconds. */
const sessionPauseMs = 50;
const sessionTriesMax = 60;

const sessionAtWork = unpreparedStatement<{ is_at_work: boolean }>(
  "select exists (select from pg_stat_activity where pid = $1 and state = 'active') as is_at_work",
);

/** Runs until the signal aborts. Ends the connection if twice in a row PostgreSQL was not at work on its statement. */
async function keepLooking(
  client: pg.Client,
  clock: Clock,
  signal: AbortSignal,
  isAtWork: () => Promise<boolean>,
): Promise<void> {
  // Once may be a moment before the answer is here.
  let missed = 0;
  while (missed < 2) {
    try {
      await sleep(clock, heartbeatMs, signal);
    } catch {
      return;
    }
    // While PostgreSQL answers no connection, it cannot be known.
    missed = (await isAtWork().catch(() => true)) ? 0 : missed + 1;
  }
  if (!signal.aborted) end(client, new Error('connection terminated: its statement is not under way'));
}

/** At once: ending politely would wait for the very answer that does not come. */
function end(client: pg.ClientBase, cause: Error): void {
  (client as pg.Client).connection.stream.destroy(cause); // A pooled client is one too; its type hides it.
}

function clientConfig(
  address: DatabaseAddress,
  { applicationName, settings }: { applicationName: string; settings: readonly string[] },
): pg.ClientConfig {
  const where =
    'url' in address
      ? { connectionString: address.url }
      : // Named in full: what PGPORT and the like say in the environment is meant for another server.
        { host: address.host, port: 5432, user: address.user, database: address.database, ssl: false };
  return {
    ...where,
    application_name: applicationName,
    types: { getTypeParser },
    options: settings.map((setting) => `-c ${setting}`).join(' '),
  };
}

const int8Oid = 20;
const numericOid = 1700;
const dateOid = 1082;

/** Counts arrive as numbers (none here passes 2^53); a `date` as its text, not as midnight in some time zone. */
const getTypeParser: typeof pg.types.getTypeParser = (oid: number, format?: 'text' | 'binary') => {
  if (oid === int8Oid || oid === numericOid) return Number;
  if (oid === dateOid) return (value: string) => value;
  // eslint-disable-next-line @typescript-eslint/no-unsafe-return -- pg types its parsers as any
  return pg.types.getTypeParser(oid, format);
};

function noConnection(cause: unknown): DatabaseUnavailableError {
  return new DatabaseUnavailableError('no connection to PostgreSQL', { cause, mayBeCarriedOut: false });
}

function asNotCarriedOut(cause: unknown): unknown {
  return cause instanceof DatabaseUnavailableError && cause.mayBeCarriedOut
    ? new DatabaseUnavailableError(cause.message, { cause, mayBeCarriedOut: false })
    : cause;
}

/** Every statement of the pool goes through here, so that none waits for ever. */
async function ask(
  watch: AnswerWatch<pg.ClientBase>,
  client: pg.ClientBase,
  query: { name?: string; text: string; values?: unknown[] },
): Promise<pg.QueryResult> {
  const answered = watch.sent(client);
  try {
    const result = await client.query(query);
    answered(true);
    return result;
  } catch (cause) {
    answered(cause instanceof pg.DatabaseError);
    throw cause;
  }
}

async function runOn<Row>(
  watch: AnswerWatch<pg.ClientBase>,
  client: pg.ClientBase,
  prepared: { name?: string; text: string },
  values: readonly unknown[],
): Promise<Row[]> {
  shareWrite(client);
  try {
    const result = await ask(watch, client, { ...prepared, values: values as unknown[] });
    return result.rows as Row[];
  } catch (cause) {
    throw asDatabaseError(cause);
  }
}

/**
 * All that is sent within one turn of the event loop leaves in one write. The statements of a transaction would else be
 * a system call each, and those were a sixth of the time that it takes to accept a message.
 */
function shareWrite(client: pg.ClientBase): void {
  const { stream } = (client as pg.Client).connection; // A pooled client is one too; its type hides it.
  if (stream.writableCorked > 0) return;
  stream.cork();
  process.nextTick(() => {
    stream.uncork();
  });
}

async function runUnwatched<Row>(
  client: pg.ClientBase,
  given: Statement<Row>,
  values: readonly unknown[],
): Promise<Row[]> {
  try {
    const result = await client.query({ text: given.text, values: values as unknown[] });
    return result.rows as Row[];
  } catch (cause) {
    throw asDatabaseError(cause);
  }
}

/** What a statement gets that would make a file of PostgreSQL larger, where there is no room. */
const diskFull = '53100';

/** Where tables are, and not where an operator has sent temporary files. */
const besideTables = unpreparedStatement("set local temp_tablespaces = ''");
/** About a megabyte: the last pages of a disk are of no use to anybody. */
const takeSpace = unpreparedStatement(
  'create temporary table postillion_space on commit drop as select generate_series(1, 30000) as number',
);

/** Whether PostgreSQL finds no room on the disk of its tables: tries it, and leaves nothing there. */
export async function findsNoSpace({ transaction }: Pick<Database, 'transaction'>): Promise<boolean> {
  try {
    await transaction(async ({ rows }) => {
      await rows(besideTables);
      await rows(takeSpace);
    });
    return false;
  } catch (cause) {
    const error = cause instanceof DatabaseUnavailableError ? rootOf(cause) : cause;
    if (sqlState(error) === diskFull) return true;
    throw cause;
  }
}

function rootOf(error: DatabaseUnavailableError): unknown {
  return error.cause instanceof DatabaseUnavailableError ? rootOf(error.cause) : error.cause;
}

/**
 * SQLSTATE classes that are about the server and not about the statement: connection exception, out of resources
 * (disk full, too many connections), operator intervention (shutdown, crash of another backend, starting up),
 * and errors outside PostgreSQL such as failing disks.
 */
const unavailableClasses = ['08', '53', '57P', '58'];

/**
 * `read_only_sql_transaction`: the server is a standby, or was made one in a failover that this connection has outlived,
 * or its disk is full and whoever runs it has closed it to writes. It is as good as away, and the connection is given up:
 * a new one may lead to the primary.
 */
const readOnly = '25006';

function isReadOnlyFailure(cause: unknown): boolean {
  return sqlState(cause instanceof DatabaseUnavailableError ? cause.cause : cause) === readOnly;
}

function asDatabaseError(cause: unknown): unknown {
  if (!(cause instanceof Error) || cause instanceof DatabaseUnavailableError) return cause;
  const state = sqlState(cause);
  if (
    state === undefined
      ? isConnectionLoss(cause)
      : state === readOnly || unavailableClasses.some((start) => state.startsWith(start))
  ) {
    return new DatabaseUnavailableError('PostgreSQL is not available', { cause });
  }
  return cause;
}

/** The SQLSTATE of an error that PostgreSQL reported, for example `23505`; undefined for any other error. */
export function sqlState(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError ? error.code : undefined;
}

/** `in_failed_sql_transaction`: an earlier statement of the transaction failed, and this one was skipped. */
const inFailedTransaction = '25P02';

/** Also where row-level security refuses a row. */
const insufficientPrivilege = '42501';

export const uniqueViolation = '23505';

/** The unique index that refused a row, for example `contacts_email`; undefined for any other error. */
export function violatedIndex(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError && error.code === uniqueViolation ? error.constraint : undefined;
}

/** Whether a statement was ended because it took longer than its `statement_timeout`. */
export function isStatementTimeout(error: unknown): boolean {
  return sqlState(error) === '57014';
}

/** Whether a table is not there, such as a partition that was dropped meanwhile. */
export function isUndefinedTable(error: unknown): boolean {
  return sqlState(error) === '42P01';
}

/** Whether two transactions waited for each other, of which PostgreSQL ended this one: the other goes on. */
export function isDeadlock(error: unknown): boolean {
  return sqlState(error) === '40P01';
}

/** Whether two transactions stood in each other's way, so that the same one may well succeed when it is run again. */
export function isConflict(error: unknown): boolean {
  // Serialization failure, and a lock that could not be taken in time.
  return isDeadlock(error) || ['40001', '55P03'].includes(sqlState(error) ?? '');
}

/** Whether a row found no partition of its table. By the place in PostgreSQL, since its words are translated. */
export function isPartitionMissing(error: unknown): boolean {
  return error instanceof pg.DatabaseError && error.code === '23514' && error.routine === 'ExecFindPartition';
}

function isConnectionLoss(error: Error): boolean {
  return 'syscall' in error || /connection (terminated|error)|not queryable|was closed/i.test(error.message);
}
