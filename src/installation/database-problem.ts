import net from 'node:net';
import pg from 'pg';
import type { SettingName } from '../config.ts';
import { readServerVersion, serverVersionMin } from '../platform/postgres/condition.ts';
import { type Connection, DatabaseUnavailableError, sqlState } from '../platform/postgres/database.ts';

/** A database of one's own that cannot be worked with: one sentence with the cause, and one on what to mend. */
export class DatabaseProblem extends Error {
  override readonly name = 'DatabaseProblem';
}

/**
 * What an error of the database at `url` comes down to, which `setting` names. An error that is none of the database's is
 * returned as it is.
 */
export async function asDatabaseProblem(
  cause: unknown,
  url: string,
  setting: SettingName = 'DATABASE_URL',
): Promise<unknown> {
  if (cause instanceof DatabaseProblem) return cause;
  const place = readPlace(url);
  const sentence = place === null ? unreadable : await explain(cause, place);
  if (sentence === null) return cause;
  return new DatabaseProblem(sentence.replaceAll('DATABASE_URL', setting), { cause });
}

async function explain(cause: unknown, place: Place): Promise<string | null> {
  const error = rootOf(cause);
  const state = sqlState(error);
  if (state !== undefined) return explainRefusal(state, error, place);
  if (!(cause instanceof DatabaseUnavailableError)) return null;
  return explainNetwork(error, place) ?? explainSession(error, place) ?? probe(error, place);
}

/** Throws a DatabaseProblem where PostgreSQL is older than what its schema is written for. */
export async function refuseOldServer(connection: Connection): Promise<void> {
  const { text, major } = await readServerVersion(connection);
  if (major >= serverVersionMin) return;
  throw new DatabaseProblem(
    `PostgreSQL ${text} is too old: Postillion needs ${serverVersionMin} or newer. Upgrade it, or name another in DATABASE_URL.`,
  );
}

const unreadable =
  'DATABASE_URL cannot be read as postgres://user:password@host:5432/name. In user and password write @ as %40, / as %2F and # as %23.';

/** `name` is how a sentence calls it. */
type Place = { host: string; port: number; user: string; database: string; name: string };

/** Read by the client itself, since it knows more forms than a URL and fills in what is left out. */
function readPlace(url: string): Place | null {
  try {
    const { host, port, user = '', database = '' } = new pg.Client({ connectionString: url });
    return { host, port, user, database, name: isSocket(host) ? host : `${host}:${port}` };
  } catch {
    return null;
  }
}

function isSocket(host: string): boolean {
  return host.startsWith('/');
}

/** Of several attempts (IPv6, then IPv4) all failed; the first stands for them. */
function rootOf(cause: unknown): unknown {
  const inner = cause instanceof DatabaseUnavailableError ? cause.cause : cause;
  return inner instanceof AggregateError && inner.errors.length > 0 ? (inner.errors as unknown[])[0] : inner;
}

function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** What the system says of the way there. */
function explainNetwork(error: unknown, { host, name }: Place): string | null {
  const code = codeOf(error);
  switch (code) {
    case 'ECONNREFUSED':
      return `PostgreSQL cannot be reached: nothing listens at ${name} (${code}). Start it, or correct DATABASE_URL.`;
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
    case 'EAI_NODATA':
      return `PostgreSQL cannot be reached: the host ${host} of DATABASE_URL is unknown (${code}). Correct its name; in a password write @ as %40, / as %2F and # as %23.`;
    case 'EHOSTUNREACH':
    case 'ENETUNREACH':
    case 'ETIMEDOUT':
      return silent(name, code);
    case 'ENOENT':
    case 'EACCES':
    case 'ENOTDIR':
      return `PostgreSQL cannot be reached: there is no socket in ${host} that this user may use (${code}). Start it, or correct DATABASE_URL.`;
    default:
      return null;
  }
}

function silent(name: string, code: string): string {
  return `PostgreSQL cannot be reached: ${name} does not answer (${code}). Look whether it runs, and at the firewalls in between, or correct DATABASE_URL.`;
}

