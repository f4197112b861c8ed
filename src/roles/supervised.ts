import cluster from 'node:cluster';
import { type Role, serve } from './serve.ts';
import { type StopReason, whenAskedToStop } from './stopping.ts';
import type { Monitoring, Question } from './monitoring/monitoring.ts';
import { type Order, ProcessFailure, type Told } from './supervisor.ts';

/**
 * Serves as one of several processes, as its supervisor says (supervisor.ts), and ends the process. `describe` makes
 * words for the operator of what made it fail.
 */
export async function serveSupervised(role: Role, describe: (cause: unknown) => string): Promise<never> {
  const { worker } = cluster;
  if (worker === undefined) throw new ProcessFailure('--supervised is for the processes of a supervisor.');
  const greeting = deferred<'now'>();
  const stopping = deferred<StopReason>();
  const monitored = deferred<Monitoring>();
  const begun = new Promise<Extract<Order, { kind: 'begin' }>>((resolve) => {
    process.on('message', (order: Order) => {
      switch (order.kind) {
        case 'begin':
          resolve(order);
          return;
        case 'greet':
          greeting.resolve('now');
          return;
        case 'ask':
          // What fails or is not there yet is not answered: the supervisor waits for some seconds at most.
          void monitored.promise
            .then((monitoring) => answerOf(monitoring, order.question))
            .then((answer) => tell({ kind: 'answer', id: order.id, answer }))
            .catch(() => undefined);
          return;
        case 'stop':
          stopping.resolve(order.reason);
          return;
      }
    });
  });
  worker.once('disconnect', () => {
    // Or the cluster would end the process at once, and with it what is under way.
    worker.exitedAfterDisconnect = true;
    stopping.resolve('orphaned');
  });
  void whenAskedToStop().then(stopping.resolve);
  await tell({ kind: 'listening' });

  try {
    const begin = await Promise.race([begun, stopping.promise]);
    if (typeof begin !== 'string') {
      const { config, number, of, address } = begin;
      await serve(config, role, {
        share: { number, of },
        address,
        asked: stopping.promise,
        onOpened: () => void tell({ kind: 'opened' }),
        onMonitored: monitored.resolve,
        greetInTime: async (greet) => {
          await tell({ kind: 'ready' });
          void greeting.promise
            .then(greet)
            .then(() => tell({ kind: 'greeted' }))
            // As if it had failed before: it stops, and says why.
            .catch(stopping.reject);
        },
      });
    }
  } catch (cause) {
    process.exitCode = 1;
    await tell({ kind: 'failed', words: describe(cause) });
  }
  // The channel would keep the process.
  process.exit();
}

async function answerOf(monitoring: Monitoring, question: Question): Promise<unknown> {
  switch (question) {
    case 'metrics':
      return monitoring.measure();
    case 'metrics of all':
      return (await Promise.all([monitoring.measure(), monitoring.measureInstallation()])).flat();
    case 'readiness':
      return monitoring.findReadiness();
  }
}

/** Resolves when it is on its way, or nobody is there to be told. */
function tell(told: Told): Promise<void> {
  return new Promise((resolve) => {
    if (process.send === undefined || !process.connected) resolve();
    else
      process.send(told, undefined, undefined, () => {
        resolve();
      });
  });
}

type Deferred<Result> = {
  promise: Promise<Result>;
  resolve: (result: Result) => void;
  reject: (cause: unknown) => void;
};

function deferred<Result>(): Deferred<Result> {
  let resolve: Deferred<Result>['resolve'] = () => undefined;
  let reject: Deferred<Result>['reject'] = () => undefined;
  const promise = new Promise<Result>((resolveIt, rejectIt) => {
    resolve = resolveIt;
    reject = rejectIt;
  });
  return { promise, resolve, reject };
}
