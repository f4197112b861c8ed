import { describe, expect, test } from 'vitest';
import type { FailureClass, SendOutcome } from '../outcome.ts';
import { refusalOutcome } from './providers/smtp/outcomes.ts';
import type { ReplyPhase } from './replies.ts';
import { type BounceReport, type ReportedAction, readReport } from './reports.ts';

/**
 * What large providers and common servers say, after their own documentation of it, and what it must mean to us.
 * Three mistakes would be dear: to suppress an address for what a message or a sender did, to go on writing to one
 * that does not exist, and to give up what would have worked an hour later.
 */

/** `hard` and `soft` are about the address, `message` about its content or sender; `temporary` can be tried again. */
type Fate = 'hard' | 'soft' | 'message' | 'temporary';

const fates: Readonly<Record<FailureClass, Fate>> = {
  mailbox_not_found: 'hard',
  domain_not_found: 'hard',
  mailbox_full: 'soft',
  policy: 'message',
  spam: 'message',
  message_too_large: 'message',
  auth_failure: 'message',
  rate_limited: 'message',
  other: 'message',
};

function fateOf(outcome: SendOutcome): Fate {
  if (outcome.kind === 'deferred') return 'temporary';
  if (outcome.kind !== 'rejected') throw new Error(`a refusal cannot be ${outcome.kind}`);
  return fates[outcome.reason];
}

function reasonOf(outcome: SendOutcome): string | null {
  return outcome.kind === 'deferred' || outcome.kind === 'rejected' ? outcome.reason : null;
}

/** Phase, code, text with its lines as they come, class, fate. */
type Row = readonly [ReplyPhase, number, string, FailureClass, Fate];

