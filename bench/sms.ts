import smpp from 'smpp';
import type { Pdu } from 'smpp';
import { createSmppProvider } from '../src/channels/sms/providers/smpp/smpp.ts';
import { parseSmppUrl } from '../src/channels/sms/providers/smpp/url.ts';
import { systemClock } from '../src/platform/clock.ts';
import { median } from './installation.ts';
import { cpuUs, startModule } from './processes.ts';

/**
 * The SMPP provider alone, against a message centre in another process that sends a receipt for every text: from the
 * first hand-off to the last answer and the last receipt. The baseline is the client of the library that the message
 * centre is made of, in a loop with the same window. The message centre is about as slow as either, so that the
 * processor time of both sides is told, too.
 */
const roundsCount = 5;
const textsCount = 40_000;
const window = 100;
const text = 'Your code is 123456. It is valid for ten minutes.';
const sender = 'Postillion';

type Run = { perSecond: number; ownUs: number; centreUs: number };

export async function benchSms(): Promise<void> {
  const smsc = startModule('test/support/smsc-process.ts', [JSON.stringify({ logsSubmits: false })]);
  const { port } = (await smsc.nextLine((line) => 'port' in line)) as { port: number };
  const runs: Record<'baseline' | 'provider', Run[]> = { baseline: [], provider: [] };
  const measureFrom = (send: (port: number) => Promise<void>) => measure(smsc.pid, () => send(port));
  await measureFrom(sendByLibrary);
  await measureFrom(sendByProvider);
  for (let round = 0; round < roundsCount; round += 1) {
    runs.baseline.push(await measureFrom(sendByLibrary));
    runs.provider.push(await measureFrom(sendByProvider));
  }
  await smsc.stop();
  const baseline = median(runs.baseline.map(({ perSecond }) => perSecond));
  console.log(`\nsms: texts with receipts over SMPP, window ${window}, medians of interleaved rounds`);
  console.table(
    Object.entries(runs).map(([name, all]) => {
      const perSecond = median(all.map((run) => run.perSecond));
      return {
        name: name === 'baseline' ? "the library's own loop" : 'the provider',
        'per second': Math.round(perSecond),
        'to baseline': (perSecond / baseline).toFixed(2),
        'own µs': Math.round(median(all.map(({ ownUs }) => ownUs))),
        "the centre's µs": Math.round(median(all.map(({ centreUs }) => centreUs))),
      };
    }),
  );
}

async function measure(centrePid: number, send: () => Promise<void>): Promise<Run> {
  const pids = [process.pid, centrePid];
  const before = pids.map((pid) => cpuUs(pid) ?? Number.NaN);
  const startedAtMs = performance.now();
  await send();
  const perSecond = textsCount / ((performance.now() - startedAtMs) / 1_000);
  const [ownUs = Number.NaN, centreUs = Number.NaN] = pids.map(
    (pid, index) => ((cpuUs(pid) ?? Number.NaN) - (before[index] ?? Number.NaN)) / textsCount,
  );
  return { perSecond, ownUs, centreUs };
}

function numberOf(index: number): string {
  return `4915110${String(index).padStart(6, '0')}`;
}

async function sendByProvider(port: number): Promise<void> {
  let receiptsCount = 0;
  let onLastReceipt: () => void = () => undefined;
  const lastReceipt = new Promise<void>((resolve) => {
    onLastReceipt = resolve;
  });
  const provider = createSmppProvider({
    url: parseSmppUrl(`smpp://bench:bench@127.0.0.1:${port}?window=${window}`),
    clock: systemClock,
    random: Math.random,
    intake: {
      takeReceipt: async ({ reference }) => {
        if (reference === null) throw new Error('a receipt has not been matched');
        receiptsCount += 1;
        if (receiptsCount === textsCount) onLastReceipt();
      },
      takeInbound: async () => undefined,
    },
  });
  const { signal } = new AbortController();
  let next = 0;
  const sendOneByOne = async () => {
    while (next < textsCount) {
      const index = next;
      next += 1;
      const outcome = await provider.handOff({
        reference: { organizationId: 'org', messageId: 'message', ordinal: index },
        sender: { name: sender, type: 'alphanumeric' },
        to: `+${numberOf(index)}`,
        text,
        confirm: async () => undefined,
        signal,
      });
      if (outcome.kind !== 'accepted') throw new Error(`a text was ${outcome.kind}`);
    }
  };
  await Promise.all([lastReceipt, ...Array.from({ length: provider.concurrency }, sendOneByOne)]);
  await provider.close();
}

function sendByLibrary(port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    let sent = 0;
    let answered = 0;
    let receipts = 0;
    const session = smpp.connect({ host: '127.0.0.1', port }, () => {
      session.bind_transceiver({ system_id: 'bench', password: 'bench' }, () => {
        for (let place = 0; place < window; place += 1) sendNext();
      });
    });
    const sendNext = () => {
      if (sent === textsCount) return;
      sent += 1;
      session.submit_sm(
        {
          source_addr_ton: 5,
          source_addr: sender,
          dest_addr_ton: 1,
          dest_addr_npi: 1,
          destination_addr: numberOf(sent),
          registered_delivery: 1,
          data_coding: 0,
          short_message: text,
        },
        ({ command_status: status }) => {
          if (status !== 0) reject(new Error(`a text was refused with ${status}`));
          answered += 1;
          endWhenDone();
          sendNext();
        },
      );
    };
    session.socket.setNoDelay(true);
    session.on('deliver_sm', (pdu: Pdu) => {
      session.send(pdu.response());
      receipts += 1;
      endWhenDone();
    });
    session.on('error', reject);
    const endWhenDone = () => {
      if (answered < textsCount || receipts < textsCount) return;
      session.on('close', () => {
        resolve();
      });
      session.unbind(() => {
        session.close();
      });
    };
  });
}
