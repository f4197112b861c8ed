import type { Clock } from '../../../../platform/clock.ts';
import type { SmsReceipt } from '../../provider.ts';
import { within } from './bound-connection.ts';
import type { ShortMessage } from './pdu.ts';
import type { SentTexts } from './sent-texts.ts';
import { cleanWords, readNumber, readSenderName } from './strangers.ts';

/** What a deliver_sm reports of a text of ours (SMPP 3.4 §5.2.12 and appendix B). */

type ReceiptStatus = Pick<SmsReceipt, 'status' | 'failure'>;

/** §5.2.28, and the words that appendix B has for them. */
const states: readonly (readonly [state: number, word: string, meaning: ReceiptStatus])[] = [
  [0, 'SCHEDULED', { status: 'sent', failure: null }],
  [1, 'ENROUTE', { status: 'sent', failure: null }],
  [2, 'DELIVRD', { status: 'delivered', failure: null }],
  [3, 'EXPIRED', { status: 'expired', failure: 'expired' }],
  [4, 'DELETED', { status: 'failed', failure: 'other' }],
  [5, 'UNDELIV', { status: 'undelivered', failure: 'other' }],
  [6, 'ACCEPTD', { status: 'sent', failure: null }],
  [7, 'UNKNOWN', { status: 'undelivered', failure: 'other' }],
  [8, 'REJECTD', { status: 'failed', failure: 'other' }],
];

/** What some write instead. Only the first seven letters count. */
const otherWords: readonly (readonly [word: string, instead: string])[] = [
  ['DELIVER', 'DELIVRD'],
  ['ACCEPTE', 'ACCEPTD'],
  ['BUFFERE', 'ENROUTE'],
  ['REJECTE', 'REJECTD'],
  ['FAILED', 'UNDELIV'],
];

const meaningsByState = new Map(states.map(([state, , meaning]) => [state, meaning]));
const meaningsByWord = new Map(states.map(([, word, meaning]) => [word.slice(0, 7), meaning]));
for (const [word, instead] of otherWords) {
  const meaning = meaningsByWord.get(instead);
  if (meaning !== undefined) meaningsByWord.set(word, meaning);
}

/** Longer, and a message centre that first wants its receipt answered would leave the text uncertain. */
const answerWaitMs = 5_000;

/** §5.2.12, bits 5 to 2: what kind of message this is. */
const kindMask = 0x3c;
const receiptKinds = [0x04, 0x20];
const acknowledgementKinds = [0x08, 0x10];

/**
 * Whether a deliver_sm is a receipt. Its words alone do not make it one, since anyone can write them and send them
 * to one of our numbers; nor does the identifier of a text without a state, which some (Kannel's test server) give to
 * every message.
 */
export function isReceipt(message: ShortMessage): boolean {
  const isMarked = receiptKinds.includes(message.esmClass & kindMask);
  return isMarked || (message.receiptedMessageId !== null && readState(message).meaning !== undefined);
}

/** Whether it is what a phone sends by itself when a text is read or answered, which we do not ask for. */
export function isAcknowledgement(message: ShortMessage): boolean {
  return acknowledgementKinds.includes(message.esmClass & kindMask);
}

export type ReceiptTools = {
  clock: Clock;
  sent: SentTexts;
  /** The dialling code of the country whose national numbers come without it, if any. */
  country: string | null;
};

/** Resolves with the receipt, or with null if it names neither a text nor a state that we know. */
export async function readReceipt(
  { clock, sent, country }: ReceiptTools,
  message: ShortMessage,
): Promise<SmsReceipt | null> {
  const { fields, word, meaning } = readState(message);
  const identifier = cleanWords(message.receiptedMessageId ?? fieldOf(fields, 'id') ?? '');
  if (meaning === undefined || identifier === '') return null;
  const to = readNumber(message.source, country);
  // It may be quicker than the response that has the identifier of the text.
  const answered = sent.whenAnswered(to);
  if (answered !== null) await within(clock, answerWaitMs, answered);
  const { providerMessageId, text } = sent.find(identifier, to);
  return {
    providerMessageId,
    reference: text?.reference ?? null,
    to: text?.to ?? (to.startsWith('+') ? to : null),
    senderName: text?.senderName ?? readSenderName(message.destination, country),
    ...meaning,
    diagnostic: diagnosticOf(message, word, fieldOf(fields, 'err')),
  };
}

/** What became of a text, and the words that say so. */
function readState(message: ShortMessage) {
  const fields = fieldsOf(message);
  const word = fieldOf(fields, 'stat')?.toUpperCase().slice(0, 7) ?? null;
  const meaning =
    meaningsByState.get(message.messageState ?? -1) ?? (word === null ? undefined : meaningsByWord.get(word));
  return { fields, word, meaning };
}

/** `id:… sub:… dlvrd:… submit date:… done date:… stat:… err:… text:…`, more or less: the text itself comes last. */
function fieldsOf(message: ShortMessage): string {
  const body = wordsOf(message).slice(0, bodyCharsMax);
  const textAt = body.search(/\btext:/i);
  return textAt === -1 ? body : body.slice(0, textAt);
}

const bodyCharsMax = 1_000;

/** §5.2.19: UCS-2, of which the words of a receipt have every other octet zero. */
const ucs2 = 0x08;

/** Some say that receipts are UCS-2, and write them in ASCII, which has no zeros. */
function wordsOf({ dataCoding, messagePayload, octets }: ShortMessage): string {
  const body = (messagePayload ?? octets).subarray(0, 2 * bodyCharsMax);
  // The first character may be a byte order mark.
  const zeroAt = body.subarray(0, 4).indexOf(0);
  if (dataCoding !== ucs2 || zeroAt === -1) return body.toString('latin1');
  return new TextDecoder(zeroAt % 2 === 0 ? 'utf-16be' : 'utf-16le').decode(body);
}

const fieldPatterns = {
  id: /(?:^|\s)id:\s?(\S{1,100})/i,
  stat: /(?:^|\s)stat:\s?(\S{1,100})/i,
  err: /(?:^|\s)err:\s?(\S{1,100})/i,
};

function fieldOf(fields: string, name: keyof typeof fieldPatterns): string | null {
  return fieldPatterns[name].exec(fields)?.[1] ?? null;
}

function diagnosticOf(message: ShortMessage, word: string | null, error: string | null): string | null {
  const parts = [
    word === null ? `message_state ${message.messageState ?? 'unknown'}` : `stat:${word}`,
    ...(error === null ? [] : [`err:${error}`]),
  ];
  return cleanWords(parts.join(' '));
}
