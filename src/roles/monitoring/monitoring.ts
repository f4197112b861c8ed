/**
 * What one process tells of itself: its own metrics, those of the whole installation, and whether it is ready. If it
 * serves alone, it listens for those who ask (listener.ts); else its supervisor does, and passes on what all processes say.
 */
import { createControlLookup } from '../../email/email.ts';
import type { Installation } from '../../installation/installation.ts';
import { within } from '../../platform/clock.ts';
import type { Database } from '../../platform/postgres/database.ts';
import { createSharedLook } from '../../platform/shared-look.ts';
import type { ProcessShare } from '../../platform/process-share.ts';
import { readCondition, readMeasures } from './condition.ts';
import type { Measured, Meters } from './meters.ts';
import { type MonitoringListener, startMonitoringListener } from './listener.ts';
import { type Degradation, findDegradations, type Readiness, recipientsUnchecked } from './readiness.ts';

export type Monitoring = {
  /** The metrics of this process. */
  measure: () => Promise<Measured[]>;
  /** Those of the installation, which any of its processes can tell. */
  measureInstallation: () => Promise<Measured[]>;
  findReadiness: () => Promise<Readiness>;
};

/** What a supervisor asks a process for: what it measures, without or with the whole installation, or if it is ready. */
export type Question = 'metrics' | 'metrics of all' | 'readiness';

/** If shorter, the database is asked more often; if longer, alerts come later. */
const keptMs = 5_000;
const lookMaxMs = 3_000;

/** A load balancer waits for two seconds, and the database was asked by then whether it answers at all. */
const conditionMaxMs = 1_000;

/** Finds what keeps the installation from its work; many may ask. The name servers are those of this process. */
export function createConditionWatch(
  installation: Pick<Installation, 'database' | 'clock' | 'config' | 'resolver'>,
): () => Promise<Degradation[]> {
  const { clock, config } = installation;
  const control = createControlLookup(installation);
  const findUnchecked = async () => {
    if (!config.areDomainsLookedUp) return [];
    const verdict = await within(clock, conditionMaxMs, control.verdict(), 'silent');
    return verdict === 'deny' ? [recipientsUnchecked] : [];
  };
  const look = createSharedLook(clock, { keptMs, lookMaxMs: conditionMaxMs }, () =>
    readCondition(installation),
  );
  return async () => {
    const [condition, unchecked] = await Promise.all([look(), findUnchecked()]);
    return [...findDegradations(condition, clock.nowMs()), ...unchecked];
  };
}

/** Loads what measures: a process that nobody asks does without. */
export async function openMeters(
  installation: Pick<Installation, 'config' | 'resolver' | 'clock'> & {
    database: Pick<Database, 'connections'>;
  },
  role: string,
  share: ProcessShare,
): Promise<Meters | null> {
  if (installation.config.metricsListener === null) return null;
  const { createMeters } = await import('./meters.ts');
  return createMeters(installation, { role, process: share.number });
}

/** As on the port of the API: whoever asks waits no longer. */
const readinessMaxMs = 2_000;
const unanswered = 'the database does not answer';

/** `findUnreadiness` says what keeps this process from taking work, or null. */
export async function createMonitoring(
  installation: Pick<Installation, 'database' | 'clock' | 'config' | 'resolver'>,
  meters: Meters,
  findUnreadiness: () => Promise<string | null>,
): Promise<Monitoring> {
  const { measureInstallation } = await import('./meters.ts');
  const findDegradations = createConditionWatch(installation);
  const look = createSharedLook(installation.clock, { keptMs, lookMaxMs }, () => readMeasures(installation));
  return {
    measure: meters.measure,
    measureInstallation: async () => measureInstallation(await look()),
    findReadiness: async () => {
      const [unreadiness, degradations] = await Promise.all([
        within(
          installation.clock,
          readinessMaxMs,
          findUnreadiness().catch(() => unanswered),
          unanswered,
        ),
        findDegradations(),
      ]);
      return { unreadiness, degradations };
    },
  };
}

/** Listens for a process that serves alone. Throws a ListenError if the port cannot be had. */
export async function startMonitoring(
  monitoring: Monitoring,
  place: { host: string; port: number },
): Promise<MonitoringListener> {
  const { composeMetrics, metricsContentType } = await import('./meters.ts');
  return startMonitoringListener({
    ...place,
    readMetrics: async () => ({
      contentType: metricsContentType,
      text: await composeMetrics(await Promise.all([monitoring.measure(), monitoring.measureInstallation()])),
    }),
    findReadiness: monitoring.findReadiness,
  });
}
