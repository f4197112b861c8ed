import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type BounceReport, readReport, type ReportedRecipient } from './reports.ts';

/** What is read of whole reports is in `reply-corpus.test.ts`; here are the edges, and those who mean no well. */

const head = 'From: MAILER-DAEMON@mx.example.test\r\nSubject: Undelivered Mail Returned to Sender\r\n';

function inStatus(fields: string, words = 'Failed.'): Buffer {
  return Buffer.from(
    `${head}Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\n\r\n${words}\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n${fields}\r\n--b--\r\n`,
  );
}

function inWords(words: string, fields = 'Content-Type: text/plain; charset=utf-8\r\n'): Buffer {
  return Buffer.concat([Buffer.from(`${head}${fields}\r\n`), Buffer.from(words, 'latin1')]);
}

function recipientsOf(report: BounceReport): ReportedRecipient[] {
  if (report.kind !== 'delivery_status') throw new Error(`it was taken for ${report.kind}`);
  return report.recipients;
}

function recipientOf(source: Buffer): ReportedRecipient {
  const recipients = recipientsOf(readReport(source));
  expect(recipients).toHaveLength(1);
  return recipients[0]!;
}

const unsafe = /[\p{Cc}\p{Cs}\u2028\u2029\u202e]/u;

/** Whatever was sent: nothing that could hurt a table, a log or a page comes of it. */
function expectHarmless(report: BounceReport): void {
  if (report.kind === 'abuse') {
    expect(report.feedbackType.length).toBeLessThanOrEqual(50);
    for (const text of [report.feedbackType, ...report.returnPaths, report.messageId ?? ''])
      expect(text).not.toMatch(unsafe);
  }
  if (report.kind !== 'delivery_status') return;
  expect(report.recipients.length).toBeLessThanOrEqual(50);
  for (const { address, reply } of report.recipients) {
    expect(address?.length ?? 0).toBeLessThanOrEqual(254);
    expect(reply.diagnostic.length).toBeLessThanOrEqual(500);
    expect(reply.remote?.length ?? 0).toBeLessThanOrEqual(255);
    expect(reply.enhancedCode ?? '5.0.0').toMatch(/^[245]\.\d{1,3}\.\d{1,3}$/);
    for (const text of [address ?? '', reply.diagnostic, reply.remote ?? ''])
      expect(text).not.toMatch(unsafe);
  }
}

test('whatever the bytes are, the report is harmless', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 2_000 }), (bytes) => {
      expectHarmless(readReport(bytes));
    }),
  );
});

test('a report that was changed or cut anywhere is harmless', () => {
  const whole = inStatus(
    'Reporting-MTA: dns; mx.example.test\r\n\r\nFinal-Recipient: rfc822; someone@example.test\r\nAction: failed\r\nStatus: 5.1.1\r\nRemote-MTA: dns; in.example.test\r\nDiagnostic-Code: smtp; 550 5.1.1 User unknown',
    '<someone@example.test>: host in.example.test said: 550 5.1.1 User unknown',
  );
  const changes = fc.array(fc.tuple(fc.nat(whole.length - 1), fc.nat(255)), { maxLength: 20 });
  fc.assert(
    fc.property(changes, fc.nat(whole.length), (changed, length) => {
      const bytes = Buffer.from(whole);
      for (const [at, value] of changed) bytes[at] = value;
      expectHarmless(readReport(bytes.subarray(0, length)));
    }),
    { numRuns: 300 },
  );
});

function repeated(text: string, bytes = 10_000_000): string {
  return text.repeat(Math.ceil(bytes / text.length));
}

function nest(levels: number): string {
  const opening = (level: number) =>
    `Content-Type: multipart/mixed; boundary=b${level}\r\n\r\n--b${level}\r\n`;
  return Array.from({ length: levels }, (_, level) => opening(level)).join('');
}

const html = 'Content-Type: text/html\r\n';

