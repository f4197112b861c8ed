import {
  addSuppressions,
  findOptOuts,
  type SuppressingTools,
  type SuppressionTools,
  takeBackOptOut,
  toErasedKey,
} from '../audience/audience.ts';
import type { Transaction } from '../platform/postgres/database.ts';
import type { DeviceRow } from './store.ts';

/**
 * Opt-outs that people say on a device. The device has them itself (`opted_out`), and goes with its contact; so that
 * nobody has to say it again, each is kept as well under keyed hashes of the installation and of the token.
 */

/** What a device is known by after it is gone. */
export type DeviceTrace = Pick<DeviceRow, 'installation_id' | 'platform' | 'token_sha256'>;

/** By which plans of registrations ask. */
export function traceOfInstallation({ installation_id: id }: Pick<DeviceTrace, 'installation_id'>): string {
  return `installation:${id}`;
}

/** Null where there is no token. */
export function traceOfToken({
  platform,
  token_sha256: digest,
}: Omit<DeviceTrace, 'installation_id'>): string | null {
  return digest === null ? null : `token:${platform}:${digest.toString('hex')}`;
}

function tracesOf(device: DeviceTrace): string[] {
  return [traceOfInstallation(device), traceOfToken(device)].filter((trace) => trace !== null);
}

/** As suppressions keep it: no person could name it. */
function toAddress(tools: SuppressionTools, organizationId: string, trace: string) {
  return { organizationId, address: toErasedKey(tools, { organizationId, address: trace }) };
}

export async function keepDeviceOptOuts(
  transaction: Transaction,
  tools: SuppressingTools,
  organizationId: string,
  devices: readonly DeviceTrace[],
): Promise<void> {
  await addSuppressions(
    transaction,
    tools,
    'push',
    devices.flatMap(tracesOf).map((trace) => ({
      ...toAddress(tools, organizationId, trace),
      reason: 'unsubscribe' as const,
      source: { type: 'device' as const, id: null },
    })),
  );
}

/** The traces of these devices on which somebody has opted out. Each is looked up by a key. */
export async function findDeviceOptOuts(
  transaction: Transaction,
  tools: SuppressionTools,
  organizationId: string,
  devices: readonly DeviceTrace[],
): Promise<Set<string>> {
  const traces = devices.flatMap(tracesOf);
  const found = await findOptOuts(
    transaction,
    tools,
    traces.map((trace) => ({ ...toAddress(tools, organizationId, trace), channel: 'push' as const })),
  );
  return new Set(traces.filter((_trace, index) => found.has(index)));
}

/** A contact has at most some hundred devices, so that each takes statements of its own. */
export async function forgetDeviceOptOuts(
  transaction: Transaction,
  tools: SuppressionTools,
  organizationId: string,
  devices: readonly DeviceTrace[],
): Promise<void> {
  for (const trace of devices.flatMap(tracesOf))
    await takeBackOptOut(transaction, tools, 'push', toAddress(tools, organizationId, trace));
}
