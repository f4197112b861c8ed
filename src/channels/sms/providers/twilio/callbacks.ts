import { createHmac, timingSafeEqual } from 'node:crypto';
import { sanitiseDiagnostic } from '../../../diagnostic.ts';
import type { Keyword } from '../../../keywords.ts';
import type { InboundSms, SmsReceipt } from '../../provider.ts';
import type { FormCallbackRequest, ProviderCallback } from '../../../provider-callbacks.ts';
import type { ToldOfSms } from '../../provider-definition.ts';
import { failureOf } from './failures.ts';
import { messageSidPattern } from './outcomes.ts';

/**
 * What Twilio reports by requests of its own: what became of a text, and texts that came in. The parameters are those
 * of the form in the body, and are trusted only after `verifyTwilioSignature`.
 */

/** Before the token of the recipient. */
export const statusPath = 'status/';

/** A text of 1,600 characters, each of them three octets of nine, and some twenty other fields. */
const formBytesMax = 32_768;

/** The callbacks for statuses and for texts that came in. Nothing is trusted without Twilio's signature. */
export function twilioCallbacks(authToken: string): readonly ProviderCallback<ToldOfSms>[] {
  const isSigned = ({ url, form, header }: FormCallbackRequest) =>
    verifyTwilioSignature(authToken, url, form, header('x-twilio-signature'));
  return [
    {
      path: `${statusPath}:token`,
      formBytesMax,
      read: (request) => {
        if (!isSigned(request)) return 'forged';
        const { reference } = request;
        const receipt = readStatusCallback(request.form);
        if (reference === null || receipt === null) return [];
        return [{ kind: 'receipt', event: { ...receipt, reference } }];
      },
    },
    {
      path: 'inbound',
      formBytesMax,
      read: (request) => {
        if (!isSigned(request)) return 'forged';
        const inbound = readInboundCallback(request.form);
        return inbound === null ? [] : [{ kind: 'inbound', event: inbound }];
      },
    },
  ];
}

/**
 * Whether Twilio has signed this request (https://www.twilio.com/docs/usage/security): HMAC-SHA1, under the auth
 * token, over the URL as Twilio was given it, with its query, and the parameters sorted by name. Compared in constant
 * time. `signature` is the header X-Twilio-Signature. SHA-1 is Twilio's choice; an HMAC does not suffer from its
 * collisions.
 */
export function verifyTwilioSignature(
  authToken: string,
  url: string,
  params: URLSearchParams,
  signature: string | undefined,
): boolean {
  // With an empty key, anyone could sign.
  if (signature === undefined || authToken === '') return false;
  const signed = serializeParams(params);
  const given = Buffer.from(signature);
  return spellingsOf(url).some((spelling) => {
    const expected = createHmac('sha1', authToken).update(`${spelling}${signed}`, 'utf8').digest('base64');
    const wanted = Buffer.from(expected);
    return wanted.length === given.length && timingSafeEqual(wanted, given);
  });
}

/** Name and value of each without anything between; a value that a name has twice counts once. */
function serializeParams(params: URLSearchParams): string {
  const names = [...new Set(params.keys())].sort();
  return names
    .flatMap((name) => [...new Set(params.getAll(name))].sort().map((value) => `${name}${value}`))
    .join('');
}

