import type { SmsFailure, SmsFinding } from '../../provider.ts';

/**
 * What Twilio's error codes mean to us (https://www.twilio.com/docs/api/errors). Those of 2xxxx are the answer to a
 * hand-off, those of 3xxxx come with a receipt; some of the latter are given at once where Twilio knows at once.
 */
export type TwilioFailure = {
  /** `unavailable` is about the account or the settings: no text is to blame, and none can be handed off. */
  kind: 'rejected' | 'deferred' | 'unavailable';
  failure: SmsFailure;
  words: string;
  /** What it says of the number; absent for nothing. */
  finding?: SmsFinding;
};

type Row = readonly [number, TwilioFailure['kind'], SmsFailure, string, SmsFinding?];

const rows: readonly Row[] = [
  // The account, its credentials and its settings.
  [10001, 'unavailable', 'sender_rejected', 'The account is not active'],
  [20003, 'unavailable', 'sender_rejected', 'The credentials are not accepted'],
  [20004, 'unavailable', 'other', 'The API does not know this method'],
  [20005, 'unavailable', 'sender_rejected', 'The account is not active'],
  [20006, 'unavailable', 'sender_rejected', 'Access is denied'],
  [20008, 'unavailable', 'sender_rejected', 'The test credentials may not do this'],
  [20403, 'unavailable', 'sender_rejected', 'Access is denied'],
  [20404, 'unavailable', 'other', 'There is no such account'],
  [20429, 'deferred', 'rate_limited', 'Too many requests'],
  [21609, 'unavailable', 'other', 'The URL for status callbacks is refused'],
  [21701, 'unavailable', 'sender_rejected', 'There is no such messaging service'],
  [21705, 'unavailable', 'sender_rejected', 'The messaging service is not valid'],
  [21730, 'unavailable', 'other', 'Under maintenance'],

  // The number.
  [21211, 'rejected', 'unknown_subscriber', 'The number is not valid'],
  [21214, 'rejected', 'unknown_subscriber', 'The number cannot be reached'],
  [21217, 'rejected', 'unknown_subscriber', 'The number does not look valid'],
  [21265, 'rejected', 'unknown_subscriber', 'The number is a short code'],
  [21266, 'rejected', 'sender_rejected', 'The number is the sender itself'],
  [21268, 'rejected', 'unknown_subscriber', 'The number is a premium or information service'],
  [21604, 'rejected', 'unknown_subscriber', 'There is no number to send to'],
  [21610, 'rejected', 'blocked', 'The recipient has replied STOP', { kind: 'opted_out' }],
  [21614, 'rejected', 'unknown_subscriber', 'The number is no mobile number'],
  [21635, 'rejected', 'unknown_subscriber', 'The number is a landline'],

  // The sender, and where the account may send to.
  [21212, 'rejected', 'sender_rejected', 'The sender is not valid'],
  [21219, 'rejected', 'sender_rejected', 'A trial account may send to verified numbers only'],
  [21267, 'rejected', 'sender_rejected', 'A trial account may not use an alphanumeric sender'],
  [21408, 'rejected', 'sender_rejected', 'The account may not send to this region'],
  [21601, 'rejected', 'sender_rejected', 'The sender cannot send texts'],
  [21603, 'rejected', 'sender_rejected', 'There is no sender'],
  [21606, 'rejected', 'sender_rejected', 'The sender cannot be used for this destination'],
  [21607, 'rejected', 'sender_rejected', 'A trial account may use its own sender only'],
  [21608, 'rejected', 'sender_rejected', 'A trial account may send to verified numbers only'],
  [21612, 'rejected', 'sender_rejected', 'The sender cannot reach this number'],
  [21616, 'rejected', 'sender_rejected', 'The sender stands for several numbers'],
  [21659, 'rejected', 'sender_rejected', 'The sender is no number of Twilio'],
  [21660, 'rejected', 'sender_rejected', 'The sender belongs to another account'],
  [21661, 'rejected', 'sender_rejected', 'The sender cannot send texts'],
  [21703, 'rejected', 'sender_rejected', 'The messaging service has no sender for this number'],
  [21704, 'rejected', 'sender_rejected', 'The messaging service has no sender'],
  [21709, 'rejected', 'sender_rejected', 'The messaging service may not use this sender'],
  [21711, 'rejected', 'sender_rejected', 'The sender is not in the messaging service'],
  [21712, 'rejected', 'sender_rejected', 'The sender is in another messaging service'],

  // The text.
  [21602, 'rejected', 'invalid_message', 'The text is empty'],
  [21605, 'rejected', 'invalid_message', 'The text is too long'],
  [21617, 'rejected', 'invalid_message', 'The text is longer than 1,600 characters'],
  [21618, 'rejected', 'invalid_message', 'The text cannot be sent'],
  [21619, 'rejected', 'invalid_message', 'The text is empty'],
  [21658, 'rejected', 'invalid_message', 'A parameter is too long'],

  [21611, 'deferred', 'rate_limited', "The sender's queue is full"],

  // What receipts say.
  [30001, 'deferred', 'rate_limited', 'Waited too long in the queue of the sender'],
  [30002, 'unavailable', 'sender_rejected', 'The account was suspended'],
  [30003, 'rejected', 'unreachable', 'Switched off or out of reach'],
  [30004, 'rejected', 'blocked', 'Blocked by the recipient or their carrier'],
  [30005, 'rejected', 'unknown_subscriber', 'The number does not exist'],
  [30006, 'rejected', 'unknown_subscriber', 'The number is a landline, or its carrier accepts no texts'],
  [30007, 'rejected', 'spam', 'Filtered by Twilio or the carrier'],
  [30008, 'rejected', 'other', 'The carrier gave no reason'],
  [30010, 'rejected', 'other', 'The price is above the highest allowed'],
  [30017, 'deferred', 'rate_limited', "The carrier's network is congested"],
  [30018, 'rejected', 'sender_rejected', 'The carrier wants the sender to be registered'],
  [30019, 'rejected', 'invalid_message', 'The text is too long for the carrier'],
  [30022, 'deferred', 'rate_limited', 'Faster than the carrier allows this sender'],
  [30023, 'deferred', 'rate_limited', 'More than the carrier allows this sender in a day'],
  [30024, 'rejected', 'sender_rejected', 'The carrier does not know the sender yet'],
  [30027, 'deferred', 'rate_limited', 'More than the carrier allows this sender in a day'],
  [30032, 'rejected', 'sender_rejected', 'The toll-free number is not verified'],
  [30033, 'rejected', 'sender_rejected', 'The registration of the sender is suspended'],
  [30034, 'rejected', 'sender_rejected', 'The sender is not registered'],
  [30035, 'rejected', 'sender_rejected', 'The sender is still being registered'],
  [30036, 'rejected', 'expired', 'Not delivered before its validity ended'],
  [30037, 'rejected', 'sender_rejected', 'The account may not send texts'],
  [30038, 'rejected', 'spam', 'Filtered as a one-time password'],
  [30040, 'rejected', 'sender_rejected', 'The carrier wants the sender to be registered'],
  [30041, 'rejected', 'sender_rejected', 'The sender is not registered for the United Kingdom'],
  [30046, 'rejected', 'unreachable', 'The phone did not confirm the text'],
  [30410, 'rejected', 'other', 'The next provider did not answer'],
  [30450, 'rejected', 'spam', 'Treated as fraud by Twilio'],
  [30453, 'rejected', 'spam', 'Treated as fraud by Twilio'],
  [30454, 'deferred', 'rate_limited', 'More than Twilio allows this account'],
  [30485, 'rejected', 'spam', 'Treated as fraud by Twilio'],
  [30500, 'rejected', 'other', 'An internal error of Twilio'],
];

const failures: ReadonlyMap<number, TwilioFailure> = new Map(
  rows.map(([code, kind, failure, words, finding]) => [
    code,
    { kind, failure, words, ...(finding !== undefined && { finding }) },
  ]),
);

/** What a code means, or null if it is not listed: Twilio keeps adding some. */
export function failureOf(code: number): TwilioFailure | null {
  return failures.get(code) ?? null;
}

/** Every code with a meaning, for the tests. */
export const listedCodes: readonly number[] = rows.map(([code]) => code);
