import { expect, test } from 'vitest';
import type { FailureClass } from '../outcome.ts';
import { classifyReply, enhancedCodeOf, replyTables } from './replies.ts';
import type { ReplyPhase } from './replies.ts';

/** Replies as the providers' documentation describes them, with addresses and hosts of ours. */
const replies: readonly (readonly [FailureClass, ReplyPhase, number, string])[] = [
  // Gmail and Google Workspace.
  [
    'mailbox_not_found',
    'rcpt',
    550,
    '5.1.1 The email account that you tried to reach does not exist. Please try double-checking the address - gsmtp',
  ],
  ['mailbox_not_found', 'rcpt', 550, '5.2.1 The email account that you tried to reach is inactive. - gsmtp'],
  ['mailbox_full', 'rcpt', 452, "4.2.2 The recipient's inbox is out of storage space and inactive. - gsmtp"],
  ['mailbox_full', 'rcpt', 552, '5.2.2 The email account that you tried to reach is over quota. - gsmtp'],
  [
    'rate_limited',
    'rcpt',
    450,
    '4.2.1 The user you are trying to contact is receiving mail too quickly. - gsmtp',
  ],
  [
    'rate_limited',
    'content',
    421,
    '4.7.28 Our system has detected an unusual rate of unsolicited mail originating from your IP address. - gsmtp',
  ],
  ['rate_limited', 'mail', 550, '5.4.5 Daily user sending limit exceeded. - gsmtp'],
  [
    'auth_failure',
    'content',
    550,
    '5.7.26 This mail has been blocked because the sender is unauthenticated. Gmail requires SPF or DKIM. - gsmtp',
  ],
  [
    'auth_failure',
    'content',
    550,
    "5.7.26 Unauthenticated email from example.test is not accepted due to domain's DMARC policy. - gsmtp",
  ],
  [
    'auth_failure',
    'content',
    550,
    '5.7.25 The IP address sending this message does not have a PTR record setup - gsmtp',
  ],
  [
    'policy',
    'content',
    552,
    '5.7.0 This message was blocked because its content presents a potential security issue. - gsmtp',
  ],
  [
    'spam',
    'content',
    550,
    '5.7.1 Our system has detected that this message is likely unsolicited mail. - gsmtp',
  ],
  ['message_too_large', 'content', 552, "5.3.4 Your message exceeded Google's message size limits. - gsmtp"],
  ['auth_failure', 'opening', 535, '5.7.8 Username and Password not accepted. - gsmtp'],
  ['policy', 'opening', 421, '4.7.0 TLS required for RCPT domain, closing connection. - gsmtp'],
  // Microsoft 365 and Outlook.com.
  ['mailbox_not_found', 'rcpt', 550, '5.1.10 RESOLVER.ADR.RecipientNotFound'],
  ['mailbox_not_found', 'rcpt', 550, '5.1.10 Recipient not found by SMTP address lookup'],
  ['policy', 'rcpt', 550, '5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup; authentication required'],
  ['policy', 'rcpt', 550, '5.7.134 RESOLVER.RST.SenderNotAuthenticatedForMailbox; authentication required'],
  [
    'mailbox_not_found',
    'rcpt',
    550,
    '5.4.1 Recipient address rejected: Access denied. [host.mail.protection.outlook.test]',
  ],
  ['mailbox_not_found', 'rcpt', 550, '5.5.0 Requested action not taken: mailbox unavailable'],
  ['mailbox_full', 'rcpt', 554, '5.2.2 mailbox full; STOREDRV.Deliver.Exception:QuotaExceededException'],
  [
    'domain_not_found',
    'rcpt',
    550,
    '5.4.310 DNS domain example.invalid does not exist [Message=InfoDomainNonexistent]',
  ],
  ['spam', 'rcpt', 550, '5.7.606 Access denied, banned sending IP [192.0.2.1].'],
  [
    'spam',
    'mail',
    550,
    "5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent since part of their network is on our block list (S3150).",
  ],
  ['rate_limited', 'rcpt', 451, '4.7.500 Server busy. Please try again later from [192.0.2.1]. (AS77712)'],
  [
    'rate_limited',
    'rcpt',
    451,
    '4.7.650 The mail server [192.0.2.1] has been temporarily rate limited due to IP reputation.',
  ],
  ['rate_limited', 'rcpt', 432, '4.3.2 STOREDRV.Deliver; recipient thread limit exceeded'],
  ['rate_limited', 'content', 550, '5.7.705 Access denied, tenant has exceeded threshold'],
  [
    'auth_failure',
    'content',
    550,
    '5.7.515 Access denied, sending domain example.test does not meet the required authentication level.',
  ],
  [
    'auth_failure',
    'content',
    550,
    '5.7.509 Access denied, sending domain example.test does not pass DMARC verification',
  ],
  ['message_too_large', 'content', 552, '5.3.4 Message size exceeds fixed maximum message size'],
  ['auth_failure', 'opening', 535, '5.7.3 Authentication unsuccessful'],
  ['policy', 'rcpt', 550, '5.7.64 TenantAttribution; Relay Access Denied'],
  // Yahoo.
  [
    'rate_limited',
    'mail',
    421,
    '4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints - 4.16.55.1',
  ],
  [
    'mailbox_not_found',
    'content',
    554,
    "delivery error: dd This user doesn't have a yahoo.test account (someone@yahoo.test) [0]",
  ],
  [
    'mailbox_not_found',
    'content',
    554,
    'delivery error: dd Sorry, your message to someone@yahoo.test cannot be delivered. This mailbox is disabled (554.30).',
  ],
  ['auth_failure', 'content', 554, '5.7.9 Message not accepted for policy reasons; DMARC check failed'],
  ['policy', 'content', 554, '5.7.9 Message not accepted for policy reasons. See our postmaster page.'],
  ['mailbox_full', 'content', 552, '1 Requested mail action aborted, mailbox is full'],
  // Postfix.
  [
    'mailbox_not_found',
    'rcpt',
    550,
    '5.1.1 <someone@example.test>: Recipient address rejected: User unknown in virtual mailbox table',
  ],
  ['policy', 'rcpt', 554, '5.7.1 <someone@example.test>: Relay access denied'],
  ['policy', 'mail', 450, '4.1.8 <sender@example.test>: Sender address rejected: Domain not found'],
  [
    'domain_not_found',
    'rcpt',
    450,
    '4.1.2 <someone@example.invalid>: Recipient address rejected: Domain not found',
  ],
  [
    'spam',
    'rcpt',
    554,
    '5.7.1 Service unavailable; Client host [192.0.2.1] blocked using dnsbl.example.test',
  ],
  [
    'policy',
    'rcpt',
    450,
    '4.2.0 <someone@example.test>: Recipient address rejected: Greylisted, see http://postgrey.example.test',
  ],
  ['message_too_large', 'mail', 552, '5.3.4 Message size exceeds fixed limit'],
  ['other', 'mail', 452, '4.3.1 Insufficient system storage'],
  ['mailbox_full', 'rcpt', 452, '4.2.2 Mailbox full'],
  ['rate_limited', 'mail', 450, '4.7.1 Error: too much mail from 192.0.2.1'],
  ['rate_limited', 'opening', 421, '4.7.0 mx.example.test Error: too many connections from 192.0.2.1'],
  // Exim, Dovecot, qmail, Cisco.
  ['mailbox_not_found', 'rcpt', 550, 'Unrouteable address'],
  ['mailbox_not_found', 'rcpt', 550, 'No such user here'],
  ['policy', 'rcpt', 550, 'relay not permitted'],
  ['policy', 'rcpt', 550, 'Sender verify failed'],
  ['message_too_large', 'content', 552, 'Message size exceeds maximum permitted'],
  ['mailbox_full', 'rcpt', 552, '5.2.2 <someone@example.test> Quota exceeded (mailbox for user is full)'],
  ['mailbox_not_found', 'rcpt', 550, 'sorry, no mailbox here by that name (#5.1.1)'],
  ['mailbox_not_found', 'rcpt', 550, '#5.1.0 Address rejected.'],
  ['policy', 'opening', 554, 'mx.example.test Your access to this mail system has been blocked'],
  // Amazon SES and other relays.
  ['rate_limited', 'mail', 454, 'Throttling failure: Maximum sending rate exceeded.'],
  ['rate_limited', 'mail', 454, 'Throttling failure: Daily message quota exceeded.'],
  ['policy', 'content', 554, 'Message rejected: Email address is not verified.'],
  ['auth_failure', 'opening', 535, 'Authentication Credentials Invalid'],
  ['spam', 'content', 550, 'High probability of spam'],
  // Codes alone.
  ['mailbox_not_found', 'rcpt', 550, ''],
  ['mailbox_full', 'rcpt', 552, ''],
  ['message_too_large', 'content', 552, ''],
  ['policy', 'content', 554, 'Transaction failed'],
  ['auth_failure', 'mail', 530, ''],
  ['domain_not_found', 'rcpt', 556, ''],
  ['other', 'content', 451, 'Local error in processing'],
  ['other', 'mail', 421, 'Service not available'],
];

