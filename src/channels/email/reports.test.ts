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
    for (const text of [report.feedbackType, report.returnPath ?? '']) expect(text).not.toMatch(unsafe);
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
};

test.each(Object.keys(hostileWords))('10 MB of %s are read to an end, as words and as fields', (name) => {
  const text = hostileWords[name]!();
  expectHarmless(readReport(inWords(text)));
  expectHarmless(readReport(inStatus(text)));
  expectHarmless(readReport(inStatus(`Diagnostic-Code: smtp; ${text}`)));
  expectHarmless(readReport(inStatus(`Final-Recipient: rfc822; ${text}`)));
});

test('what stands behind the first 256 kB is not seen', () => {
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
