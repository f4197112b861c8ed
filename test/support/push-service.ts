/** What tests of the services of the provider `direct` share: a peer in the place of every origin, and hand-offs. */
import { createHttpClient } from '../../src/channels/http2/client.ts';
import type { PushHandOff } from '../../src/channels/push/provider.ts';
import type { PushService, ServiceTools } from '../../src/channels/push/providers/direct/service.ts';
import { certificateForTests } from './certificate-for-tests.ts';
import { type Http2Peer, startHttp2Peer } from './http2-peer.ts';
import { createManualClock, type ManualClock } from './manual-clock.ts';
import { aPush } from './push-provider-conformance.ts';

export type ServicePeers = {
  clock: ManualClock;
  tools: ServiceTools;
  /** Credentials that have lately had a push accepted. */
  proven: Set<string>;
  /** By origin, such as `https://fcm.googleapis.com`. */
  peers: ReadonlyMap<string, Http2Peer>;
  stop: () => Promise<void>;
};

/** Starts a peer for each of the origins. Clients for any other one have nobody to connect to. */
export async function startServicePeers(
  origins: readonly string[],
  options: Parameters<typeof startHttp2Peer>[0] = {},
): Promise<ServicePeers> {
  const clock = createManualClock();
  const proven = new Set<string>();
  const peers = new Map<string, Http2Peer>();
  for (const origin of origins) peers.set(origin, await startHttp2Peer(options));
  return {
    clock,
    proven,
    peers,
    tools: {
      clock,
      random: () => 0,
      createClient: (origin) =>
        createHttpClient({
          clock,
          origin: peers.get(origin)?.origin ?? 'https://127.0.0.1:1',
          authorities: certificateForTests,
        }),
      proven: {
        note: (id) => {
          proven.add(id);
        },
        isProven: (id) => proven.has(id),
      },
    },
    stop: async () => {
      await Promise.all([...peers.values()].map((peer) => peer.stop()));
    },
  };
}

/** Hands off to a service, and counts what is confirmed. */
export function handingOffTo<HandOff extends PushHandOff>(
  service: PushService<HandOff>,
  standard: Pick<HandOff, 'target' | 'credentials'>,
) {
  const counted = { confirmed: 0 };
  const handOff = (more: Partial<HandOff> = {}) =>
    service.handOff({
      ...aPush(),
      ...standard,
      confirm: () => {
        counted.confirmed += 1;
        return Promise.resolve();
      },
      ...more,
    } as HandOff); // The platform of its parts is that of the service.
  return { handOff, counted };
}
