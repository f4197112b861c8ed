import { createHmac } from 'node:crypto';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { readInboundCallback, readStatusCallback, verifyTwilioSignature } from './callbacks.ts';

const sid = `SM${'0123456789abcdef'.repeat(2)}`;

/** The example of Twilio's documentation, with the signature that it gives. */
const documented = {
  authToken: '12345',
  url: 'https://mycompany.com/myapp.php?foo=1&bar=2',
  params: new URLSearchParams({
    Digits: '1234',
    To: '+18005551212',
    From: '+14158675309',
    Caller: '+14158675309',
    CallSid: 'CA1234567890ABCDE',
  }),
  signature: 'RSOYDt4T1cUTdK1PDd93/VVr8B8=',
};

function sign(authToken: string, text: string): string {
  return createHmac('sha1', authToken).update(text).digest('base64');
}

test("the example of Twilio's documentation is signed", () => {
  const { authToken, url, params, signature } = documented;
  expect(verifyTwilioSignature(authToken, url, params, signature)).toBe(true);
});

test('values of one name are sorted, and count once', () => {
  const params = new URLSearchParams('Sid=CA123&SidAccount=AC123&Digits=5678&Digits=1234&Digits=1234');
  expect(verifyTwilioSignature('12345', documented.url, params, 'IK+Dwps556ElfBT0I3Rgjkr1wJU=')).toBe(true);
});

test('every change of anything that is signed is noticed', () => {
  const { authToken, url, params, signature } = documented;
  const changed = (change: (copy: URLSearchParams) => void) => {
    const copy = new URLSearchParams(params);
    change(copy);
    return copy;
  };
  expect(verifyTwilioSignature('12346', url, params, signature)).toBe(false);
  expect(verifyTwilioSignature(authToken, `${url}&x`, params, signature)).toBe(false);
  expect(verifyTwilioSignature(authToken, url.replace('https', 'http'), params, signature)).toBe(false);
  expect(verifyTwilioSignature(authToken, url.replace('mycompany', 'company'), params, signature)).toBe(
    false,
  );
  for (const altered of [
    changed((copy) => {
      copy.set('To', '+18005551213');
    }),
    changed((copy) => {
      copy.append('To', '+18005551213');
    }),
    changed((copy) => {
      copy.append('X', '');
    }),
    changed((copy) => {
      copy.delete('Caller');
    }),
  ]) {
    expect(verifyTwilioSignature(authToken, url, altered, signature)).toBe(false);
  }
});

test.each([
  undefined,
  '',
  '=',
  'RSOYDt4T1cUTdK1PDd93/VVr8B8',
  'rSOYDt4T1cUTdK1PDd93/VVr8B8=',
  'é'.repeat(28),
])('a signature that reads %j is none', (signature) => {
  const { authToken, url, params } = documented;
  expect(verifyTwilioSignature(authToken, url, params, signature)).toBe(false);
});

test('an empty auth token signs nothing', () => {
  expect(
    verifyTwilioSignature('', 'https://a.test/', new URLSearchParams(), sign('', 'https://a.test/')),
  ).toBe(false);
});

test.each([
  ['https://a.test/x?y=1', 'https://a.test:443/x?y=1'],
  ['https://a.test:8443/x?y=1', 'https://a.test/x?y=1'],
  ['http://a.test/x', 'http://a.test:80/x'],
])('%s may be signed as %s', (url, spelling) => {
  const params = new URLSearchParams({ b: 'Grüße 👋', a: '+1' });
  expect(verifyTwilioSignature('t', url, params, sign('t', `${spelling}a+1bGrüße 👋`))).toBe(true);
  expect(verifyTwilioSignature('t', url, params, sign('t', `${spelling}/a+1bGrüße 👋`))).toBe(false);
});

