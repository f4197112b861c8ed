import { type DnsAnswer, failed } from './answer.ts';
import type { TryOutcome } from './exchange.ts';
import { type Question, readAlias } from './questions.ts';
import { type RecordType, type Reply, type ReplyRecord, aliasesMax, recordsMax } from './wire.ts';

export type Resolution<T> = {
  answer: DnsAnswer<T>;
  /** The least of what was met on the way; null where the servers said nothing of it. */
  ttlSeconds: number | null;
};

type Ask = (question: { name: string; type: RecordType }) => Promise<TryOutcome>;

/** Where the aliases of one reply lead. */
type Walk = { name: string; leastTtlSeconds: number; broken: string | null };

/**
 * Follows a name through its aliases to the records asked for, within a reply as far as it goes, and by asking on
 * from there. Records that belong to none of these names are not looked at.
 */
export async function resolveName<T>(ask: Ask, question: Question<T>, asked: string): Promise<Resolution<T>> {
  const seen = new Set([asked]);
  let name = asked;
  let ttlSeconds = Number.POSITIVE_INFINITY;
  // Ends: every turn but the last adds an alias to `seen`, and those are limited.
  for (;;) {
    const outcome = await ask({ name, type: question.type });
    if (outcome.kind === 'failed') return { answer: outcome, ttlSeconds: null };
    const { reply } = outcome;

    const walk = followAliases(reply, question.type, name, seen);
    ttlSeconds = Math.min(ttlSeconds, walk.leastTtlSeconds);
    if (walk.broken !== null) return { answer: failed('malformed', walk.broken), ttlSeconds: null };

    const here = recordsOf(reply, question.type, walk.name);
    if (here.length > 0) return readRecords(question, here, ttlSeconds);
    if (reply.isNameUnknown || walk.name === name || isAbsenceOf(reply, walk.name)) {
      const reason = reply.isNameUnknown ? 'no_such_domain' : 'no_such_record';
      const lifetime = reply.absence === null ? null : Math.min(ttlSeconds, reply.absence.ttlSeconds);
      return { answer: { kind: 'absent', reason }, ttlSeconds: lifetime };
    }
    name = walk.name;
  }
}

/** Adds the names on its way to `seen`. */
function followAliases(reply: Reply, type: RecordType, start: string, seen: Set<string>): Walk {
  let name = start;
  let leastTtlSeconds = Number.POSITIVE_INFINITY;
  const broken = (detail: string): Walk => ({ name, leastTtlSeconds, broken: detail });
  while (recordsOf(reply, type, name).length === 0) {
    const alias = recordsOf(reply, 'CNAME', name)[0];
    if (alias === undefined) break;
    const target = readAlias(alias.content);
    if (target === null) return broken('an alias stands for what is no domain name');
    if (seen.has(target)) return broken('the aliases lead in a circle');
    if (seen.size > aliasesMax) return broken(`more than ${aliasesMax} aliases one behind another`);
    seen.add(target);
    leastTtlSeconds = Math.min(leastTtlSeconds, alias.ttlSeconds);
    name = target;
  }
  return { name, leastTtlSeconds, broken: null };
}

function recordsOf(reply: Reply, type: RecordType, name: string): ReplyRecord[] {
  return reply.records.filter((record) => record.name === name && record.content.type === type);
}

/** One bad record does not spoil the rest; if all are bad, that is no absence. */
function readRecords<T>(question: Question<T>, held: ReplyRecord[], aliasTtlSeconds: number): Resolution<T> {
  const records = held.flatMap(({ content }) => question.read(content) ?? []);
  if (records.length === 0) {
    return { answer: failed('malformed', `no ${question.type} record could be read`), ttlSeconds: null };
  }
  const ttlSeconds = Math.min(aliasTtlSeconds, ...held.map((record) => record.ttlSeconds));
  return { answer: { kind: 'found', records: records.slice(0, recordsMax) }, ttlSeconds };
}

/** Whether the reply says that the name at the end of its aliases has no such record, and not just where to ask. */
function isAbsenceOf({ absence }: Reply, name: string): boolean {
  if (absence === null) return false;
  return absence.zone === '' || name === absence.zone || name.endsWith(`.${absence.zone}`);
}
