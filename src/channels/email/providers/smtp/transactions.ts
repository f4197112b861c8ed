import { isAscii } from 'node:buffer';
import type { SendOutcome } from '../../../outcome.ts';
import type { ReplyPhase } from '../../replies.ts';
import { toOctetText } from '../../pieces.ts';
import type { EmailHandOff } from '../../provider.ts';
import { lineStateAfter, stuffDots } from './dot-stuffing.ts';
import type { LineState } from './dot-stuffing.ts';
import { commandTimeoutMs } from './opening.ts';
import type { SmtpConnection } from './opening.ts';
import { acceptedOutcome, ownWords, refusalOutcome, refuseInternational, remoteWords } from './outcomes.ts';
import type { SmtpReply } from './reply-reader.ts';
import { isFault } from './wire.ts';
import type { WireFault } from './wire.ts';

/**
 * The mail transactions of one connection, one after the other, one recipient each.
 *
 * A hand-off is `waiting` in the queue, `announced` once its MAIL, RCPT and DATA are written, `committed` from the
 * call of `confirm` on, and `settled` when its caller has the outcome.
 *
 *   waiting → announced     the three commands go out as one group where the server pipelines (RFC 2920), one by
 *                           one where it does not
 *   announced → settled     the server refuses one of them: deferred or rejected, and RSET goes before the next. The
 *                           first refusal decides, also if the server hangs up before it has answered the rest
 *   announced → waiting     a kept connection turned out to be dead (closed, or 421): once, on another connection
 *   announced → committed   354 has come: `confirm` is called, and nothing of the content is written before it
 *                           resolves. If it rejects, the connection is cut, because after 354 there is no other
 *                           way to say "never mind"
 *   committed → settled     by the reply after the final dot
 *
 * The next hand-off that waits already is announced in the same write as the final dot of the one before, so that
 * its three replies come with that one's, and a message costs two turns of the wire instead of five.
 *
 * Promised: `unknown` only if the final dot was given to the operating system and no reply came back (RFC 1047).
 * A connection lost before that delivered nothing, since a server may act only on a complete message (RFC 5321
 * §4.1.1.4). Not promised: that the server is not merely slow. What is unknown may still arrive.
 */

/** One hand-off on its way through the provider. */
export type PendingHandOff = {
  handOff: EmailHandOff;
  /** Octets of the content before dot-stuffing, which is what RFC 1870 counts. */
  contentBytes: number;
  /** Whether it can be offered only to a server with SMTPUTF8. */
  needsSmtpUtf8: boolean;
  state: 'waiting' | 'announced' | 'committed' | 'settled';
  /** Given back once already: the next broken connection settles it. */
  hasBeenGivenBack: boolean;
  /** Called if the hand-off is aborted while a connection is waiting for the server's leave to send it. */
  interrupt: (() => void) | null;
  settle: (outcome: SendOutcome) => void;
  fail: (error: unknown) => void;
};

/** A connection at work. */
export type WorkingConnection = SmtpConnection & {
  /** Hand-offs that ended on this connection, one way or another. */
  carried: number;
  /** A transaction was begun and refused in part, and the server still holds the rest. */
  needsReset: boolean;
};

/** Where connections get their work. */
export type HandOffQueue = {
  /** The next hand-off, as soon as there is one; null when the connection should end. */
  next: (line: WorkingConnection) => Promise<PendingHandOff | null> | PendingHandOff | null;
  /** A hand-off that this line may take without waiting; null if there is none. */
  nextWaiting: (line: WorkingConnection) => PendingHandOff | null;
  /** Takes back a hand-off of which the server has heard no more than the envelope. */
  giveBack: (pending: PendingHandOff, otherwise: SendOutcome) => void;
};

/** RFC 5321 §4.5.3.2.6 says ten minutes; a shorter one makes duplicates out of slow content filters. */
const finalReplyTimeoutMs = 300_000;

/** How long the operating system may take to accept one piece of content: at 256 kB, from 4 kB a second upwards. */
const pieceTimeoutMs = 60_000;

/**
 * Content is written in pieces of this size, each once the one before has been taken. Smaller costs system calls;
 * larger holds more of it in memory twice, and makes a slow but living server look dead.
 */
const pieceBytesMax = 262_144;

