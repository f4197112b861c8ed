import type { LRUCache } from 'lru-cache';
import type { Clock } from '../../../../platform/clock.ts';
import type { Resolver } from '../../../../platform/dns/dns.ts';
import type { FailureClass, RemoteReply, SendOutcome } from '../../../outcome.ts';
import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import { classifyReply } from '../../replies.ts';
import { openSmtpConnection } from '../smtp/opening.ts';
import type { OpeningFailure, SmtpConnection } from '../smtp/opening.ts';
import { refuseInternational } from '../smtp/outcomes.ts';
import { cut } from '../smtp/pool.ts';
import { findHostAddresses } from '../../../../platform/outbound/host-addresses.ts';
import { isSelfAddress } from '../../../../platform/outbound/public-address.ts';
import type { MxHost } from '../../mx-route.ts';

/**
 * A connection to one of the hosts that take mail for a domain: host by host in the order of their preference,
 * address by address, until one greets us and answers EHLO (RFC 5321 §5.1). An address that failed lately is tried
 * last: every further connection would otherwise wait for the same dead host anew.
 *
 * Whatever a host says before the first MAIL concerns us or the host, never a message. So not even a 5xx is a
 * refusal here: when no address is left, what waits is put off (RFC 5321 §4.5.4.1). Only DNS can refuse, and hosts of
 * which each has answered and none offers SMTPUTF8, where nothing else will do (RFC 6531 §3.2).
 */

export type ReachTools = {
  clock: Clock;
  resolver: Resolver;
  heloName: string;
  port: number;
  /** Whether mail may go to an address. */
  mayUseAddress: (address: string) => boolean;
  authorities: string | null;
  /** When an address may be tried in its turn again (monotonic milliseconds). */
  failedUntilMs: LRUCache<string, number>;
  /** Whether this machine has a way to anywhere at all. */
  hasRoute: () => Promise<boolean>;
};

export type ConnectionNeeds = {
  /** TLS with a certificate for the host's name, or nothing. Otherwise TLS where it is offered (RFC 7435). */
  isTlsRequired: boolean;
  /** Only a host that takes addresses beyond ASCII. */
  isSmtpUtf8Required: boolean;
};

export type ReachRequest = ConnectionNeeds & {
  hosts: readonly MxHost[];
  /** Whether there are connections to this destination already. */
  isFurther: boolean;
  signal: AbortSignal;
};

export type ReachFailure = {
  failed: RemoteReply;
  /** What becomes of the hand-offs that wait for the connection. */
  outcome: Extract<SendOutcome, { kind: 'deferred' | 'rejected' }>;
  /** `throttled`: a host said that we ask too much. `none`: it was DNS or this machine, and no host is to blame. */
  cause: 'unreachable' | 'throttled' | 'none';
};

/** RFC 5321 §5.1 asks for two at least; each may take minutes. */
const addressesMax = 8;
/** Fewer than all, so that the second host has its turn. */
const addressesPerHostMax = 4;

/** No further address is tried after this long: everything that waits for the connection waits with it. */
const reachTimeoutMs = 120_000;

const failedAddressPauseMs = 300_000;

/** Resolves with a connection, or with the outcome for the hand-offs that wait for it. Never rejects. */
export async function reachHosts(
  tools: ReachTools,
  request: ReachRequest,
): Promise<SmtpConnection | ReachFailure> {
  const search = beginSearch(tools, request);
  for (const { name } of request.hosts) {
    if (isOver(search)) break;
    const found = await findHostAddresses(tools, name);
    search.lookupFailure ??= found.failure;
    search.refused.push(...found.refused);
    for (const literal of found.addresses.slice(0, addressesPerHostMax)) {
      const address = { name, literal };
      if (hasFailedLately(tools, literal)) search.later.push(address);
      else if (!isOver(search)) {
        const opened = await tryAddress(search, address);
        if (opened !== null) return opened;
      }
    }
  }
  for (const address of search.later) {
    if (isOver(search)) break;
    const opened = await tryAddress(search, address);
    if (opened !== null) return opened;
  }
  return concludeSearch(search);
}

type Address = { name: string; literal: string };

type Search = {
  tools: ReachTools;
  request: ReachRequest;
  begunAtMs: number;
  failures: OpeningFailure[];
  /** Hosts that answered and do not offer SMTPUTF8, where that is required; one for each address. */
  withoutSmtpUtf8: string[];
  /** Failed lately, and tried once all others have failed. */
  later: Address[];
  refused: string[];
  lookupFailure: string | null;
};

function beginSearch(tools: ReachTools, request: ReachRequest): Search {
  return {
    tools,
    request,
    begunAtMs: tools.clock.monotonicMs(),
    failures: [],
    withoutSmtpUtf8: [],
    later: [],
    refused: [],
    lookupFailure: null,
  };
}

function isOver({ tools, request, begunAtMs, failures, withoutSmtpUtf8 }: Search): boolean {
  // A host that limits our connections means it: the next host is not for what exceeds the limit of the first.
  const isLimited = request.isFurther && failures.some(isThrottling);
  const isTooLate = tools.clock.monotonicMs() - begunAtMs >= reachTimeoutMs;
  return (
    request.signal.aborted ||
    isLimited ||
    isTooLate ||
    failures.length + withoutSmtpUtf8.length >= addressesMax
  );
}