test.each(replies)('%s: in %s, %i %s', (expected, phase, code, text) => {
  expect(classifyReply(code, enhancedCodeOf(text), text, phase)).toBe(expected);
});

test('a status of a delivery report without words is enough', () => {
  expect(classifyReply(null, '5.2.2', '', null)).toBe('mailbox_full');
  expect(classifyReply(null, null, '', null)).toBe('other');
});

test('words far into a reply decide nothing, so that a long reply costs no more than a short one', () => {
  expect(classifyReply(451, null, `${'x'.repeat(500)} user unknown`, 'rcpt')).toBe('other');
});

test('names that every object has are no codes', () => {
  expect(classifyReply(550, '5.constructor', '', 'data')).toBe('other');
});

test.each([
  ['5.1.1 User unknown', '5.1.1'],
  ['4.4.310', '4.4.310'],
  ['no mailbox here (#5.1.1)', '5.1.1'],
  ['#5.1.0 Address rejected.', '5.1.0'],
  ['[192.0.2.1] refused', null],
  ['5.1.1.2 is an address', null],
  ['3.1.1 no such class', null],
  ['5.1 too short', null],
  ['seen 5.1.1 elsewhere', null],
  ['', null],
])('the enhanced code of %j is %j', (text, expected) => {
  expect(enhancedCodeOf(text)).toBe(expected);
});