const certificateCodes = /^(DEPTH_ZERO_SELF_SIGNED_CERT|SELF_SIGNED_CERT_IN_CHAIN|UNABLE_TO_|CERT_|ERR_TLS_)/;

/** What the client itself does not accept of the server. */
function explainSession(error: unknown, { name, user }: Place): string | null {
  const message = messageOf(error);
  if (certificateCodes.test(codeOf(error)))
    return `The certificate of PostgreSQL at ${name} cannot be trusted (${codeOf(error)}). Name its authority with sslrootcert in DATABASE_URL, or correct the host.`;
  if (/does not support SSL/i.test(message))
    return `PostgreSQL at ${name} does not speak TLS, which DATABASE_URL asks for. Switch it on there, or take sslmode out.`;
  if (/password must be a (non-empty )?string/i.test(message))
    return `PostgreSQL at ${name} wants a password for the user "${user}", and DATABASE_URL has none. Write it between user and @.`;
  return null;
}

/** What PostgreSQL itself refuses, by SQLSTATE; null for errors of single statements. */
function explainRefusal(state: string, error: unknown, { name, user, database }: Place): string | null {
  const said = messageOf(error);
  switch (state) {
    case '28P01':
      return `PostgreSQL at ${name} refuses the password of the user "${user}". Correct user and password in DATABASE_URL; write @ as %40, / as %2F and # as %23.`;
    case '28000':
      return `PostgreSQL at ${name} does not let the user "${user}" in: ${said}. Correct DATABASE_URL, or allow it in pg_hba.conf; "no encryption" asks for sslmode=require.`;
    case '3D000':
      return `PostgreSQL at ${name} has no database "${database}". Make it (create database ${database} owner ${user}), or correct DATABASE_URL.`;
    case '42501':
      return `PostgreSQL at ${name} does not let the user "${user}" work in the database "${database}": ${said}. Make the user its owner (alter database ${database} owner to ${user}), or name the owner in DATABASE_URL: a user that serves requests may do nothing else.`;
    case '25006':
      return `PostgreSQL at ${name} is a standby that takes no writes. Name the primary in DATABASE_URL.`;
    case '53300':
      return `PostgreSQL at ${name} has no connection left: ${said}. Raise its max_connections, or lower POSTILLION_DATABASE_CONNECTIONS.`;
    case '57P03':
      return `PostgreSQL at ${name} is not ready: ${said}. Start again in a moment.`;
    default:
      return ['08', '53', '57P', '58'].some((start) => state.startsWith(start))
        ? `PostgreSQL at ${name} is not available: ${said}. Look at its log, and start again.`
        : null;
  }
}

/** A server that responds at all does so at once; a longer wait would only keep the operator waiting. */
const probeMs = 2_000;

/**
 * Something took the connection and said nothing that the client understands. Every PostgreSQL answers the request for
 * TLS with one octet, S or N (PostgreSQL's documentation, Message Flow, SSL Session Encryption).
 */
async function probe(error: unknown, { host, port, name }: Place): Promise<string> {
  const answer = await askForTls(isSocket(host) ? { path: `${host}/.s.PGSQL.${port}` } : { host, port });
  if (answer === null) return silent(name, 'timeout');
  return answer === 'S' || answer === 'N'
    ? `PostgreSQL at ${name} closed the connection: ${messageOf(error)}. Look at its log, and start again.`
    : `What answers at ${name} is not PostgreSQL. Correct host and port in DATABASE_URL.`;
}

/** The first octet, empty if the connection ends without one; null if nothing comes in time. */
function askForTls(target: net.NetConnectOpts): Promise<string | null> {
  return new Promise((resolve) => {
    const socket = net.connect(target);
    const end = (answer: string | null) => {
      socket.destroy();
      resolve(answer);
    };
    socket.setTimeout(probeMs, () => {
      end(null);
    });
    socket.once('connect', () => socket.write(tlsRequest));
    socket.once('data', (piece) => {
      end(piece.toString('latin1', 0, piece.length === 1 ? 1 : 2));
    });
    socket.once('error', () => {
      end('');
    });
    socket.once('close', () => {
      end('');
    });
  });
}

/** SSLRequest: its length, 8, and the code 80877103. */
const tlsRequest = Buffer.from([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