const replies: Readonly<Record<string, readonly Row[]>> = {
  Gmail: [
    [
      'rcpt',
      550,
      '5.1.1 The email account that you tried to reach does not exist. Please try\n5.1.1 double-checking the address for typos - gsmtp',
      'mailbox_not_found',
      'hard',
    ],
    [
      'rcpt',
      550,
      '5.2.1 The email account that you tried to reach is disabled. - gsmtp',
      'mailbox_not_found',
      'hard',
    ],
    ['rcpt', 553, '5.1.2 We were not able to find the recipient domain. - gsmtp', 'domain_not_found', 'hard'],
    ['rcpt', 452, '4.2.2 The recipient is over quota. - gsmtp', 'mailbox_full', 'temporary'],
    ['rcpt', 552, "5.2.2 The recipient's inbox is out of storage space. - gsmtp", 'mailbox_full', 'soft'],
    [
      'content',
      421,
      '4.7.32 Your email has been rate limited because the From: header is not aligned with SPF or DKIM. - gsmtp',
      'rate_limited',
      'temporary',
    ],
    [
      'content',
      550,
      '5.7.1 The domain that you are sending to has a policy that prohibited this mail. - gsmtp',
      'policy',
      'message',
    ],
    [
      'content',
      550,
      '5.7.27 Your email has been blocked: SPF did not pass. - gsmtp',
      'auth_failure',
      'message',
    ],
    ['content', 554, '5.6.0 Mail message is malformed. Not accepted. - gsmtp', 'other', 'message'],
    ['mail', 421, '4.3.0 Temporary System Problem. Try again later. - gsmtp', 'other', 'temporary'],
  ],
  'Microsoft 365 and Outlook.com': [
    [
      'rcpt',
      550,
      '5.1.351 Remote server returned unknown recipient or mailbox unavailable',
      'mailbox_not_found',
      'hard',
    ],
    [
      'rcpt',
      550,
      '5.4.1 Recipient address rejected: Access denied. [XY1.eop.example.test]',
      'mailbox_not_found',
      'hard',
    ],
    [
      'content',
      550,
      '5.7.51 TenantInboundAttribution; There is a partner connector configured for this domain.',
      'policy',
      'message',
    ],
    [
      'content',
      550,
      '5.7.124 RESOLVER.RST.SenderNotInAllowedList; sender not in the list of those who may send',
      'policy',
      'message',
    ],
    [
      'content',
      550,
      '5.7.23 The message was rejected because of Sender Policy Framework violation',
      'auth_failure',
      'message',
    ],
    ['opening', 550, 'SC-001 (AB1) Unfortunately, messages from 192.0.2.1 were not sent.', 'spam', 'message'],
    [
      'opening',
      421,
      'RP-001 (AB1) The server has exceeded the rate limit allowed.',
      'rate_limited',
      'temporary',
    ],
    ['opening', 550, 'DY-001 (AB1) Mail rejected by Outlook.com for policy reasons.', 'policy', 'message'],
    [
      'opening',
      451,
      '4.7.500 Server busy. Please try again later from [192.0.2.1].',
      'rate_limited',
      'temporary',
    ],
    ['rcpt', 451, '4.4.62 Mail sent to the wrong region. ATTR35', 'other', 'temporary'],
  ],
  'Yahoo and AOL': [
    [
      'mail',
      421,
      '4.7.1 [TS03] All messages from 192.0.2.1 will be permanently deferred; Retrying will NOT succeed.',
      'policy',
      'temporary',
    ],
    [
      'opening',
      553,
      '5.7.1 [BL21] Connections will not be accepted from 192.0.2.1, because the ip is in a list of Spamhaus',
      'spam',
      'message',
    ],
    ['rcpt', 450, 'User is receiving mail too quickly', 'rate_limited', 'temporary'],
    [
      'content',
      554,
      'delivery error: dd Requested mail action aborted: mailbox unavailable',
      'mailbox_not_found',
      'hard',
    ],
  ],
  iCloud: [
    ['rcpt', 550, '5.1.1 <someone@icloud.test>: user does not exist', 'mailbox_not_found', 'hard'],
    ['rcpt', 552, '5.2.2 <someone@icloud.test>: user is overquota', 'mailbox_full', 'soft'],
    ['content', 550, '5.7.1 [CS01] Message rejected due to local policy.', 'policy', 'message'],
    ['content', 554, '5.7.1 [HM08] Message rejected due to local policy.', 'policy', 'message'],
    [
      'rcpt',
      421,
      '4.7.1 Messages to someone@icloud.test deferred due to excessive volume.',
      'rate_limited',
      'temporary',
    ],
    ['rcpt', 550, '5.7.1 Relay not permitted for user', 'policy', 'message'],
  ],
  Mimecast: [
    [
      'rcpt',
      550,
      'Invalid Recipient - https://community.mimecast.test/docs/DOC-1369#550',
      'mailbox_not_found',
      'hard',
    ],
    ['rcpt', 550, 'Administrative prohibition - envelope blocked', 'policy', 'message'],
    ['rcpt', 550, 'SPF Sender Invalid - envelope rejected', 'auth_failure', 'message'],
    ['rcpt', 550, 'Rejected by header based Anti-Spoofing policy', 'policy', 'message'],
    ['rcpt', 451, 'Internal resources are temporarily unavailable', 'other', 'temporary'],
    ['content', 552, 'Maximum email size exceeded', 'message_too_large', 'message'],
  ],
  Proofpoint: [
    ['opening', 554, 'Blocked - see https://ipcheck.proofpoint.com/?ip=192.0.2.1', 'spam', 'message'],
    ['content', 550, '5.7.0 Local Policy Violation', 'policy', 'message'],
    ['rcpt', 452, '4.3.1 Insufficient system resources', 'other', 'temporary'],
  ],
  Barracuda: [
    [
      'rcpt',
      550,
      'permanent failure for one or more recipients (someone@example.test:blocked)',
      'policy',
      'message',
    ],
    [
      'rcpt',
      554,
      'Service unavailable; Client host [mail.example.test] blocked using Barracuda Reputation',
      'spam',
      'message',
    ],
    ['rcpt', 550, 'No such domain at this location (someone@example.test)', 'domain_not_found', 'hard'],
  ],
  Cisco: [
    [
      'opening',
      554,
      "Your access to this mail system has been rejected due to the sending MTA's poor reputation.",
      'spam',
      'message',
    ],
    ['rcpt', 550, '#5.7.1 SPF unauthorized mail is prohibited.', 'auth_failure', 'message'],
    [
      'mail',
      553,
      '#5.1.8 Domain of sender address <bounce-x@send.example.test> does not exist',
      'policy',
      'message',
    ],
    ['rcpt', 452, '#4.5.3 Too many recipients received this hour', 'rate_limited', 'temporary'],
    ['content', 552, '#5.3.4 message header size exceeds limit', 'message_too_large', 'message'],
  ],
  Postfix: [
    [
      'rcpt',
      450,
      '4.7.25 Client host rejected: cannot find your hostname, [192.0.2.1]',
      'auth_failure',
      'temporary',
    ],
    [
      'rcpt',
      556,
      '5.1.10 <someone@example.invalid>: Recipient address rejected: Domain example.invalid does not accept mail (nullMX)',
      'domain_not_found',
      'hard',
    ],
    [
      'rcpt',
      550,
      '5.1.1 <junk@spamfilter.example.test>: Recipient address rejected: User unknown in relay recipient table',
      'mailbox_not_found',
      'hard',
    ],
    [
      'rcpt',
      550,
      '5.1.8 <bounce-x@send.example.test>: Sender address rejected: Domain not found',
      'policy',
      'message',
    ],
    [
      'rcpt',
      451,
      '4.7.1 <someone@example.test>: Recipient address rejected: Greylisting in action',
      'policy',
      'temporary',
    ],
    ['rcpt', 504, '5.5.2 <here>: Helo command rejected: need fully-qualified hostname', 'policy', 'message'],
    ['rcpt', 451, '4.3.0 <someone@example.test>: Temporary lookup failure', 'other', 'temporary'],
  ],
  Exim: [
    [
      'rcpt',
      550,
      'Verification failed for <bounce-x@send.example.test>\nSender verify failed',
      'policy',
      'message',
    ],
    ['rcpt', 451, 'Temporary local problem - please try later', 'other', 'temporary'],
    ['rcpt', 550, 'Administrative prohibition', 'policy', 'message'],
    [
      'rcpt',
      452,
      'mailbox is full (MTA-imposed quota exceeded while writing to it)',
      'mailbox_full',
      'temporary',
    ],
    ['rcpt', 550, 'all relevant MX records point to non-existent hosts', 'domain_not_found', 'hard'],
  ],
  sendmail: [
    ['rcpt', 550, '5.1.1 <someone@example.test>... User unknown', 'mailbox_not_found', 'hard'],
    ['rcpt', 550, '5.7.1 <someone@example.test>... Relaying denied', 'policy', 'message'],
    [
      'rcpt',
      550,
      '5.1.2 <someone@example.invalid>... Host unknown (Name server: host not found)',
      'domain_not_found',
      'hard',
    ],
    ['mail', 451, '4.1.8 Domain of sender address x@example.test does not resolve', 'policy', 'temporary'],
  ],
  Exchange: [
    ['rcpt', 550, '5.1.1 User unknown', 'mailbox_not_found', 'hard'],
    ['rcpt', 550, '5.7.1 Unable to relay', 'policy', 'message'],
    [
      'mail',
      421,
      '4.4.2 Message submission rate for this client has exceeded the limit',
      'rate_limited',
      'temporary',
    ],
    ['content', 554, '5.2.2 mailbox full; QuotaExceededException', 'mailbox_full', 'soft'],
  ],
  qmail: [
    ['rcpt', 553, "sorry, that domain isn't in my list of allowed rcpthosts (#5.7.1)", 'policy', 'message'],
    [
      'content',
      552,
      'sorry, that message size exceeds my databytes limit (#5.3.4)',
      'message_too_large',
      'message',
    ],
    ['content', 451, 'qq temporary problem (#4.3.0)', 'other', 'temporary'],
  ],
  'GMX and WEB.DE': [
    [
      'opening',
      554,
      'gmx.test (mxgmx104) Nemesis ESMTP Service not available\nNo SMTP service\nIP address is block listed.\nFor explanation visit https://postmaster.gmx.test/',
      'spam',
      'message',
    ],
    [
      'opening',
      554,
      'web.test Nemesis ESMTP Service not available\nBad DNS PTR resource record.',
      'auth_failure',
      'message',
    ],
    [
      'rcpt',
      550,
      'Requested action not taken: mailbox unavailable\nFor explanation visit a page',
      'mailbox_not_found',
      'hard',
    ],
    [
      'rcpt',
      552,
      "Requested mail action aborted: exceeded storage allocation\nQuota exceeded. The recipient's mailbox is full.",
      'mailbox_full',
      'soft',
    ],
    ['content', 554, 'Transaction failed\nReject due to policy restrictions.', 'policy', 'message'],
    ['rcpt', 421, 'Rate limit reached. Please try again later', 'rate_limited', 'temporary'],
  ],
  Spamhaus: [
    [
      'rcpt',
      554,
      '5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org; https://www.spamhaus.org/query/ip/192.0.2.1',
      'spam',
      'message',
    ],
    ['content', 550, '5.7.1 Rejected due to a domain present in the Spamhaus DBL', 'spam', 'message'],
  ],
  Others: [
    // T-Online, Orange, Comcast, AT&T, Mail.ru, QQ, NetEase, Zoho.
    [
      'opening',
      554,
      'IP=192.0.2.1 - A problem occurred. (Ask your postmaster for help.)',
      'other',
      'message',
    ],
    ['rcpt', 550, '5.1.1 Adresse invalide. Invalid recipient. OFR204_418 [418]', 'mailbox_not_found', 'hard'],
    ['rcpt', 552, '5.2.2 Boite pleine. Recipient overquota. OFR_417 [417]', 'mailbox_full', 'soft'],
    [
      'opening',
      421,
      'Trop de connexions. Too many connections, slow down. OFR104_104 [104]',
      'rate_limited',
      'temporary',
    ],
    ['rcpt', 550, '5.1.1 Not our Customer', 'mailbox_not_found', 'hard'],
    ['opening', 554, 'comcast.test 192.0.2.1 found on one or more DNSBLs', 'spam', 'message'],
    [
      'opening',
      550,
      '5.7.1 Connections not accepted from servers without a valid domain. Fix reverse DNS',
      'auth_failure',
      'message',
    ],
    [
      'rcpt',
      550,
      'Message was not accepted -- invalid mailbox. Local mailbox is unavailable: user not found',
      'mailbox_not_found',
      'hard',
    ],
    ['content', 550, 'spam message rejected', 'spam', 'message'],
    ['rcpt', 550, 'Ip frequency limited', 'rate_limited', 'message'],
    ['content', 554, 'DT:SPM 163 mx1, see the page of the postmaster', 'spam', 'message'],
    ['rcpt', 541, '5.4.1 Mail rejected by destination domain', 'policy', 'message'],
  ],
  'OpenSMTPD, and servers that give no enhanced code': [
    [
      'rcpt',
      524,
      '5.2.4 Mailing list expansion problem: <someone@example.test>',
      'mailbox_not_found',
      'hard',
    ],
    ['rcpt', 450, 'Requested mail action not taken: mailbox unavailable', 'other', 'temporary'],
    ['rcpt', 450, 'Try again later', 'other', 'temporary'],
    ['rcpt', 450, 'Greylisted, try again in 300 seconds', 'policy', 'temporary'],
    ['rcpt', 450, 'User unknown', 'mailbox_not_found', 'temporary'],
    ['rcpt', 550, 'Requested mail action not taken: mailbox unavailable', 'mailbox_not_found', 'hard'],
  ],
};

