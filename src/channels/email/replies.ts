import { diagnosticCharsMax } from '../diagnostic.ts';
import type { FailureClass } from '../outcome.ts';

/**
 * What a remote mail system's refusal means for the one who sent the message.
 *
 * Three tables are asked in order: the words, the enhanced status code (RFC 3463, RFC 5248, RFC 7372), the basic
 * code with the phase it came in. Words come first because providers use codes loosely: Microsoft answers an
 * unknown recipient with 5.4.1, Gmail a full mailbox and a sending limit with neighbouring codes, and many
 * answer everything with 5.7.1. Only the codes for the sender's address go before all words, because the words are
 * then the same as for a recipient's: "no such domain".
 */

/** Where in the dialogue a reply came; null where that is not known, as in a delivery report. */
export type ReplyPhase = 'opening' | 'mail' | 'rcpt' | 'data' | 'content';

const enhancedCodeAtStart = /^[245]\.\d{1,3}\.\d{1,3}(?![\d.])/;
const enhancedCodeAfterHash = /#([245]\.\d{1,3}\.\d{1,3})(?![\d.])/;

/**
 * The enhanced status code (RFC 3463) that a reply's text carries, or null: at its start, as RFC 2034 has it, or
 * after a number sign, as Cisco's appliances (`550 #5.1.0 …`) and qmail (`… (#5.1.1)`) write it.
 */
export function enhancedCodeOf(text: string): string | null {
  const capped = text.slice(0, diagnosticCharsMax);
  return enhancedCodeAtStart.exec(capped)?.[0] ?? enhancedCodeAfterHash.exec(capped)?.[1] ?? null;
}