/** What none of the replies above says, without any code: only the words tell. */
const words: Readonly<Partial<Record<FailureClass, readonly string[]>>> = {
  policy: [
    'Sender address rejected',
    'Sender rejected',
    'Unable to verify sender',
    'Unrouteable sender',
    'Unroutable sender',
    'Sender domain',
    "Sender's domain",
    'Sending domain',
    'Domain of sender',
    'Domain of the sender',
    'Mail from domain',
    'Mailfrom domain',
    'From: domain',
    'Policies',
    'Denied',
    'Relay',
    'Graylist',
    'Prohibit',
    'Not permitted',
    'Not allowed',
    'Virus',
    'Malware',
    'Content rejected',
    'Envelope rejected',
    'Message rejected',
    'Mail rejected',
    'Connection rejected',
    'Rejected by',
    'Rejected due',
    'Rejected because',
    'Message refused',
    'Mail refused',
    'Refused due',
    'Security issue',
    'Helo',
    'Tls required',
    'Must issue a starttls',
    'Not verified',
    'Restricted',
    'Closed to',
    'Rule imposed',
  ],
  rate_limited: [
    'Ratelimit',
    'Rate exceeded',
    'Throttl',
    'Sending quota',
    'Message quota',
    'Sending limit',
    'Message limit',
    'Messages per second',
    'Relay limit exceeded',
    'Receiving mail at a rate',
    'Too many messages',
    'Too many concurrent',
    'Too many sessions',
    'Too many recipients',
    'Too many errors',
    'Too fast',
    'Frequency limited',
    'Too frequent',
    'Excessive volume',
    'Submission rate',
    'Connection limit',
    'Max message per connection',
    'Exceeded the maximum number of',
    'Exceeded its maximum number of',
    'Slow down',
  ],
  mailbox_full: [
    'Overquota',
    'Over its quota',
    'Over the quota',
    'Out of storage',
    'Exceeded storage allocation',
    'Exceeds storage',
    'Quota exceeded',
    'Exceeded quota',
    'Exceeds quota',
    'Exceed the quota',
    'Exceeded their quota',
    'Disk quota',
    'Mailbox full',
    'Mailfolder is full',
    'Inbox is full',
    'Mailbox size limit exceeded',
    'Mailbox exceeds',
    'Exceeded the local limit',
    'Mailbox_full',
    'Quotaexceeded',
    'Not enough space in mailbox',
  ],
  message_too_large: [
    'Message size exceeds',
    'Message exceeds',
    'Message file too big',
    'Message too large',
    'Message is too large',
    'Message too big',
    'Size limit',
    'Maximum message size',
    'Maximum size',
    'Exceeds size',
    'Exceeds fixed',
    'Message length exceeds',
    'Mail size',
    'Header size exceeds',
  ],
  auth_failure: [
    'Dkim',
    'Sender policy framework',
    'Ptr record',
    'Dns ptr',
    'Rdns',
    'Reverse dns',
    'Reverse hostname',
    'Spf',
    'Unauthenticated',
    'Not authenticated',
    'Authentication required',
    'Authentication check',
    'Authentication information',
    'Authentication failed',
    'Authentication credentials',
    'Username and password not accepted',
  ],
  spam: [
    'Blocklist',
    'Block list',
    'Blacklist',
    'Black list',
    'Denylist',
    'Dnsbl',
    'Barracudacentral',
    'Barracuda reputation',
    'Ipcheck.proofpoint',
    'Blocked using',
    'Dt:spm',
    'Poor reputation',
    'Low reputation',
    'Bad reputation',
    'Ip reputation',
    'Domain reputation',
    'User complaints',
    'Bulk mail',
    'Junk',
    'Unfortunately, messages from',
    'Mail rejete',
    'Objectionable content',
  ],
  other: [
    'Host not found, try again',
    'Malformed or unexpected name server reply',
    'Temporary failure in name resolution',
    'Temporary lookup failure',
    'Temporary dns failure',
  ],
  domain_not_found: [
    'Domain not found',
    'Domain name not found',
    'Domain does not exist',
    "Domain doesn't exist",
    'Domain is not found',
    'Host not found',
    'Host unknown',
    'Unknown host',
    'No such domain',
    'Unknown domain',
    'Bad destination system',
    'Nxdomain',
    'No mx record',
    'Null mx',
    'Nullmx',
    'Indicated no smtp service',
    'Non-existent hosts',
    'Name service error',
  ],
  mailbox_not_found: [
    'User unknown',
    'Unknown user',
    'Unknown local part',
    'No such user',
    'No such recipient',
    'No such mailbox',
    'No such address',
    'No such person',
    'No mailbox here',
    'Mailbox not found',
    'Mailbox unavailable',
    'Mailbox does not exist',
    'Mailbox disabled',
    'Mailbox is inactive',
    'Mailbox unknown',
    'User not found',
    'User does not exist',
    'User not exist',
    'Recipnotfound',
    'Recipient unknown',
    'Unknown recipient',
    'Recipient does not exist',
    'Invalid recipient',
    'Invalid mailbox',
    'Address unknown',
    'Unknown address',
    'Address does not exist',
    'Address not found',
    'Account that you tried to reach',
    'Account has been disabled',
    'Account is disabled',
    'Account disabled',
    'Account is not available',
    'Account does not exist',
    'No account by that name',
    'Not a valid mailbox',
    'Not listed in domino directory',
    'Not listed in public name',
    'Unrouteable address',
    'Unroutable address',
    'Undeliverable address',
    'Not our customer',
    'Mailing list expansion problem',
    'Recipient address rejected: undeliverable',
    "Dosn't exist",
    "Doesn't exist",
  ],
};

