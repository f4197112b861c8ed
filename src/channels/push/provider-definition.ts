import type { Clock } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import type { ProviderDefinition, ProviderSettings } from '../provider-definition.ts';
import type { PushProvider } from './provider.ts';
import type { SandboxPushTools } from './providers/sandbox/sandbox.ts';

/** What the installation lends its provider of pushes. */
export type PushProviderTools = {
  clock: Clock;
  log: Log;
  /** From 0 up to 1. */
  random: () => number;
  /** Keeps a push in the built-in inbox. */
  keep: SandboxPushTools['keep'];
};

export type PushProviderDefinition<Settings extends ProviderSettings> = ProviderDefinition<
  Settings,
  PushProviderTools,
  PushProvider,
  never
>;

/** Infers the names of the settings, so that `create` gets their values by them. */
export function definePushProvider<const Settings extends ProviderSettings>(
  definition: PushProviderDefinition<Settings>,
): PushProviderDefinition<Settings> {
  return definition;
}
