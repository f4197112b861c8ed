import type { Kill } from './faults.ts';
import type { Ledger } from './load.ts';
import type { Delivery } from './sink.ts';

/** How long it took after a kill until the service did again what it is there for. */
export type Recovery = { name: string; limitMs: number; afterMs: number[] };

const limitsMs = { api: 2_000, worker: 3_000, postgres: 2_000 };

/** Kills that were followed by another before anything recovered are part of that one's recovery. */
export function findRecoveries(
  kills: readonly Kill[],
  { acceptances }: Pick<Ledger, 'acceptances'>,
  deliveries: readonly Pick<Delivery, 'atMs'>[],
): Recovery[] {
  const of = (victim: Kill['victim']) =>
    kills.filter((kill) => kill.victim === victim && kill.stage === victim);
  const acceptedAtMs = acceptances.map(({ endedAtMs }) => endedAtMs).sort(byNumber);
  const deliveredAtMs = deliveries.map(({ atMs }) => atMs).sort(byNumber);
  // An answer that was on its way when the process died says nothing of the next one.
  const begunAndAcceptedAtMs = (afterMs: number) =>
    Math.min(
      ...acceptances.filter(({ beganAtMs }) => beganAtMs >= afterMs).map(({ endedAtMs }) => endedAtMs),
    );
  return [
    {
      name: 'API killed, to the first 202',
      limitMs: limitsMs.api,
      afterMs: lastOfEach(of('api'), begunAndAcceptedAtMs),
    },
    {
      name: 'worker killed, to the next delivery',
      limitMs: limitsMs.worker,
      afterMs: lastOfEach(of('worker'), (afterMs) => firstAfter(deliveredAtMs, afterMs)),
    },
    {
      name: 'worker killed, until its claims were returned',
      limitMs: limitsMs.worker,
      afterMs: of('worker').flatMap(({ claimsReturnedAfterMs }) => claimsReturnedAfterMs ?? []),
    },
    {
      name: 'PostgreSQL ready, to the first 202',
      limitMs: limitsMs.postgres,
      afterMs: of('postgres')
        .flatMap(({ readyAtMs }) => readyAtMs ?? [])
        .map((readyAtMs) => firstAfter(acceptedAtMs, readyAtMs) - readyAtMs)
        .filter(Number.isFinite),
    },
    {
      name: 'PostgreSQL killed, until it is ready',
      limitMs: Infinity,
      afterMs: of('postgres').flatMap(({ atMs, readyAtMs }) =>
        readyAtMs === null ? [] : [readyAtMs - atMs],
      ),
    },
  ];
}

/** What never came, because the load was over, is left out. */
function lastOfEach(kills: readonly Kill[], firstAtMs: (afterMs: number) => number): number[] {
  const latest = new Map<number, number>();
  for (const { atMs } of kills) {
    const recoveredAtMs = firstAtMs(atMs);
    if (Number.isFinite(recoveredAtMs)) latest.set(recoveredAtMs, atMs);
  }
  return [...latest].map(([recoveredAtMs, atMs]) => recoveredAtMs - atMs);
}

function firstAfter(sortedMs: readonly number[], afterMs: number): number {
  return sortedMs.find((atMs) => atMs >= afterMs) ?? Infinity;
}

function byNumber(first: number, second: number): number {
  return first - second;
}