/** Ten megabytes each of what a careless reader needs minutes for, or does not survive. */
const hostile: Readonly<Record<string, () => string>> = {
  'one line': () => repeated('a'),
  NUL: () => repeated('\0'),
  'empty lines': () => repeated('\n'),
  'carriage returns': () => repeated('\r'),
  'a million fields': () => repeated('A: b\r\n'),
  'a field of a million lines': () => `Subject: ${repeated('x\r\n ')}`,
  'encoded words': () => `Subject: ${repeated('=?utf-8?q?a?= ')}`,
  'broken encoded words': () => `Subject: ${repeated('=?')}`,
  'brackets in an address': () => `From: ${repeated('<')}`,
  'a type of nothing but parameters': () => `Content-Type: a/b${repeated('; boundary =')}`,
  'multiparts 1,000 deep': () => nest(1_000),
  'multiparts 8 deep, and their boundaries over and over': () => `${nest(8)}${repeated('--b1\r\n')}`,
  'a million parts': () => `Content-Type: multipart/mixed; boundary=b\r\n\r\n${repeated('--b\r\n\r\nx\r\n')}`,
  'a boundary of hyphens': () => `Content-Type: multipart/mixed; boundary="-"\r\n\r\n${repeated('-')}`,
  'tags that do not end': () => `${html}\r\n${repeated('<a ')}`,
  'comments that do not end': () => `${html}\r\n${repeated('<!--')}`,
  entities: () => `${html}\r\n${repeated('&#')}`,
  'nested elements': () => `${html}\r\n${repeated('<div>')}`,
  'broken quoted-printable': () => `Content-Transfer-Encoding: quoted-printable\r\n\r\n${repeated('=0')}`,
};

test.each(Object.keys(hostile))('10 MB of %s are read to an end', (name) => {
  const source = Buffer.from(hostile[name]!());
  expectHarmless(readReport(source));
  expectHarmless(readReport(Buffer.concat([Buffer.from(head), source])));
});

const hostileWords: Readonly<Record<string, () => string>> = {
  addresses: () => repeated('a@b.test '),
  'addresses at the start of lines': () => repeated('<a@b.test>:\r\n'),
  'half an address': () => repeated('aaaaaaaaaa@'),
  replies: () => repeated('550-5.1.1 '),
  'almost codes': () => repeated('5.1.'),
  hosts: () => repeated('host '),
  rules: () => repeated('------ \r\n'),
  'halves of aliases': () => repeated('(generated from a'),
};

test.each(Object.keys(hostileWords))('10 MB of %s are read to an end, as words and as fields', (name) => {
  const text = hostileWords[name]!();
  expectHarmless(readReport(inWords(text)));
  expectHarmless(readReport(inStatus(text)));
  expectHarmless(readReport(inStatus(`Diagnostic-Code: smtp; ${text}`)));
  expectHarmless(readReport(inStatus(`Final-Recipient: rfc822; ${text}`)));
});

test('what comes after the first 256 kB is not read', () => {
  const words = (spaces: number) => `${' '.repeat(spaces)}`;
  const status = 'Final-Recipient: rfc822; someone@example.test\r\nAction: failed\r\nStatus: 5.1.1\r\n';
  expect(recipientOf(inStatus(status, words(200_000))).failureClass).toBe('mailbox_not_found');
  expect(recipientOf(inStatus(status, words(270_000)))).toMatchObject({
    address: null,
    failureClass: 'other',
  });
});

test('what is nested deeper than eight levels is not decoded', () => {
  const status = Buffer.from('Final-Recipient: rfc822; someone@example.test\r\nStatus: 5.1.1\r\n');
  const inLevels = (levels: number) =>
    Buffer.from(
      `${head}${nest(levels)}Content-Type: message/delivery-status\r\nContent-Transfer-Encoding: base64\r\n\r\n${status.toString('base64')}`,
    );
  expect(recipientOf(inLevels(8)).failureClass).toBe('mailbox_not_found');
  expect(recipientOf(inLevels(9)).failureClass).toBe('other');
});

