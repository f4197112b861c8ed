/** Monitoring of all processes of a role by their supervisor, which knows nothing but what they answer. */
import { type MonitoringListener, startMonitoringListener } from './listener.ts';
import { composeMetrics, type Measured, measureProcesses, metricsContentType } from './meters.ts';
import type { Question } from './monitoring.ts';
import type { Degradation, Readiness } from './readiness.ts';

export type AskedProcesses = {
  processes: number;
  isStopping: () => boolean;
  /** Null if the process does not run, or does not answer in time. */
  ask: (number: number, question: Question) => Promise<unknown>;
};

/** Throws a ListenError if the port cannot be had. */
export function startMonitoringOfAll(
  place: { host: string; port: number },
  asked: AskedProcesses,
): Promise<MonitoringListener> {
  return startMonitoringListener({
    ...place,
    readMetrics: async () => ({ contentType: metricsContentType, text: await readMetricsOfAll(asked) }),
    findReadiness: () => findReadinessOfAll(asked),
  });
}

/** All processes say the same of the installation, so that one of them is asked; the next if that one says nothing. */
async function readMetricsOfAll(asked: AskedProcesses): Promise<string> {
  const measured = await askAll(asked, (number) => (number === 1 ? 'metrics of all' : 'metrics'));
  const parts = measured.map((answer) => answer as Measured[] | null); // What processes answer to this.
  const substitute = parts.findIndex((part) => part !== null) + 1;
  if (parts[0] === null && substitute > 0)
    parts[substitute - 1] = (await asked.ask(substitute, 'metrics of all')) as Measured[] | null;
  return composeMetrics([
    await measureProcesses(parts.map((part) => part !== null)),
    ...parts.filter((part) => part !== null),
  ]);
}

async function findReadinessOfAll(asked: AskedProcesses): Promise<Readiness> {
  if (asked.isStopping()) return { unreadiness: 'stopping', degradations: [] };
  const answers = (await askAll(asked, () => 'readiness')) as (Readiness | null)[]; // What processes answer to this.
  const reasons = answers.flatMap((answer, index) => {
    const reason = answer === null ? 'it does not answer' : answer.unreadiness;
    return reason === null ? [] : [`process ${index + 1}: ${reason}`];
  });
  const degradations = new Map<string, Degradation>();
  for (const degradation of answers.flatMap((answer) => answer?.degradations ?? []))
    degradations.set(`${degradation.kind} ${degradation.message}`, degradation);
  return {
    unreadiness: reasons.length === 0 ? null : reasons.join('; '),
    degradations: [...degradations.values()],
  };
}

function askAll({ processes, ask }: AskedProcesses, question: (number: number) => Question) {
  return Promise.all(Array.from({ length: processes }, (_, index) => ask(index + 1, question(index + 1))));
}
