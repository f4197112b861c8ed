import type { Clock } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import type { CallbackTools } from '../provider-callbacks.ts';
import type { ProviderDefinition, ProviderSettings } from '../provider-definition.ts';
import type { InboundSms, SmsIntake, SmsProvider, SmsReceipt } from './provider.ts';
import type { SandboxSmsTools } from './providers/sandbox/sandbox.ts';

/** What the installation gives its provider of texts. */
export type SmsProviderTools = CallbackTools & {
  clock: Clock;
  log: Log;
  /** From 0 up to 1. */
  random: () => number;
  /** Takes what it reports over its own connections. */
  intake: SmsIntake;
  /** Keeps a text in the built-in inbox. */
  keep: SandboxSmsTools['keep'];
};

export type SmsProviderDefinition<Settings extends ProviderSettings> = ProviderDefinition<
  Settings,
  SmsProviderTools,
  SmsProvider,
  ToldOfSms
>;

export type ToldOfSms = { kind: 'receipt'; event: SmsReceipt } | { kind: 'inbound'; event: InboundSms };

/** Infers the names of the settings, so that `create` and `callbacks` get their values by them. */
export function defineSmsProvider<const Settings extends ProviderSettings>(
  definition: SmsProviderDefinition<Settings>,
): SmsProviderDefinition<Settings> {
  return definition;
}