test('no more than 50 recipients are reported on', () => {
  const fields = Array.from(
    { length: 80 },
    (_, at) => `Final-Recipient: rfc822; r${at}@example.test\r\nAction: failed\r\nStatus: 5.1.1\r\n`,
  );
  expect(recipientsOf(readReport(inStatus(fields.join('\r\n'))))).toHaveLength(50);
});

test("a diagnostic is one line that shows the server's own words and not their repeated codes", () => {
  const { reply } = recipientOf(
    inStatus(
      'Final-Recipient: rfc822; someone@example.test\r\nAction: failed\r\nStatus: 5.0.0\r\nRemote-MTA: dns; in.example.test. (192.0.2.5)\r\nDiagnostic-Code: smtp; 550-5.7.1 We\u001b[31mdo not\r\n 550-5.7.1 want\r\n 550 5.7.1 this\u202e',
    ),
  );
  expect(reply).toEqual({
    code: 550,
    enhancedCode: '5.7.1',
    diagnostic: '5.7.1 We [31mdo not want this',
    remote: 'in.example.test',
  });
});

test('where no other host is named, it was the reporting one that refused', () => {
  const fields = 'Final-Recipient: rfc822; someone@example.test\r\nAction: failed\r\nStatus: 5.2.2';
  expect(recipientOf(inStatus(`Reporting-MTA: dns; mx.example.test\r\n\r\n${fields}`)).reply.remote).toBe(
    'mx.example.test',
  );
  expect(recipientOf(inStatus(fields)).reply.remote).toBeNull();
});

test.each([
  ['4.4.7', 'Diagnostic-Code: smtp; 400 4.4.7 Message expired', 'It did not work.', 'failed'],
  ['5.4.7', 'Diagnostic-Code: smtp; delivery time EXPIRED', 'It did not work.', 'failed'],
  ['4.4.7', 'X-Other: none', 'The message could not be delivered: its time has expired.', 'failed'],
  ['4.4.7', 'Diagnostic-Code: smtp; 400 4.4.7 Message delayed', 'It did not work.', 'delayed'],
  // It is something else that has expired.
  ['4.4.1', 'Diagnostic-Code: smtp; 421 4.4.1 Session expired', 'It did not work.', 'delayed'],
  [
    '4.4.7',
    'X-Other: none',
    'It has been delayed. A timer expired; we are still trying to deliver it.',
    'delayed',
  ],
])('a delay with the status %s and %j, %j has %s', (status, field, words, action) => {
  const fields = `Final-Recipient: rfc822; someone@example.test\r\nAction: delayed\r\nStatus: ${status}\r\n${field}`;
  expect(recipientOf(inStatus(fields, words))).toMatchObject({ action, type: 'soft' });
});

test('a report without a diagnostic keeps the words that it has for people', () => {
  const fields = 'Final-Recipient: rfc822; someone@example.test\r\nAction: failed\r\nStatus: 5.1.1\r\n';
  const judge = (words: string, more = '') => recipientOf(inStatus(fields + more, words));
  expect(
    judge('<someone@example.test>: host in.example.test said: 550 No mailbox of that name'),
  ).toMatchObject({
    failureClass: 'mailbox_not_found',
    type: 'hard',
    reply: {
      code: 550,
      enhancedCode: '5.1.1',
      diagnostic: 'No mailbox of that name',
      remote: 'in.example.test',
    },
  });
  expect(judge('Nobody of that name works here any more.').reply).toEqual({
    code: null,
    enhancedCode: '5.1.1',
    diagnostic: 'Nobody of that name works here any more.',
    remote: null,
  });
  // A reply for now outweighs the status, as it does in the field.
  expect(judge('<someone@example.test>: 450 Busy').type).toBe('soft');
  // The server's own words are worth more than those for people.
  expect(judge('It failed.', 'Diagnostic-Code: smtp; 550 5.1.1 No such user').reply.diagnostic).toBe(
    '5.1.1 No such user',
  );
});

