import type { Device } from './device.ts';
import type { Report } from './reports.ts';

/** What a browser keeps for its page and its service worker, which share nothing else. */
export type Kept = {
  state: State;
  /** Not sent yet, the oldest first. */
  reports: readonly Report[];
};

export type State = {
  /** Null until the device is to be registered for the first time. */
  installationId: string | null;
  /** By which the reports of the device are known to be its own; null until there is one. */
  deviceSecret: string | null;
  /** As it was registered last. */
  device: Device | null;
  /** Of Postillion, with a slash at its end. */
  serverUrl: string | null;
  /** The VAPID key that the page subscribed with, base64url. */
  publicKey: string | null;
};

const nothing: Kept = {
  state: { installationId: null, deviceSecret: null, device: null, serverUrl: null, publicKey: null },
  reports: [],
};

export type Store = {
  /** Changes what is kept, with nothing in between from another tab or the worker, and returns what it is then. */
  change: <Key extends keyof Kept>(key: Key, change: (value: Kept[Key]) => Kept[Key]) => Promise<Kept[Key]>;
};

export async function readStore<Key extends keyof Kept>(store: Store, key: Key): Promise<Kept[Key]> {
  return store.change(key, (value) => value);
}

const databaseName = 'postillion-push';
const keptName = 'kept';

/** IndexedDB, since a worker has no localStorage. Rejects where the browser keeps nothing for the site. */
export function openStore(): Store {
  return {
    change: async (key, change) => {
      const database = await openDatabase();
      try {
        return await changeIn(database, key, change);
      } finally {
        database.close();
      }
    },
  };
}

function openDatabase(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(databaseName, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(keptName);
    };
    request.onsuccess = () => {
      resolve(request.result);
    };
    request.onerror = () => {
      reject(new Error('IndexedDB cannot be opened', { cause: request.error }));
    };
  });
}

function changeIn<Key extends keyof Kept>(
  database: IDBDatabase,
  key: Key,
  change: (value: Kept[Key]) => Kept[Key],
): Promise<Kept[Key]> {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(keptName, 'readwrite');
    const kept = transaction.objectStore(keptName);
    const request = kept.get(key) as IDBRequest<Kept[Key] | undefined>; // As this very function wrote it.
    let changed = nothing[key];
    request.onsuccess = () => {
      changed = change(request.result ?? nothing[key]);
      kept.put(changed, key);
    };
    transaction.oncomplete = () => {
      resolve(changed);
    };
    transaction.onabort = () => {
      reject(new Error('IndexedDB keeps nothing', { cause: transaction.error }));
    };
  });
}
