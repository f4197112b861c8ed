import type { PushProvider } from '../../channels/push/provider.ts';
import { pushProviders } from '../../channels/push/providers/registry.ts';
import type { Installation } from '../../installation/installation.ts';
import { keepMessage } from '../../sandbox/sandbox.ts';

/** The provider of pushes that the settings choose. Throws, in words for the operator, where it cannot be made. */
export function createPushProvider(installation: Installation): Promise<PushProvider> {
  const { config, clock, log, random } = installation;
  return pushProviders[config.pushProvider].create(
    {
      clock,
      log,
      random,
      keep: ({ reference, ...kept }) => keepMessage(installation, { ...kept, ...reference, channel: 'push' }),
    },
    config.providerSettings,
  );
}
