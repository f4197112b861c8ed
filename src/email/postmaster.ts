import { type BounceReport, readReport } from '../channels/email/email.ts';
import { findReturnPathOwner, findVerifiedOwner } from '../domains/domains.ts';
import { applyReports, findOnlyRecipient, type RecipientKey } from '../messages/messages.ts';
import { type Clock, dateOf } from '../platform/clock.ts';
import { instantOfId, isUuid, type NewId } from '../platform/ids.ts';
import type { Connection } from '../platform/postgres/database.ts';
import { sha256 } from '../platform/secrets.ts';
import { type BounceTools, findCopy } from './bounces.ts';
import { emailChannel } from './channel.ts';
import { type InboundAddress, type Mailbox, readInboundAddress } from './mailbox.ts';
import * as store from './postmaster-store.ts';

/**
 * The addresses by which the world reaches whoever runs this installation: `postmaster` (RFC 5321 §4.5.1), `abuse`
 * (RFC 2142) and `fbl`, to which feedback loops report complaints. Anyone can write to them, so a complaint counts only
 * if it has something that nobody but those who had the message can know:
 *
 * - The signed return path of the copy, in the report or in the returned message. It names the recipient.
 * - Or the returned message's `Message-ID`, if the message had one recipient alone. It is not signed, but it is a UUIDv7,
 *   which nobody guesses: 73 of its bits are random, 42 for whoever knows the one before it in the same millisecond. If
 *   there were several recipients, each of them would know it of all the others.
 *
 * Whatever else comes is kept for the operator, and changes nothing. What is kept has a limit; beyond it the sender
 * is told to try later, so that nothing is lost in silence.
 */

export type PostmasterTools = BounceTools & {
  clock: Clock;
  newId: NewId;
  /** The name under which the installation takes mail. */
  hostName: string;
};

const localParts: ReadonlySet<string> = new Set(['postmaster', 'abuse', 'fbl']);

/** More would only be more that nobody reads; with fewer, one flood keeps everybody else from being heard. */
const keptMax = 1_000;
/** They are all alike: enough to see what a feedback loop leaves out. */
const keptComplaintsMax = 100;
/** Longer mail is cut. A thousand of them are 64 MB. */
const sourceBytesMax = 65_536;
const keptMs = 90 * 24 * 60 * 60_000;

/** RFC 5321 §4.5.1 asks for a postmaster of each domain that mail is taken for. */
export const postmaster: Mailbox<PostmasterTools> = async (tools, address) => {
  const { localPart, host } = address;
  if (!localParts.has(localPart.toLowerCase())) return null;
  const isOurs =
    host === tools.hostName.toLowerCase() || (await findReturnPathOwner(tools.database, host)) !== null;
  return isOurs ? (source) => takeMail(tools, address, source) : null;
};

async function takeMail(tools: PostmasterTools, address: InboundAddress, source: Uint8Array): Promise<void> {
  const report = readReport(source);
  if (report.kind !== 'abuse') {
    await keep(tools, 'mail', address, source);
    return;
  }
  const job = await findComplainedOf(tools, report);
  if (job === null) {
    await keep(tools, 'complaint', address, source);
    return;
  }
  tools.log.info(
    {
      organization_id: job.organizationId,
      message_id: job.messageId,
      ordinal: job.ordinal,
      feedback_type: report.feedbackType,
    },
    'feedback on a message',
  );
  if (report.isComplaint)
    await applyReports(tools, emailChannel, [{ job, status: 'complained', failure: null }]);
}

/** Null if nothing in the report proves that it is of a message of ours. */
async function findComplainedOf(
  tools: PostmasterTools,
  { returnPaths, messageId }: Extract<BounceReport, { kind: 'abuse' }>,
): Promise<RecipientKey | null> {
  for (const returnPath of returnPaths) {
    const job = await findCopy(tools, readInboundAddress(returnPath));
    if (job !== null) return job;
  }
  return messageId === null ? null : findByMessageId(tools, messageId);
}

async function findByMessageId({ database }: PostmasterTools, text: string): Promise<RecipientKey | null> {
  const { localPart, host } = readInboundAddress(text);
  if (!isUuid(localPart)) return null;
  const organizationId = await findVerifiedOwner(database, host);
  if (organizationId === null) return null;
  return database.asOrganizations([organizationId], (transaction) =>
    findOnlyRecipient(transaction, { organizationId, messageId: localPart.toLowerCase(), channel: 'email' }),
  );
}

async function keep(
  { database, newId, log }: PostmasterTools,
  kind: store.KeptKind,
  { localPart, host }: InboundAddress,
  source: Uint8Array,
): Promise<void> {
  const max = kind === 'mail' ? keptMax : keptComplaintsMax;
  const isKept = await store.keepMail(
    database,
    {
      id: newId(),
      kind,
      recipient: `${localPart.toLowerCase()}@${host}`,
      digest: sha256(source),
      source: source.subarray(0, sourceBytesMax),
      isCut: source.length > sourceBytesMax,
    },
    max,
  );
  log.warn({ kind, is_kept: isKept }, 'mail to the postmaster');
  // A complaint that proves nothing, of which there are a hundred to look at, is not worth being sent again.
  if (!isKept && kind === 'mail')
    throw new Error('as much mail to the postmaster is kept as there is room for');
}

/** What is kept for the operator. */
export type PostmasterMail = Omit<store.KeptMail, 'source'> & {
  receivedAt: Date;
  /** As it came, or its beginning. Anyone may have written it. */
  source: Uint8Array;
};

/** Longer ones are rare, and only its sender and subject are looked for in it. */
const headBytesMax = 8_192;

/** The newest, of each no more than the beginning. */
export async function listPostmasterMail(connection: Connection, limit: number): Promise<PostmasterMail[]> {
  return (await store.listMail(connection, { limit, headBytesMax })).map(toPostmasterMail);
}

export async function findPostmasterMail(connection: Connection, id: string): Promise<PostmasterMail | null> {
  const mail = await store.findMail(connection, id);
  return mail === null ? null : toPostmasterMail(mail);
}

function toPostmasterMail(mail: store.KeptMail): PostmasterMail {
  return { ...mail, receivedAt: instantOfId(mail.id) };
}

/** Those of the ids, or all if it is null. Returns how many there were. */
export async function deletePostmasterMail(
  connection: Connection,
  ids: readonly string[] | null,
): Promise<number> {
  return store.deleteMail(connection, ids);
}

/** How much is kept, and how much could be. */
export async function countPostmasterMail(
  connection: Connection,
): Promise<{ mail: number; complaints: number; isFull: boolean }> {
  const { mail, complaint } = await store.countMail(connection);
  return { mail, complaints: complaint, isFull: mail >= keptMax };
}

/** Housekeeping: deletes what was kept for 90 days. */
export async function deleteOldPostmasterMail(
  { clock }: Pick<PostmasterTools, 'clock'>,
  connection: Connection,
): Promise<void> {
  await store.deleteMailBefore(connection, dateOf(clock.nowMs() - keptMs));
}
