import { startAlerts } from '../alerts/jobs.ts';
import { createSigningThreads } from '../channels/email/email.ts';
import type { SendingChannel } from '../channels/channel.ts';
import { chatAppProviders } from '../channels/chatapp/providers/registry.ts';
import { emailProviders } from '../channels/email/providers/registry.ts';
import { pushProviders } from '../channels/push/providers/registry.ts';
import { smsProviders } from '../channels/sms/providers/registry.ts';
import type { Config } from '../config.ts';
import { startTemplateWork } from '../chat-templates/jobs.ts';
import { startDomainChecks } from '../domains/jobs.ts';
import { createDeliverability, createEmailDelivery } from '../email/email.ts';
import { type Installation, publicUrlOf } from '../installation/installation.ts';
import {
  type ChannelDelivery,
  createHorizon,
  startCrediting,
  startDelivery,
  startErasing,
  startProviderEvents,
  startTellingOfQuotas,
} from '../messages/messages.ts';
import { startClearing } from '../audience/jobs.ts';
import { startCampaigns } from '../campaigns/jobs.ts';
import { startBounceIntake } from './bounce-intake.ts';
import { campaignChannels, messageChannels } from './channels.ts';
import { startHousekeeping } from './housekeeping.ts';
import { createResolver } from '../platform/dns/dns.ts';
import { type ProcessShare, shareAmong, wholeShare } from '../platform/process-share.ts';
import type { RunningChore } from '../platform/queue/chore.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { createThrottle } from '../platform/throttle.ts';
import { startSegmentUpkeep } from '../segments/jobs.ts';
import { startNumbering, startWebhookDelivery } from '../webhooks/jobs.ts';
import { createChatAppDelivery, startChatAppEvents } from '../chatapp/chatapp.ts';
import { createPushDelivery } from '../push/push.ts';
import { createSmsDelivery, startSmsEvents } from '../sms/sms.ts';
import { createChatAppProvider } from './providers/chatapp.ts';
import { createEmailProvider } from './providers/email.ts';
import { createPushProvider, findPushShortcoming } from './providers/push.ts';
import { createSmsProvider } from './providers/sms.ts';
import { createEventDescribers } from './event-describers.ts';
import { createSenderOf } from './webhook-sender.ts';
import { threadEntryOf } from './thread-entry.ts';

export type Worker = {
  stop: () => Promise<void>;
  /** How many bytes of contents are in memory: none once it has stopped, or some were not given back. */
  heldBytes: () => number;
  /** Whether it has its lease, and so delivers. */
  isWorking: () => boolean;
};

/**
 * Delivers what is due, takes bounces and looks after domains, until it is stopped. Of several processes on one machine
 * the first alone takes bounces, and hands off what cannot be divided.
 */