test.each([
  ['sent', '', 'sent', null],
  ['delivered', '', 'delivered', null],
  ['read', '', 'delivered', null],
  ['undelivered', '30003', 'undelivered', 'unreachable'],
  ['undelivered', '30004', 'undelivered', 'blocked'],
  ['undelivered', '30005', 'undelivered', 'unknown_subscriber'],
  ['undelivered', '30006', 'undelivered', 'unknown_subscriber'],
  ['undelivered', '30007', 'undelivered', 'spam'],
  ['undelivered', '30008', 'undelivered', 'other'],
  ['failed', '30001', 'failed', 'rate_limited'],
  ['failed', '30002', 'failed', 'sender_rejected'],
  ['failed', '30034', 'failed', 'sender_rejected'],
  ['failed', '30036', 'expired', 'expired'],
  ['failed', '21610', 'failed', 'blocked'],
  ['failed', '39999', 'failed', 'other'],
  ['undelivered', '', 'undelivered', 'other'],
  ['canceled', '', 'failed', 'other'],
  // What comes with a success explains nothing.
  ['delivered', '30008', 'delivered', null],
])('%s with the error %j is the receipt %s, for %s', (messageStatus, code, status, failure) => {
  const receipt = readStatusCallback(
    new URLSearchParams({
      MessageSid: sid,
      MessageStatus: messageStatus,
      To: '+15005550006',
      From: '+15005550001',
      ...(code === '' ? {} : { ErrorCode: code }),
    }),
  );
  expect(receipt).toEqual({
    providerMessageId: sid,
    to: '+15005550006',
    senderName: '15005550001',
    status,
    failure,
    diagnostic: failure === null || code === '' ? null : expect.stringMatching(new RegExp(`^${code}`)),
    ...(code === '21610' && { finding: { kind: 'opted_out' } }),
  });
});

test.each([
  'queued',
  'sending',
  'accepted',
  'scheduled',
  'receiving',
  'received',
  '',
  'DELIVERED',
  'constructor',
])('of the status %j there is nothing to report', (status) => {
  expect(readStatusCallback(new URLSearchParams({ MessageSid: sid, MessageStatus: status }))).toBeNull();
});

test.each([
  ['Postillion', 'Postillion'],
  ['+15551230000', '15551230000'],
  ['12345', '12345'],
  ['', null],
  ['whatsapp:+15551230000', null],
])('a text from %j has the sender %j', (from, senderName) => {
  const params = new URLSearchParams({ SmsSid: sid, MessageStatus: 'delivered', From: from, To: 'rcs:x' });
  expect(readStatusCallback(params)).toMatchObject({ providerMessageId: sid, senderName, to: null });
});

test.each(['', 'SM1', `${sid}0`, `XX${sid.slice(2)}`])(
  'without a message of the name %j there is no receipt',
  (name) => {
    expect(
      readStatusCallback(new URLSearchParams({ MessageSid: name, MessageStatus: 'delivered' })),
    ).toBeNull();
  },
);

test.each(['+15551230000', '15551230000', '12345'])('a text to %s is read', (to) => {
  const params = new URLSearchParams({
    MessageSid: sid,
    SmsStatus: 'received',
    From: '+4915112345678',
    To: to,
  });
  params.set('Body', 'Stop 👋');
  expect(readInboundCallback(params)).toEqual({
    providerMessageId: sid,
    from: '+4915112345678',
    senderName: to.replace('+', ''),
    text: 'Stop 👋',
  });
});

test.each([
  ['a status callback', { MessageStatus: 'delivered' }],
  ['an image alone', { Body: '' }],
  ['another channel', { From: 'whatsapp:+4915112345678' }],
  ['a sender that is no number', { From: 'Postillion' }],
  ['no recipient', { To: '' }],
  ['no name of a message', { MessageSid: '' }],
])('%s is no inbound text', (_, changes) => {
  const params = { MessageSid: sid, From: '+4915112345678', To: '+15551230000', Body: 'Hi' };
  expect(readInboundCallback(new URLSearchParams({ ...params, ...changes }))).toBeNull();
});

test('whatever stands in a form, what is read of it can be stored', () => {
  const names = ['MessageSid', 'SmsSid', 'MessageStatus', 'ErrorCode', 'From', 'To', 'Body', 'OptOutType'];
  const values = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 40 }),
    fc.constantFrom(
      sid,
      'failed',
      '30003',
      '+15551230000',
      '👋'.repeat(801),
      `${'a'.repeat(1_599)}👋`,
      'a\0b',
    ),
  );
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.constantFrom(...names), values), { maxLength: 8 }), (pairs) => {
      const params = new URLSearchParams(new URLSearchParams(pairs).toString());
      const [receipt, inbound] = [readStatusCallback(params), readInboundCallback(params)];
      expect(receipt?.diagnostic ?? '').toMatch(/^\P{Cc}{0,500}$/u);
      expect(inbound?.text ?? 'a').toMatch(/^[^\0\p{Cs}]{1,1600}$/u);
      expect(inbound?.from ?? '+15').toMatch(/^\+[1-9]\d{1,14}$/);
      expect(inbound?.senderName ?? '15').toMatch(/^[A-Za-z0-9 _&+-]{1,15}$/);
    }),
  );
});
