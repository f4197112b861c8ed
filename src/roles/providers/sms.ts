import type { SmsIntake, SmsProvider } from '../../channels/sms/sms.ts';
import type { SmsProviderTools, ToldOfSms } from '../../channels/sms/provider-definition.ts';
import { smsProviders } from '../../channels/sms/providers/registry.ts';
import type { Installation } from '../../installation/installation.ts';
import type { WebPage } from '../../platform/http/route.ts';
import { createWaker } from '../../platform/queue/wake.ts';
import { keepMessage } from '../../sandbox/sandbox.ts';
import { createSmsIntake } from '../../sms/sms.ts';
import { callbackPages, callbackToolsOf } from './callbacks.ts';

/** The provider of texts that the settings choose. Throws, in words for the operator, where it cannot be made. */
export function createSmsProvider(installation: Installation): Promise<SmsProvider> {
  const { config, clock, log, random } = installation;
  const tools: SmsProviderTools = {
    ...callbackToolsOf(installation, config.smsProvider),
    clock,
    log,
    random,
    intake: createIntake(installation),
    keep: ({ reference, ...kept }) => keepMessage(installation, { ...kept, ...reference, channel: 'sms' }),
  };
  return smsProviders[config.smsProvider].create(tools, config.providerSettings);
}

/** Where what a provider tells goes, in whichever process it arrives. */
export function createIntake(installation: Installation): SmsIntake {
  return createSmsIntake({
    ...installation,
    provider: installation.config.smsProvider,
    onReported: createWaker(installation, 'provider_events'),
    onCameIn: createWaker(installation, 'sms_events'),
  });
}

/** What the provider in use tells by requests to this installation. */
export async function smsCallbacks(installation: Installation): Promise<WebPage[]> {
  const { smsProvider: name, providerSettings } = installation.config;
  const callbacks = await smsProviders[name].callbacks?.(providerSettings);
  if (callbacks === undefined) return [];
  const intake = createIntake(installation);
  const take = ({ kind, event }: ToldOfSms) =>
    kind === 'receipt' ? intake.takeReceipt(event) : intake.takeInbound(event);
  return callbackPages(installation, { name, callbacks, take });
}
