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
  let running: Promise<unknown> = Promise.resolve();
  return {
    kept,
    change: async (key, change) => {
      kept[key] = structuredClone(change(kept[key]));
      return kept[key];
    },
    runAlone: (work) => {
      const run = running.then(work);
      running = run.catch(() => undefined);
      return run;
    },
  };
}