test.each([
  ['Final-Recipient: rfc822; someone@example.test', 'someone@example.test', 'someone@example.test'],
  [
    'Original-Recipient: rfc822; someone@example.test\r\nFinal-Recipient: rfc822; target@elsewhere.test',
    'someone@example.test',
    'target@elsewhere.test',
  ],
  ['Original-Recipient: rfc822; someone@example.test', 'someone@example.test', null],
])(
  'where a message came to its end is told apart from whom it was for: %j',
  (named, address, finalAddress) => {
    expect(recipientOf(inStatus(`${named}\r\nAction: failed\r\nStatus: 5.1.1\r\n`))).toMatchObject({
      address,
      finalAddress,
    });
  },
);

test('fields that an empty line tears apart are one recipient', () => {
  expect(
    recipientOf(
      inStatus('Final-Recipient: rfc822; someone@example.test\r\n\r\nAction: failed\r\nStatus: 5.2.2\r\n'),
    ),
  ).toMatchObject({ address: 'someone@example.test', failureClass: 'mailbox_full' });
});

test.each([
  ['rfc822; someone@example.test', 'someone@example.test'],
  ['RFC822;<someone@example.test>', 'someone@example.test'],
  ['someone@example.test (Someone)', 'someone@example.test'],
  ['utf-8; jos\\x{E9}@example.test', 'josé@example.test'],
  ['utf-8; \\x{202E}@example.test', null],
  ['utf-8; \\x{D800}@example.test', null],
  ['utf-8; \\x{FFFFFF}@example.test', '\\x{FFFFFF}@example.test'],
  ['x400; /S=someone/@example', null],
  ['rfc822; someone', null],
  ['rfc822; some@one@example.test', null],
  [`rfc822; ${'a'.repeat(260)}@example.test`, null],
  ['', null],
])('the recipient %j is the address %j', (field, address) => {
  const recipient = recipientOf(inStatus(`Final-Recipient: ${field}\r\nAction: failed\r\nStatus: 5.1.1`));
  expect(recipient.address).toBe(address);
});

test.each([
  ['failed', '5.1.1', 'smtp; 550 5.1.1 User unknown', 'hard'],
  ['failed', '', 'smtp; 550 User unknown', 'hard'],
  ['failed', '', 'User unknown', 'hard'],
  ['failed', '5.1.2', '', 'hard'],
  ['failed', '4.1.1', 'smtp; 550 5.1.1 User unknown', 'soft'],
  ['failed', '5.1.1', 'smtp; 450 User unknown', 'soft'],
  ['failed', '5.1.1', 'smtp; 550 4.1.1 User unknown', 'soft'],
  ['delayed', '5.1.1', 'smtp; 550 5.1.1 User unknown', 'soft'],
  ['failed', '5.4.4', 'X-Postfix; Host not found, try again', 'soft'],
  ['failed', '5.1.1', 'X-Postfix; Temporary lookup failure', 'soft'],
  ['failed', '5.2.2', 'smtp; 552 5.2.2 Mailbox full', 'soft'],
  ['failed', '5.7.1', 'smtp; 550 5.7.1 Blocked', 'soft'],
  ['failed', '5.1.8', 'smtp; 550 5.1.8 No such domain', 'soft'],
  ['failed', '', '', 'soft'],
])('%s, status %j and %j is %s', (action, status, diagnostic, type) => {
  const recipient = recipientOf(
    inStatus(
      `Final-Recipient: rfc822; someone@example.test\r\nAction: ${action}\r\nStatus: ${status}\r\nDiagnostic-Code: ${diagnostic}`,
    ),
  );
  expect(recipient.type).toBe(type);
});

