import pg from 'pg';

/** A statement with a name is prepared once a connection; `Row` is the shape of what it returns. */
export type Statement<Row> = { readonly text: string; readonly name?: string; readonly row?: Row };

/**
 * A hot statement: PostgreSQL plans it once a connection, which halves its cost there. `name` must be unique in
 * the program and at most 63 characters.
 */
export function statement<Row>(name: string, text: string): Statement<Row> {
  return { name, text };
}

/** A statement that is planned anew at each run: for rare ones, and where the best plan hangs on the values. */
export function unpreparedStatement<Row>(text: string): Statement<Row> {
  return { text };
}

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
};

export type Database = Connection & {
  /** Runs `work` in a transaction; whatever it throws rolls back. */
  transaction: <Result>(work: (transaction: Transaction) => Promise<Result>) => Promise<Result>;
  /** Like `transaction`, for hot statements that find each of their rows by an index: they are never planned again. */
  transactionByIndex: <Result>(work: (transaction: Transaction) => Promise<Result>) => Promise<Result>;
  /**
   * Like `transaction`, behind the second wall: under a role that row-level security holds to the rows of these
   * organizations, whatever the statements say.
   */
  asOrganizations: <Result>(
    organizationIds: readonly string[],
    work: (transaction: Transaction) => Promise<Result>,
  ) => Promise<Result>;
  /** A connection of its own, outside the pool: for advisory locks and `listen`. The caller ends it. */
  connectAlone: (applicationName: string) => Promise<pg.Client>;
  close: () => Promise<void>;
};

/** Where PostgreSQL is: a URL, or the private socket of the embedded one. */
export type DatabaseAddress = { url: string } | { host: string; user: string; database: string };

export type DatabaseOptions = {
  address: DatabaseAddress;
  /** Connections in the pool. Fewer: requests wait for each other. More: PostgreSQL's memory, and no more speed. */
  connectionsMax: number;
  applicationName?: string;
  /** False where a pooler in transaction mode stands between, which loses prepared statements. */
  usePreparedStatements?: boolean;
};

/** No connection could be had, or it broke: the statement may or may not have been carried out. */
export class DatabaseUnavailableError extends Error {
  override readonly name = 'DatabaseUnavailableError';
}

/** The NOLOGIN role that migrations create: it owns nothing and does not bypass row-level security. */
const tenantRole = 'postillion_tenant';

/** A waiting request is better refused with 503 than left hanging. */
const connectTimeoutMs = 3_000;

const sessionSettings = [
  // Nothing on a request path may take long; jobs that may raise it for their own transaction.
  'statement_timeout=30000',
  'lock_timeout=10000',
  // A process that stops inside a transaction must not hold its locks for ever.
  'idle_in_transaction_session_timeout=60000',
];

export function openDatabase(options: DatabaseOptions): Database {
  const usePreparedStatements = options.usePreparedStatements ?? true;
  const pool = new pg.Pool({
    ...clientConfig(options.address, options.applicationName ?? 'postillion'),
    max: options.connectionsMax,
    pipeline: true,
    connectionTimeoutMillis: connectTimeoutMs,
    idleTimeoutMillis: 60_000,
  });
  // The pool drops a broken idle connection by itself; without a listener Node.js would end the process.
  pool.on('error', () => undefined);
  // Nor may one that breaks between two statements of a transaction: the next statement tells.
  pool.on('connect', (client) => client.on('error', () => undefined));

  let tenantRoleLookup: Promise<boolean> | undefined;
  const hasTenantRole = () => {
    tenantRoleLookup ??= isMemberOfTenantRole(pool).catch((cause: unknown) => {
      tenantRoleLookup = undefined;
      throw asDatabaseError(cause);
    });
    return tenantRoleLookup;
  };

  const prepare = <Row>({ name, text }: Statement<Row>) =>
    usePreparedStatements && name !== undefined ? { name, text } : { text };

  const begin = async <Result>(
    opener: typeof beginPlainly | typeof beginByIndex,
    organizationIds: readonly string[] | null,
    work: (transaction: Transaction) => Promise<Result>,
  ): Promise<Result> => {
    // Before a connection is taken, since the first answer needs one too: all of them could wait for it in vain.
    const role = organizationIds !== null && (await hasTenantRole()) ? tenantRole : 'none';
    const client = await connect(pool);
    shareWrite(client);
    // Sent without waiting: if it fails, so does every statement behind it on the same connection.
    const opening: Promise<unknown>[] = [client.query(opener)];
    if (organizationIds !== null) {
      opening.push(client.query({ ...prepare(enterTenantRole), values: [role, organizationIds.join(',')] }));
    }
    for (const sent of opening) sent.catch(() => undefined);

    let isCommitted = false;
    const commit = async () => {
      const { command } = await client.query('commit').catch((cause: unknown) => {
        throw asDatabaseError(cause);
      });
      // PostgreSQL answers ROLLBACK to the commit of a transaction in which a statement failed.
      if (command !== 'COMMIT') throw new Error('the transaction was rolled back by PostgreSQL');
      isCommitted = true;
    };
    const transaction: Transaction = {
      rows: <Row>(given: Statement<Row>, values: readonly unknown[] = []) =>
        runOn<Row>(client, prepare(given), values),
      commit,
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
        await client.query('rollback').then(
          () => {
            client.release();
          },
          () => {
            client.release(true);
          },
        );
      }
      throw asDatabaseError(cause);
    }
  };

  return {
    rows: async <Row>(given: Statement<Row>, values: readonly unknown[] = []) => {
      const client = await connect(pool);
      try {
        const rows = await runOn<Row>(client, prepare(given), values);
        client.release();
        return rows;
      } catch (cause) {
        client.release(cause instanceof DatabaseUnavailableError);
        throw cause;
      }
    },
    transaction: (work) => begin(beginPlainly, null, work),
    transactionByIndex: (work) => begin(beginByIndex, null, work),
    asOrganizations: (organizationIds, work) => begin(beginPlainly, organizationIds, work),
    connectAlone: async (applicationName) => {
      const client = new pg.Client({
        ...clientConfig(options.address, applicationName),
        connectionTimeoutMillis: connectTimeoutMs,
        keepAlive: true,
      });
      client.on('error', () => undefined);
      try {
        await client.connect();
      } catch (cause) {
        throw noConnection(cause);
      }
      return client;
    },
    close: () => pool.end(),
  };
}

