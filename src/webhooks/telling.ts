import { now } from '../platform/clock.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { WebhookSender } from './attempt.ts';
import * as store from './delivery-store.ts';
import { openSecrets, secretsAt } from './endpoint-secrets.ts';
import { failuresMax, type RoundOutcome, tellRound } from './round.ts';
import { type ReadingTools, type ReadRound, readRound } from './round-reading.ts';
import { writeRound, type WritingTools } from './round-writing.ts';
import type { WebhookKey } from './store.ts';

/**
 * Tells an endpoint what it was not told, in rounds, until there is nothing more. A round is
 *
 * 1. **read**: what is to be tried again, and the log from the cursor of the endpoint on;
 * 2. **told**, without a transaction (round.ts);
 * 3. **written**: the cursor moves behind all that was attempted. What was taken leaves no other trace, but for a sample;
 *    what was not is a delivery to be retried.
 *
 * If the process dies in between, the round is told once more by whoever comes next, under the same ids. One that has lost
 * its lock, and lives on, writes nothing; nor does one that has not noticed, if another was first to write the same round.
 *
 * An endpoint that takes nothing is `failing`: it is told of the oldest event alone, at growing intervals, and the rest
 * waits in the log. When it takes that one, everything goes on; when it has taken nothing for days, it is disabled.
 */
export type TellingTools = ReadingTools &
  WritingTools & {
    secrets: Secrets;
    sender: WebhookSender;
    /** Connections beside the one that the endpoint has anyway. */
    takeFurther: (wanted: number) => { count: number; release: () => void };
  };

/** Between rounds of which nothing is taken, until it is known whether the endpoint fails, or is started anew. */
const refusedPauseMs = 5_000;
/**
 * Until nothing is left, the worker stops, or another may have the endpoint: then nothing more is begun, or written. Returns
 * for how many milliseconds to leave it alone.
 */
export async function tellEndpoint(
  tools: TellingTools,
  key: WebhookKey,
  { stopping, lost }: { stopping: AbortSignal; lost: AbortSignal },
): Promise<number> {
  const signal = AbortSignal.any([stopping, lost]);
  let endpoint = await findEndpoint(tools, key);
  while (endpoint !== null && !signal.aborted) {
    const read = await readRound(tools, key, endpoint);
    if (read === null) return 0;
    const outcome = await tellItems(tools, read, signal);
    // No attempt, and so nothing that puts off the next one: the worker is stopping.
    if (read.items.length > 0 && outcome.concluded.length === 0) return 0;
    endpoint = await writeRound(tools, key, { read, outcome, lost });
    if (endpoint !== null && outcome.failures >= failuresMax) return refusedPauseMs;
  }
  return 0;
}

async function findEndpoint({ database }: TellingTools, key: WebhookKey): Promise<store.Endpoint | null> {
  return database.asOrganizationsByIndex([key.organizationId], (transaction) =>
    store.findEndpoint(transaction, key),
  );
}

async function tellItems(
  { clock, secrets, sender, takeFurther }: TellingTools,
  { endpoint, items }: ReadRound,
  signal: AbortSignal,
): Promise<RoundOutcome> {
  const { id: endpointId, url, headers, concurrency, failures, last_success_at: lastSuccessAt } = endpoint;
  const signing = secretsAt(openSecrets(secrets, endpointId, endpoint.secrets_sealed), now(clock));
  // One that hangs holds a single connection from its first failure on, until it takes something.
  const further = takeFurther(failures > 0 ? 0 : Math.min(concurrency, items.length) - 1);
  try {
    return await tellRound(clock, {
      items,
      concurrency: 1 + further.count,
      isOrdered: concurrency === 1,
      state: { failures, lastSuccessAtMs: lastSuccessAt?.getTime() ?? null },
      signal,
      tell: ({ event, body }) =>
        sender.attempt({ endpointId, url, headers, id: event.id, body, secrets: signing }),
    });
  } finally {
    further.release();
  }
}