/** Twilio signs some requests with the port in the URL and others without, whether or not it is the usual one. */
function spellingsOf(url: string): readonly string[] {
  const [, scheme = '', host = '', port, rest = ''] = /^(https?):\/\/([^/?#:]+)(:\d+)?(.*)$/s.exec(url) ?? [];
  if (host === '') return [url];
  if (port !== undefined) return [url, `${scheme}://${host}${rest}`];
  return [url, `${scheme}://${host}${scheme === 'https' ? ':443' : ':80'}${rest}`];
}

/** Statuses that are reported. The earlier ones (`queued`, `sending` …) say nothing new. */
const statuses: ReadonlyMap<string | null, SmsReceipt['status']> = new Map([
  ['sent', 'sent'],
  ['delivered', 'delivered'],
  // Only channels with receipts of reading have it; a text that was read was delivered.
  ['read', 'delivered'],
  ['undelivered', 'undelivered'],
  ['failed', 'failed'],
  ['canceled', 'failed'],
]);

/**
 * What a status callback reports, or null if that is nothing new, or if it is no status callback. The URL that Twilio
 * was given names the recipient.
 */
export function readStatusCallback(params: URLSearchParams): Omit<SmsReceipt, 'reference'> | null {
  const providerMessageId = messageSidOf(params);
  const status = statuses.get(params.get('MessageStatus'));
  if (providerMessageId === null || status === undefined) return null;
  return {
    providerMessageId,
    to: readNumber(params.get('To')),
    senderName: readSender(params.get('From')),
    ...fateOf(status, readErrorCode(params.get('ErrorCode'))),
  };
}

function fateOf(
  status: SmsReceipt['status'],
  code: number | null,
): Pick<SmsReceipt, 'status' | 'failure' | 'diagnostic' | 'finding'> {
  if (status === 'sent' || status === 'delivered') return { status, failure: null, diagnostic: null };
  const known = code === null ? null : failureOf(code);
  const diagnostic = code === null ? null : sanitiseDiagnostic(`${code} ${known?.words ?? ''}`);
  const failure = known?.failure ?? 'other';
  const finding = known?.finding;
  return {
    status: failure === 'expired' ? 'expired' : status,
    failure,
    diagnostic,
    ...(finding !== undefined && { finding }),
  };
}

function readErrorCode(value: string | null): number | null {
  return value !== null && /^[1-9]\d{2,6}$/.test(value) ? Number(value) : null;
}

const inboundCharsMax = 1_600;

/**
 * What Twilio has taken a text for (https://www.twilio.com/docs/messaging/tutorials/advanced-opt-out): which words mean it
 * is set at Twilio, in any language. Twilio keeps to it whatever we make of it, so that its word counts.
 */
const optOutTypes: ReadonlyMap<string, Keyword> = new Map([
  ['STOP', 'stop'],
  ['START', 'start'],
  ['HELP', 'help'],
]);

/**
 * The text that an incoming-message callback brings, or null if it is none, if it has no words (an image alone) and was
 * taken for no keyword, or if it does not come from a telephone number (another channel). At most 1,600 characters,
 * without NUL.
 */
export function readInboundCallback(params: URLSearchParams): InboundSms | null {
  if (params.has('MessageStatus')) return null;
  const providerMessageId = messageSidOf(params);
  const from = readNumber(params.get('From'));
  const senderName = readSender(params.get('To'));
  // PostgreSQL takes no NUL. The decoding of the form has left no half pairs; the cut may leave one at the end.
  const text = (params.get('Body') ?? '')
    .replaceAll('\0', '')
    .slice(0, inboundCharsMax)
    .replace(/\p{Cs}$/u, '');
  const takenFor = optOutTypes.get((params.get('OptOutType') ?? '').toUpperCase());
  if (providerMessageId === null || from === null || senderName === null) return null;
  if (takenFor === undefined) return text === '' ? null : { providerMessageId, from, senderName, text };
  return { providerMessageId, from, senderName, text, takenFor };
}

function messageSidOf(params: URLSearchParams): string | null {
  const sid = params.get('MessageSid') ?? params.get('SmsSid');
  return sid !== null && messageSidPattern.test(sid) ? sid : null;
}

function readNumber(value: string | null): string | null {
  return value !== null && /^\+[1-9]\d{1,14}$/.test(value) ? value : null;
}

/** The name of a sender as it was approved: digits without a plus, or letters. */
function readSender(value: string | null): string | null {
  if (value === null || !/^(?:\+?\d{1,15}|[A-Za-z0-9 _&+-]{1,11})$/.test(value)) return null;
  return /^\+\d+$/.test(value) ? value.slice(1) : value;
}
