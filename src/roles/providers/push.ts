import type { Shortcoming } from '../../channels/provider-definition.ts';
import type { PushProvider } from '../../channels/push/provider.ts';
import { pushProviders } from '../../channels/push/providers/registry.ts';
import { shareApnsToken } from '../../devices/devices.ts';
import type { Installation } from '../../installation/installation.ts';
import { keepMessage } from '../../sandbox/sandbox.ts';

/** The provider of pushes that the settings choose. Throws, in words for the operator, where it cannot be made. */
export function createPushProvider(installation: Installation): Promise<PushProvider> {
  const { config, clock, log, random, resolver } = installation;
  return pushProviders[config.pushProvider].create(
    {
      clock,
      log,
      random,
      publicUrl: config.publicUrl,
      webPushHosts: config.webPushHosts,
      resolver,
      shareApnsToken: (credentials, sign, refused) =>
        shareApnsToken(installation, credentials, sign, refused),
      keep: ({ reference, ...kept }) => keepMessage(installation, { ...kept, ...reference, channel: 'push' }),
    },
    config.providerSettings,
  );
}

/** What does not work with the provider that the settings choose, while all else does. */
export async function findPushShortcoming({
  config,
}: Pick<Installation, 'config'>): Promise<Shortcoming | null> {
  const { findShortcoming } = pushProviders[config.pushProvider];
  return (await findShortcoming?.(config.providerSettings, config.publicUrl)) ?? null;
}