describe.each(Object.entries(replies))('replies of %s', (_provider, rows) => {
  test.each(rows)('in %s: %i %s', (phase, code, text, failureClass, fate) => {
    const outcome = refusalOutcome({ code, text }, phase, 'mx.example.test');
    expect({ class: reasonOf(outcome), fate: fateOf(outcome) }).toEqual({ class: failureClass, fate });
  });
});

type Part = { type: string; body: string; encoding?: 'base64' | 'quoted-printable' };

type ReportSource = {
  from?: string;
  subject?: string;
  fields?: readonly string[];
  /** One body, or the parts of a multipart. */
  body?: string;
  type?: string;
  parts?: readonly Part[];
  lineEnd?: '\r\n' | '\n';
};

function writeReport(report: ReportSource): Buffer {
  const head = [
    `From: ${report.from ?? 'Mail Delivery System <MAILER-DAEMON@mx.example.test>'}`,
    'To: bounce-abc@send.example.test',
    `Subject: ${report.subject ?? 'Undelivered Mail Returned to Sender'}`,
    ...(report.fields ?? []),
  ];
  const type =
    report.type ??
    (report.parts === undefined ? 'text/plain' : 'multipart/report; report-type=delivery-status');
  const lines =
    report.parts === undefined
      ? [...head, `Content-Type: ${type}`, '', report.body ?? '']
      : [
          ...head,
          `Content-Type: ${type};`,
          ' boundary="=_b/1"',
          '',
          ...report.parts.flatMap(writePart),
          '--=_b/1--',
          '',
        ];
  return Buffer.from(lines.join('\n').replaceAll('\n', report.lineEnd ?? '\r\n'));
}

