import type { Clock } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import type { ProviderDefinition, ProviderSettings } from '../provider-definition.ts';
import type { Resolver } from '../../platform/dns/dns.ts';
import type { PushProvider } from './provider.ts';
import type { DirectPushTools } from './providers/direct/direct.ts';
import type { SandboxPushTools } from './providers/sandbox/sandbox.ts';

/** What the installation lends its provider of pushes. */
export type PushProviderTools = {
  clock: Clock;
  log: Log;
  /** From 0 up to 1. */
  random: () => number;
  /** POSTILLION_PUBLIC_URL, or null. */
  publicUrl: string | null;
  /** The push services of browsers that are allowed, as `isPushHostPattern` takes them. */
  webPushHosts: readonly string[];
  resolver: Resolver;
  /** The token of APNs that all nodes share; as `devices/apns-token.ts` says. */
  shareApnsToken: DirectPushTools['shareApnsToken'];
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
