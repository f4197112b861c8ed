import type { Clock } from '../../../../platform/clock.ts';
import type { Resolver } from '../../../../platform/dns/dns.ts';
import { lookupPublicAddresses } from '../../../../platform/outbound/host-addresses.ts';
import { createHttpClient, type HttpClient, type HttpClientOptions } from '../../../http2/client.ts';
import { createUnderWay } from '../../../under-way.ts';
import type { PushHandOff, PushOutcome, PushProvider } from '../../provider.ts';
import { createApnsService } from './apns/apns.ts';
import type { ShareApnsToken } from './apns/provider-tokens.ts';
import { ownWords } from './exchanges.ts';
import { createFcmService } from './fcm/fcm.ts';
import { createProvenCredentials } from './proven-credentials.ts';
import { createWebPushService } from './web-push/web-push.ts';

/** Pushes straight to the services of the platforms: each device has its own, and each organization its own accounts. */

export type DirectPushTools = {
  clock: Clock;
  /** From 0 up to 1. */
  random: () => number;
  resolver: Resolver;
  shareApnsToken: ShareApnsToken;
  /** Who runs this installation, as `isVapidSubject` takes it; null where nobody has said. */
  vapidSubject: string | null;
  /** The push services of browsers that are allowed, as `isPushHostPattern` takes them. */
  hosts: readonly string[];
  /** Connects to a service. Tests and benchmarks lead it to services of their own. */
  connect?: (options: HttpClientOptions) => HttpClient;
};

/**
 * With a service 50 ms away, 20,000 a second. More would hold more of the queue while a service is silent; fewer would
 * keep fast services waiting for slow ones.
 */
const handOffsMax = 1_000;

export function createDirectPushProvider(tools: DirectPushTools): PushProvider {
  const { clock, random, resolver, hosts, vapidSubject, connect = createHttpClient } = tools;
  const shared = { clock, random, proven: createProvenCredentials(clock) };
  const createClient = (origin: string) => connect({ clock, origin });
  const fcm = createFcmService({ ...shared, createClient });
  const apns = createApnsService({ ...shared, createClient, shareApnsToken: tools.shareApnsToken });
  const webPush = createWebPushService({
    ...shared,
    hosts,
    vapidSubject,
    resolver,
    // Endpoints are given by strangers: none leads into the operator's network.
    createClient: (origin) => connect({ clock, origin, lookup: lookupPublicAddresses(resolver) }),
  });
  const services = { FCM: fcm, APNs: apns, 'Web Push': webPush };
  const underWay = createUnderWay(handOffsMax);
  let isClosed = false;

  const handOffToService = (handOff: PushHandOff): Promise<PushOutcome> => {
    const { target, credentials } = handOff;
    if (target.platform === 'android' && credentials.platform === 'android')
      return fcm.handOff({ ...handOff, target, credentials });
    if (target.platform === 'ios' && credentials.platform === 'ios')
      return apns.handOff({ ...handOff, target, credentials });
    if (target.platform === 'web' && credentials.platform === 'web')
      return webPush.handOff({ ...handOff, target, credentials });
    throw new Error(`credentials for ${credentials.platform} were given for a device of ${target.platform}`);
  };

  return {
    name: 'direct',
    concurrency: handOffsMax,
    handOff: async (handOff) => {
      handOff.signal.throwIfAborted();
      if (isClosed)
        return {
          kind: 'deferred',
          reason: 'provider_unavailable',
          reply: ownWords('closing down', null),
        };
      return underWay.run(() => handOffToService(handOff));
    },
    probe: async () => {
      const problems = await Promise.all(
        Object.entries(services).map(async ([name, { probe }]) => {
          const problem = await probe();
          return problem === null ? [] : [`${name}: ${problem}`];
        }),
      );
      return problems.flat().join('; ') || null;
    },
    close: async () => {
      isClosed = true;
      await underWay.end();
      await Promise.all(Object.values(services).map((service) => service.close()));
    },
  };
}
