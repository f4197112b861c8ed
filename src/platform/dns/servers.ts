import type { Clock } from '../clock.ts';
import { type DnsFailed, failed } from './answer.ts';
import { type TryOutcome, askServer } from './exchange.ts';
import { type DnsServer, dnsServerText } from './server-address.ts';
import type { RecordType } from './wire.ts';

/** Puts one question to the servers in turn until one of them gives a definite answer. */
export type AskServers = (
  question: { name: string; type: RecordType },
  signal: AbortSignal,
) => Promise<TryOutcome>;

/** One datagram in a hundred is lost on a bad line: once is too few. More keeps the caller waiting for nothing. */
const roundsMax = 2;
/** Longer leaves a server that came back unused; shorter pays its time-out more often. */
const silentForMs = 30_000;

export function createAskServers(tools: {
  clock: Clock;
  servers: readonly DnsServer[];
  timeoutMs: number;
}): AskServers {
  const { clock, servers, timeoutMs } = tools;
  const silentUntilMs = new Map<DnsServer, number>();

  /** As configured, but a server that was silent a moment ago comes last: each lookup would wait for it first. */
  const serversInTurn = (): DnsServer[] => {
    const nowMs = clock.monotonicMs();
    const isSilent = (server: DnsServer) => nowMs < (silentUntilMs.get(server) ?? nowMs);
    return [...servers.filter((server) => !isSilent(server)), ...servers.filter(isSilent)];
  };

  const askOne = async (
    server: DnsServer,
    question: { name: string; type: RecordType },
    signal: AbortSignal,
  ): Promise<TryOutcome> => {
    const outcome = await askServer({ clock, server, timeoutMs, signal }, question);
    if (outcome.kind === 'replied' && outcome.reply.isReferral) {
      return failed('server_failure', `${dnsServerText(server)} is no recursive server`);
    }
    const isSilent = outcome.kind === 'failed' && outcome.reason === 'timeout';
    if (!isSilent) silentUntilMs.delete(server);
    else if (!signal.aborted) silentUntilMs.set(server, clock.monotonicMs() + silentForMs);
    return outcome;
  };

  return async (question, signal) => {
    const failures = new Map<DnsServer, DnsFailed>();
    const turn = serversInTurn();
    for (let round = 0; round < roundsMax; round += 1) {
      for (const server of turn) {
        const outcome = await askOne(server, question, signal);
        if (outcome.kind === 'replied') return outcome;
        failures.set(server, outcome);
        if (signal.aborted) return summary([...failures.values()]);
      }
    }
    return summary([...failures.values()]);
  };
}

/** What one server said is more useful than that another one was silent. */
function summary(failures: readonly DnsFailed[]): DnsFailed {
  const reason = failures.find((failure) => failure.reason !== 'timeout')?.reason ?? 'timeout';
  const details = failures.map(({ detail }) => detail);
  return failed(reason, details.length > 0 ? details.join('; ') : 'no DNS server is known');
}
