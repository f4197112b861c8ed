import { openSync, writeSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { type SmscAnswer, type SmscSubmit, startSmsc } from '../support/smsc.ts';
import {
  type AnswerFate,
  type FromCentre,
  type Line,
  readFates,
  type ReceiptFate,
  type ToCentre,
} from './message-centre.ts';

/**
 * The message centre, in a process that nothing kills: `message-centre-process.ts LOGFILE`. A text is in the log
 * before it is answered. Numbers choose their fate (message-centre.ts). A receipt is sent until it is acknowledged,
 * to any worker that is bound, as real message centres do.
 */
const log = openSync(process.argv[2] ?? '', 'a');
const putOff = new Set<string>();
const toldEarly = new Set<string>();
let receiptsUnderWay = 0;
let isSettleAwaited = false;

const smsc = await startSmsc({ submitsKeptMax: 0, receipt: () => null, answer, onSubmit: takeDown });
process.on('message', (_order: ToCentre) => {
  isSettleAwaited = true;
  tellIfSettled();
});
process.on('disconnect', () => process.exit(0));
tell({ port: smsc.port });

const refusals: Readonly<Partial<Record<AnswerFate, number>>> = {
  throttled: 0x58,
  queue_full: 0x14,
  system_error: 0x08,
};

/** Fates are those of the last part, or of the first where the number is odd. */
function answer(submit: SmscSubmit): SmscAnswer | Promise<SmscAnswer> {
  const { part, parts } = numberingOf(submit);
  const fates = readFates(submit.to);
  if (part !== (fates.isOdd ? 1 : parts)) return accept(submit, fates.receipt);
  const status = refusals[fates.answer];
  if (status !== undefined && !putOff.has(submit.to)) {
    putOff.add(submit.to);
    return refuse(submit, status);
  }
  switch (fates.answer) {
    case 'refused':
      return refuse(submit, 0x0b);
    case 'restart':
      // No part of it is taken, and requests under way on any connection get no answer.
      if (putOff.has(submit.to)) return accept(submit, fates.receipt);
      putOff.add(submit.to);
      note({ kind: 'restart', to: submit.to });
      smsc.drop();
      return { status: 0x08 };
    case 'lost':
    case 'silent':
    case 'dropped_after_answer':
      note({ kind: 'cut', to: submit.to });
      return fates.answer;
    case 'accepted':
    case 'throttled':
    case 'queue_full':
    case 'system_error':
      return accept(submit, fates.receipt);
  }
}

function refuse({ to }: SmscSubmit, status: number): SmscAnswer {
  note({ kind: 'refused', to, status });
  return { status };
}

/** The time in which a receipt overtakes its answer. */
const overtakingMs = 20;

async function accept(submit: SmscSubmit, fate: ReceiptFate): Promise<SmscAnswer> {
  if (fate !== 'before_answer' || !submit.isReceiptWanted) return 'accepted';
  toldEarly.add(submit.messageId);
  void report(submit, 'DELIVRD', 0);
  await delay(overtakingMs);
  return 'accepted';
}

function takeDown(submit: SmscSubmit): void {
  const { to, from, text, messageId, isReceiptWanted } = submit;
  note({ kind: 'taken', atMs: Date.now(), to, from, text, messageId, ...numberingOf(submit) });
  if (!isReceiptWanted || toldEarly.has(messageId)) return;
  for (const { stat, afterMs } of receipts[readFates(to).receipt]) void report(submit, stat, afterMs);
}

const receipts: Readonly<Record<ReceiptFate, readonly { stat: string; afterMs: number }[]>> = {
  delivered: [{ stat: 'DELIVRD', afterMs: 0 }],
  undelivered: [{ stat: 'UNDELIV', afterMs: 0 }],
  expired: [{ stat: 'EXPIRED', afterMs: 100 }],
  rejected: [{ stat: 'REJECTD', afterMs: 10 }],
  late: [{ stat: 'DELIVRD', afterMs: 1_500 }],
  twice: [
    { stat: 'DELIVRD', afterMs: 5 },
    { stat: 'DELIVRD', afterMs: 5 },
  ],
  // Only where its answer is lost, too, does it come afterwards.
  before_answer: [{ stat: 'DELIVRD', afterMs: 0 }],
  in_steps: [
    { stat: 'ENROUTE', afterMs: 0 },
    { stat: 'DELIVRD', afterMs: 200 },
    { stat: 'ACCEPTD', afterMs: 400 },
  ],
  none: [],
};

/** A worker may have been killed with it in its hands. */
const acknowledgementMs = 2_000;
const repetitionPauseMs = 50;

async function report(submit: SmscSubmit, stat: string, afterMs: number): Promise<void> {
  receiptsUnderWay += 1;
  await delay(afterMs);
  for (let tries = 1; ; tries += 1) {
    const status = await Promise.race([
      smsc.deliver(receiptOf(submit, stat)).catch(() => null),
      delay(acknowledgementMs, null),
    ]);
    if (status === 0) {
      note({ kind: 'told', to: submit.to, messageId: submit.messageId, stat, tries });
      break;
    }
    await delay(repetitionPauseMs);
  }
  receiptsUnderWay -= 1;
  tellIfSettled();
}

/** As in appendix B of SMPP 3.4. */
function receiptOf({ to, from, messageId, text }: SmscSubmit, stat: string): Record<string, unknown> {
  return {
    source_addr_ton: 1,
    source_addr_npi: 1,
    source_addr: to.replace('+', ''),
    destination_addr: from,
    esm_class: 4,
    data_coding: 3,
    short_message: `id:${messageId} sub:001 dlvrd:001 submit date:2611220101 done date:2611220102 stat:${stat} err:000 text:${text.slice(0, 10)}`,
  };
}

function numberingOf({ header }: SmscSubmit): { part: number; parts: number } {
  const [, parts = '1', part = '1'] = /^0003..(..)(..)$/.exec(header ?? '') ?? [];
  return { part: parseInt(part, 16), parts: parseInt(parts, 16) };
}

function tellIfSettled(): void {
  if (isSettleAwaited && receiptsUnderWay === 0) tell({ settled: true });
}

function note(line: Line): void {
  writeSync(log, `${JSON.stringify(line)}\n`);
}

function tell(message: FromCentre): void {
  process.send?.(message);
}
