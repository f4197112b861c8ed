import type pg from 'pg';
import type { Log } from '../platform/log.ts';
import type { Database } from '../platform/postgres/database.ts';
import { tryLockNameAlone, unlockNameAlone } from '../platform/postgres/name-locks.ts';

/**
 * Of several nodes one tells an endpoint. It holds a lock of its session on the endpoint, on a connection that serves for
 * nothing else: PostgreSQL frees the locks of a node that is killed at once, and nothing has to be recovered.
 */
export type EndpointLocks = {
  /** Null if another node has it. `signal` aborts when the lock is lost: another node may have it by then. */
  take: (webhookId: string) => Promise<EndpointLock | null>;
  close: () => Promise<void>;
};

export type EndpointLock = { signal: AbortSignal; release: () => Promise<void> };

type Held = { client: pg.Client; lost: AbortController };

export function createEndpointLocks({ database, log }: { database: Database; log: Log }): EndpointLocks {
  let opening: Promise<Held> | null = null;

  const open = async (): Promise<Held> => {
    const client = await database.connectAlone('postillion-webhooks');
    const lost = new AbortController();
    const lose = () => {
      // An error and the end may both say so, and another connection may be open by then.
      if (lost.signal.aborted) return;
      opening = null;
      lost.abort(new Error('the connection that holds the locks of endpoints has ended'));
    };
    client.on('end', lose);
    client.on('error', (cause) => {
      log.warn({ err: cause }, 'locks of endpoints lost');
      lose();
      client.end().catch(ignore);
    });
    database.watchOver(client);
    return { client, lost };
  };
  const held = () => {
    opening ??= open().catch((cause: unknown) => {
      opening = null;
      throw cause;
    });
    return opening;
  };

  return {
    take: async (webhookId) => {
      const { client, lost } = await held();
      const name = `webhook ${webhookId}`;
      if (!(await tryLockNameAlone(database, client, name))) return null;
      return {
        signal: lost.signal,
        release: async () => {
          // With the connection the lock has ended.
          if (!lost.signal.aborted) await unlockNameAlone(database, client, name).catch(ignore);
        },
      };
    },
    close: async () => {
      const opened = await opening?.catch(() => null);
      await opened?.client.end().catch(ignore);
    },
  };
}

function ignore(): void {
  // Whatever ends the connection ends the locks.
}
