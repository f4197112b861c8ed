import type { SmsIntake, SmsProvider } from '../../channels/sms/sms.ts';
import type {
  SmsCallback,
  SmsCallbacks,
  SmsProviderTools,
  ToldOfSms,
} from '../../channels/sms/provider-definition.ts';
import { smsProviders } from '../../channels/sms/providers/registry.ts';
import { type Installation, publicUrlOf } from '../../installation/installation.ts';
import { readReportToken, writeReportToken } from '../../messages/messages.ts';
import { respondPart } from '../../platform/http/page-response.ts';
import type { PageRequest, PageResponse, WebPage } from '../../platform/http/route.ts';
import { createWaker } from '../../platform/queue/wake.ts';
import { keepMessage } from '../../sandbox/sandbox.ts';
import { createSmsIntake } from '../../sms/sms.ts';

/** The provider of texts that the settings choose. Throws, in words for the operator, where it cannot be made. */
export function createSmsProvider(installation: Installation): Promise<SmsProvider> {
  const { config, clock, log, random, secrets } = installation;
  const tools: SmsProviderTools = {
    clock,
    log,
    random,
    intake: createIntake(installation),
    callbackUrl: (path, reference) =>
      `${publicUrlOf(config)}${callbackPath(installation, path)}${writeReportToken(secrets, reference)}`,
    keep: ({ reference, ...kept }) => keepMessage(installation, { ...kept, ...reference, channel: 'sms' }),
  };
  return smsProviders[config.smsProvider].create(tools, config.providerSettings);
}

/** Where what a provider tells goes, in whichever process it arrives. */
export function createIntake(installation: Installation): SmsIntake {
  return createSmsIntake({ ...installation, onTaken: createWaker(installation, 'sms_events') });
}

/** What the provider in use tells by requests to this installation. */
export async function smsCallbacks(installation: Installation): Promise<WebPage[]> {
  const { smsProvider, providerSettings } = installation.config;
  const callbacks = await smsProviders[smsProvider].callbacks?.(providerSettings);
  if (callbacks === undefined) return [];
  const intake = createIntake(installation);
  return callbacks.list.map((callback) => servePage(installation, intake, callbacks, callback));
}

function servePage(
  installation: Installation,
  intake: SmsIntake,
  { provider }: SmsCallbacks,
  { path, formBytesMax, read }: SmsCallback,
): WebPage {
  const { config, secrets, log } = installation;
  return {
    method: 'POST',
    path: callbackPath(installation, path),
    formBytesMax,
    handle: async ({ form, header, params }: PageRequest) => {
      const { token = '' } = params;
      const told = read({
        // As the provider was given it: it signs that address.
        url: `${publicUrlOf(config)}${callbackPath(installation, path.replace(':token', token))}`,
        form,
        header,
        reference: readReportToken(secrets, token),
      });
      if (told === 'forged') return respond(403);
      try {
        await takeAll(intake, told);
        return respond(204);
      } catch (cause) {
        // Providers tell again what was answered with 5xx, some of them where their settings say so.
        log.warn({ err: cause }, `what ${provider} told could not be stored`);
        return respond(503);
      }
    },
  };
}

function callbackPath({ config }: Installation, path: string): string {
  return `/callbacks/${config.smsProvider}/${path}`;
}

async function takeAll(intake: SmsIntake, told: readonly ToldOfSms[]): Promise<void> {
  await Promise.all(
    told.map(({ kind, event }) =>
      kind === 'receipt' ? intake.takeReceipt(event) : intake.takeInbound(event),
    ),
  );
}

function respond(statusCode: number): PageResponse {
  return { ...respondPart('text/plain; charset=utf-8', '', { cacheControl: 'no-store' }), statusCode };
}