/** Carries hand-offs until the queue has no more for this connection, or the connection breaks. */
export async function carryHandOffs(line: WorkingConnection, queue: HandOffQueue): Promise<void> {
  let current = await queue.next(line);
  while (current !== null) {
    const following = await carryOne(line, current, queue);
    line.carried += 1;
    const broken = line.wire.brokenBy();
    if (broken !== null) {
      if (following !== null) queue.giveBack(following, lostBeforeContent(line, broken));
      return;
    }
    current = following ?? (await queue.next(line));
  }
}

/** Settles `current`, or gives it back. Returns the hand-off that has been announced meanwhile, if any. */
async function carryOne(
  line: WorkingConnection,
  current: PendingHandOff,
  queue: HandOffQueue,
): Promise<PendingHandOff | null> {
  try {
    if (!(await isPermitted(line, current, queue))) return null;
    if (!(await isConfirmed(line, current))) return null;
    return await transmit(line, current, queue);
  } catch (error) {
    // A flaw of ours. The caller must hear of it all the same, and must not take it for "not sent".
    line.wire.break('given_up', 'an unexpected error');
    if (current.state !== 'committed') current.fail(error);
    else
      current.settle({
        kind: 'unknown',
        reply: ownWords('an unexpected error during the hand-off', line.wire.remoteHost),
      });
    return null;
  }
}

type Refusal = { reply: SmtpReply; phase: ReplyPhase };

type Command = 'reset' | 'mail' | 'rcpt' | 'data';

const announcement: readonly Command[] = ['mail', 'rcpt', 'data'];
const announcementAfterReset: readonly Command[] = ['reset', ...announcement];

/**
 * Announces the hand-off, unless that has been done, and reads the replies. True if the server waits for the
 * content; otherwise the hand-off is settled or given back.
 */
async function isPermitted(
  line: WorkingConnection,
  current: PendingHandOff,
  queue: HandOffQueue,
): Promise<boolean> {
  const { wire, capabilities } = line;
  if (current.state === 'waiting') {
    if (!isAdmitted(line, current)) return false;
    if (wire.hasUnreadReply()) {
      // What follows would be read as the answers to commands that it does not answer.
      loseAnnounced(line, current, queue, wire.break('not_smtp', 'the server spoke out of turn'), null);
      return false;
    }
    if (capabilities.hasPipelining) wire.write([], announce(line, current));
    else current.state = 'announced';
  }
  const commands = line.needsReset ? announcementAfterReset : announcement;
  line.needsReset = false;
  current.interrupt = () => {
    wire.break('given_up', 'the hand-off was aborted');
  };
  let refusal: Refusal | null = null;
  for (const command of commands) {
    if (current.state === 'settled') {
      wire.break('given_up', 'the hand-off was aborted');
      return false;
    }
    if (!capabilities.hasPipelining) wire.write([], commandLine(line, current, command));
    const reply = await wire.receive(commandTimeoutMs);
    if (isFault(reply)) {
      loseAnnounced(line, current, queue, reply, refusal);
      return false;
    }
    if (reply.code === 421) {
      // RFC 5321 §3.8: the server is about to close. On a kept connection that says nothing about this message.
      const fault = wire.break('closed', 'the server ended the connection');
      if (line.carried > 0 || refusal !== null) loseAnnounced(line, current, queue, fault, refusal);
      else settleRefused(line, current, { reply, phase: phaseOf(command) });
      return false;
    }
    const isExpected = command === 'data' ? reply.code === 354 : reply.code >= 200 && reply.code < 300;
    if (isExpected) continue;
    if (reply.code < 400) {
      const fault = wire.break('not_smtp', `the server answered ${reply.code} out of turn`);
      loseAnnounced(line, current, queue, fault, refusal);
      return false;
    }
    if (command === 'reset') {
      // What is wrong here is the connection, and no message may bounce for it.
      loseAnnounced(line, current, queue, wire.break('closed', 'the server refused RSET'), null);
      return false;
    }
    refusal ??= { reply, phase: command };
    if (command === 'data' || !capabilities.hasPipelining) {
      line.needsReset = true;
      settleRefused(line, current, refusal);
      return false;
    }
  }
  if (refusal === null) return isStillWanted(line, current);
  // RFC 2920 §3.1: the server asks for the content although it has refused the recipient. It gets an empty one.
  wire.write([], '.\r\n');
  await wire.receive(finalReplyTimeoutMs);
  settleRefused(line, current, refusal);
  return false;
}

/** An abort after 354 leaves no way but to cut the connection. */
function isStillWanted(line: WorkingConnection, current: PendingHandOff): boolean {
  current.interrupt = null;
  if (current.state !== 'settled') return true;
  line.wire.break('given_up', 'the hand-off was aborted');
  return false;
}