function writePart({ type, body, encoding }: Part): string[] {
  const encoded =
    encoding === 'base64' ? Buffer.from(body.replaceAll('\n', '\r\n')).toString('base64') : body;
  return [
    '--=_b/1',
    `Content-Type: ${type}`,
    ...(encoding === undefined ? [] : [`Content-Transfer-Encoding: ${encoding}`]),
    '',
    encoded,
  ];
}

/** What every report of this kind has: words, fields, and the message. It says things that must not be believed. */
function standardParts(words: string, fields: string): Part[] {
  return [
    { type: 'text/plain; charset=us-ascii', body: words },
    { type: 'message/delivery-status', body: fields },
    {
      type: 'message/rfc822',
      body: 'From: us@send.example.test\nSubject: 550 5.1.1 User unknown\n\nFinal-Recipient: rfc822; nobody@example.test\nAction: failed\nStatus: 5.1.1\n',
    },
  ];
}

type Judgement = {
  action?: ReportedAction;
  address?: string | null;
  class: FailureClass;
  type: 'hard' | 'soft';
  code?: number | null;
  enhancedCode?: string | null;
  isAliasTarget?: boolean;
};

const someone = 'someone@example.test';

const eximHead = {
  from: 'Mail Delivery System <Mailer-Daemon@mx.example.test>',
  subject: 'Mail delivery failed: returning message to sender',
};

const eximOpening = `This message was created automatically by mail delivery software.

A message that you sent could not be delivered to one or more of its
recipients. This is a permanent error. The following address(es) failed:

`;

/** It says so of mail that has expired as well. */
function openSmtpdDelay(reason: string): string {
  return `    Hi!

    This is the MAILER-DAEMON, please DO NOT REPLY to this email.

    A message is delayed for more than 0 seconds for the following
    list of recipients:

${someone}: ${reason}

    Please note that this is only a temporary failure report.
    The message is kept in the queue for up to 7 days.
    You DO NOT NEED to re-send the message to these recipients.

    Below is a copy of the original message:
`;
}

