import { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../../platform/clock.ts';
import { type AbortWatch, createAbortWatch, untilAborted } from '../../../../abort-watch.ts';
import type { HttpAnswer, HttpClient, HttpPermit, HttpRequest } from '../../../../http2/client.ts';

/**
 * The connections to APNs: one for each team and environment, since a connection speaks for one key. It is **untried**
 * at first. One request goes alone then, its **trial**, and others wait; APNs lets no more through before it has seen a
 * token that it takes. Once an answer shows that, the connection is **proven**, and takes as many as the transport
 * lets through. What waits for a trial that shows nothing is put off, so that a team whose key was revoked costs one
 * request a round.
 */

export type ApnsConnections = {
  /** As `HttpClient`. `judge` says what an answer means for the connection. */
  exchange: (
    name: ConnectionName,
    request: HttpRequest,
    permit: HttpPermit,
    judge: (answer: HttpAnswer) => Judgement,
  ) => Promise<HttpAnswer>;
  /** Lets what is under way end. */
  close: () => Promise<void>;
};

/**
 * `proven`: APNs takes the token of the team. `spent`: it takes none of it on this connection any more; what is under way
 * ends there, and what comes next gets another one, untried.
 */
export type Judgement = 'proven' | 'spent' | 'untold';

export type ConnectionName = { credentialsId: string; origin: string };

/** Some hundred kilobytes each. With fewer than there are teams at work, they would take each other's place. */
const connectionsMax = 500;

/** Apple wants connections to be kept, and takes it for an attack if they are opened and closed often. */
const idleMsMax = 2 * 3_600_000;
const sweptEveryMs = 10 * 60_000;

type Connection = {
  client: HttpClient;
  isProven: boolean;
  trial: Promise<TrialEnd> | null;
  /** How many were spent. */
  spent: number;
};

/** `untried`: it did not come to a request, so that the next one is a trial too. */
type TrialEnd = 'proven' | 'failed' | 'untried';

/** A smaller limit is for tests. */
export function openApnsConnections(
  { clock, createClient }: { clock: Clock; createClient: (origin: string) => HttpClient },
  limit = connectionsMax,
): ApnsConnections {
  const abortWatch = createAbortWatch();
  const closing = new Set<Promise<void>>();
  const known = new LRUCache<string, Connection>({
    max: limit,
    ttl: idleMsMax,
    ttlResolution: 0,
    updateAgeOnGet: true,
    perf: { now: () => clock.monotonicMs() },
    dispose: ({ client }) => {
      const ending = client.close().finally(() => closing.delete(ending));
      closing.add(ending);
    },
  });
  let cancelSweep: (() => void) | null = null;
  const sweepLater = () => {
    cancelSweep ??= clock.after(sweptEveryMs, () => {
      cancelSweep = null;
      known.purgeStale();
      if (known.size > 0) sweepLater();
    });
  };
  const open = ({ credentialsId, origin }: ConnectionName): Connection => {
    const key = `${credentialsId} ${origin}`;
    const found = known.get(key);
    if (found !== undefined) return found;
    const made: Connection = { client: createClient(origin), isProven: false, trial: null, spent: 0 };
    known.set(key, made);
    sweepLater();
    return made;
  };
  return {
    exchange: (name, request, permit, judge) => {
      const connection = open(name);
      return connection.isProven
        ? use(connection, request, permit, judge)
        : prove(abortWatch, connection, request, permit, judge);
    },
    close: async () => {
      cancelSweep?.();
      known.clear();
      await Promise.all(closing);
    },
  };
}

async function prove(
  abortWatch: AbortWatch,
  connection: Connection,
  request: HttpRequest,
  permit: HttpPermit,
  judge: (answer: HttpAnswer) => Judgement,
): Promise<HttpAnswer> {
  const begin = () => use(connection, request, permit, judge);
  // Ends because whoever wakes first after a trial that is untried begins the next.
  while (!connection.isProven) {
    if (connection.trial === null) return tryOut(connection, begin, judge);
    const end = await untilAborted(abortWatch, permit.signal, connection.trial);
    if (end === 'failed') return { kind: 'busy', detail: 'The connection is being tried with other pushes.' };
  }
  return begin();
}

async function use(
  connection: Connection,
  request: HttpRequest,
  permit: HttpPermit,
  judge: (answer: HttpAnswer) => Judgement,
): Promise<HttpAnswer> {
  const { spent } = connection;
  const answer = await connection.client.exchange(request, permit);
  // Others that were under way on it get the same answer, and must not end the next connection.
  if (judge(answer) === 'spent' && connection.spent === spent) {
    connection.spent += 1;
    connection.isProven = false;
    connection.client.renew();
  }
  return answer;
}

function tryOut(
  connection: Connection,
  begin: () => Promise<HttpAnswer>,
  judge: (answer: HttpAnswer) => Judgement,
): Promise<HttpAnswer> {
  const end = (trialEnd: TrialEnd): TrialEnd => {
    connection.isProven = trialEnd === 'proven';
    connection.trial = null;
    return trialEnd;
  };
  const answering = begin();
  connection.trial = answering.then(
    (answer) => {
      if (judge(answer) === 'proven') return end('proven');
      return end(answer.kind === 'busy' || answer.kind === 'unprocessed' ? 'untried' : 'failed');
    },
    () => end('untried'),
  );
  return answering;
}
