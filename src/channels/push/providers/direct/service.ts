import type { Clock } from '../../../../platform/clock.ts';
import type { HttpClient } from '../../../http2/client.ts';
import type { PushHandOff, PushOutcome } from '../../provider.ts';
import type { ProvenCredentials } from './proven-credentials.ts';

/** Pushes of one platform. */
export type PushService<HandOff extends PushHandOff> = {
  /** As `PushProvider.handOff`. */
  handOff: (handOff: HandOff) => Promise<PushOutcome>;
  /** What the doctor asks for: null if the service can be reached. Opens a connection only. */
  probe: () => Promise<string | null>;
  /** Lets what is under way end, then closes every connection. */
  close: () => Promise<void>;
};

/** What `direct` lends its services. */
export type ServiceTools = {
  clock: Clock;
  /** From 0 up to 1. */
  random: () => number;
  /** One client for an origin such as `https://api.push.apple.com`. The service keeps and closes it. */
  createClient: (origin: string) => HttpClient;
  /** Which credentials have lately had a push accepted: evidence that a refusal is about the token. */
  proven: ProvenCredentials;
};