const beginPlainly = 'begin';
/**
 * Of a table that was small when it was last analyzed the planner would rather read everything, and for statements
 * over arrays it takes a plan for these very arrays to be cheaper, and plans each time anew. Measured in PostgreSQL, on
 * a busy machine: by index a job was claimed in 35 µs instead of 60 to 80, and with the plan kept a lone outcome was
 * written in 0.7 ms instead of 1.9.
 */
const beginByIndex =
  'begin; set local plan_cache_mode = force_generic_plan; set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off';

/** Both settings last until the end of the transaction; session-wide ones would leak through the pool. */
const enterTenantRole = statement(
  'enter_tenant_role',
  "select set_config('role', $1, true), set_config('postillion.organization_ids', $2, true)",
);

/** Without the role (see migration 1) row-level security stays off, and `doctor` says so. */
async function isMemberOfTenantRole(pool: pg.Pool): Promise<boolean> {
  const client = await connect(pool);
  try {
    const { rowCount } = await client.query(
      "select from pg_roles where rolname = $1 and pg_has_role(session_user, oid, 'member')",
      [tenantRole],
    );
    return rowCount === 1;
  } finally {
    client.release();
  }
}

function clientConfig(address: DatabaseAddress, applicationName: string): pg.ClientConfig {
  const where =
    'url' in address
      ? { connectionString: address.url }
      : // Named in full: what PGPORT and the like say in the environment is meant for another server.
        { host: address.host, port: 5432, user: address.user, database: address.database, ssl: false };
  return {
    ...where,
    application_name: applicationName,
    types: { getTypeParser },
    options: sessionSettings.map((setting) => `-c ${setting}`).join(' '),
  };
}

const int8Oid = 20;
const numericOid = 1700;
const dateOid = 1082;

/** Counts arrive as numbers (none here passes 2^53); a `date` as its text, not as somebody's local midnight. */
const getTypeParser: typeof pg.types.getTypeParser = (oid: number, format?: 'text' | 'binary') => {
  if (oid === int8Oid || oid === numericOid) return Number;
  if (oid === dateOid) return (value: string) => value;
  // eslint-disable-next-line @typescript-eslint/no-unsafe-return -- pg types its parsers as any
  return pg.types.getTypeParser(oid, format);
};

async function connect(pool: pg.Pool): Promise<pg.PoolClient> {
  try {
    return await pool.connect();
  } catch (cause) {
    throw noConnection(cause);
  }
}

function noConnection(cause: unknown): DatabaseUnavailableError {
  return new DatabaseUnavailableError('no connection to PostgreSQL', { cause });
}

async function runOn<Row>(
  client: pg.ClientBase,
  prepared: { name?: string; text: string },
  values: readonly unknown[],
): Promise<Row[]> {
  shareWrite(client);
  try {
    const result = await client.query({ ...prepared, values: values as unknown[] });
    return result.rows as Row[];
  } catch (cause) {
    throw asDatabaseError(cause);
  }
}

/**
 * What is sent within one turn of the event loop leaves in one write. The statements of a transaction would else be
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

/** Runs a statement on a connection outside the pool. */
export async function rowsOf<Row>(
  client: pg.ClientBase,
  given: Statement<Row>,
  values: readonly unknown[] = [],
): Promise<Row[]> {
  return runOn<Row>(client, { text: given.text }, values);
}

/**
 * SQLSTATE classes that speak of the server and not of the statement: connection exception, out of resources
 * (disk full, too many connections), operator intervention (shutdown, crash of another backend, starting up),
 * and errors outside PostgreSQL such as failing disks.
 */
const unavailableClasses = ['08', '53', '57P', '58'];

function asDatabaseError(cause: unknown): unknown {
  if (!(cause instanceof Error) || cause instanceof DatabaseUnavailableError) return cause;
  const state = sqlState(cause);
  if (
    state === undefined
      ? isConnectionLoss(cause)
      : unavailableClasses.some((start) => state.startsWith(start))
  ) {
    return new DatabaseUnavailableError('PostgreSQL is not available', { cause });
  }
  return cause;
}

/** The SQLSTATE of an error that PostgreSQL reported, for example `23505`; undefined for any other error. */
export function sqlState(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError ? error.code : undefined;
}

export const uniqueViolation = '23505';

/** The unique index that refused a row, for example `contacts_email`; undefined for any other error. */
export function violatedIndex(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError && error.code === uniqueViolation ? error.constraint : undefined;
}

/** Whether a statement was ended because it took longer than its `statement_timeout`. */
export function isStatementTimeout(error: unknown): boolean {
  return sqlState(error) === '57014';
}

/** Whether two transactions stood in each other's way, so that the same one may well succeed when it is run again. */
export function isConflict(error: unknown): boolean {
  // Serialization failure, deadlock, and a lock that was not to be had in time.
  return ['40001', '40P01', '55P03'].includes(sqlState(error) ?? '');
}

function isConnectionLoss(error: Error): boolean {
  return 'syscall' in error || /connection (terminated|error)|not queryable|was closed/i.test(error.message);
}
