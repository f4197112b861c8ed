import type { Clock } from '../../src/platform/clock.ts';
import { createResolver } from '../../src/platform/dns/dns.ts';
import type { Resolver } from '../../src/platform/dns/dns.ts';
import { startDnsServer } from './dns-server.ts';
import type { DnsRecords, TestDnsServer } from './dns-server.ts';
import { createManualClock } from './manual-clock.ts';
import type { ManualClock } from './manual-clock.ts';
import { startSmtpSink } from './smtp-sink.ts';
import type { SmtpSink, SmtpSinkOptions } from './smtp-sink.ts';

/**
 * A small Internet on loopback: a DNS server, and mail hosts that listen on one port of different addresses
 * (127.0.0.2, 127.0.0.3, ::1, …). Time stands still until a test moves it.
 */
export type MxWorld = {
  dns: TestDnsServer;
  resolver: Resolver;
  clock: ManualClock & { timers: () => number };
  /** The port of all mail hosts. */
  port: number;
  /** The mail host at an address. */
  at: (address: string) => SmtpSink;
  /** Puts one more mail host, or one again, at an address. */
  open: (address: string, options?: SmtpSinkOptions) => Promise<SmtpSink>;
  /** Resolves when no mail host has a connection. */
  quiet: () => Promise<void>;
  close: () => Promise<void>;
};

export async function startMxWorld(
  records: DnsRecords,
  hosts: Record<string, SmtpSinkOptions>,
): Promise<MxWorld> {
  const clock = createCountingClock();
  const dns = withOneStop(await startDnsServer(records));
  const resolver = createResolver({ servers: [dns.address], clock });
  const { port, sinks } = await openMailHosts(hosts);
  return {
    dns,
    resolver,
    clock,
    port,
    at: (address) => sinks.get(address)!,
    open: async (address, options = {}) => {
      const sink = await startSmtpSink({ keepContent: true, ...options, port, address });
      sinks.set(address, sink);
      return sink;
    },
    quiet: async () => {
      await Promise.all(Array.from(sinks.values(), (sink) => sink.quiet()));
    },
    close: async () => {
      resolver.close();
      await Promise.all([dns.stop(), ...Array.from(sinks.values(), (sink) => sink.close())]);
    },
  };
}

/** A test may stop it before all is closed. */
function withOneStop(dns: TestDnsServer): TestDnsServer {
  let stopping: Promise<void> | null = null;
  const { stop } = dns;
  dns.stop = () => (stopping ??= stop());
  return dns;
}

/** A port that is free at one address may be taken at another: then all are closed, and another port is tried. */
export async function openMailHosts(
  hosts: Record<string, SmtpSinkOptions>,
): Promise<{ port: number; sinks: Map<string, SmtpSink> }> {
  for (let triesLeft = 10; ; triesLeft -= 1) {
    const sinks = new Map<string, SmtpSink>();
    let port = 0;
    try {
      for (const [address, options] of Object.entries(hosts)) {
        const sink = await startSmtpSink({ keepContent: true, ...options, port, address });
        sinks.set(address, sink);
        port = sink.port;
      }
      return { port, sinks };
    } catch (cause) {
      for (const sink of sinks.values()) await sink.close();
      if (triesLeft === 0) throw cause;
    }
  }
}

function createCountingClock(): ManualClock & { timers: () => number } {
  const clock = createManualClock();
  const pending = new Set<object>();
  const after: Clock['after'] = (delayMs, callback) => {
    const timer = {};
    pending.add(timer);
    const cancel = clock.after(delayMs, () => {
      pending.delete(timer);
      callback();
    });
    return () => {
      pending.delete(timer);
      cancel();
    };
  };
  return { ...clock, after, timers: () => pending.size };
}