const notices: readonly (readonly [string, ReportSource, readonly Judgement[]])[] = [
  [
    'Postfix: unknown user',
    {
      fields: ['Auto-Submitted: auto-replied'],
      parts: standardParts(
        `This is the mail system at host mx.example.test.\n\n<${someone}>: host in.example.test[192.0.2.5] said: 550 5.1.1\n    <${someone}>: Recipient address rejected: User unknown (in reply to RCPT TO command)`,
        `Reporting-MTA: dns; mx.example.test\nX-Postfix-Queue-ID: 4ABC\nArrival-Date: Sat, 21 Nov 2026 10:00:00 +0000\n\nFinal-Recipient: rfc822; forwarded@elsewhere.test\nOriginal-Recipient: rfc822;${someone}\nAction: failed\nStatus: 5.1.1\nRemote-MTA: dns; in.example.test\nDiagnostic-Code: smtp; 550 5.1.1 <${someone}>: Recipient address rejected:\n    User unknown`,
      ),
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: 550, enhancedCode: '5.1.1' }],
  ],
  [
    'Postfix: given up after days of an unreachable host, which is no proof against the address',
    {
      parts: standardParts(
        `<${someone}>: connect to in.example.test[192.0.2.5]:25: Connection timed out`,
        `Reporting-MTA: dns; mx.example.test\n\nFinal-Recipient: rfc822; ${someone}\nAction: failed\nStatus: 4.4.1\nDiagnostic-Code: X-Postfix; connect to in.example.test[192.0.2.5]:25: Connection\n    timed out`,
      ),
    },
    [{ class: 'other', type: 'soft', code: null, enhancedCode: '4.4.1' }],
  ],
  [
    'a temporary refusal of an unknown user that was given up',
    {
      parts: standardParts(
        'Given up.',
        `Final-Recipient: rfc822; ${someone}\nAction: failed\nStatus: 5.1.1\nDiagnostic-Code: smtp; 450 4.1.1 <${someone}>: Recipient address rejected: User unknown`,
      ),
    },
    [{ class: 'mailbox_not_found', type: 'soft', code: 450, enhancedCode: '4.1.1' }],
  ],
  [
    'Postfix: a delay',
    {
      subject: 'Delayed Mail (still being retried)',
      parts: standardParts(
        'THIS IS A WARNING ONLY.',
        `Final-Recipient: rfc822; ${someone}\nAction: delayed\nStatus: 4.2.2\nDiagnostic-Code: smtp; 452 4.2.2 Mailbox full\nWill-Retry-Until: Thu, 26 Nov 2026 10:00:00 +0000`,
      ),
    },
    [{ action: 'delayed', class: 'mailbox_full', type: 'soft', code: 452 }],
  ],
  [
    'a receipt of delivery',
    {
      subject: 'Successful Mail Delivery Report',
      parts: standardParts(
        'Delivered.',
        `Final-Recipient: rfc822; ${someone}\nAction: delivered\nStatus: 2.0.0\nDiagnostic-Code: smtp; 250 2.0.0 Ok: queued as 4ABC`,
      ),
    },
    [{ action: 'delivered', class: 'other', type: 'soft', code: 250 }],
  ],
  [
    'Gmail: "Address not found" in words, with a recipient and nothing else in the fields',
    {
      from: 'Mail Delivery Subsystem <mailer-daemon@googlemail.test>',
      subject: 'Delivery Status Notification (Failure)',
      fields: [`X-Failed-Recipients: ${someone}`],
      parts: [
        {
          type: 'multipart/related; boundary=r',
          body: `--r\nContent-Type: multipart/alternative; boundary=a\n\n--a\nContent-Type: text/plain; charset=UTF-8\n\n\n** Address not found **\n\nYour message wasn't delivered to ${someone} because the address couldn't be found, or is unable to receive mail.\n--a\nContent-Type: text/html\n\n<p>Address not found</p>\n--a--\n--r\nContent-Type: image/png\nContent-Transfer-Encoding: base64\n\niVBORw0KGgo=\n--r--`,
        },
        {
          type: 'message/delivery-status',
          body: `Reporting-MTA: dns; googlemail.test\n\nFinal-Recipient: rfc822; ${someone}`,
        },
      ],
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: null }],
  ],
  [
    'Gmail: the lines of a reply folded into the field',
    {
      parts: standardParts(
        'The response from the remote server was: 550',
        `Reporting-MTA: dns; googlemail.test\n\nFinal-Recipient: rfc822; ${someone}\nAction: failed\nStatus: 5.2.2\nRemote-MTA: dns; mx.example.test. (192.0.2.1, the server for the domain)\nDiagnostic-Code: smtp; 552-5.2.2 The recipient's inbox is out of storage space.\n 552-5.2.2 Please direct the recipient\n 552 5.2.2 to the help pages.`,
      ),
    },
    [{ class: 'mailbox_full', type: 'soft', code: 552, enhancedCode: '5.2.2' }],
  ],
  [
    'Exchange Online: only the words for people, in HTML',
    {
      from: 'postmaster@contoso.test',
      subject: 'Undeliverable: Hello',
      type: 'text/html; charset=utf-8',
      body: `<html><head><style>p { content: "550 5.7.1" }</style></head><body><p>Delivery has failed to these recipients or groups:</p><p><a href="mailto:${someone}">${someone}</a><br>The email address you entered couldn&#39;t be found.</p><p>Diagnostic information for administrators:</p><p>Generating server: AB1.example.test</p><p>${someone}<br>Remote Server returned &#39;550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup&#39;</p><p>Original message headers:</p><p>Received: from 421 4.7.0</p></body></html>`,
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: 550, enhancedCode: '5.1.10' }],
  ],
  [
    'Exchange 2003: the reply in brackets',
    {
      from: 'postmaster@example.test',
      subject: 'Undeliverable: Hello',
      body: `Your message\n\n  To:      ${someone}\n  Subject: Hello\n  Sent:    Sat, 21 Nov 2026 10:00:00 +0000\n\ndid not reach the following recipient(s):\n\n${someone} on Sat, 21 Nov 2026 10:00:01 +0000\n    The message could not be delivered because the recipient's mailbox is full.\n    <mx.example.test #5.2.2>`,
    },
    [{ class: 'mailbox_full', type: 'soft', code: null, enhancedCode: '5.2.2' }],
  ],
  [
    'Exchange: on-premises refusal for the size',
    {
      parts: standardParts(
        'The message is too large.',
        `Reporting-MTA: dns;EXCH1.example.test\nReceived-From-MTA: dns;mx.example.test\n\nOriginal-Recipient: rfc822;${someone}\nFinal-Recipient: rfc822;${someone}\nAction: failed\nStatus: 5.2.3\nDiagnostic-Code: smtp;550 5.2.3 RESOLVER.RST.RecipSizeLimit; message too large for this recipient`,
      ),
    },
    [{ class: 'message_too_large', type: 'soft', code: 550 }],
  ],
  [
    'qmail: unknown user',
    {
      subject: 'failure notice',
      body: `Hi. This is the qmail-send program at mx.example.test.\nI'm afraid I wasn't able to deliver your message to the following addresses.\nThis is a permanent error; I've given up. Sorry it didn't work out.\n\n<${someone}>:\n192.0.2.5 does not like recipient.\nRemote host said: 550 5.1.1 <${someone}>: User unknown\nGiving up on 192.0.2.5.\n\n--- Below this line is a copy of the message.\n\nReturn-Path: <us@send.example.test>\nSubject: 552 5.2.2 mailbox full`,
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: 550, enhancedCode: '5.1.1' }],
  ],
  [
    'qmail: two recipients, one of them with a full mailbox',
    {
      subject: 'failure notice',
      lineEnd: '\n',
      body: `Hi. This is the qmail-send program at mx.example.test.\n\n<one@example.test>:\nSorry, no mailbox here by that name. (#5.1.1)\n\n<two@example.test>:\nThe user is over quota. (#5.2.2)\n`,
    },
    [
      { address: 'one@example.test', class: 'mailbox_not_found', type: 'hard', enhancedCode: '5.1.1' },
      { address: 'two@example.test', class: 'mailbox_full', type: 'soft', enhancedCode: '5.2.2' },
    ],
  ],
  [
    'Yahoo: a failure notice',
    {
      from: 'MAILER-DAEMON@yahoo.test',
      subject: 'Failure Notice',
      body: `Sorry, we were unable to deliver your message to the following address.\n\n<${someone}>:\n554: delivery error: dd This user doesn't have a yahoo.test account (${someone}) [0]\n\n--- Below this line is a copy of the message.\n`,
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: 554 }],
  ],
  [
    'Exim of old: refused for policy',
    {
      subject: 'Mail delivery failed: returning message to sender',
      fields: [`X-Failed-Recipients: ${someone}`, 'Auto-Submitted: auto-replied'],
      body: `This message was created automatically by mail delivery software.\n\nA message that you sent could not be delivered to one or more of its\nrecipients. This is a permanent error. The following address(es) failed:\n\n  ${someone}\n    host in.example.test [192.0.2.5]\n    SMTP error from remote mail server after end of data:\n    554 5.7.1 Message rejected by policy\n\n------ This is a copy of the message, including all the headers. ------\n\nTo: nobody@example.test\n`,
    },
    [{ class: 'policy', type: 'soft', code: 554, enhancedCode: '5.7.1' }],
  ],
  [
    'Exim of old: a warning',
    {
      subject: 'Warning: message 1abcde-000 delayed 24 hours',
      fields: ['Auto-Submitted: auto-replied'],
      body: `This message was created automatically by mail delivery software.\nA message that you sent has not yet been delivered to one or more of its\nrecipients after more than 24 hours on the queue on mx.example.test.\n\n  ${someone}\n    Delay reason: retry timeout not reached\n\nNo action is required on your part.`,
    },
    [{ action: 'delayed', class: 'other', type: 'soft' }],
  ],
  [
    'Exim: the target of an alias is dead, and the fields name the alias alone',
    {
      ...eximHead,
      fields: ['X-Failed-Recipients: target@example.test', 'Auto-Submitted: auto-replied'],
      parts: standardParts(
        `${eximOpening}  target@example.test\n    (generated from ${someone})\n    Unrouteable address\n`,
        `Reporting-MTA: dns; mx.example.test\n\nAction: failed\nFinal-Recipient: rfc822;${someone}\nStatus: 5.0.0\n`,
      ),
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: null, enhancedCode: '5.0.0', isAliasTarget: true }],
  ],
  [
    'Exim: an alias leads to another, and that to an address that the next server does not know',
    {
      ...eximHead,
      fields: ['X-Failed-Recipients: target@elsewhere.test', 'Auto-Submitted: auto-replied'],
      parts: standardParts(
        `${eximOpening}  target@elsewhere.test\n    (ultimately generated from ${someone})\n    host in.elsewhere.test [192.0.2.5]\n    SMTP error from remote mail server after RCPT TO:<target@elsewhere.test>:\n    550 5.1.1 No such user\n`,
        `Reporting-MTA: dns; mx.example.test\n\nAction: failed\nFinal-Recipient: rfc822;${someone}\nStatus: 5.0.0\nRemote-MTA: dns; in.elsewhere.test\nDiagnostic-Code: smtp; 550 5.1.1 No such user\n`,
      ),
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: 550, enhancedCode: '5.1.1', isAliasTarget: true }],
  ],
  [
    'Exim: the target is hidden',
    {
      ...eximHead,
      fields: ['Auto-Submitted: auto-replied'],
      parts: standardParts(
        `${eximOpening}  an undisclosed address\n    (generated from ${someone})\n    host in.elsewhere.test [192.0.2.5]\n`,
        `Reporting-MTA: dns; mx.example.test\n\nAction: failed\nFinal-Recipient: rfc822;${someone}\nStatus: 5.0.0\nRemote-MTA: dns; in.elsewhere.test\nDiagnostic-Code: smtp; 550 5.1.1 No such user\n`,
      ),
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: 550, enhancedCode: '5.1.1', isAliasTarget: true }],
  ],
  [
    'Exim: a mailbox that is full, and the dead target of an alias of the same name',
    {
      ...eximHead,
      fields: [`X-Failed-Recipients: ${someone},\n  target@elsewhere.test`, 'Auto-Submitted: auto-replied'],
      parts: standardParts(
        `${eximOpening}  ${someone}\n    mailbox is full: retry timeout exceeded\n  target@elsewhere.test\n    (generated from ${someone})\n    host in.elsewhere.test [192.0.2.5]\n    SMTP error from remote mail server after RCPT TO:<target@elsewhere.test>:\n    550 5.1.1 No such user\n`,
        `Reporting-MTA: dns; mx.example.test\n\nAction: failed\nFinal-Recipient: rfc822;${someone}\nStatus: 5.0.0\nRemote-MTA: dns; in.elsewhere.test\nDiagnostic-Code: smtp; 550 5.1.1 No such user\n\nAction: failed\nFinal-Recipient: rfc822;${someone}\nStatus: 5.0.0\n`,
      ),
    },
    [
      { class: 'mailbox_not_found', type: 'hard', code: 550, enhancedCode: '5.1.1', isAliasTarget: true },
      { class: 'mailbox_full', type: 'soft', code: null, enhancedCode: '5.0.0', isAliasTarget: true },
    ],
  ],
  [
    'Exim of old: the target of an alias is dead',
    {
      ...eximHead,
      fields: ['X-Failed-Recipients: target@example.test', 'Auto-Submitted: auto-replied'],
      body: `${eximOpening}  target@example.test\n    (generated from ${someone})\n    Unrouteable address\n\n------ This is a copy of the message, including all the headers. ------\n\nTo: nobody@example.test\n`,
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: null, isAliasTarget: true }],
  ],
  [
    'OpenSMTPD before 7.3: mail that has expired, called delayed',
    {
      subject: 'Delivery status notification: delayed',
      type: 'multipart/mixed',
      parts: standardParts(
        openSmtpdDelay('Envelope expired'),
        `Reporting-MTA: dns; mx.example.test\n\nFinal-Recipient: rfc822; ${someone}\nAction: delayed\nStatus: 4.4.7\n`,
      ),
    },
    [{ action: 'failed', class: 'other', type: 'soft', code: null, enhancedCode: '4.4.7' }],
  ],
  [
    'OpenSMTPD: mail that is delayed',
    {
      subject: 'Delivery status notification: delayed',
      type: 'multipart/mixed',
      parts: standardParts(
        openSmtpdDelay('Network error on destination MXs'),
        `Reporting-MTA: dns; mx.example.test\n\nFinal-Recipient: rfc822; ${someone}\nAction: delayed\nStatus: 4.4.7\n`,
      ),
    },
    [{ action: 'delayed', class: 'other', type: 'soft', code: null, enhancedCode: '4.4.7' }],
  ],
  [
    'sendmail: a transcript, of which only the first reply is about the recipient',
    {
      subject: 'Returned mail: see transcript for details',
      body: `The original message was received at Sat, 21 Nov 2026 10:00:00 GMT\nfrom localhost [127.0.0.1]\n\n   ----- The following addresses had permanent fatal errors -----\n<${someone}>\n    (reason: 550 5.7.1 Access denied)\n\n   ----- Transcript of session follows -----\n... while talking to in.example.test.:\n>>> DATA\n<<< 550 5.7.1 Access denied\n554 5.0.0 Service unavailable\n<<< 503 5.5.1 User unknown\n`,
    },
    [{ class: 'policy', type: 'soft', code: 550, enhancedCode: '5.7.1' }],
  ],
  [
    'GMX: the reply without its basic code',
    {
      subject: 'Mail delivery failed: returning message to sender',
      body: `This message was created automatically by mail delivery software.\n\n"${someone}":\nSMTP error from remote server after RCPT command:\nhost: in.example.test\n5.1.1 <${someone}>... User unknown\n\n--- The header of the original message is following. ---\n`,
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: null, enhancedCode: '5.1.1' }],
  ],
  [
    'the status in base64',
    {
      parts: [
        { type: 'text/plain', body: 'Failed.' },
        {
          type: 'message/delivery-status',
          encoding: 'base64',
          body: `Reporting-MTA: dns; mx.example.test\n\nFinal-Recipient: rfc822; ${someone}\nAction: failed\nStatus: 5.1.2\nDiagnostic-Code: smtp; 550 5.1.2 Host unknown`,
        },
      ],
    },
    [{ class: 'domain_not_found', type: 'hard', code: 550 }],
  ],
  [
    'the status labelled as text, in upper case, without a group for the message, its lines not folded',
    {
      type: 'multipart/mixed',
      parts: [
        { type: 'text/plain', body: 'Your mail could not be delivered.' },
        {
          type: 'text/plain',
          body: `FINAL-RECIPIENT: RFC822;<${someone}>\nACTION: Failed\nSTATUS: 5.0.0 (permanent failure)\nDIAGNOSTIC-CODE: SMTP;550-5.1.1 No such\n550 5.1.1 user here`,
        },
      ],
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: 550, enhancedCode: '5.1.1' }],
  ],
  [
    'several recipients of a forwarding list, one after the other without empty lines',
    {
      lineEnd: '\n',
      parts: standardParts(
        'Failed.',
        'Reporting-MTA: dns; mx.example.test\n\nFinal-Recipient: rfc822; one@example.test\nAction: failed\nStatus: 5.1.1\nFinal-Recipient: rfc822; two@example.test\nAction: delayed\nStatus: 4.7.1\n\nFinal-Recipient: rfc822; three@example.test\nAction: expanded\nStatus: 2.0.0',
      ),
    },
    [
      { action: 'failed', address: 'one@example.test', class: 'mailbox_not_found', type: 'hard' },
      { action: 'delayed', address: 'two@example.test', class: 'policy', type: 'soft' },
      { action: 'expanded', address: 'three@example.test', class: 'other', type: 'soft' },
    ],
  ],
  [
    'X.400: a recipient that is no email address',
    {
      parts: standardParts(
        'Failed.',
        'Reporting-MTA: x400; mta.example\n\nFinal-Recipient: X.400; /C=DE/ADMD=EXAMPLE/S=SOMEONE/@gateway\nAction: failed\nStatus: 5.1.1\nDiagnostic-Code: X.400; unable-to-transfer: unrecognised-OR-name',
      ),
    },
    [{ address: null, class: 'mailbox_not_found', type: 'hard', code: null, enhancedCode: '5.1.1' }],
  ],
  [
    'RFC 6533: an address beyond ASCII',
    {
      type: 'multipart/report; report-type=global-delivery-status',
      parts: [
        { type: 'text/plain; charset=utf-8', body: 'Échec.' },
        {
          type: 'message/global-delivery-status',
          body: 'Reporting-MTA: dns; mx.example.test\n\nOriginal-Recipient: utf-8; jos\\x{E9}@example.test\nFinal-Recipient: utf-8; josé@example.test\nAction: failed\nStatus: 5.6.7\nDiagnostic-Code: smtp; 550 5.6.7 SMTPUTF8 not supported',
        },
      ],
    },
    [{ address: 'josé@example.test', class: 'other', type: 'soft', code: 550, enhancedCode: '5.6.7' }],
  ],
  [
    'Cisco: its own code before the reply',
    {
      parts: standardParts(
        'Failed.',
        `Final-Recipient: rfc822;${someone}\nAction: failed\nStatus: 5.0.0 (permanent failure)\nRemote-MTA: dns; [192.0.2.5]\nDiagnostic-Code: smtp; 5.1.0 - Unknown address error 550-'5.1.1 <${someone}>: Recipient address rejected: User unknown' (delivery attempts: 0)`,
      ),
    },
    [{ class: 'mailbox_not_found', type: 'hard', code: 550, enhancedCode: '5.1.1' }],
  ],
  [
    'a refusal whose filter has the words of an unknown user in its own name',
    {
      parts: standardParts(
        'Failed.',
        `Final-Recipient: rfc822; user.unknown@example.test\nAction: failed\nStatus: 5.7.26\nRemote-MTA: dns; no-such-user.filter.test\nDiagnostic-Code: smtp; 550 5.7.26 <user unknown@example.test> did not pass DMARC`,
      ),
    },
    [{ address: 'user.unknown@example.test', class: 'auth_failure', type: 'soft', code: 550 }],
  ],
  [
    'a multipart that uses another boundary than it announces',
    {
      type: 'multipart/report; report-type=delivery-status; boundary=other',
      body: `--real\nContent-Type: text/plain\n\nFailed.\n--real\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; mx.example.test\n\nFinal-Recipient: rfc822; ${someone}\nAction: failed\nStatus: 5.1.1\n--real--`,
    },
    [{ class: 'mailbox_not_found', type: 'hard', enhancedCode: '5.1.1' }],
  ],
];

