import { parseSender, type SenderProblem, type SenderType, type SmsSender } from '../channels/sms/sms.ts';
import { type Clock, now } from '../platform/clock.ts';
import type { NewId } from '../platform/ids.ts';
import { type Connection, type Database, violatedIndex } from '../platform/postgres/database.ts';
import * as store from './store.ts';
import type { SenderName, SenderRow } from './store.ts';

/** The front door: the names and numbers that organizations send texts from. */
export { isApprovedSender, listSenders, type SenderName, type SenderRow } from './store.ts';

/** The sender that the organization of a fresh installation may use, as long as texts stay in the sandbox. */
export const sandboxSender = 'Postillion';

/** By organization and name, which counts exactly as it is written; a number has no plus. */
export type ApprovedSenders = { get: (sender: SenderName) => SmsSender | undefined };

/** Which of these an organization may send from. One that is rejected a moment later is still in the answer. */
export async function findApprovedSenders(
  connection: Connection,
  wanted: readonly SenderName[],
): Promise<ApprovedSenders> {
  const found = await store.findApproved(connection, wanted);
  const senders = new Map(found.map((sender) => [keyOf(sender), { name: sender.name, type: sender.type }]));
  return { get: (sender) => senders.get(keyOf(sender)) };
}

function keyOf({ organizationId, name }: SenderName): string {
  return `${organizationId} ${name}`;
}

/** Which sender a text to a number was meant for. */
export type NumberHolder = SenderName & {
  /** Whether it may be answered from that number. */
  isApproved: boolean;
};

/**
 * Which organizations have this number: the one for which it is approved, or else those from which it was withdrawn,
 * since recipients may still reply to their texts. `name` has no plus. Called by workers, whose connections see the rows
 * of all organizations.
 */
export async function findNumberHolders(connection: Connection, name: string): Promise<NumberHolder[]> {
  const holders = (await store.findNumber(connection, name)).map(({ organizationId, status }) => ({
    organizationId,
    name,
    isApproved: status === 'approved',
  }));
  const current = holders.filter(({ isApproved }) => isApproved);
  return current.length > 0 ? current : holders;
}

/** What the commands of an operator need. */
export type SenderTools = { database: Database; clock: Clock; newId: NewId };

export type AddOutcome =
  | { kind: 'added'; sender: SenderRow }
  /** The organization has it already, in whatever case and status. */
  | { kind: 'held'; sender: SenderRow }
  | { kind: SenderProblem };

/** Adds a sender, which can be used once it is approved. A null type is guessed from the name. */
export async function addSender(
  tools: SenderTools,
  wanted: SenderName & { type: SenderType | null },
): Promise<AddOutcome> {
  const parsed = parseSender(wanted.name, wanted.type);
  if (typeof parsed === 'string') return { kind: parsed };
  const named = { organizationId: wanted.organizationId, name: parsed.name };
  const sender = await store.insertSender(tools.database, {
    ...named,
    id: tools.newId(),
    type: parsed.type,
    createdAt: now(tools.clock),
  });
  if (sender !== null) return { kind: 'added', sender };
  const held = await store.findSender(tools.database, named);
  if (held === null) throw new Error('a sender stood in the way and is not there');
  return { kind: 'held', sender: held };
}

export type ApprovalOutcome =
  | { kind: 'approved'; sender: SenderRow }
  /** It is the number of another organization: an answer to it could be for one of them alone. */
  | { kind: 'taken' }
  | { kind: 'not_found' };

/** Lets an organization send from a sender, whatever was said of it before. */
export async function approveSender(tools: SenderTools, id: string): Promise<ApprovalOutcome> {
  try {
    const sender = await store.setStatus(tools.database, { id, status: 'approved', at: now(tools.clock) });
    return sender === null ? { kind: 'not_found' } : { kind: 'approved', sender };
  } catch (cause) {
    if (violatedIndex(cause) === 'senders_approved_number') return { kind: 'taken' };
    throw cause;
  }
}

/** Takes a sender out of use, or keeps it from coming into use; null if there is none. */
export async function rejectSender(tools: SenderTools, id: string): Promise<SenderRow | null> {
  return store.setStatus(tools.database, { id, status: 'rejected', at: now(tools.clock) });
}