/** Commits the marker. False if it could not be committed, in which case the connection is gone. */
async function isConfirmed(line: WorkingConnection, current: PendingHandOff): Promise<boolean> {
  current.state = 'committed';
  try {
    await current.handOff.confirm();
    return true;
  } catch (error) {
    line.wire.break('given_up', 'the hand-off was not confirmed');
    current.fail(error);
    return false;
  }
}

/** Writes content and dot, announces a hand-off that waits, and settles the current one by the final reply. */
async function transmit(
  line: WorkingConnection,
  current: PendingHandOff,
  queue: HandOffQueue,
): Promise<PendingHandOff | null> {
  const { wire } = line;
  const lastPieces = await writeAllButTheEnd(line, current);
  if (lastPieces === null) {
    await settleIncomplete(line, current);
    return null;
  }
  const following = takeFollowing(line, queue);
  const announced = following === null ? '' : announce(line, following);
  // From here on the dot may have reached the server.
  wire.write(lastPieces.pieces, lastPieces.ending + announced);
  const reply = await wire.receive(finalReplyTimeoutMs);
  current.settle(finalOutcome(line, reply));
  if (!isFault(reply)) {
    if (reply.code === 421) wire.break('closed', 'the server ended the connection');
    else if (reply.code >= 300 && reply.code < 400) wire.break('not_smtp', 'the server answered out of turn');
  }
  return following;
}

function finalOutcome(line: WorkingConnection, reply: SmtpReply | WireFault): SendOutcome {
  const remote = line.wire.remoteHost;
  if (isFault(reply))
    return { kind: 'unknown', reply: ownWords(`after the final dot: ${reply.detail}`, remote) };
  if (reply.code < 300) return acceptedOutcome(reply, remote);
  if (reply.code < 400) return { kind: 'unknown', reply: remoteWords(reply, remote) };
  return refusalOutcome(reply, 'content', remote);
}

/** What is left to write when the operating system has taken all that came before. */
type LastPieces = { pieces: Buffer[]; ending: string };

/**
 * Writes the content but for its last pieces, which are returned, so that they leave in one write with the dot;
 * of a message of usual size that is all of it. Null if the wire broke or the server spoke before it had the
 * whole: then the dot has not been written.
 */
async function writeAllButTheEnd(
  line: WorkingConnection,
  current: PendingHandOff,
): Promise<LastPieces | null> {
  const { wire } = line;
  let pieces: Buffer[] = [];
  let unwrittenBytes = 0;
  let lineState: LineState = 'at_line_start';
  for (const chunk of current.handOff.content) {
    for (let from = 0; from < chunk.length; from += pieceBytesMax) {
      const piece = viewOf(chunk, from, Math.min(from + pieceBytesMax, chunk.length));
      if (unwrittenBytes + piece.length > pieceBytesMax) {
        wire.write(pieces, '');
        pieces = [];
        unwrittenBytes = 0;
        const fault = await wire.drained(pieceTimeoutMs);
        if (fault !== null || wire.hasUnreadReply()) return null;
      }
      pieces.push(stuffDots(piece, lineState));
      unwrittenBytes += piece.length;
      lineState = lineStateAfter(piece, lineState);
    }
  }
  if (wire.brokenBy() !== null || wire.hasUnreadReply()) return null;
  return { pieces, ending: lineState === 'at_line_start' ? '.\r\n' : '\r\n.\r\n' };
}

/** A Buffer over the same memory: its search is native, that of a plain array is not. */
function viewOf(chunk: Uint8Array, from: number, to: number): Buffer {
  if (Buffer.isBuffer(chunk) && from === 0 && to === chunk.length) return chunk;
  return Buffer.from(chunk.buffer, chunk.byteOffset + from, to - from);
}

/** The dot was not written, so nothing was accepted; what the server said meanwhile is its reason. */
async function settleIncomplete(line: WorkingConnection, current: PendingHandOff): Promise<void> {
  const { wire } = line;
  const words = wire.hasUnreadReply() ? await wire.receive(commandTimeoutMs) : wire.brokenBy();
  wire.break('given_up', 'the content was not sent to its end');
  if (words !== null && !isFault(words) && words.code >= 400) {
    current.settle(refusalOutcome(words, 'content', wire.remoteHost));
    return;
  }
  const detail = words !== null && isFault(words) ? words.detail : 'the server spoke out of turn';
  current.settle({
    kind: 'deferred',
    reason: 'other',
    reply: ownWords(`before the end of the content: ${detail}`, wire.remoteHost),
  });
}

