import { hostname } from 'node:os';
import type { EmailIntake, EmailProvider } from '../../channels/email/email.ts';
import type { EmailProviderTools } from '../../channels/email/provider-definition.ts';
import { emailProviders } from '../../channels/email/providers/registry.ts';
import { createEmailIntake, emailChannel } from '../../email/email.ts';
import type { Installation } from '../../installation/installation.ts';
import { applyReports, createReportIntake, type RecipientListeners } from '../../messages/messages.ts';
import { createResolver } from '../../platform/dns/dns.ts';
import type { WebPage } from '../../platform/http/route.ts';
import { type ProcessShare, wholeShare } from '../../platform/process-share.ts';
import { createWaker } from '../../platform/queue/wake.ts';
import { keepMessage } from '../../sandbox/sandbox.ts';
import { callbackPages, callbackToolsOf } from './callbacks.ts';

/** The provider of email that the settings choose. Throws, in words for the operator, where it cannot be made. */
export function createEmailProvider(
  installation: Installation,
  feedback: RecipientListeners = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined },
  share: ProcessShare = wholeShare,
): Promise<EmailProvider> {
  const { config, clock, log, random, resolver } = installation;
  const tools = {
    ...callbackToolsOf(installation, config.emailProvider),
    clock,
    log,
    random,
    resolver,
    openResolver: () => createResolver({ servers: config.dnsServers, clock }),
    heloName: config.mailHost ?? hostname(),
    share,
    intake: createIntake(installation),
    inbox: {
      keep: ({ reference, ...kept }) =>
        keepMessage(installation, { ...kept, ...reference, channel: 'email' }),
      reportComplaint: (job) =>
        applyReports({ ...installation, ...feedback }, emailChannel, [
          { job, status: 'complained', failure: null },
        ]),
    },
  } satisfies EmailProviderTools;
  return emailProviders[config.emailProvider].create(tools, config.providerSettings);
}

function createIntake(installation: Installation): EmailIntake {
  const onTaken = createWaker(installation, 'provider_events');
  return createEmailIntake(
    createReportIntake({ ...installation, onTaken }),
    installation.config.emailProvider,
  );
}

/** What the provider in use tells by requests to this installation. */
export async function emailCallbacks(installation: Installation): Promise<WebPage[]> {
  const { emailProvider: name, providerSettings } = installation.config;
  const callbacks = await emailProviders[name].callbacks?.(providerSettings);
  if (callbacks === undefined) return [];
  return callbackPages(installation, { name, callbacks, take: createIntake(installation).takeReport });
}
