import type { RecipientKey } from './outcome.ts';

/** The requests by which a provider tells what it has to tell, of whatever channel: what it tells is `Told`. */
export type ProviderCallbacks<Told> = {
  /** Who tells, as its own people write it: `Twilio`. */
  provider: string;
  list: readonly ProviderCallback<Told>[];
};

/** What the provider posts to `/callbacks/<provider>/<path>`. */
export type ProviderCallback<Told> = {
  /** With `:token` in it, or without: the recipient that the provider was given with the message. */
  path: string;
} & (
  | {
      formBytesMax: number;
      rawBytesMax?: never;
      read: (request: FormCallbackRequest) => CallbackReading<Told>;
    }
  /** In a format of the provider's own, such as JSON, which it signs octet for octet. */
  | {
      rawBytesMax: number;
      formBytesMax?: never;
      read: (request: RawCallbackRequest) => CallbackReading<Told>;
    }
);

/** What the installation lends a provider that tells something by requests of its own. */
export type CallbackTools = {
  /** The address at which a callback of the path `<path>:token` is asked for, with the token of this recipient. */
  callbackUrl: (path: string, reference: RecipientKey) => string;
  /** The token alone, for a provider that gives it back within what it tells. */
  writeToken: (reference: RecipientKey) => string;
};

export type CallbackRequest = {
  /** The address that the provider asked for, as it was given it. */
  url: string;
  /** By its name in lower case. */
  header: (name: string) => string | undefined;
  /** Whom the token in the path stands for; null where there is none, or none of ours. */
  reference: RecipientKey | null;
  /** The same for a token that the provider gives back within what it tells. */
  readToken: (token: string) => RecipientKey | null;
};

export type FormCallbackRequest = CallbackRequest & { form: URLSearchParams };

export type RawCallbackRequest = CallbackRequest & { body: Buffer };

/**
 * What a request tells, which may be nothing. `forged`: nothing proves that the provider has sent it, so that nothing
 * else of it may be looked at. `unreadable`: the provider has sent it, and it is not what its documentation says.
 */
export type CallbackReading<Told> = readonly Told[] | 'forged' | 'unreadable';
