import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';
import type { DnsAnswer, MxRecord } from './answer.ts';

export type CachedAnswer = DnsAnswer<string | MxRecord>;

/** Answers until their time is over, the least used thrown out first. */
export type AnswerCache = {
  get: (key: string) => CachedAnswer | undefined;
  /** `ttlSeconds` is what the servers said, null if they said nothing. A failure never displaces a definite answer. */
  put: (key: string, answer: CachedAnswer, ttlSeconds: number | null) => void;
};

/**
 * Zero would let a thousand jobs for one domain ask a thousand times in one second. Longer than an hour, and a record
 * that was published wrong stays wrong here after its owner has mended it and every other cache has forgotten it.
 */
const foundSecondsMin = 1;
const foundSecondsMax = 3_600;
/** Records are looked for while they are being published: an absence must not outlive its end for long. */
const absentSecondsMax = 300;
/** RFC 2308 section 5 would not keep an absence without SOA at all; then each of a thousand jobs would ask anew. */
const absentSecondsUnsaid = 60;
/** Shorter lets a thousand jobs ask a dead server; longer keeps them from noticing that it is back. */
const failedSeconds = 5;

/** An answer can have 64 kB: entries alone would bound the memory badly. */
const cacheBytesMax = 32 * 1_024 * 1_024;
const entryBytes = 300;

type Entry = { answer: CachedAnswer; expiresAtMs: number };

export function createAnswerCache(clock: Clock, entriesMax: number): AnswerCache {
  const entries = new LRUCache<string, Entry>({
    max: entriesMax,
    maxSize: cacheBytesMax,
    sizeCalculation: ({ answer }, key) => entryBytes + key.length + bytesOf(answer),
  });

  const get = (key: string): CachedAnswer | undefined => {
    const entry = entries.get(key);
    return entry !== undefined && clock.monotonicMs() < entry.expiresAtMs ? entry.answer : undefined;
  };

  return {
    get,
    put: (key, answer, ttlSeconds) => {
      const present = get(key);
      if (answer.kind === 'failed' && present !== undefined && present.kind !== 'failed') return;
      const expiresAtMs = clock.monotonicMs() + lifetimeSeconds(answer, ttlSeconds) * 1_000;
      entries.set(key, { answer, expiresAtMs });
    },
  };
}

function lifetimeSeconds(answer: CachedAnswer, ttlSeconds: number | null): number {
  switch (answer.kind) {
    case 'found':
      return Math.min(foundSecondsMax, Math.max(foundSecondsMin, ttlSeconds ?? 0));
    case 'absent':
      return Math.min(absentSecondsMax, Math.max(foundSecondsMin, ttlSeconds ?? absentSecondsUnsaid));
    case 'failed':
      return failedSeconds;
    default:
      return answer satisfies never;
  }
}

function bytesOf(answer: CachedAnswer): number {
  if (answer.kind === 'failed') return 2 * answer.detail.length;
  if (answer.kind === 'absent') return 0;
  return answer.records.reduce(
    (total, record) => total + 64 + 2 * (typeof record === 'string' ? record : record.exchange).length,
    0,
  );
}
