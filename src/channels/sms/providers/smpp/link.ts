import type { Clock } from '../../../../platform/clock.ts';
import { sleep } from '../../../../platform/clock.ts';
import type { Log } from '../../../../platform/log.ts';
import type { RemoteReply } from '../../../outcome.ts';
import { createBoundConnection, drainTimeoutMs } from './bound-connection.ts';
import type { BoundConnection } from './bound-connection.ts';
import type { BindRole, ShortMessage } from './pdu.ts';
import { readStatus, statuses } from './statuses.ts';
import { words } from './strangers.ts';
import type { SmppUrl } from './url.ts';
import { isFault, openWire } from './wire.ts';
import type { FarRequest, SmppWire } from './wire.ts';

/**
 * Keeps one connection to the message centre up, whether anything is sent or not: receipts and inbound texts come
 * at any time. It is bound in one role, and stays in it.
 *
 * A link is `opening` at first, and for a moment after a connection that had worked was lost; `bound` while it can
 * carry what its role lets it; `failing` from an attempt that did not succeed until one that does; `closed` for good.
 * While it is opening, it is worth waiting for; while it is failing, `trouble` says why not. Between attempts it waits,
 * each time twice as long and with jitter, so that a provider that comes back is not met by all of its customers at
 * once.
 *
 * A bound connection on which nothing is heard for a while is checked (enquire_link, §4.11), since a
 * connection that a firewall has forgotten looks like one on which nothing happens. When the far side unbinds, no
 * further text begins, and it is answered as soon as those under way have their answers.
 */
export type Link = {
  role: BindRole;
  state: () => 'opening' | 'bound' | 'failing' | 'closed';
  /** The connection, while bound. */
  line: () => BoundConnection | null;
  /** Why there is no connection. */
  trouble: () => RemoteReply;
  /** Unbinds and ends the connection, whatever is under way. */
  close: () => Promise<void>;
};

export type LinkTools = {
  role: BindRole;
  clock: Clock;
  random: () => number;
  log: Log;
  target: SmppUrl;
  authorities: string | null;
  /** Takes what was delivered to us; resolves with the command_status to answer. */
  takeDelivery: (message: ShortMessage) => Promise<number>;
  /** Called when the state has changed. */
  onChange: () => void;
};

const connectTimeoutMs = 10_000;
const bindTimeoutMs = 10_000;
const unbindTimeoutMs = 5_000;

/** After a minute of silence the first firewalls forget a connection. */
const idleMs = 30_000;
const enquireTimeoutMs = 10_000;

const firstBackoffMs = 100;
const longestBackoffMs = 30_000;

/** A connection that ends sooner has not proven anything: waiting for the next one goes on from where it was. */
const provenAfterMs = 5_000;

export function openLink(tools: LinkTools): Link {
  const { role, clock, log, target } = tools;
  const closing = new AbortController();
  let state: ReturnType<Link['state']> = 'opening';
  let line: BoundConnection | null = null;
  let trouble = words(null, 'connecting', target.host);
  let failures = 0;

  const change = (next: typeof state, why: RemoteReply) => {
    if (state !== 'closed' && next !== state) {
      log[next === 'failing' ? 'warn' : 'info'](
        { remote: target.host, role, state: next, why: why.diagnostic },
        'smpp',
      );
    }
    if (state !== 'closed') state = next;
    trouble = why;
    tools.onChange();
  };

  const carryOn = async (): Promise<void> => {
    // Ends when the link is closed, and pauses after every round.
    while (!closing.signal.aborted) {
      const opened = await bind(tools, closing.signal, () => line);
      if ('failed' in opened) {
        failures += 1;
        change('failing', opened.failed);
      } else {
        line = opened;
        const boundAtMs = clock.monotonicMs();
        change('bound', words(null, 'bound', target.host));
        const stopWatching = watchIdle(clock, opened.wire);
        // Closed in the moment between the last answer and here.
        if (closing.signal.aborted) void leave(opened);
        const fault = await opened.wire.ended;
        stopWatching();
        line = null;
        failures = clock.monotonicMs() - boundAtMs >= provenAfterMs ? 1 : failures + 1;
        change(failures === 1 ? 'opening' : 'failing', words(null, fault.detail, target.host));
      }
      // Closing ends the pause.
      await sleep(clock, backoffMs(failures, tools.random), closing.signal).catch(() => undefined);
    }
  };
  const carrying = carryOn();

  return {
    role,
    state: () => state,
    line: () => line,
    trouble: () => trouble,
    close: async () => {
      change('closed', words(null, 'closing down', target.host));
      closing.abort();
      if (line !== null) await leave(line);
      await carrying;
    },
  };
}

