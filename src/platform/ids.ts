import { randomFillSync } from 'node:crypto';
import { v7 } from 'uuid';
import { type Clock, dateOf } from './clock.ts';

/** Makes UUIDv7 (RFC 9562 §5.7), each greater than the one before it. */
export type NewId = () => string;

/** Random bytes are fetched by the page: a system call for every few ids cost more than the ids. */
const randomPageBytes = 8_192;
const randomBytesPerId = 16;

/** A clock that is corrected goes back by less; one that had been far ahead, by more. */
const backwardMsMax = 10_000;

/**
 * The clock may stand still or go back a little: ids made by one process go up all the same. They follow a clock that
 * goes far back, since they would be of the future else, where there are no partitions for them, until it is reached.
 */
export function createIds(clock: Clock): NewId {
  let lastMs = 0;
  let sequence = 0;
  const page = new Uint8Array(randomPageBytes);
  let offset = randomPageBytes;
  return () => {
    if (offset === randomPageBytes) {
      randomFillSync(page);
      offset = 0;
    }
    const random = page.subarray(offset, offset + randomBytesPerId);
    offset += randomBytesPerId;

    const nowMs = Math.trunc(clock.nowMs());
    if (nowMs > lastMs || nowMs < lastMs - backwardMsMax) {
      lastMs = nowMs;
      // 31 of 32 bits: the other half of the counter's range is left for the ids of one millisecond.
      sequence = new DataView(random.buffer, random.byteOffset).getUint32(0) >>> 1;
    } else {
      sequence += 1;
    }
    return v7({ random, msecs: lastMs, seq: sequence });
  };
}

const uuidPattern = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function isUuid(text: string): boolean {
  return text.length === 36 && uuidPattern.test(text);
}

/** The lowest UUIDv7 of an instant: the bound of a partition, or of a search by time. */
export function lowestIdAt(epochMs: number): string {
  const hex = Math.trunc(epochMs).toString(16).padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8)}-0000-0000-000000000000`;
}

/** When a UUIDv7 was made, by the clock of whoever made it. */
export function instantOfId(id: string): Date {
  return dateOf(Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16));
}