/** In lower case. The first class with a phrase in the text wins, so that the narrower meaning stands first. */
const phrases: readonly (readonly [FailureClass, readonly string[]])[] = [
  // About the sender, whatever the rest of the sentence says of domains and users.
  [
    'policy',
    [
      'sender address rejected',
      'sender rejected',
      'sender verify failed',
      'unable to verify sender',
      'unrouteable sender',
      'unroutable sender',
    ],
  ],
  [
    'rate_limited',
    [
      'rate limit',
      'ratelimit',
      'rate exceeded',
      'throttl',
      'sending quota',
      'message quota',
      'sending limit',
      'message limit',
      'messages per second',
      'relay limit exceeded',
      'receiving mail too quickly',
      'receiving mail at a rate',
      'unusual rate',
      'unexpected volume',
      'too many messages',
      'too many connections',
      'too many concurrent',
      'too many sessions',
      'too many recipients',
      'too many errors',
      'too much mail',
      'too fast',
      'frequency limited',
      'too frequent',
      'excessive volume',
      'submission rate',
      'thread limit',
      'connection limit',
      'max message per connection',
      'exceeded the maximum number of',
      'exceeded its maximum number of',
      'tenant has exceeded threshold',
      'slow down',
    ],
  ],
  [
    'mailbox_full',
    [
      'over quota',
      'overquota',
      'over its quota',
      'over the quota',
      'out of storage',
      'exceeded storage allocation',
      'exceeds storage',
      'quota exceeded',
      'exceeded quota',
      'exceeds quota',
      'exceed the quota',
      'exceeded their quota',
      'disk quota',
      'mailbox full',
      'mailbox is full',
      'mailfolder is full',
      'inbox is full',
      'mailbox size limit exceeded',
      'mailbox exceeds',
      'exceeded the local limit',
      'mailbox_full',
      'quotaexceeded',
      'not enough space in mailbox',
    ],
  ],
  [
    'message_too_large',
    [
      'message size exceeds',
      'message exceeds',
      'message file too big',
      'message too large',
      'message is too large',
      'message too big',
      'size limit',
      'maximum message size',
      'maximum size',
      'exceeds size',
      'exceeds fixed',
      'message length exceeds',
      'mail size',
      'header size exceeds',
    ],
  ],
  [
    'auth_failure',
    [
      'dmarc',
      'dkim',
      'sender policy framework',
      // RFC 7372 §3.3 counts the name of the sending host among what is authenticated.
      'ptr record',
      'dns ptr',
      'rdns',
      'reverse dns',
      'reverse hostname',
      'spf',
      'unauthenticated',
      'not authenticated',
      'authentication required',
      'authentication check',
      'authentication information',
      'authentication failed',
      'authentication unsuccessful',
      'authentication credentials',
      'authentication level',
      'username and password not accepted',
    ],
  ],
  [
    'spam',
    [
      'spam',
      'unsolicited',
      'blocklist',
      'block list',
      'blacklist',
      'black list',
      'denylist',
      'dnsbl',
      'barracudacentral',
      'barracuda reputation',
      'ipcheck.proofpoint',
      'blocked using',
      // NetEase.
      'dt:spm',
      'banned send',
      'poor reputation',
      'low reputation',
      'bad reputation',
      'ip reputation',
      'domain reputation',
      'user complaints',
      'bulk mail',
      'junk',
      // Outlook.com, before it names one of its lists.
      'unfortunately, messages from',
      // Orange.
      'mail rejete',
      'objectionable content',
    ],
  ],
  // It is the sender's domain that was looked for, and not the recipient's.
  [
    'policy',
    [
      'sender domain',
      "sender's domain",
      'sending domain',
      'domain of sender',
      'domain of the sender',
      'mail from domain',
      'mailfrom domain',
      'from: domain',
    ],
  ],
  // A resolver that failed says nothing of the domain.
  [
    'other',
    [
      'host not found, try again',
      'malformed or unexpected name server reply',
      'temporary failure in name resolution',
      'temporary lookup failure',
      'temporary dns failure',
    ],
  ],
  [
    'domain_not_found',
    [
      'domain not found',
      'domain name not found',
      'domain does not exist',
      "domain doesn't exist",
      'domain is not found',
      'host not found',
      'host unknown',
      'unknown host',
      'no such domain',
      'unknown domain',
      'bad destination system',
      'nxdomain',
      'no mx record',
      'null mx',
      'nullmx',
      'indicated no smtp service',
      'non-existent hosts',
      'name service error',
    ],
  ],
  [
    'mailbox_not_found',
    [
      'user unknown',
      'unknown user',
      'unknown local part',
      'no such user',
      'no such recipient',
      'no such mailbox',
      'no such address',
      'no such person',
      'no mailbox here',
      'mailbox not found',
      'mailbox unavailable',
      'mailbox does not exist',
      'mailbox disabled',
      'mailbox is disabled',
      'mailbox is inactive',
      'mailbox unknown',
      'user not found',
      'user does not exist',
      'user not exist',
      "user doesn't have",
      'recipient not found',
      'recipnotfound',
      'recipientnotfound',
      'recipient unknown',
      'unknown recipient',
      'recipient does not exist',
      'invalid recipient',
      'invalid mailbox',
      'address unknown',
      'unknown address',
      'address does not exist',
      'address not found',
      'account that you tried to reach',
      'account has been disabled',
      'account is disabled',
      'account disabled',
      'account is not available',
      'account does not exist',
      'no account by that name',
      'not a valid mailbox',
      'not listed in domino directory',
      'not listed in public name',
      'unrouteable address',
      'unroutable address',
      'undeliverable address',
      'not our customer',
      // OpenSMTPD says so of every address that it cannot resolve to a user, lists or not.
      'mailing list expansion problem',
      // Exchange Online refuses unknown recipients of domains with directory-based blocking in these words.
      'recipient address rejected: access denied',
      'recipient address rejected: undeliverable',
      "dosn't exist",
      "doesn't exist",
    ],
  ],
  [
    'policy',
    [
      'policy',
      'policies',
      'denied',
      'relay',
      'greylist',
      'graylist',
      'prohibit',
      'not permitted',
      'not allowed',
      'blocked',
      'virus',
      'malware',
      'content rejected',
      'envelope rejected',
      'message rejected',
      'mail rejected',
      'connection rejected',
      'rejected by',
      'rejected due',
      'rejected because',
      'message refused',
      'mail refused',
      'refused due',
      'security issue',
      'helo',
      'tls required',
      'must issue a starttls',
      'not verified',
      'restricted',
      'closed to',
      'rule imposed',
    ],
  ],
];

/**
 * By subject and detail; the leading class (4 or 5) says only how long it lasts. RFC 3463 and its registry;
 * from X.7.500 on and X.4.310 Microsoft's own, as its list of non-delivery reports explains them.
 */
const enhancedCodes: ReadonlyMap<string, FailureClass> = new Map(
  Object.entries<FailureClass>({
    '1.0': 'mailbox_not_found',
    '1.1': 'mailbox_not_found',
    '1.2': 'domain_not_found',
    '1.3': 'mailbox_not_found',
    '1.4': 'mailbox_not_found',
    '1.6': 'mailbox_not_found',
    '1.10': 'domain_not_found',
    '2.1': 'mailbox_not_found',
    '2.2': 'mailbox_full',
    '2.3': 'message_too_large',
    '3.4': 'message_too_large',
    '4.4': 'domain_not_found',
    '4.5': 'rate_limited',
    '4.310': 'domain_not_found',
    '5.3': 'rate_limited',
    '7.8': 'auth_failure',
    '7.9': 'auth_failure',
    '7.20': 'auth_failure',
    '7.21': 'auth_failure',
    '7.22': 'auth_failure',
    '7.23': 'auth_failure',
    '7.24': 'auth_failure',
    '7.25': 'auth_failure',
    '7.26': 'auth_failure',
    '7.27': 'domain_not_found',
    '7.28': 'rate_limited',
    '7.57': 'auth_failure',
    '7.500': 'rate_limited',
    '7.501': 'spam',
    '7.502': 'spam',
    '7.503': 'spam',
    '7.509': 'auth_failure',
    '7.511': 'spam',
    '7.515': 'auth_failure',
    '7.606': 'spam',
    '7.650': 'rate_limited',
    '7.705': 'rate_limited',
    '7.708': 'spam',
  }),
);

