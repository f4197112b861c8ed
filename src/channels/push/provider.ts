import type { RecipientKey, SendOutcome } from '../outcome.ts';
import type { PushContent, PushPlatform } from './notification.ts';

/** Why a device did not get a push: what users read in `error.code`. */
export type PushFailure =
  /** The token was good once: the app was removed, or its token replaced. The device is gone. */
  | 'unregistered'
  /** The token never can work with these credentials. The device is of no use. */
  | 'invalid_token'
  | 'invalid_message'
  | 'message_too_large'
  | 'rate_limited'
  /** The organization's credentials are missing, or the service will never take them. Says nothing of the device. */
  | 'credentials'
  /** Its time was over before it could be handed over. */
  | 'expired'
  | 'other';

/** Where a device is reached. */
export type PushTarget =
  /** `isInstrumented`: the app has our SDK, which shows notifications by itself. */
  | { platform: 'android'; token: string; isInstrumented: boolean }
  | { platform: 'ios'; token: string; environment: 'production' | 'sandbox' }
  /** The keys in base64url. */
  | { platform: 'web'; endpoint: string; p256dh: string; auth: string };

/** What an organization proves itself with at the service of a platform. `id` changes with what it names. */
export type PushCredentials = { id: string } & (
  | {
      platform: 'android';
      projectId: string;
      clientEmail: string;
      privateKeyId: string;
      /** PEM, RSA. */
      privateKey: string;
    }
  | {
      platform: 'ios';
      keyId: string;
      teamId: string;
      /** The bundle id of the app. */
      topic: string;
      /** PEM, P-256. */
      privateKey: string;
    }
  /** A VAPID pair, in base64url. */
  | { platform: 'web'; publicKey: string; privateKey: string }
);

/** One notification for one device, ready to leave. */
export type PushHandOff = {
  reference: RecipientKey;
  /** A UUID, the same in every attempt, and of no other device or message. */
  notificationId: string;
  messageId: string;
  target: PushTarget;
  /** Of the platform of `target`. */
  credentials: PushCredentials;
  content: PushContent;
  /** Services keep it no longer for a device that is offline. Later than now. */
  expiresAt: Date;
  /**
   * Commits "about to hand off". The provider calls it exactly once, when a connection is there and before the first
   * octet that cannot be taken back. If it rejects, the provider sends nothing and lets the error through.
   */
  confirm: () => Promise<void>;
  /** Aborted when the worker must not begin anything more; what was confirmed is carried through all the same. */
  signal: AbortSignal;
};

export type PushOutcome = SendOutcome<PushFailure> & {
  /** Of a rejection: since when the service knows that the token is dead, if it says so. A token given later lives. */
  deadSince?: Date;
  /** Of an acceptance: the environment of APNs that the token is of, where it is not that of the target. */
  environment?: 'production' | 'sandbox';
};

/**
 * How pushes leave: a folder under `providers/` and a line in the registry there. `accepted` says that the platform's
 * service has it; what comes after that is reported by the app on the device.
 */
export type PushProvider = {
  name: string;
  /** How many hand-offs it can usefully have under way at once. */
  concurrency: number;
  /** Never rejects for anything that the remote side does; rejects only with the error of `confirm` or an abort. */
  handOff: (handOff: PushHandOff) => Promise<PushOutcome>;
  /** Why the provider cannot be reached at all; used by `doctor`. Null means that it can. */
  probe: () => Promise<string | null>;
  /** Lets what is under way end, then closes every connection. */
  close: () => Promise<void>;
};

/** What identifies a target to people: its token or endpoint. */
export function addressOfTarget(target: PushTarget): { platform: PushPlatform; address: string } {
  return {
    platform: target.platform,
    address: target.platform === 'web' ? target.endpoint : target.token,
  };
}
