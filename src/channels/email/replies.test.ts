import { expect, test } from 'vitest';
import type { FailureClass } from '../outcome.ts';
import { classifyReply, enhancedCodeOf } from './replies.ts';
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
  [
    'mailbox_not_found',
    'rcpt',
    550,
    '5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup',
  ],
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

test('words far behind decide nothing, so that a long reply costs no more than a short one', () => {
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