/** From nothing to a connection that is bound. */
async function bind(
  tools: LinkTools,
  signal: AbortSignal,
  current: () => BoundConnection | null,
): Promise<BoundConnection | { failed: RemoteReply }> {
  const { role, clock, target } = tools;
  const wire = await openWire(clock, target, {
    authorities: tools.authorities,
    timeoutMs: connectTimeoutMs,
    onRequest: (request, from) => {
      answerRequest(tools, from, current(), request);
    },
    signal,
  });
  if (isFault(wire)) return { failed: words(null, `connecting: ${wire.detail}`, target.host) };
  const giveUp = () => {
    wire.break('given_up', 'the connection is no longer wanted');
  };
  signal.addEventListener('abort', giveUp, { once: true });
  const { systemId, password, systemType } = target;
  const answer = await wire.ask({ command: `bind_${role}`, systemId, password, systemType }, bindTimeoutMs);
  signal.removeEventListener('abort', giveUp);
  if (isFault(answer)) {
    wire.break('given_up', 'the bind was not answered');
    return { failed: words(null, `binding as ${role}: ${answer.detail}`, target.host) };
  }
  if (answer.status !== statuses.ok) {
    wire.break('given_up', 'the bind was refused');
    const { name } = readStatus(answer.status);
    return { failed: words(answer.status, `the bind as ${role} was refused: ${name}`, target.host) };
  }
  return createBoundConnection(clock, wire, target.window);
}

function answerRequest(
  tools: LinkTools,
  wire: SmppWire,
  line: BoundConnection | null,
  request: FarRequest,
): void {
  const { sequence } = request;
  switch (request.command) {
    case 'deliver_sm':
      void tools.takeDelivery(request.message).then((status) => {
        wire.answer('deliver_sm_resp', sequence, status);
      });
      return;
    case 'enquire_link':
      wire.answer('enquire_link_resp', sequence, statuses.ok);
      return;
    case 'unbind':
      void (line?.wire === wire ? line.drain(drainTimeoutMs) : Promise.resolve()).then(() => {
        wire.answer('unbind_resp', sequence, statuses.ok);
        wire.hangUp();
      });
      return;
    case 'malformed':
      wire.answer('generic_nack', sequence, statuses.invalidLength);
      return;
    case 'unknown':
      // A response that we do not know is not one that we wait for; nacks are not nacked.
      if (request.isRequest) wire.answer('generic_nack', sequence, statuses.invalidCommand);
      return;
    case 'bind_receiver':
    case 'bind_transmitter':
    case 'bind_transceiver':
    case 'submit_sm':
      wire.answer('generic_nack', sequence, statuses.invalidCommand);
      return;
  }
}

async function leave(line: BoundConnection): Promise<void> {
  await line.wire.ask({ command: 'unbind' }, unbindTimeoutMs);
  line.wire.hangUp();
  await line.wire.ended;
}

/**
 * Asks whether the far side lives whenever it has been silent for long, and ends the wire if it does not say so. Of a
 * wire that has ended its question is answered before `ended` resolves, so that whoever stops it then leaves no timer.
 */
function watchIdle(clock: Clock, wire: SmppWire): () => void {
  let cancel = clock.after(idleMs, check);
  function check(): void {
    const leftMs = idleMs - wire.silentMs();
    if (leftMs > 1) {
      cancel = clock.after(leftMs, check);
      return;
    }
    void wire.ask({ command: 'enquire_link' }, enquireTimeoutMs).then((answer) => {
      if (isFault(answer) && wire.silentMs() >= enquireTimeoutMs) {
        wire.break('timed_out', 'the server does not answer enquire_link');
      } else {
        cancel = clock.after(idleMs, check);
      }
    });
  }
  return () => {
    cancel();
  };
}

/** 0.1 s, and twice as long after each failure up to 30 s; of that, from half to all. */
function backoffMs(failures: number, random: () => number): number {
  const fullMs = Math.min(longestBackoffMs, firstBackoffMs * 2 ** Math.min(failures - 1, 16));
  return fullMs * (0.5 + random() / 2);
}