/** Enhanced codes without words, and without a basic code. */
const enhanced: readonly (readonly [FailureClass, string])[] = [
  ['mailbox_not_found', '5.1.0'],
  ['mailbox_not_found', '5.1.1'],
  ['domain_not_found', '5.1.2'],
  ['mailbox_not_found', '5.1.3'],
  ['mailbox_not_found', '5.1.4'],
  ['mailbox_not_found', '5.1.6'],
  ['domain_not_found', '5.1.10'],
  ['mailbox_not_found', '5.2.1'],
  ['mailbox_full', '5.2.2'],
  ['message_too_large', '5.2.3'],
  ['message_too_large', '5.3.4'],
  ['domain_not_found', '5.4.4'],
  ['rate_limited', '5.4.5'],
  ['domain_not_found', '5.4.310'],
  ['rate_limited', '5.5.3'],
  ['auth_failure', '5.7.8'],
  ['auth_failure', '5.7.9'],
  ['auth_failure', '5.7.20'],
  ['auth_failure', '5.7.21'],
  ['auth_failure', '5.7.22'],
  ['auth_failure', '5.7.23'],
  ['auth_failure', '5.7.24'],
  ['auth_failure', '5.7.25'],
  ['auth_failure', '5.7.26'],
  ['domain_not_found', '5.7.27'],
  ['rate_limited', '5.7.28'],
  ['auth_failure', '5.7.57'],
  ['rate_limited', '5.7.500'],
  ['spam', '5.7.501'],
  ['spam', '5.7.502'],
  ['spam', '5.7.503'],
  ['auth_failure', '5.7.509'],
  ['spam', '5.7.511'],
  ['auth_failure', '5.7.515'],
  ['spam', '5.7.606'],
  ['rate_limited', '5.7.650'],
  ['rate_limited', '5.7.705'],
  ['spam', '5.7.708'],
];

