import type { Clock } from '../../platform/clock.ts';
import type { Log } from '../../platform/log.ts';
import type { RecipientKey } from '../outcome.ts';
import type { ProviderDefinition, ProviderSettings, SettingValues } from '../provider-definition.ts';
import type { InboundSms, SmsIntake, SmsProvider, SmsReceipt } from './provider.ts';
import type { SandboxSmsTools } from './providers/sandbox/sandbox.ts';

/** What the installation lends its provider of texts. */
export type SmsProviderTools = {
  clock: Clock;
  log: Log;
  /** From 0 up to 1. */
  random: () => number;
  /** Where what it tells over its own connections goes. */
  intake: SmsIntake;
  /** The address at which a callback of the path `<path>:token` is asked for, with the token of this recipient. */
  callbackUrl: (path: string, reference: RecipientKey) => string;
  /** Keeps a text in the built-in inbox. */
  keep: SandboxSmsTools['keep'];
};

export type SmsProviderDefinition<Settings extends ProviderSettings> = ProviderDefinition<
  Settings,
  SmsProviderTools,
  SmsProvider
> & {
  /** The requests by which it tells what became of texts, and of texts that came in. Absent: it makes none. */
  callbacks?: (values: SettingValues<Settings>) => Promise<SmsCallbacks>;
};

export type SmsCallbacks = {
  /** Who tells, as its own people write it: `Twilio`. */
  provider: string;
  list: readonly SmsCallback[];
};

/** A form that the provider posts to `/callbacks/<provider>/<path>`. */
export type SmsCallback = {
  /** With `:token` in it, or without: the recipient that the provider was given with the text. */
  path: string;
  formBytesMax: number;
  /** What it tells, which may be nothing; `forged` where nothing proves that the provider has sent it. */
  read: (request: SmsCallbackRequest) => readonly ToldOfSms[] | 'forged';
};

export type SmsCallbackRequest = {
  /** The address that the provider asked for, as it was given it. */
  url: string;
  form: URLSearchParams;
  /** By its name in lower case. */
  header: (name: string) => string | undefined;
  /** Whom the token stands for; null where there is none, or none of ours. */
  reference: RecipientKey | null;
};

export type ToldOfSms = { kind: 'receipt'; event: SmsReceipt } | { kind: 'inbound'; event: InboundSms };

/** Infers the names of the settings, so that `create` and `callbacks` get their values by them. */
export function defineSmsProvider<const Settings extends ProviderSettings>(
  definition: SmsProviderDefinition<Settings>,
): SmsProviderDefinition<Settings> {
  return definition;
}
