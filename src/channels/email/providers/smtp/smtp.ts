import type { Clock } from '../../../../platform/clock.ts';
import { partOf, type ProcessShare, wholeShare } from '../../../../platform/process-share.ts';
import type { RemoteReply, SendOutcome } from '../../../outcome.ts';
import type { EmailHandOff, EmailProvider } from '../../provider.ts';
import { abortReason, createAbortWatch } from '../../../abort-watch.ts';
import { refuseEnvelope } from './envelope.ts';
import { openSmtpConnection } from './opening.ts';
import type { OpeningFailure } from './opening.ts';
import { ownWords } from './outcomes.ts';
import { SmtpPool } from './pool.ts';
import { parseSmtpUrl } from './url.ts';
import type { SmtpTarget } from './url.ts';

/**
 * Mail to one server over a few kept connections (pool.ts). A server at which no connection can be opened is the
 * provider itself being away: what waits is deferred as `provider_unavailable`, and no message is to blame.
 */

export type SmtpProviderOptions = {
  /** See `parseSmtpUrl`. */
  url: string;
  clock: Clock;
  /** This machine's name, to say in EHLO. */
  heloName: string;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string;
  /** Of the connections that the URL allows. */
  share?: ProcessShare;
};

const handOffsPerConnectionMax = 1_000;
const idleTimeoutMs = 15_000;

/** Per connection. More waiting hand-offs than this are no queue but a mistake of the caller. */
const waitingPerConnectionMax = 64;

/**
 * An email provider that hands everything to one SMTP server (a relay of one's own or a provider's). Throws what
 * `parseSmtpUrl` throws; opens nothing before the first hand-off.
 */
export function createSmtpProvider(options: SmtpProviderOptions): EmailProvider {
  const allowed = parseSmtpUrl(options.url);
  const target = { ...allowed, connectionsMax: partOf(allowed.connectionsMax, options.share ?? wholeShare) };
  const pool = createPool(options, target);
  let isClosing = false;
  return {
    name: 'smtp',
    isReportedById: false,
    // One under way and one announced after it on each connection.
    concurrency: 2 * target.connectionsMax,
    isAnnouncedAhead: true,
    handOff: async (handOff) => {
      if (handOff.signal.aborted) throw abortReason(handOff.signal);
      const refused = isClosing
        ? unavailable(ownWords('closing down', target.host))
        : refuse(handOff, target, pool.counts().waiting);
      return refused ?? pool.handOff(handOff);
    },
    probe: async () => {
      const failure = await pool.probe();
      return failure === null ? null : describe(failure.failed);
    },
    close: () => {
      isClosing = true;
      return pool.close();
    },
  };
}

function createPool(options: SmtpProviderOptions, target: SmtpTarget): SmtpPool<OpeningFailure> {
  const { clock, heloName, authorities = null } = options;
  let connections = 0;
  return new SmtpPool(
    { clock, abortWatch: createAbortWatch() },
    {
      handOffsPerConnectionMax,
      idleTimeoutMs,
      takePlace: () => {
        if (connections >= target.connectionsMax) return false;
        connections += 1;
        return true;
      },
      freePlace: () => {
        connections -= 1;
      },
      isCrowded: () => false,
      open: (signal) => openSmtpConnection(clock, target, { heloName, authorities, signal }),
      refuse: (failure) => unavailable(failure?.failed ?? ownWords('no connection', target.host)),
    },
  );
}

function refuse(handOff: EmailHandOff, target: SmtpTarget, waiting: number): SendOutcome | null {
  if (waiting < waitingPerConnectionMax * target.connectionsMax) return refuseEnvelope(handOff, target.host);
  return {
    kind: 'deferred',
    reason: 'rate_limited',
    reply: ownWords('too many hand-offs at once', target.host),
  };
}

function unavailable(reply: RemoteReply): SendOutcome {
  return { kind: 'deferred', reason: 'provider_unavailable', reply };
}

function describe(reply: RemoteReply): string {
  return reply.code === null ? reply.diagnostic : `${reply.code} ${reply.diagnostic}`;
}