test.each([
  ['5.0.0', 'hard'],
  ['4.0.0', 'soft'],
])('with status %s, a recipient that only the words say does not exist is %s', (status, type) => {
  const fields = `Final-Recipient: rfc822; someone@example.test\r\nAction: failed\r\nStatus: ${status}`;
  expect(recipientOf(inStatus(fields, '<someone@example.test>: User unknown'))).toMatchObject({
    failureClass: 'mailbox_not_found',
    type,
    reply: { enhancedCode: status, diagnostic: 'User unknown' },
  });
});

test('words are read in their own charset and encoding', () => {
  const quoted =
    'Content-Type: text/plain; charset="windows-1252"\r\nContent-Transfer-Encoding: quoted-printable\r\n';
  const words = '<someone@example.test>:\r\nBo=EEte pleine. 552 5.2.2 Mail=\r\nbox full';
  expect(recipientOf(inWords(words, quoted))).toMatchObject({
    address: 'someone@example.test',
    failureClass: 'mailbox_full',
    reply: { code: 552, diagnostic: '5.2.2 Mailbox full' },
  });
  const unquoted = '<someone@example.test>:\r\nBo\u00eete pleine';
  for (const [charset, expected] of [
    ['iso-8859-1', 'Bo\u00eete pleine'],
    ['no-such-charset', 'Bo\ufffdte pleine'],
  ] as const) {
    const fields = `Content-Type: text/plain; charset=${charset}\r\n`;
    expect(recipientOf(inWords(unquoted, fields)).reply.diagnostic).toBe(expected);
  }
});

test('nothing that the returned message says is believed', () => {
  const original = 'Subject: x\r\n\r\nsomeone-else@example.test\r\n550 5.1.1 User unknown';
  const marks = [
    '--- Below this line is a copy of the message.',
    '------ This is a copy of the message, including all the headers. ------',
    '   ----- Original message follows -----',
    '   ----- Unsent message follows -----',
    '----- Original message -----',
    'Original message headers:',
    'Return-Path: <us@send.example.test>',
  ];
  for (const mark of marks) {
    const words = `<someone@example.test>:\r\nThe mailbox is full.\r\n\r\n${mark}\r\n${original}`;
    expect(recipientOf(inWords(words))).toMatchObject({
      address: 'someone@example.test',
      failureClass: 'mailbox_full',
    });
  }
});

test('a subject like that of a report, and nothing else, makes none', () => {
  const source =
    'From: someone@example.test\r\nSubject: Delivery notification for your parcel\r\n\r\nThank you.';
  expect(readReport(Buffer.from(source)).kind).toBe('unrecognised');
});

/** What ordinary people send, but for the subject and the words. */
const fromPerson = (subject: string, words: string) =>
  readReport(Buffer.from(`From: someone@example.test\r\nSubject: ${subject}\r\n\r\n${words}`));

/** Those of `texts` of which something else is read than of all. */
const others = (texts: readonly string[], isRead: (text: string) => boolean) =>
  texts.filter((text) => !isRead(text));

test('a subject of a report is known for one, where its words explain a failure', () => {
  const subjects = [
    'undeliver',
    'returned mail',
    'mail delivery failed',
    'mail delivery failure',
    'mail delivery error',
    'mail delivery problem',
    'mail delivery status notification',
    'mail failure',
    'mail system error',
    'mail could not be delivered',
    'mail returned to sender',
    'mailer daemon',
    'delivery status notification',
    'delivery failure',
    'delivery failed',
    'delivery error',
    'delivery notification',
    'delivery report',
    'failed delivery',
    'failure notice',
    'failure delivery',
    'failed mail',
    'message delivery failure',
    'message status - undeliverable',
    'message undeliver',
    'message delayed',
    'non delivery report',
    'non-delivery',
    'nondeliverable',
    'notification: delivery',
    'warning: message',
    'warning: could not send',
    'there was an error sending your mail',
    'returning message to sender',
    'user unknown',
    'unknown user',
    'unzustellbar',
    'nicht zustellbar',
    'mail konnte nicht',
    'non remis',
    'échec de la remise',
    'no se puede entregar',
    'no entregado',
    'impossibile recapitare',
    'onbestelbaar',
    'niet bezorgd',
    'não é possível entregar',
    'olevererbart',
    'недоставленное',
    '未送达',
    '无法投递',
    '系统退信',
    '配信不能',
  ];
  const words = '<someone@example.test>: 550 5.1.1 User unknown';
  expect(fromPerson('A parcel', words).kind).toBe('unrecognised');
  expect(others(subjects, (subject) => fromPerson(subject, words).kind === 'delivery_status')).toEqual([]);
});

