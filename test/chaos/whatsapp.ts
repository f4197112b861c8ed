import path from 'node:path';
import { chatAppSecret, type Sender } from './installation.ts';
import { startPeer } from './peer.ts';

/** A WhatsApp that misbehaves, and whose log is what the truth is compared with. */
export type WhatsApp = {
  port: number;
  /** Resolves when every webhook has been sent and acknowledged. */
  whenSettled: () => Promise<void>;
  readLog: () => Promise<Line[]>;
  stop: () => Promise<void>;
};

/** Whose a number is, and where its webhooks go. */
export type Account = { businessAccountId: string; webhookUrl: string; appSecret: string };

export type ToWhatsApp = { settle: true };
export type FromWhatsApp = { port: number } | { settled: true };

export type TakenMessage = {
  kind: 'taken';
  atMs: number;
  to: string;
  phoneNumberId: string;
  accessToken: string;
  id: string;
  template: string;
  values: Readonly<Record<string, string>>;
};

export type ToldStatus = {
  kind: 'told';
  atMs: number;
  to: string;
  id: string;
  status: 'sent' | 'delivered' | 'read' | 'failed';
  /** How often it was posted until it was acknowledged. */
  tries: number;
};

export type Line =
  | TakenMessage
  | ToldStatus
  | { kind: 'refused'; to: string; what: AnswerFate }
  /** The answer was lost, broke off, was kept back, or says nothing. */
  | { kind: 'unanswered'; to: string; what: AnswerFate };

/** What becomes of a request; only `refused` is the same the next time, and everything else is accepted then. */
export const answerFates = [
  'accepted',
  'late',
  /** Taken, and then the connection is cut. */
  'lost',
  /** Taken, and then the connection is cut within the answer. */
  'cut_within',
  /** Taken, and never answered. */
  'silent',
  /** Not taken, and the connection is cut. */
  'cut_before',
  /** Not taken, and answered with an error of some gateway, which cannot know. */
  'bad_gateway',
  'error',
  'unavailable',
  'throttled',
  'pair_throttled',
  'refused',
] as const;
export type AnswerFate = (typeof answerFates)[number];

/** What is reported of a message that was taken. */
export const statusFates = [
  'delivered',
  'read',
  'read_alone',
  'failed',
  'failed_after_delivery',
  'late',
  'twice',
  'reversed',
  'before_answer',
  'hidden',
  'none',
] as const;
export type StatusFate = (typeof statusFates)[number];

/** A number of its own, which says what becomes of messages to it. */
export function composeNumber(answer: AnswerFate, status: StatusFate, number: number): string {
  const digits = (value: number, length: number) => String(value).padStart(length, '0');
  const fates = `${digits(answerFates.indexOf(answer), 2)}${digits(statusFates.indexOf(status), 2)}`;
  return `+4915${fates}${digits(number, 7)}`;
}

export function readFates(number: string): { answer: AnswerFate; status: StatusFate } {
  return {
    answer: answerFates[Number(number.slice(5, 7))] ?? 'accepted',
    status: statusFates[Number(number.slice(7, 9))] ?? 'delivered',
  };
}

async function startWhatsApp(
  logFile: string,
  accounts: Readonly<Record<string, Account>>,
): Promise<WhatsApp> {
  const { first, ask, ...peer } = await startPeer<FromWhatsApp, Line>('whatsapp', logFile, [
    JSON.stringify(accounts),
  ]);
  return {
    ...peer,
    port: 'port' in first ? first.port : 0,
    whenSettled: async () => {
      await ask({ settle: true } satisfies ToWhatsApp);
    },
  };
}

/** Starts it for an installation, and says by which settings it is reached. */
export async function prepareWhatsApp(
  directory: string,
  { apiUrl, senders }: { apiUrl: string; senders: readonly Sender[] },
): Promise<{ remote: WhatsApp; settings: Readonly<Record<string, string>> }> {
  const accounts = senders.map(({ chatApp }): [string, Account] => {
    const { phoneNumberId, businessAccountId, callbackPath, appSecret } = chatApp;
    return [phoneNumberId, { businessAccountId, webhookUrl: `${apiUrl}${callbackPath}`, appSecret }];
  });
  const remote = await startWhatsApp(path.join(directory, 'messages.jsonl'), Object.fromEntries(accounts));
  return {
    remote,
    settings: {
      POSTILLION_CHATAPP_PROVIDER: 'whatsapp',
      POSTILLION_WHATSAPP_URL: `http://127.0.0.1:${remote.port}`,
      POSTILLION_WHATSAPP_APP_SECRET: chatAppSecret,
      POSTILLION_WHATSAPP_VERIFY_TOKEN: 'verified',
      POSTILLION_PUBLIC_URL: apiUrl,
    },
  };
}
