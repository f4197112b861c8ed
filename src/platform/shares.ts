/**
 * Divides something limited among holders who ask for it at any time. Each may hold as much as is left for the others:
 * a single one half of it, two a third each, and so on. However much the others ask for, a holder that has nothing yet
 * gets some. (Dynamic thresholds, as switches divide their buffers: Choudhury and Hahne, IEEE/ACM Transactions on
 * Networking 6, 1998.)
 */
export type Shares = {
  /** Null if there is no room for this holder now. */
  take: (holder: string, amount: number) => Share | null;
  /** How much all holders have together. */
  held: () => number;
};

export type Share = {
  /** Takes more of it; false, and nothing changed, if there is no room. */
  grow: (amount: number) => boolean;
  /** Gives all of it back; a second call changes nothing. */
  release: () => void;
};

export function createShares(total: number): Shares {
  const held = new Map<string, number>();
  let taken = 0;

  const take = (holder: string, amount: number): boolean => {
    const own = held.get(holder) ?? 0;
    const free = total - taken;
    if (amount > free || (own > 0 && own + amount > free)) return false;
    held.set(holder, own + amount);
    taken += amount;
    return true;
  };
  const giveBack = (holder: string, amount: number) => {
    const left = (held.get(holder) ?? 0) - amount;
    if (left > 0) held.set(holder, left);
    else held.delete(holder);
    taken -= amount;
  };

  return {
    take: (holder, amount) => {
      if (!take(holder, amount)) return null;
      let own = amount;
      return {
        grow: (more) => {
          const isTaken = take(holder, more);
          if (isTaken) own += more;
          return isTaken;
        },
        release: () => {
          giveBack(holder, own);
          own = 0;
        },
      };
    },
    held: () => taken,
  };
}
