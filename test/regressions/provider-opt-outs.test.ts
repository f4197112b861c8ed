import { expect, test } from 'vitest';
import { findingOf, meaningOf } from '../../src/channels/chatapp/providers/whatsapp/answers.ts';
import { listedCodes as whatsAppCodes } from '../../src/channels/chatapp/providers/whatsapp/answers.ts';
import { readReport } from '../../src/channels/email/email.ts';
import {
  outcomeOf as outcomeOfApns,
  readAnswer,
} from '../../src/channels/push/providers/direct/apns/answers.ts';
import { outcomeOf as outcomeOfFcm } from '../../src/channels/push/providers/direct/fcm/answers.ts';
import { outcomeOf as outcomeOfWebPush } from '../../src/channels/push/providers/direct/web-push/answers.ts';
import { readStatus } from '../../src/channels/sms/providers/smpp/statuses.ts';
import {
  readInboundCallback,
  readStatusCallback,
} from '../../src/channels/sms/providers/twilio/callbacks.ts';
import { listedCodes as twilioCodes } from '../../src/channels/sms/providers/twilio/failures.ts';
import { outcomeOf as outcomeOfTwilio } from '../../src/channels/sms/providers/twilio/outcomes.ts';

/**
 * Which words of providers mean that a person wants no more. Each is read here as it comes; what follows from it is in the
 * journeys of its channel. Whatever is not listed as one means nothing of the kind: a device that is gone, a number that is
 * off and a filter of a carrier are no words of a person.
 */

type Word = 'stop' | 'start' | 'stop marketing' | 'complaint' | null;

const remote = 'provider.test';
const answer = (status: number, body: unknown) =>
  ({ kind: 'answered', status, headers: {}, body: JSON.stringify(body) }) as const;
const sid = `SM${'0123456789abcdef'.repeat(2)}`;

function ofTwilioAnswer(code: number): Word {
  const { finding } = outcomeOfTwilio(answer(400, { code, message: 'No.' }), remote);
  return finding?.kind === 'opted_out' ? 'stop' : null;
}

function ofTwilioStatus(code: number): Word {
  const form = { MessageSid: sid, MessageStatus: 'failed', ErrorCode: String(code) };
  return readStatusCallback(new URLSearchParams(form))?.finding?.kind === 'opted_out' ? 'stop' : null;
}

function ofTwilioText(type: string): Word {
  const form = {
    MessageSid: sid,
    From: '+4915112345678',
    To: '+15551230000',
    Body: 'Raus',
    OptOutType: type,
  };
  const takenFor = readInboundCallback(new URLSearchParams(form))?.takenFor ?? null;
  return takenFor === 'help' ? null : takenFor;
}

function ofWhatsApp(code: number): Word {
  const meaning = meaningOf({ code, subcode: null });
  const finding = meaning === null ? undefined : findingOf(meaning, '').finding;
  return finding?.kind === 'stopped_marketing' ? 'stop marketing' : null;
}

function ofFeedback(type: string): Word {
  const source = [
    'From: fbl@provider.test',
    'Subject: Report',
    'MIME-Version: 1.0',
    'Content-Type: multipart/report; report-type=feedback-report; boundary=b',
    '',
    '--b',
    'Content-Type: text/plain',
    '',
    'A report.',
    '--b',
    'Content-Type: message/feedback-report',
    '',
    `Feedback-Type: ${type}`,
    'User-Agent: provider/1',
    'Version: 1',
    '',
    '--b--',
    '',
  ].join('\r\n');
  const report = readReport(Buffer.from(source));
  expect(report.kind).toBe('abuse');
  return report.kind === 'abuse' && report.isComplaint ? 'complaint' : null;
}

const everyOther = (codes: readonly number[], but: readonly number[]) =>
  codes.filter((code) => !but.includes(code));

const table: [provider: string, word: string, read: () => Word, meaning: Word][] = [
  ['Twilio', 'the answer 21610', () => ofTwilioAnswer(21610), 'stop'],
  ['Twilio', 'a status with 21610', () => ofTwilioStatus(21610), 'stop'],
  ['Twilio', 'OptOutType=STOP', () => ofTwilioText('STOP'), 'stop'],
  ['Twilio', 'OptOutType=START', () => ofTwilioText('START'), 'start'],
  ['Twilio', 'OptOutType=HELP', () => ofTwilioText('HELP'), null],
  ...everyOther(twilioCodes, [21610]).flatMap((code): typeof table => [
    ['Twilio', `the answer ${code}`, () => ofTwilioAnswer(code), null],
    ['Twilio', `a status with ${code}`, () => ofTwilioStatus(code), null],
  ]),
  ['WhatsApp', '131050', () => ofWhatsApp(131050), 'stop marketing'],
  ...everyOther(whatsAppCodes, [131050]).map((code): (typeof table)[number] => [
    'WhatsApp',
    String(code),
    () => ofWhatsApp(code),
    null,
  ]),
  ...['abuse', 'fraud', 'other', 'opt-out', 'opt-out-list', 'unheard-of'].map(
    (type): (typeof table)[number] => ['a feedback loop', type, () => ofFeedback(type), 'complaint'],
  ),
  ...['not-spam', 'auth-failure', 'virus'].map((type): (typeof table)[number] => [
    'a feedback loop',
    type,
    () => ofFeedback(type),
    null,
  ]),
];

test.each(table)('%s: %s', (_provider, _word, read, meaning) => {
  expect(read()).toBe(meaning);
});

/**
 * Neither services of push nor message centres have a word for it. What they say of a token is about a device, which is
 * retired; the statuses of SMPP are about the text, its sender or the number.
 */
const context = { areCredentialsProven: true, remote, random: 0, notificationId: 'n' };
const goneDevices: [string, () => { kind: string; reason?: string }][] = [
  [
    'FCM: UNREGISTERED',
    () =>
      outcomeOfFcm(
        answer(404, {
          error: {
            code: 404,
            status: 'NOT_FOUND',
            message: 'Requested entity was not found.',
            details: [
              {
                '@type': 'type.googleapis.com/google.firebase.fcm.v1.FcmError',
                errorCode: 'UNREGISTERED',
              },
            ],
          },
        }),
        context,
      ),
  ],
  [
    'APNs: 410 Unregistered',
    () => outcomeOfApns(readAnswer(answer(410, { reason: 'Unregistered' }), remote), context),
  ],
  ['Web Push: 404', () => outcomeOfWebPush(answer(404, ''), context)],
  ['Web Push: 410', () => outcomeOfWebPush(answer(410, ''), context)],
];

test.each(goneDevices)('%s is a device that is gone, and nothing that a person has said', (_word, read) => {
  const outcome = read();
  expect(outcome).toMatchObject({ kind: 'rejected', reason: 'unregistered' });
  expect(outcome).not.toHaveProperty('finding');
});

test('no status of SMPP is taken for a word of a person', () => {
  const meanings = Array.from({ length: 0x500 }, (_one, status) => readStatus(status));
  expect(meanings.filter((meaning) => meaning.reason === 'blocked')).toEqual([]);
});
