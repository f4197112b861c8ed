import type { Clock } from '../../../../platform/clock.ts';
import { silentLog } from '../../../../platform/log.ts';
import type { Log } from '../../../../platform/log.ts';
import { abortReason, createAbortWatch } from '../../../abort-watch.ts';
import type { SmsHandOff, SmsIntake, SmsOutcome, SmsProvider } from '../../provider.ts';
import { createDeliveries } from './deliveries.ts';
import { openLink } from './link.ts';
import type { Link } from './link.ts';
import { within } from './bound-connection.ts';
import type { BoundConnection } from './bound-connection.ts';
import type { BindRole, ShortMessage } from './pdu.ts';
import { createRate } from './rate.ts';
import { SentTexts } from './sent-texts.ts';
import { words } from './strangers.ts';
import { composeMessages } from './submission.ts';
import { submitText, unavailable } from './submitting.ts';
import type { SmppUrl } from './url.ts';

/**
 * Texts to one message centre over SMPP 3.4, on one or a few connections that are kept up from the beginning
 * (link.ts). Each is bound as transceiver; or there are as many transmitters as receivers, for message centres that
 * want texts and receipts on separate connections. A receiver that is lost does not stop texts: the receipts wait at
 * the message centre.
 *
 * A hand-off waits until a connection for texts has a place in its window, takes it, is confirmed, and then submitted
 * (submitting.ts). It waits only while such a connection is there or on its way: when all are failing, hand-offs are
 * deferred as `provider_unavailable` until one is bound again.
 */
export type SmppProviderOptions = {
  url: SmppUrl;
  clock: Clock;
  /** From 0 up to 1, for jitter and for where the references of long texts begin. */
  random: () => number;
  log?: Log;
  intake: SmsIntake;
  /** PEM of the authorities to trust instead of the machine's. */
  authorities?: string;
};

type Waiting = {
  handOff: SmsHandOff;
  messages: readonly ShortMessage[];
  settle: (outcome: SmsOutcome) => void;
  fail: (error: unknown) => void;
  unwatch: () => void;
};

const rolesByBind: Readonly<Record<SmppUrl['bind'], readonly BindRole[]>> = {
  transceiver: ['transceiver'],
  separate: ['transmitter', 'receiver'],
};

/** For each place in all windows. More waiting hand-offs than this are no queue but a mistake of the caller. */
const waitingPerPlaceMax = 10;

/**
 * Of texts that leave at a rate. More under way: an urgent one waits after them. Fewer: a message centre that is slow
 * to answer gets less than it would take.
 */
const secondsInHand = 5;

/** How long texts under way may take to end when the provider closes. */
const closeTimeoutMs = 60_000;