/** Of the subject alone; without it, the basic code would be about the mailbox, or about nothing. */
const subjects: readonly (readonly [FailureClass, string])[] = [
  ['other', '5.3.99'],
  ['other', '5.4.99'],
  ['other', '5.6.99'],
  ['policy', '5.7.99'],
];

/** Basic codes without words; of some it matters in which phase they come. */
const basic: readonly (readonly [FailureClass, number, ReplyPhase | null])[] = [
  ['policy', 521, null],
  ['auth_failure', 530, null],
  ['auth_failure', 534, null],
  ['auth_failure', 535, null],
  ['auth_failure', 538, null],
  ['domain_not_found', 556, null],
  ['other', 450, 'rcpt'],
  ['mailbox_full', 452, 'rcpt'],
  ['mailbox_not_found', 550, 'rcpt'],
  ['policy', 550, 'content'],
  ['mailbox_not_found', 551, 'rcpt'],
  ['mailbox_full', 552, 'rcpt'],
  ['message_too_large', 552, 'mail'],
  ['message_too_large', 552, 'data'],
  ['message_too_large', 552, 'content'],
  ['mailbox_not_found', 553, 'rcpt'],
  ['policy', 554, 'content'],
];

type Example = { expected: FailureClass; of: Parameters<typeof classifyReply> };

const examples: readonly Example[] = [
  ...replies.map(([expected, phase, code, text]) =>
    exampleOf(expected, code, enhancedCodeOf(text), text, phase),
  ),
  ...Object.entries(words).flatMap(([expected, texts]) =>
    // That a reply is not about the mailbox shows only where the code alone would say that it is.
    texts.map(
      (text) =>
        expected === 'other'
          ? exampleOf(expected, 550, null, text, 'rcpt')
          : exampleOf(expected as FailureClass, null, null, text, null), // A key of `words`.
    ),
  ),
  ...enhanced.map(([expected, code]) => exampleOf(expected, null, code, '', null)),
  ...subjects.map(([expected, code]) => exampleOf(expected, 550, code, '', 'rcpt')),
  ...basic.map(([expected, code, phase]) => exampleOf(expected, code, null, '', phase)),
  exampleOf('policy', 450, '4.1.7', 'no such user', 'rcpt'),
  exampleOf('policy', 450, '4.1.8', 'no such domain', 'rcpt'),
];

