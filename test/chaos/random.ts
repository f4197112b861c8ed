import { createHash } from 'node:crypto';

/** A sequence that is the same for the same seed, on any machine. */
export type Random = {
  /** From `low` up to `high`. */
  between: (low: number, high: number) => number;
  isLucky: (probability: number) => boolean;
  pick: <Item>(items: readonly [Item, ...Item[]]) => Item;
};

/** Each part of a run has a seed of its own, so that what one of them draws does not depend on the others' pace. */
export function createRandom(seed: number, part: string): Random {
  let state = createHash('sha256').update(`${seed} ${part}`).digest().readUInt32LE(0);
  // Mulberry32, by Tommy Ettinger, public domain: 32 bits of state are plenty for a schedule.
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return {
    between: (low, high) => low + (high - low) * next(),
    isLucky: (probability) => next() < probability,
    pick: (items) => items[Math.floor(next() * items.length)] ?? items[0],
  };
}