/** Begins to connect at once, and goes on until it is closed. */
export function createSmppProvider(options: SmppProviderOptions): SmsProvider {
  const { url: target, clock, random, log = silentLog, intake, authorities = null } = options;
  const sent = new SentTexts();
  const deliveries = createDeliveries({ clock, log, intake, sent, country: target.country });
  const abortWatch = createAbortWatch();
  const waiting = new Set<Waiting>();
  const places = target.window * target.connections;
  const rate = target.perSecondMax === null ? null : createRate(clock, target.perSecondMax);
  let longTexts = Math.floor(random() * 256);
  let underWay = 0;
  let closed: Promise<void> | null = null;
  let resumeAtMs = Infinity;
  let cancelResume: () => void = () => undefined;
  /** Callers that wait for a change of the links or the end of a hand-off. */
  const onlookers = new Set<() => void>();

  const tools = { clock, random, log, target, authorities, takeDelivery: deliveries.take, onChange: look };
  const links: readonly Link[] = rolesByBind[target.bind].flatMap((role) =>
    Array.from({ length: target.connections }, () => openLink({ ...tools, role })),
  );
  const carriers = links.filter(({ role }) => role !== 'receiver');

  /** Begins what can begin, and refuses what has nothing to wait for. */
  function look(): void {
    for (const pending of waiting) {
      const line = (rate?.beginLeftMs() ?? 0) > 0 ? null : freeLine(carriers);
      if (line === null) break;
      waiting.delete(pending);
      pending.unwatch();
      void carry(pending, line);
    }
    if (waiting.size > 0) {
      if (carriers.every((link) => link.state() === 'failing' || link.state() === 'closed')) refuseWaiting();
      else resumeLater();
    }
    for (const onlooker of [...onlookers]) onlooker();
  }

  async function carry(pending: Waiting, line: BoundConnection): Promise<void> {
    const { handOff, messages, settle, fail } = pending;
    const freePlace = line.takePlace();
    const whenTurn = rate?.takeTurn();
    underWay += 1;
    try {
      await handOff.confirm();
      await whenTurn?.();
      settle(await submitText({ clock, random, log, sent, intake, rate }, line, handOff, messages));
    } catch (error) {
      fail(error);
    }
    freePlace();
    underWay -= 1;
    look();
  }

  function refuseWaiting(): void {
    const trouble = carriers[0]?.trouble() ?? words(null, 'no connection', target.host);
    for (const { unwatch, settle } of waiting) {
      unwatch();
      settle(unavailable(trouble));
    }
    waiting.clear();
  }

  /** When the first pause is over, or a further text may begin, if there is something to wait for at all. */
  function resumeLater(): void {
    const pausesMs = carriers.map((link) => link.line()?.pace.pauseLeftMs() ?? 0);
    const waitsMs = [...pausesMs, rate?.beginLeftMs() ?? 0].filter((leftMs) => leftMs > 0);
    const delayMs = Math.max(1, Math.min(...waitsMs));
    const atMs = clock.monotonicMs() + delayMs;
    if (waitsMs.length === 0 || atMs >= resumeAtMs) return;
    cancelResume();
    resumeAtMs = atMs;
    cancelResume = clock.after(delayMs, () => {
      resumeAtMs = Infinity;
      look();
    });
  }

  function until(isTrue: () => boolean): Promise<void> {
    if (isTrue()) return Promise.resolve();
    return new Promise((resolve) => {
      const onlooker = () => {
        if (!isTrue()) return;
        onlookers.delete(onlooker);
        resolve();
      };
      onlookers.add(onlooker);
    });
  }

  function enqueue(handOff: SmsHandOff, messages: readonly ShortMessage[]): Promise<SmsOutcome> {
    return new Promise((resolve, reject) => {
      const pending: Waiting = {
        handOff,
        messages,
        settle: resolve,
        fail: reject,
        unwatch: abortWatch.watch(handOff.signal, () => {
          waiting.delete(pending);
          pending.unwatch();
          reject(abortReason(handOff.signal));
        }),
      };
      waiting.add(pending);
      look();
    });
  }

  async function endUnderWay(): Promise<void> {
    await until(() => waiting.size === 0 && underWay === 0);
    await deliveries.whenIdle();
  }

  async function close(): Promise<void> {
    await within(clock, closeTimeoutMs, endUnderWay());
    await Promise.all(links.map((link) => link.close()));
    cancelResume();
  }

  return {
    name: 'smpp',
    answersKeywords: false,
    isReportedById: true,
    concurrency:
      target.perSecondMax === null ? places : Math.min(places, secondsInHand * target.perSecondMax),
    handOff: async (handOff) => {
      if (handOff.signal.aborted) throw abortReason(handOff.signal);
      if (closed !== null) return unavailable(words(null, 'closing down', target.host));
      if (waiting.size >= waitingPerPlaceMax * places) {
        const reply = words(null, 'too many hand-offs at once', target.host);
        return { kind: 'deferred', reason: 'rate_limited', reply };
      }
      const messages = composeMessages(target, handOff, longTexts % 256);
      if (messages === null) {
        const reply = words(
          null,
          'the text, its sender or its number cannot be expressed in SMPP',
          target.host,
        );
        return { kind: 'rejected', reason: 'invalid_message', reply };
      }
      if (messages.length > 1) longTexts += 1;
      return enqueue(handOff, messages);
    },
    probe: async () => {
      await until(() => links.every((link) => link.state() !== 'opening'));
      for (const role of rolesByBind[target.bind]) {
        const ofRole = links.filter((link) => link.role === role);
        if (ofRole.some((link) => link.state() === 'bound')) continue;
        return ofRole[0]?.trouble().diagnostic ?? 'no connection';
      }
      return null;
    },
    close: () => (closed ??= close()),
  };
}

/** The connection with the most room, or null if none has any. */
function freeLine(links: readonly Link[]): BoundConnection | null {
  let best: BoundConnection | null = null;
  let mostRoom = 0;
  for (const link of links) {
    const line = link.line();
    const room = line?.room() ?? 0;
    if (room > mostRoom) [best, mostRoom] = [line, room];
  }
  return best;
}