function takeFollowing(line: WorkingConnection, queue: HandOffQueue): PendingHandOff | null {
  if (!line.capabilities.hasPipelining) return null;
  // Ends because every turn takes one out of the queue.
  for (;;) {
    const following = queue.nextWaiting(line);
    if (following === null || isAdmitted(line, following)) return following;
  }
}

/** What need not be offered to this server is settled, and false returned. */
function isAdmitted(line: WorkingConnection, pending: PendingHandOff): boolean {
  const refusal = refuseUnfit(line, pending);
  if (refusal === null) return true;
  pending.settle(refusal);
  return false;
}

function refuseUnfit({ capabilities, wire }: WorkingConnection, pending: PendingHandOff): SendOutcome | null {
  if (pending.needsSmtpUtf8 && !capabilities.hasSmtpUtf8) return refuseInternational(wire.remoteHost);
  const limit = capabilities.sizeBytesMax;
  // RFC 1870 §6.1.
  if (limit === null || pending.contentBytes <= limit) return null;
  const detail = `the message has ${pending.contentBytes} octets and the server takes ${limit}`;
  return { kind: 'rejected', reason: 'message_too_large', reply: ownWords(detail, wire.remoteHost) };
}

/** The commands of one transaction as one group (RFC 2920 §3.1: DATA stands last in it). */
function announce(line: WorkingConnection, pending: PendingHandOff): string {
  pending.state = 'announced';
  const group =
    commandLine(line, pending, 'mail') +
    commandLine(line, pending, 'rcpt') +
    commandLine(line, pending, 'data');
  return line.needsReset ? commandLine(line, pending, 'reset') + group : group;
}

function commandLine(line: WorkingConnection, pending: PendingHandOff, command: Command): string {
  const { handOff } = pending;
  switch (command) {
    case 'reset':
      return 'RSET\r\n';
    case 'mail':
      return `MAIL FROM:<${handOff.envelopeFrom}>${mailParameters(line, pending)}\r\n`;
    case 'rcpt':
      return `RCPT TO:<${pending.needsSmtpUtf8 ? toOctetText(handOff.recipient) : handOff.recipient}>\r\n`;
    case 'data':
      return 'DATA\r\n';
  }
}

function mailParameters(line: WorkingConnection, pending: PendingHandOff): string {
  const { hasSize, hasEightBitMime } = line.capabilities;
  const size = hasSize ? ` SIZE=${pending.contentBytes}` : '';
  if (pending.needsSmtpUtf8) return `${size} BODY=8BITMIME SMTPUTF8`;
  // RFC 6152 §3. To a server without the extension eight bits go undeclared: all that are in use pass them on.
  return hasEightBitMime && !pending.handOff.content.every(isAscii) ? `${size} BODY=8BITMIME` : size;
}

function phaseOf(command: Command): ReplyPhase {
  return command === 'reset' ? 'mail' : command;
}

function settleRefused(line: WorkingConnection, current: PendingHandOff, { reply, phase }: Refusal): void {
  current.interrupt = null;
  current.settle(refusalOutcome(reply, phase, line.wire.remoteHost));
}

/**
 * The wire broke before the server asked for the content. A kept connection may have been dying all along, which
 * is no one's fault and costs nothing to try again; a fresh one that dies, or one that falls silent, counts.
 *
 * A refusal that came before counts as it would on a connection that lives on: Exim's `drop`, Haraka's
 * `DENYDISCONNECT` and others say no and hang up, so that the rest of the group is never answered.
 */
function loseAnnounced(
  line: WorkingConnection,
  current: PendingHandOff,
  queue: HandOffQueue,
  fault: WireFault,
  refusal: Refusal | null,
): void {
  if (refusal !== null) {
    settleRefused(line, current, refusal);
    return;
  }
  current.interrupt = null;
  const outcome = lostBeforeContent(line, fault);
  if (line.carried > 0 && fault.fault !== 'timed_out') queue.giveBack(current, outcome);
  else current.settle(outcome);
}

function lostBeforeContent(line: WorkingConnection, fault: WireFault): SendOutcome {
  return {
    kind: 'deferred',
    reason: 'other',
    reply: ownWords(`before the content: ${fault.detail}`, line.wire.remoteHost),
  };
}
