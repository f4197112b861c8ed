/** Holds back how many bytes are in memory at once. */
export type ByteBudget = {
  /** Returns what gives the bytes back, or null if they are not to be had now. */
  take: (bytes: number) => (() => void) | null;
  /** How many bytes are taken and not given back. */
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