/**
 * By the subject where the detail says nothing (RFC 3463 §3): what is numbered among the mail system, the network or
 * the content is not the mailbox's fault, whatever the basic code would make of it. Subject 5, the protocol, stands
 * before everything in the replies of some, and says nothing at all.
 */
const enhancedSubjects: ReadonlyMap<string, FailureClass> = new Map([
  ['3', 'other'],
  ['4', 'other'],
  ['6', 'other'],
  ['7', 'policy'],
]);

function classifyEnhancedCode(
  subjectAndDetail: string,
  tables: Pick<typeof replyTables, 'enhancedCodes' | 'enhancedSubjects'>,
): FailureClass | undefined {
  return (
    tables.enhancedCodes.get(subjectAndDetail) ?? tables.enhancedSubjects.get(subjectAndDetail.slice(0, 1))
  );
}

/**
 * What RFC 5321 §4.2.3 and RFC 4954 §6 leave to say where there are neither words nor an enhanced code. 450 is none of
 * them: the mailbox may be busy, or the sender greylisted.
 */
const basicCodes: Readonly<Record<string, FailureClass>> = {
  '452 rcpt': 'mailbox_full',
  '530': 'auth_failure',
  '534': 'auth_failure',
  '535': 'auth_failure',
  '538': 'auth_failure',
  '550 rcpt': 'mailbox_not_found',
  '550 content': 'policy',
  '551 rcpt': 'mailbox_not_found',
  '552 rcpt': 'mailbox_full',
  '552 mail': 'message_too_large',
  '552 data': 'message_too_large',
  '552 content': 'message_too_large',
  '553 rcpt': 'mailbox_not_found',
  '554 content': 'policy',
  // RFC 7504: the host takes no mail at all. RFC 7505: the domain says that it takes none.
  '521': 'policy',
  '556': 'domain_not_found',
};

/** RFC 3463 §3.2: these are about the sender's address, and so are all words beside them. */
const senderCodes: ReadonlySet<string> = new Set([
  '1.7',
  '1.8',
  // Exchange Online: the group or mailbox takes mail from its own organization alone. Its words ask for authentication.
  '7.133',
  '7.134',
]);

/** An address is no statement: many live at a `spamfilter`, and every reply repeats the one that it was asked about. */
function withoutAddresses(words: string): string {
  return words.includes('@') ? words.replace(mailAddress, '@') : words;
}

const mailAddress = /[^\s<>()[\]"',;:@]{1,64}@[^\s<>()[\]"',;:@]{1,255}/g;

/** Exchange's own names of errors, such as `RESOLVER.ADR.RecipientNotFound`, are statements. */
const hostName = /(?<![\w.-])(?!resolver\.)(?:[a-z0-9_-]{1,63}\.){1,10}[a-z][a-z-]{1,62}(?![\w-])/g;

/** What replies are classified by. */
export const replyTables = { phrases, enhancedCodes, enhancedSubjects, basicCodes, senderCodes };

/**
 * Why a message was refused or put off.
 *
 * @param code the reply's three digits, or null where there was none (a delivery report may carry only a status)
 * @param enhancedCode as from `enhancedCodeOf`
 * @param text the reply's words; only the first 500 characters are looked at, in one pass a phrase
 * @param tables others only in tests, which ask whether each entry is needed
 */
export function classifyReply(
  code: number | null,
  enhancedCode: string | null,
  text: string,
  phase: ReplyPhase | null,
  tables: typeof replyTables = replyTables,
): FailureClass {
  if (enhancedCode !== null && tables.senderCodes.has(enhancedCode.slice(2))) return 'policy';
  const all = withoutAddresses(text.slice(0, diagnosticCharsMax).toLowerCase());
  // The words of RFC 5321 §4.2.3 for 450, whatever the reason.
  const words = code === 450 ? all.replace('mailbox unavailable', '') : all;
  const byEnhancedCode =
    enhancedCode === null ? undefined : classifyEnhancedCode(enhancedCode.slice(2), tables);
  // What a host is called outweighs no code that is about the address: `550 5.1.1 … (antispam.example.com)`.
  const isAboutAddress = byEnhancedCode !== undefined && /^.\.[12]\./.test(enhancedCode ?? '');
  const statements = isAboutAddress ? words.replace(hostName, '') : words;
  for (const [failureClass, candidates] of tables.phrases) {
    if (candidates.some((phrase) => statements.includes(phrase))) return failureClass;
  }
  if (byEnhancedCode !== undefined) return byEnhancedCode;
  if (code === null) return 'other';
  return tables.basicCodes[`${code} ${phase ?? ''}`] ?? tables.basicCodes[`${code}`] ?? 'other';
}
