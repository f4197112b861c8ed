import { hostname } from 'node:os';
import type { EmailProvider } from '../../channels/email/email.ts';
import type { EmailProviderTools } from '../../channels/email/provider-definition.ts';
import { emailProviders } from '../../channels/email/providers/registry.ts';
import { emailChannel } from '../../email/email.ts';
import type { Installation } from '../../installation/installation.ts';
import { applyReports, type FeedbackListeners } from '../../messages/messages.ts';
import { createResolver } from '../../platform/dns/dns.ts';
import { keepMessage } from '../../sandbox/sandbox.ts';

/** The provider of email that the settings choose. Throws, in words for the operator, where it cannot be made. */
export function createEmailProvider(
  installation: Installation,
  feedback: FeedbackListeners = { onCampaignProgress: () => undefined, onContactsChanged: () => undefined },
): Promise<EmailProvider> {
  const { config, clock, random, resolver } = installation;
  const tools = {
    clock,
    random,
    resolver,
    openResolver: () => createResolver({ servers: config.dnsServers, clock }),
    heloName: config.mailHost ?? hostname(),
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
