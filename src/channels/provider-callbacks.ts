import type { RecipientKey } from './outcome.ts';

/** The requests by which a provider of any channel reports. What one of them contains is `Told`. */
export type ProviderCallbacks<Told> = {
  /** The provider's name as it writes it: `Twilio`. */
  provider: string;
  list: readonly ProviderCallback<Told>[];
};

/** A request that the provider posts to `/callbacks/<provider>/<path>`. */
export type ProviderCallback<Told> = {
  /** May end in `:token`, which names the recipient: the provider was given this address with the message. */
  path: string;
} & (
  | {
      formBytesMax: number;
      rawBytesMax?: never;
      read: (request: FormCallbackRequest) => CallbackReading<Told>;
    }
  /** In a format of the provider, such as JSON. Signatures are usually over the bytes of the body. */
  | {
      rawBytesMax: number;
      formBytesMax?: never;
      read: (request: RawCallbackRequest) => CallbackReading<Told>;
    }
);

/** What a provider needs that reports by requests of its own. */
export type CallbackTools = {
  /** The address at which a callback of the path `<path>:token` is asked for, with the token of this recipient. */
  callbackUrl: (path: string, reference: RecipientKey) => string;
  /** The token alone, for a provider that returns it in the body of its reports. */
  writeToken: (reference: RecipientKey) => string;
};

export type CallbackRequest = {
  /** The requested address, as the provider was given it. */
  url: string;
  /** By its name in lower case. */
  header: (name: string) => string | undefined;
  /** The recipient that the token in the path names; null without a token, or if it is not ours. */
  reference: RecipientKey | null;
  /** The same for a token in the body. */
  readToken: (token: string) => RecipientKey | null;
};

export type FormCallbackRequest = CallbackRequest & { form: URLSearchParams };

export type RawCallbackRequest = CallbackRequest & { body: Buffer };

/**
 * What a request contains, which may be nothing. `forged`: there is no proof that the provider sent it; this must be
 * found out before anything else is read. `unreadable`: the provider sent it, but it does not have the documented form.
 */
export type CallbackReading<Told> = readonly Told[] | 'forged' | 'unreadable';