test('a report is known by its first words, whoever wrote it', () => {
  const openings = [
    'this is the qmail-send program',
    'created automatically by mail delivery software',
    "wasn't able to deliver your message",
    'was not able to deliver your message',
    'unable to deliver your message',
    'unable to deliver the message',
    'unable to deliver message',
    'could not be delivered to',
    'could not deliver your message',
    "couldn't be delivered",
    "wasn't delivered to",
    'delivery has failed to these recipients',
    'delivery to the following recipient',
    'did not reach the following recipient',
    'did not reach some or all of',
    'was not delivered to',
    'following addresses had permanent',
    'following addresses had delivery',
    'following addresses had transient',
    'transcript of session follows',
    'has not yet been delivered to',
    'this is the mailer-daemon',
  ];
  expect(fromPerson('A parcel', 'Hello').kind).toBe('unrecognised');
  expect(others(openings, (words) => fromPerson('A parcel', words).kind === 'delivery_status')).toEqual([]);
});

test('words that say that mail still waits are no report of a failure', () => {
  const marks = [
    'warning only',
    'warning message only',
    'has not yet been delivered',
    'have not yet been delivered',
    'has been delayed',
    'is delayed',
    'delivery delayed',
    'notification (delay)',
    'transient non-fatal errors',
    'will be retried',
    'will keep trying',
    'will continue to try',
    'will try again',
    'still being retried',
    'still trying to deliver',
    'no action is required',
    'warning: message',
    'warning: could not send message for past',
  ];
  const actionFor = (words: string) =>
    recipientOf(inWords(`<someone@example.test>: 550 5.1.1 User unknown\r\n${words}`)).action;
  expect(actionFor('It was given up.')).toBe('failed');
  expect(others(marks, (mark) => actionFor(mark) === 'delayed')).toEqual([]);
});

test('an automatic reply is known by its subject, also as an answer', () => {
  const subjects = [
    'auto:',
    'auto reply',
    'auto-reply',
    'auto response',
    'auto-response',
    'automatic reply',
    'automatic response',
    'automated reply',
    'automated response',
    'autoreply',
    'out of office',
    'out of the office',
    'away from',
    'i am away',
    'on vacation',
    'vacation',
    'automatische antwort',
    'abwesen',
    'réponse automatique',
    'absence',
    'respuesta autom',
    'fuera de la oficina',
    'risposta automatica',
    'automatisch antwoord',
    'afwezig',
    'resposta autom',
    'automatiskt svar',
    'automatisk svar',
    'autosvar',
    'odpowiedź automatyczna',
    'автоответ',
    '自動応答',
    '自動返信',
    '自动回复',
    '自动答复',
    '自動回覆',
  ];
  const isReply = (subject: string) =>
    [subject, `Re: ${subject}`].every((each) => fromPerson(each, 'Hello').kind === 'automatic_reply');
  expect(others(subjects, isReply)).toEqual([]);
});

test.each([
  ...['failed', 'failure', 'error', 'undeliverable', 'bounced'].map((word) => [word, '4.0.0', 'failed']),
  ...['delayed', 'delay'].map((word) => [word, '5.0.0', 'delayed']),
  ...['delivered', 'relayed', 'expanded'].map((word) => [word, '5.0.0', word]),
  ['of its own', '5.0.0', 'failed'],
  ['of its own', '4.0.0', 'delayed'],
  ['of its own', '2.0.0', 'delivered'],
])('the action %j with the status %s is %s', (word, status, action) => {
  const fields = `Final-Recipient: rfc822; someone@example.test\r\nAction: ${word}\r\nStatus: ${status}`;
  expect(recipientOf(inStatus(fields)).action).toBe(action);
});