test.each(notices)('%s', (_name, source, expected) => {
  const report = readReport(writeReport(source));
  expect(judgementsOf(report)).toEqual(
    expected.map((judgement, at) => ({
      ...judgementsOf(report)[at],
      action: 'failed',
      address: someone,
      isAliasTarget: false,
      ...judgement,
    })),
  );
});

function judgementsOf(report: BounceReport): Judgement[] {
  if (report.kind !== 'delivery_status') throw new Error(`it was taken for ${report.kind}`);
  return report.recipients.map(({ action, address, failureClass, type, reply, isAliasTarget }) => ({
    action,
    address,
    class: failureClass,
    type,
    code: reply.code,
    enhancedCode: reply.enhancedCode,
    isAliasTarget,
  }));
}

const feedbackFields = 'User-Agent: SomeGenerator/1.0\nVersion: 1';

const others: readonly (readonly [string, ReportSource, BounceReport])[] = [
  [
    'a complaint (RFC 5965)',
    {
      from: 'feedback@example.test',
      subject: 'FW: Hello',
      type: 'multipart/report; report-type=feedback-report',
      parts: [
        { type: 'text/plain', body: 'This is an email abuse report.' },
        {
          type: 'message/feedback-report',
          body: `Feedback-Type: abuse\n${feedbackFields}\nOriginal-Mail-From: <bounce-abc@send.example.test>\nSource-IP: 192.0.2.1`,
        },
        { type: 'message/rfc822', body: 'Subject: Hello\n\nHello' },
      ],
    },
    {
      kind: 'abuse',
      feedbackType: 'abuse',
      isComplaint: true,
      returnPaths: ['bounce-abc@send.example.test'],
      messageId: null,
    },
  ],
  [
    'a complaint like those of AOL: addresses made unreadable, the return path only in the message',
    {
      from: 'scomp@aol.test',
      subject: 'Email Feedback Report for IP 192.0.2.1',
      type: 'multipart/report; report-type=feedback-report',
      parts: [
        { type: 'text/plain', body: 'This is an email abuse report.' },
        {
          type: 'message/feedback-report',
          body: `Feedback-Type: Abuse\n${feedbackFields}\nRedacted-Address: redacted\nRedacted-Address: redacted@`,
        },
        {
          type: 'message/rfc822',
          body: 'Return-Path: <bounce-abc@send.example.test>\nTo: redacted\n\nHello',
        },
      ],
    },
    {
      kind: 'abuse',
      feedbackType: 'abuse',
      isComplaint: true,
      returnPaths: ['bounce-abc@send.example.test'],
      messageId: null,
    },
  ],
  [
    'the verdict that a message is no spam',
    {
      type: 'multipart/report; report-type=feedback-report',
      parts: [{ type: 'message/feedback-report', body: `Feedback-Type: not-spam\n${feedbackFields}` }],
    },
    { kind: 'abuse', feedbackType: 'not-spam', isComplaint: false, returnPaths: [], messageId: null },
  ],
  [
    'a report of failed authentication (RFC 6591)',
    {
      type: 'multipart/report; report-type=feedback-report',
      parts: [
        {
          type: 'message/feedback-report',
          body: `${feedbackFields}\nFeedback-Type: auth-failure\nAuth-Failure: dmarc`,
        },
      ],
    },
    { kind: 'abuse', feedbackType: 'auth-failure', isComplaint: false, returnPaths: [], messageId: null },
  ],
  [
    'a request for no more mail, its fields labelled as text',
    {
      from: 'fbl@example.test',
      subject: 'Opt out',
      type: 'multipart/mixed',
      parts: [{ type: 'text/plain', body: `Feedback-Type: opt-out\n${feedbackFields}` }],
    },
    { kind: 'abuse', feedbackType: 'opt-out', isComplaint: true, returnPaths: [], messageId: null },
  ],
  [
    'a complaint by way of Microsoft, which has no fields at all',
    {
      from: 'staff@hotmail.test',
      subject: 'complaint about message from 192.0.2.1',
      type: 'multipart/mixed',
      parts: [
        { type: 'text/plain', body: '' },
        {
          type: 'message/rfc822',
          body: 'X-HmXmrOriginalRecipient: someone\nReturn-Path: bounce-abc@send.example.test\n\nHello',
        },
      ],
    },
    {
      kind: 'abuse',
      feedbackType: 'abuse',
      isComplaint: true,
      returnPaths: ['bounce-abc@send.example.test'],
      messageId: null,
    },
  ],
  [
    'an answer out of office (RFC 3834)',
    {
      from: someone,
      subject: 'Automatic reply: Hello',
      fields: ['Auto-Submitted: auto-replied (vacation)'],
      body: 'I am away. The mailbox someone-else@example.test is full: 550 5.1.1 User unknown.',
    },
    { kind: 'automatic_reply' },
  ],
  [
    'an answer out of office without any field for it',
    { from: someone, subject: '=?utf-8?Q?R=C3=A9ponse_automatique?= : Bonjour', body: 'Absent.' },
    { kind: 'automatic_reply' },
  ],
  [
    'the answer of a postmaster, who is a person, too',
    {
      from: 'postmaster@example.test',
      subject: 'Out of office: Your message',
      body: 'Our policy: 550 members a day.',
    },
    { kind: 'automatic_reply' },
  ],
  [
    'a receipt of reading (RFC 8098)',
    {
      from: someone,
      subject: 'Read: Hello',
      type: 'multipart/report; report-type=disposition-notification',
      parts: [
        { type: 'text/plain', body: 'Your message was read.' },
        {
          type: 'message/disposition-notification',
          body: `Final-Recipient: rfc822; ${someone}\nDisposition: manual-action/MDN-sent-manually; displayed`,
        },
      ],
    },
    { kind: 'automatic_reply' },
  ],
  [
    'a message of a person',
    {
      from: someone,
      subject: 'Re: Hello',
      body: 'My address is about to change; please write to the new one.',
    },
    { kind: 'unrecognised', detail: 'it has no shape of a report that is known' },
  ],
];

test.each(others)('%s', (_name, source, expected) => {
  expect(readReport(writeReport(source))).toEqual(expected);
});
