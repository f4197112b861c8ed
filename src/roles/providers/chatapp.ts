import type { ChatAppProvider } from '../../channels/chatapp/provider.ts';
import { chatAppProviders } from '../../channels/chatapp/providers/registry.ts';
import { type ChatAppIntake, createChatAppIntake } from '../../chatapp/chatapp.ts';
import { findOwnApp } from '../../chat-templates/chat-templates.ts';
import type { Installation } from '../../installation/installation.ts';
import type { WebPage } from '../../platform/http/route.ts';
import { createWaker } from '../../platform/queue/wake.ts';
import { keepMessage } from '../../sandbox/sandbox.ts';
import { callbackPages, callbackToolsOf } from './callbacks.ts';

/** The provider of chat-app messages that the settings choose. Throws, in words for the operator, where it cannot be made. */
export function createChatAppProvider(installation: Installation): Promise<ChatAppProvider> {
  const { config, clock, log, random } = installation;
  return chatAppProviders[config.chatAppProvider].create(
    {
      ...callbackToolsOf(installation, config.chatAppProvider),
      clock,
      log,
      random,
      take: createIntake(installation),
      keep: ({ reference, ...kept }) =>
        keepMessage(installation, { ...kept, ...reference, channel: 'chatapp' }),
    },
    config.providerSettings,
  );
}

/** What the provider in use tells by requests to this installation. */
export async function chatAppCallbacks(installation: Installation): Promise<WebPage[]> {
  const { chatAppProvider: name, providerSettings } = installation.config;
  const callbacks = await chatAppProviders[name].callbacks?.(providerSettings);
  if (callbacks === undefined) return [];
  return callbackPages(installation, {
    name,
    callbacks,
    take: createIntake(installation),
    findApp: (token) => findOwnApp(installation, installation.database, token),
  });
}

/** Where what a provider tells goes, in whichever process it arrives. */
export function createIntake(installation: Installation): ChatAppIntake {
  return createChatAppIntake({
    ...installation,
    provider: installation.config.chatAppProvider,
    onReported: createWaker(installation, 'provider_events'),
    onTold: createWaker(installation, 'chat_app_events'),
  });
}
