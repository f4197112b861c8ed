import { startPeer } from './peer.ts';

/** A message centre that misbehaves, and whose log is what the truth is compared with. */
export type MessageCentre = {
  port: number;
  /** Resolves when every receipt has been sent and acknowledged. */
  whenSettled: () => Promise<void>;
  readLog: () => Promise<Line[]>;
  stop: () => Promise<void>;
};

export type ToCentre = { settle: true };
export type FromCentre = { port: number } | { settled: true };

export type TakenPart = {
  kind: 'taken';
  atMs: number;
  to: string;
  from: string;
  text: string;
  messageId: string;
  /** From 1. */
  part: number;
  parts: number;
};

export type ToldReceipt = { kind: 'told'; to: string; messageId: string; stat: string; tries: number };

export type Line =
  | TakenPart
  | ToldReceipt
  | { kind: 'refused'; to: string; status: number }
  /** The answer was kept back, or the connection was cut right before or after it. */
  | { kind: 'cut'; to: string }
  /** All connections were cut, and the text had not been taken. */
  | { kind: 'restart'; to: string };

/** What the message centre does when a text comes; it puts a text off once. */
export const answerFates = [
  'accepted',
  'throttled',
  'queue_full',
  'system_error',
  'refused',
  'lost',
  'dropped_after_answer',
  'silent',
  'restart',
] as const;
export type AnswerFate = (typeof answerFates)[number];

/** What it reports of a text that it has taken. */
export const receiptFates = [
  'delivered',
  'undelivered',
  'expired',
  'rejected',
  'late',
  'twice',
  'before_answer',
  'in_steps',
  'none',
] as const;
export type ReceiptFate = (typeof receiptFates)[number];

/** A number of its own, which says what becomes of texts to it. */
export function composeNumber(answer: AnswerFate, receipt: ReceiptFate, number: number): string {
  const fates = `${answerFates.indexOf(answer)}${receiptFates.indexOf(receipt)}`;
  return `+4915${fates}${String(number).padStart(7, '0')}`;
}

export function readFates(number: string): { answer: AnswerFate; receipt: ReceiptFate; isOdd: boolean } {
  return {
    answer: answerFates[Number(number[5])] ?? 'accepted',
    receipt: receiptFates[Number(number[6])] ?? 'delivered',
    isOdd: Number(number.at(-1)) % 2 === 1,
  };
}

export async function startMessageCentre(logFile: string): Promise<MessageCentre> {
  const { first, ask, ...peer } = await startPeer<FromCentre, Line>('message-centre', logFile);
  return {
    ...peer,
    port: 'port' in first ? first.port : 0,
    whenSettled: async () => {
      await ask({ settle: true } satisfies ToCentre);
    },
  };
}