test.each(['rfc822;', 'utf-8;', 'smtp;', 'internet;', 'local;', 'dns;', ';', ''])(
  'an address of the type %j is read',
  (type) => {
    const fields = `Final-Recipient: ${type} someone@example.test\r\nAction: failed`;
    expect(recipientOf(inStatus(fields)).address).toBe('someone@example.test');
  },
);

/** A report as its parts, each with its own type. */
const inParts = (...parts: readonly (readonly [type: string, text: string])[]) =>
  readReport(
    Buffer.from(
      `From: someone@example.test\r\nSubject: x\r\nContent-Type: multipart/report; boundary=b\r\n\r\n${parts
        .map(
          ([type, text]) =>
            `--b\r\nContent-Type: ${type}\r\nContent-Disposition: attachment\r\n\r\n${text}\r\n`,
        )
        .join('')}--b--\r\n`,
    ),
  );

test.each([
  'message/delivery-status',
  'message/global-delivery-status',
  'message/report',
  'text/plain',
  'application/octet-stream',
])('the fields of a report are found in a part of the type %s, and its complaint too', (type) => {
  const fields = 'Final-Recipient: rfc822; someone@example.test\r\nAction: failed\r\nStatus: 5.1.1';
  expect(inParts([type, fields]).kind).toBe('delivery_status');
  if (type.endsWith('delivery-status')) return;
  expect(inParts([type, 'Feedback-Type: abuse\r\nVersion: 1']).kind).toBe('abuse');
});

test.each([
  ['abuse', true],
  ['fraud', true],
  ['other', true],
  ['opt-out', true],
  ['opt-out-list', true],
  ['of-its-own', true],
  ['constructor', true],
  ['not-spam', false],
  ['auth-failure', false],
  ['virus', false],
])('feedback of the type %s: that it is a complaint is %s', (feedbackType, isComplaint) => {
  const fields = `Feedback-Type: ${feedbackType}\r\nUser-Agent: x/1\r\nVersion: 1`;
  for (const copyType of ['message/rfc822', 'message/global', 'text/rfc822-headers']) {
    expect(
      inParts(['message/feedback-report', fields], [copyType, 'Return-Path: <us@send.example.test>\r\n\r\n']),
    ).toEqual({
      kind: 'abuse',
      feedbackType,
      isComplaint,
      returnPaths: ['us@send.example.test'],
      messageId: null,
    });
  }
});

test.each([
  ['<mx.example.test #5.1.1 smtp; 550 5.1.1 <a@example.test>: user unknown>', 'mailbox_not_found', 'hard'],
  ['< #5.2.2 smtp; 552 5.2.2 The mailbox is full>', 'mailbox_full', 'soft'],
  ['nothing that says why', 'other', 'soft'],
])('where the diagnostic code says nothing, the supplement %j does', (supplement, failureClass, type) => {
  const fields = [
    'Final-Recipient: rfc822; a@example.test',
    'Action: failed',
    'Status: 5.0.0',
    'Diagnostic-Code: smtp; 550 Requested action not taken',
    `X-Supplementary-Info: ${supplement}`,
  ].join('\r\n');
  expect(recipientOf(inStatus(fields))).toMatchObject({ failureClass, type });
});

test('a supplement does not outweigh a diagnostic code that says why', () => {
  const fields = [
    'Final-Recipient: rfc822; a@example.test',
    'Action: failed',
    'Status: 5.2.2',
    'Diagnostic-Code: smtp; 552 5.2.2 The mailbox is full',
    'X-Supplementary-Info: user unknown',
  ].join('\r\n');
  expect(recipientOf(inStatus(fields))).toMatchObject({ failureClass: 'mailbox_full', type: 'soft' });
});
