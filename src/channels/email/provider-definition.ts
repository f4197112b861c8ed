import type { Clock } from '../../platform/clock.ts';
import type { Resolver } from '../../platform/dns/dns.ts';
import type { Log } from '../../platform/log.ts';
import type { ProcessShare } from '../../platform/process-share.ts';
import type { CallbackTools } from '../provider-callbacks.ts';
import type { ProviderDefinition, ProviderSettings } from '../provider-definition.ts';
import type { EmailIntake, EmailProvider, EmailReport } from './provider.ts';
import type { SandboxTools } from './providers/sandbox/sandbox.ts';

/** What the installation gives its provider of email. */
export type EmailProviderTools = CallbackTools & {
  clock: Clock;
  log: Log;
  /** From 0 up to 1. */
  random: () => number;
  resolver: Resolver;
  /** A second resolver, to ask whether DNS answers at all; the caller closes it. */
  openResolver: () => Resolver;
  /** This machine's name, to say in EHLO. */
  heloName: string;
  /** Takes what it reports over its own connections. */
  intake: EmailIntake;
  inbox: SandboxTools;
  /** Among the processes that hand off (`processesMax`). */
  share: ProcessShare;
};

export type EmailProviderDefinition<Settings extends ProviderSettings> = ProviderDefinition<
  Settings,
  EmailProviderTools,
  EmailProvider,
  EmailReport
> & {
  /**
   * Whether mail goes straight to the recipients' servers. The doctor then checks what these require of an unknown
   * sender, and return paths are of the sending domain where its records are published.
   */
  isDirect: boolean;
};

/** Infers the names of the settings, so that `create` and `callbacks` get their values by them. */
export function defineEmailProvider<const Settings extends ProviderSettings>(
  definition: EmailProviderDefinition<Settings>,
): EmailProviderDefinition<Settings> {
  return definition;
}
