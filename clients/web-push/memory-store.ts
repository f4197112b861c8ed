import type { Kept, State, Store } from './store.ts';

/** In the place of IndexedDB in tests, which the real browsers have. `kept` is what it holds. */
export function createMemoryStore(state: Partial<State> = {}): Store & { kept: Kept } {
  const kept: Kept = {
    state: {
      installationId: null,
      deviceSecret: null,
      device: null,
      serverUrl: null,
      publicKey: null,
      ...state,
    },
    reports: [],
  };
  return {
    kept,
    change: async (key, change) => {
      kept[key] = structuredClone(change(kept[key]));
      return kept[key];
    },
  };
}
