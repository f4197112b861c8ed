import pg from 'pg';

/** A statement with its parameters, as the driver takes it. */
export type BoundQuery = { name?: string; text: string; values: readonly unknown[] };

/**
 * Several statements that PostgreSQL gets at once, carries out as one transaction, and answers at once when that is
 * committed: without `begin` and `commit`, since a transaction lasts until the next Sync message, and the only one comes
 * after the last statement (PostgreSQL's documentation, "Pipelining" of the extended query protocol). If one fails,
 * those after it are skipped, nothing is kept, and the error is that of the first.
 *
 * The driver has no such thing. It asks for an answer to each statement, which at one request at a time costs more than
 * the statement: PostgreSQL writes and this process wakes up for every one of them. A sequence is a query of the driver
 * that sends more than one statement; what it overrides are the methods by which a client of the driver speaks to a
 * query, which `pg-cursor` relies on as well.
 */
export function querySequence(client: pg.ClientBase, queries: readonly BoundQuery[]): Promise<unknown[][]> {
  return new Promise((resolve, reject) => {
    const sequence = new Sequence(queries, (cause, results) => {
      if (cause) reject(cause);
      // A single result stands for itself.
      else resolve((Array.isArray(results) ? results : [results]).map(({ rows }) => rows as unknown[]));
    });
    client.query(sequence as unknown as pg.Submittable);
  });
}

type Names = Record<string, string | undefined>;

/** The side of the driver's connection that its queries use. */
type ProtocolConnection = { submittedNamedStatements: Names; sync: () => void };

/** The side of the driver's queries that its clients use. */
type ProtocolQuery = {
  name: string | undefined;
  text: string;
  prepare(connection: ProtocolConnection): void;
  requiresPreparation(): boolean;
  handleCommandComplete(message: unknown, connection: ProtocolConnection): void;
  handleError(cause: Error, connection: ProtocolConnection): void;
};

type Callback = (cause: Error | null, results: pg.QueryResult | pg.QueryResult[]) => void;

const DriverQuery = pg.Query as unknown as new (
  config: { name: string | undefined; text: string; values: readonly unknown[] },
  callback?: Callback,
) => ProtocolQuery;

class Sequence extends DriverQuery {
  private readonly parts: readonly ProtocolQuery[];
  private current = 0;

  constructor(queries: readonly BoundQuery[], callback: Callback) {
    const [first] = queries;
    if (first === undefined) throw new Error('a sequence has a statement');
    super({ name: first.name, text: first.text, values: first.values }, callback);
    this.parts = queries.map(({ name, text, values }) => new DriverQuery({ name, text, values }));
  }

  override requiresPreparation(): boolean {
    return true;
  }

  override prepare(connection: ProtocolConnection): void {
    const withoutSync = Object.create(connection, { sync: { value: () => undefined } }) as ProtocolConnection;
    for (const part of this.parts) part.prepare(withoutSync);
    connection.sync();
  }

  override handleCommandComplete(message: unknown, connection: ProtocolConnection): void {
    super.handleCommandComplete(message, connection);
    this.current += 1;
    const next = this.parts[this.current];
    // By these the client notes which statement it is that was prepared.
    if (next !== undefined) [this.name, this.text] = [next.name, next.text];
  }

  override handleError(cause: Error, connection: ProtocolConnection): void {
    // PostgreSQL has skipped what followed, so that it was not prepared either.
    for (const { name } of this.parts.slice(this.current)) {
      if (name !== undefined) delete connection.submittedNamedStatements[name];
    }
    super.handleError(cause, connection);
  }
}
