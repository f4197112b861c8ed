import type { Clock } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import type { RecipientKey } from '../outcome.ts';
import type { CallbackTools } from '../provider-callbacks.ts';
import type { ProviderDefinition, ProviderSettings } from '../provider-definition.ts';
import type { ChatAppProvider, ToldByCallback, ToldOfChatApp } from './provider.ts';

/** What the installation gives its provider of chat-app messages. */
export type ChatAppProviderTools = CallbackTools & {
  clock: Clock;
  log: Log;
  /** From 0 up to 1. */
  random: () => number;
  /** Takes what the provider reports otherwise than by requests: the sandbox, of what it simulates. */
  take: (told: ToldOfChatApp & { organizationId: string }) => Promise<void>;
  /** Keeps a message in the built-in inbox. */
  keep: (message: SandboxChatAppMessage) => Promise<void>;
};

/** What the sandbox keeps of a message that was handed to it. */
export type SandboxChatAppMessage = {
  reference: RecipientKey;
  /** E.164. */
  recipient: string;
  /** Name and language of the template. */
  sender: string;
  outcome: string;
  /** What the person would see, as JSON in UTF-8: a member for each part that it has. */
  source: Buffer;
};

export type ChatAppProviderDefinition<Settings extends ProviderSettings> = ProviderDefinition<
  Settings,
  ChatAppProviderTools,
  ChatAppProvider,
  ToldByCallback
>;

/** Infers the names of the settings, so that `create` and `callbacks` get their values by them. */
export function defineChatAppProvider<const Settings extends ProviderSettings>(
  definition: ChatAppProviderDefinition<Settings>,
): ChatAppProviderDefinition<Settings> {
  return definition;
}
