import type { Kill } from './faults.ts';
import type { Ledger } from './load.ts';
import { isDuring, type Outage } from './outages.ts';
import type { Delivery } from './sink.ts';

/** How long it took after a kill until the service worked again. */
export type Recovery = { name: string; limitMs: number; afterMs: number[] };

const limitsMs = { api: 2_000, worker: 3_000, postgres: 2_000 };

/** Kills that were followed by another before anything recovered are part of that one's recovery. */
export function findRecoveries(
  kills: readonly Kill[],
  { replies }: Pick<Ledger, 'replies'>,
  deliveries: readonly Pick<Delivery, 'atMs'>[],
): Recovery[] {
  const of = (victim: Kill['victim']) =>
    kills.filter((kill) => kill.victim === victim && kill.stage === victim);
  const acceptances = replies.filter(({ answer }) => answer === '202');
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

/**
 * An answer that has to be looked up, in a PostgreSQL that does not answer, takes the longest; `/readyz` two seconds
 * and its way. A restart of PostgreSQL may be just failing when there is room again.
 */
const outageLimitsMs = { answer: 20_000, neighbour: 5_000, readiness: 2_500, again: 5_000, room: 10_000 };

/** How long answers took in outages, and how soon the service was itself again after each. */
export function findOutageRecoveries(
  outages: readonly Outage[],
  { replies }: Pick<Ledger, 'replies'>,
): Recovery[] {
  const of = (fault: Outage['fault']) => outages.filter((outage) => outage.fault === fault);
  const answersIn = (during: readonly Outage[]) =>
    during.flatMap((outage) =>
      replies
        .filter((reply) => isDuring(outage, reply))
        .map(({ beganAtMs, endedAtMs }) => endedAtMs - beganAtMs),
    );
  const acceptances = replies.filter(({ answer }) => answer === '202');
  const acceptedAgain = (after: readonly Outage[]) =>
    after
      .map(({ endedAtMs }) => {
        const later = acceptances.filter(({ beganAtMs }) => beganAtMs >= endedAtMs);
        return Math.min(...later.map((reply) => reply.endedAtMs)) - endedAtMs;
      })
      .filter(Number.isFinite);
  const { answer, neighbour, readiness, again, room } = outageLimitsMs;
  const cutOff = of('cut').filter(({ hitsApi }) => hitsApi);
  return [
    { name: 'PostgreSQL stopped, an answer', limitMs: answer, afterMs: answersIn(of('stopped')) },
    { name: 'PostgreSQL goes on, to the first 202', limitMs: again, afterMs: acceptedAgain(of('stopped')) },
    { name: 'API cut off, an answer', limitMs: answer, afterMs: answersIn(cutOff) },
    { name: 'API reaches PostgreSQL, to the first 202', limitMs: again, afterMs: acceptedAgain(cutOff) },
    {
      name: "a cut-off worker's connections ended, until its claims were returned",
      limitMs: limitsMs.worker,
      afterMs: outages.flatMap(({ claimsReturnedAfterMs }) => claimsReturnedAfterMs ?? []),
    },
    { name: 'beside open bodies, an answer', limitMs: neighbour, afterMs: answersIn(of('bodies')) },
    { name: 'disk full, an answer', limitMs: answer, afterMs: answersIn(of('disk')) },
    { name: 'room on the disk, to the first 202', limitMs: room, afterMs: acceptedAgain(of('disk')) },
    {
      name: '/readyz, in any outage',
      limitMs: readiness,
      afterMs: outages.flatMap((outage) => outage.readiness.map(({ afterMs }) => afterMs)),
    },
  ];
}

/** Recoveries that never came because the load was over are left out. */
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