function hasFailedLately({ clock, failedUntilMs }: ReachTools, literal: string): boolean {
  return (failedUntilMs.get(literal) ?? -Infinity) > clock.monotonicMs();
}

async function tryAddress(search: Search, { name, literal }: Address): Promise<SmtpConnection | null> {
  const { tools, request } = search;
  const { clock, failedUntilMs, heloName, authorities, port } = tools;
  const target = {
    host: name,
    port,
    tls: request.isTlsRequired ? ('required' as const) : ('opportunistic' as const),
    isInsecure: false,
    credentials: null,
    connectionsMax: 1,
    heloName: null,
  };
  const opened = await openSmtpConnection(clock, target, {
    heloName,
    authorities,
    literal,
    signal: request.signal,
  });
  if (!('failed' in opened)) {
    failedUntilMs.delete(literal);
    if (!request.isSmtpUtf8Required || opened.capabilities.hasSmtpUtf8) return opened;
    search.withoutSmtpUtf8.push(name);
    cut(opened);
    return null;
  }
  search.failures.push(opened);
  if (!request.isFurther && !request.signal.aborted) {
    failedUntilMs.set(literal, clock.monotonicMs() + failedAddressPauseMs);
  }
  return null;
}

function isThrottling({ failed }: OpeningFailure): boolean {
  return failed.code === 421 || classOf(failed) === 'rate_limited';
}

function classOf({ code, enhancedCode, diagnostic }: RemoteReply): FailureClass {
  return code === null ? 'other' : classifyReply(code, enhancedCode, diagnostic, 'opening');
}

async function concludeSearch(search: Search): Promise<ReachFailure> {
  const { failures } = search;
  // What one host said is more useful than that another one said nothing.
  const last = failures.findLast(({ failed }) => failed.code !== null) ?? failures.at(-1);
  if (last === undefined) return concludeWithoutFailure(search);
  const { failed } = last;
  if (await isOwnFault(search)) {
    return {
      failed,
      outcome: { kind: 'deferred', reason: 'provider_unavailable', reply: failed },
      cause: 'none',
    };
  }
  const reason = last.hasTlsFailed ? 'policy' : classOf(failed);
  return {
    failed,
    outcome: { kind: 'deferred', reason, reply: failed },
    cause: reason === 'rate_limited' ? 'throttled' : 'unreachable',
  };
}

/** The machine is out of something, whatever it was asked for. */
const exhaustionCodes: readonly (string | null)[] = ['EMFILE', 'ENFILE', 'ENOBUFS', 'ENOMEM'];

/** There is no way to the address: it may be a family that this machine lacks, or everything may be cut off. */
const noRouteCodes: readonly (string | null)[] = ['ENETUNREACH', 'ENETDOWN', 'EADDRNOTAVAIL', 'EAFNOSUPPORT'];

async function isOwnFault({ failures, tools }: Search): Promise<boolean> {
  if (failures.some(({ errorCode }) => exhaustionCodes.includes(errorCode))) return true;
  // Asked and not concluded: anyone could point a domain at such addresses, and would stop all mail.
  return failures.every(({ errorCode }) => noRouteCodes.includes(errorCode)) && !(await tools.hasRoute());
}

/** No attempt has failed. */
function concludeWithoutFailure(search: Search): ReachFailure {
  const { request, refused, lookupFailure } = search;
  const names = request.hosts.map(({ name }) => name).join(', ');
  if (request.signal.aborted) return putOff('other', null, 'the connection is no longer wanted');
  if (lookupFailure !== null) return putOff('other', '4.4.3', `${names}: ${lookupFailure}`);
  const unfit = search.withoutSmtpUtf8.at(-1);
  if (unfit !== undefined) {
    const outcome = refuseInternational(unfit);
    return { failed: outcome.reply, outcome, cause: 'none' };
  }
  const detail = `only addresses that are not public: ${refused.join(', ')}`;
  // A private address is a mistake that its owner will mend, or a name server that shows its inside. One of the
  // asker's own has been a way of saying "no mail here" since before RFC 7505.
  if (refused.some((address) => !isSelfAddress(address))) {
    return putOff('domain_not_found', '4.4.4', `${names}: ${detail}`);
  }
  // RFC 5321 §5.1: MX records of which none is usable are an error, and the domain's own address is no way out.
  return reject(`${names}: ${refused.length === 0 ? 'the mail hosts have no address' : detail}`);
}

function putOff(reason: FailureClass, enhancedCode: string | null, detail: string): ReachFailure {
  const failed = wordsOf(enhancedCode, detail);
  return { failed, outcome: { kind: 'deferred', reason, reply: failed }, cause: 'none' };
}

function reject(detail: string): ReachFailure {
  const failed = wordsOf('5.4.4', detail);
  return { failed, outcome: { kind: 'rejected', reason: 'domain_not_found', reply: failed }, cause: 'none' };
}

/** Ours, with the status (RFC 3463) that a mail server would report in a case like this. */
export function wordsOf(enhancedCode: string | null, detail: string): RemoteReply {
  return { code: null, enhancedCode, diagnostic: sanitiseDiagnostic(detail), remote: null };
}