function exampleOf(expected: FailureClass, ...of: Parameters<typeof classifyReply>): Example {
  return { expected, of };
}

test('words alone, and codes alone, are classified', () => {
  expect(examples.filter(({ expected, of }) => classifyReply(...of) !== expected)).toEqual([]);
});

/** Each entry of the tables, and the tables without it. */
const entries: readonly { entry: string; without: typeof replyTables }[] = [
  ...replyTables.phrases.flatMap(([failureClass, phrases], index) =>
    phrases.map((phrase) => ({
      entry: phrase,
      without: {
        ...replyTables,
        phrases: replyTables.phrases.with(index, [failureClass, phrases.filter((other) => other !== phrase)]),
      },
    })),
  ),
  ...(['enhancedCodes', 'enhancedSubjects'] as const).flatMap((table) =>
    [...replyTables[table].keys()].map((code) => ({
      entry: code,
      without: {
        ...replyTables,
        [table]: new Map([...replyTables[table]].filter(([other]) => other !== code)),
      },
    })),
  ),
  ...Object.keys(replyTables.basicCodes).map((code) => ({
    entry: code,
    without: {
      ...replyTables,
      basicCodes: Object.fromEntries(
        Object.entries(replyTables.basicCodes).filter(([other]) => other !== code),
      ),
    },
  })),
  ...[...replyTables.senderCodes].map((code) => ({
    entry: code,
    without: {
      ...replyTables,
      senderCodes: new Set([...replyTables.senderCodes].filter((other) => other !== code)),
    },
  })),
];

test('each entry of the tables is needed: without it some reply is classified otherwise', () => {
  const needless = entries.filter(({ without }) =>
    examples.every(({ expected, of: [code, enhancedCode, text, phase] }) => {
      return classifyReply(code, enhancedCode, text, phase, without) === expected;
    }),
  );
  expect(needless.map(({ entry }) => entry)).toEqual([]);
});

test.each([
  [550, '5.1.10', '5.1.10 RESOLVER.ADR.RecipientNotFound', 'mailbox_not_found'],
  [550, '5.1.10', '5.1.10 RESOLVER.ADR.RecipientNotFound; not found', 'mailbox_not_found'],
  [556, '5.1.10', '5.1.10 The recipient takes no mail', 'domain_not_found'],
  [
    550,
    '5.7.133',
    '5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup; authentication required; the sender was not authenticated',
    'policy',
  ],
  [
    550,
    '5.7.134',
    '5.7.134 RESOLVER.RST.SenderNotAuthenticatedForMailbox; authentication required',
    'policy',
  ],
  [550, '5.1.1', '5.1.1 <a@example.test>: No thanks (antispam.host.example)', 'mailbox_not_found'],
  [550, '5.1.1', '5.1.1 rejected for a@example.test by spam-filter.host.example', 'mailbox_not_found'],
  [550, '5.1.1', '5.1.1 User unknown (antispam.host.example)', 'mailbox_not_found'],
  [550, '5.2.1', '5.2.1 dkim.mx.host.example says no', 'mailbox_not_found'],
  [550, '5.1.1', '5.1.1 blocked using zen.spamhaus.org', 'spam'],
  [554, '5.7.1', '5.7.1 see http://www.barracudacentral.org/lookups', 'spam'],
  [554, null, 'see www.barracudacentral.org', 'spam'],
] as const)('%i %s in %j is %s', (code, enhancedCode, text, failureClass) => {
  expect(classifyReply(code, enhancedCode, text, 'rcpt')).toBe(failureClass);
});