export async function startWorker(installation: Installation, share = wholeShare): Promise<Worker> {
  const { config } = installation;
  let campaigns: RunningChore | null = null;
  const wakeCampaigns = () => campaigns?.wake();
  const onCampaignProgress = createThrottle(installation.clock, campaignProgressMs, wakeCampaigns);
  const onContactsChanged = createWaker(installation, 'segments');
  const feedback = { onCampaignProgress, onContactsChanged };
  const shares = await sharesOfChannels(config, share);
  const bounceIntake = share.number === 1 ? await startBounceIntake(installation, feedback) : null;
  const emailProvider = shares.email && (await createEmailProvider(installation, feedback, shares.email));
  const smsProvider = shares.sms && (await createSmsProvider(installation));
  const pushProvider = shares.push && (await createPushProvider(installation));
  const chatAppProvider = shares.chatapp && (await createChatAppProvider(installation));
  const shortcoming = share.number === 1 ? await findPushShortcoming(installation) : null;
  if (shortcoming !== null) installation.log.warn(`${shortcoming.found}: ${shortcoming.advice}`);
  const signingThreads = createSigningThreads({
    entry: threadEntryOf('signing-thread'),
    log: installation.log,
    share,
  });
  const wakeDelivery = createWaker(installation, 'deliveries');
  const describers = createEventDescribers({
    ...installation,
    readHorizon: createHorizon({ clock: installation.clock, installed: () => config.keptDays }),
  });
  const webhookResolver = createResolver({ servers: config.dnsServers, clock: installation.clock });
  campaigns = startCampaigns({
    ...installation,
    channels: campaignChannels,
    onFrozen: wakeCampaigns,
    onAdmitted: wakeDelivery,
  });
  const delivery = startDelivery({
    ...installation,
    ...feedback,
    ...(installation.observers && { observer: installation.observers.delivery }),
    channels: messageChannels,
    deliveries: Object.values<ChannelDelivery | null>({
      email:
        emailProvider &&
        createEmailDelivery({
          ...installation,
          emailProvider,
          signText: signingThreads.sign,
          deliverability: createDeliverability({
            ...installation,
            areDomainsLookedUp: config.areDomainsLookedUp,
          }),
          areBouncesRead: installation.hosts.bounceHost !== null,
          publicUrl: publicUrlOf(config),
        }),
      sms: smsProvider && createSmsDelivery({ ...installation, smsProvider }),
      push:
        pushProvider &&
        createPushDelivery({ ...installation, pushProvider, webPushHosts: config.webPushHosts }),
      chatapp: chatAppProvider && createChatAppDelivery({ ...installation, chatAppProvider }),
    } satisfies Record<SendingChannel, ChannelDelivery | null>).filter((delivery) => delivery !== null),
  });
  const chores = [
    campaigns,
    startDomainChecks(installation),
    chatAppProvider && startTemplateWork({ ...installation, provider: chatAppProvider }),
    startSegmentUpkeep(installation),
    startClearing(installation),
    startErasing({ ...installation, channels: messageChannels }),
    startNumbering({
      ...installation,
      onNumbered: createWaker(installation, 'webhook_events'),
      onAlerts: createWaker(installation, 'alerts'),
    }),
    startAlerts({ ...installation, describers, alertsFrom: config.alertsFrom, onQueued: wakeDelivery }),
    startWebhookDelivery({
      ...installation,
      describers,
      sender: await createSenderOf({ ...installation, resolver: webhookResolver }),
    }),
    startTellingOfQuotas(installation),
    startCrediting({ ...installation, channels: messageChannels }),
    startProviderEvents({ ...installation, ...feedback, channels: messageChannels }),
    startChatAppEvents({ ...installation, onContactsChanged }),
    smsProvider &&
      startSmsEvents({
        ...installation,
        answersKeywords: !smsProvider.answersKeywords,
        onContactsChanged,
        onQueued: wakeDelivery,
      }),
  ];
  const housekeeping = startHousekeeping(installation);
  return {
    heldBytes: delivery.heldBytes,
    isWorking: delivery.isWorking,
    stop: async () => {
      await Promise.all([
        housekeeping.stop(),
        ...chores.map((chore) => chore?.stop()),
        bounceIntake?.stop(),
        delivery.stop(),
      ]);
      await Promise.all([
        emailProvider?.close(),
        smsProvider?.close(),
        pushProvider?.close(),
        chatAppProvider?.close(),
        signingThreads.stop(),
      ]);
      webhookResolver.close();
    },
  };
}

/** This process's share of each channel; null where other processes hand off. */
async function sharesOfChannels(
  { emailProvider, smsProvider, pushProvider, chatAppProvider, providerSettings }: Config,
  share: ProcessShare,
): Promise<Record<SendingChannel, ProcessShare | null>> {
  const among = async (processesMax: Promise<number> | undefined) =>
    shareAmong((await processesMax) ?? share.of, share);
  return {
    email: await among(emailProviders[emailProvider].processesMax?.(providerSettings)),
    sms: await among(smsProviders[smsProvider].processesMax?.(providerSettings)),
    push: await among(pushProviders[pushProvider].processesMax?.(providerSettings)),
    chatapp: await among(chatAppProviders[chatAppProvider].processesMax?.(providerSettings)),
  };
}

/** More often would count recipients again and again; less often would let the queue run dry. */
const campaignProgressMs = 200;
