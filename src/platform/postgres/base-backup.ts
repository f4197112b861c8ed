import { Readable } from 'node:stream';
import pg from 'pg';

/**
 * A copy of a whole cluster while it serves. PostgreSQL makes it, by the command that pg_basebackup gives it as well
 * (PostgreSQL's documentation, "Streaming Replication Protocol", BASE_BACKUP): it asks for a checkpoint, sends its files
 * as they are at that moment or some later one, and then the log from that checkpoint to the end of the copy, which a
 * server that starts on the copy redoes. So what the copy holds is one state: the one at its end.
 *
 * The log that will be needed is kept by a replication slot that ends with the connection, so that neither a copy that
 * takes long nor one that is cut off fills the disk for ever.
 */

type ProtocolConnection = { stream: { pause: () => void; resume: () => void; destroy: () => void } };

/** The side of the driver's queries that its clients use, as in sequence.ts. */
type ProtocolQuery = { handleCopyData(message: { chunk: Buffer }, connection: ProtocolConnection): void };

const DriverQuery = pg.Query as unknown as new (
  config: { text: string },
  callback: (cause: Error | null) => void,
) => ProtocolQuery;

class CopyQuery extends DriverQuery {
  private readonly onPiece: (piece: Buffer) => void;

  constructor(text: string, onPiece: (piece: Buffer) => void, onEnd: (cause: Error | null) => void) {
    super({ text }, onEnd);
    this.onPiece = onPiece;
  }

  override handleCopyData({ chunk }: { chunk: Buffer }): void {
    this.onPiece(chunk);
  }
}

/** A name of the slot that no other copy has: the session's process is the only one with its number. */
const slotName = (pid: number) => `postillion_backup_${pid}`;

/** What a piece of the copy begins with. */
const newArchive = 'n'.charCodeAt(0);
const archiveData = 'd'.charCodeAt(0);

/**
 * The archive (tar) of the cluster at this address, without tablespaces, which the embedded PostgreSQL has none of. It
 * fails if PostgreSQL goes away, and ends the copy where it is destroyed.
 */
export async function startBaseBackup(address: {
  host: string;
  user: string;
  database: string;
}): Promise<Readable> {
  const client = new pg.Client({
    ...address,
    port: 5432,
    ssl: false,
    application_name: 'postillion-backup',
    replication: 'true',
  } as pg.ClientConfig); // Its type leaves `replication` out.
  client.on('error', () => undefined);
  await client.connect();
  const { processID: pid, connection } = client as pg.Client & {
    processID: number;
    connection: ProtocolConnection;
  }; // Its type leaves both out.
  try {
    await client.query(`CREATE_REPLICATION_SLOT ${slotName(pid)} TEMPORARY PHYSICAL (RESERVE_WAL)`);
  } catch (cause) {
    await client.end();
    throw cause;
  }
  const archive = new Readable({
    read: () => {
      connection.stream.resume();
    },
    destroy: (cause, callback) => {
      connection.stream.destroy();
      callback(cause);
    },
  });
  // Its reader gets the error. While it has none, the error must not end the process.
  archive.on('error', () => undefined);
  let archives = 0;
  const onPiece = (chunk: Buffer) => {
    archives += chunk[0] === newArchive ? 1 : 0;
    if (archives > 1) archive.destroy(new Error('the cluster has tablespaces, which are not copied'));
    // A copy of it: the driver moves what it has in its buffer.
    else if (chunk[0] === archiveData && !archive.push(Buffer.from(chunk.subarray(1))))
      connection.stream.pause();
  };
  const query = new CopyQuery(
    `BASE_BACKUP (LABEL 'postillion', CHECKPOINT 'fast', WAL true, MANIFEST 'no')`,
    onPiece,
    (cause) => {
      if (cause) {
        archive.destroy(cause);
        return;
      }
      archive.push(null);
      client.end().catch(() => undefined);
    },
  );
  client.query(query as unknown as pg.Submittable);
  return archive;
}
