/** Limits how many bytes are in memory at once. */
export type ByteBudget = {
  /** Returns a function that gives the bytes back, or null if there are not enough left. */
  take: (bytes: number) => (() => void) | null;
  /** How many bytes are taken now. */
  held: () => number;
};

export function createByteBudget(bytesMax: number): ByteBudget {
  let taken = 0;
  return {
    take: (bytes) => {
      if (taken + bytes > bytesMax) return null;
      taken += bytes;
      let isHeld = true;
      return () => {
        if (isHeld) taken -= bytes;
        isHeld = false;
      };
    },
    held: () => taken,
  };
}
