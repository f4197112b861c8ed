import { createHash } from 'node:crypto';
import {
  type CompiledEmail,
  compileEmailInSteps,
  digestBodyInSteps,
  type EmailAddress,
  type EmailAttachment,
  type EmailContent,
  type EmailHeader,
  fillEmail,
  type FilledEmail,
  listChunks,
  parseAddress,
  planSignatures,
  type SignaturePlan,
  type SignText,
  signEmail,
  trackHtml,
  type UnfitCopy,
  writeReturnPath,
} from '../channels/email/email.ts';
import type { SendingDomain } from '../domains/domains.ts';
import type { Database } from '../platform/postgres/database.ts';
import type { Secrets } from '../platform/secrets.ts';
import { runInSteps } from '../platform/steps.ts';
import { describeCopy, linkBaseOf, type PersonalParts } from './tracking/personal-copy.ts';
import {
  attachmentContext,
  type DeliverableMessage,
  type Job,
  loadSealedAttachments,
  type MessageFacts,
} from '../messages/messages.ts';
import { repeatingPolicy } from './channel.ts';
import { repeatsUncertain, type StoredEmailContent, type StoredEmailDetails } from './stored.ts';

/** An email that is built once for all of its recipients. */
export type BuiltEmail = {
  compiled: CompiledEmail;
  sender: { envelope: string; domain: SendingDomain };
  signatures: SignaturePlan | 'unreadable' | null;
  /** Null where all copies are the same. */
  personal: PersonalParts | null;
  /**
   * If all copies are the same but for their date, and for how they write international addresses: the last one. Mostly
   * all recipients are written to in a second.
   */
  sharedCopy: { second: number; isInternational: boolean; chunks: Promise<Uint8Array[]> } | null;
  /** If all copies have the same body: its digest for their signatures. */
  bodyDigest: string | null;
  /** Approximate size in memory. */
  sizeBytes: number;
  facts: MessageFacts;
};

export type BuildTools = {
  database: Database;
  secrets: Secrets;
  signText: SignText;
  /** The beginning of links in mail, unless the sending domain has a tracking host. */
  publicUrl: string;
  /** Whether copies get a return path of their own; all others return to their sender. */
  areBouncesRead: boolean;
};

export async function buildEmail(
  tools: BuildTools,
  message: DeliverableMessage,
  domain: SendingDomain,
): Promise<BuiltEmail> {
  const details = message.details as StoredEmailDetails; // As send.ts stored them.
  const stored = message.content as StoredEmailContent;
  const hasAttachments = details.attachments.length > 0;
  const sealed = hasAttachments
    ? await tools.database.asOrganizations([message.organizationId], (transaction) =>
        loadSealedAttachments(transaction, message),
      )
    : [];
  const attachments: EmailAttachment[] = [];
  for (const [ordinal, attachment] of details.attachments.entries()) {
    const content = await unseal(tools.secrets, message.messageId, ordinal, sealed[ordinal]);
    attachments.push({ ...attachment, content });
  }
  const from = parseAddress(message.sender);
  if (from === null) throw new Error('a sender that was accepted is an address');

  const tracking = message.isPersonalised ? details.tracking : domain.tracking;
  const html = stored.html && tracking ? trackHtml(stored.html, tracking) : stored.html;
  const isTracked = html !== stored.html;
  const content: EmailContent = {
    // Fixed at acceptance, so that a retry can be recognised as the same message.
    messageId: `${message.messageId}@${from.domain}`,
    from: { address: message.sender, name: details.fromName },
    replyTo: details.replyTo,
    to: stored.to,
    cc: stored.cc,
    subject: message.subject,
    html,
    text: stored.text,
    attachments,
    headers: [
      ...Object.entries(stored.headers ?? {}).map(([name, value]) => ({ name, value })),
      feedbackIdOf(message),
    ],
  };
  const { signer } = domain;
  const signatures =
    signer === null || signer === 'unreadable' ? signer : planSignatures(tools.signText, signer);
  const compiled = await runInSteps(
    compileEmailInSteps(content, {
      personalised: message.isPersonalised || (isTracked && 'html'),
      isSigned: signatures !== null,
    }),
  );
  return {
    compiled,
    sender: { envelope: from.envelope, domain },
    signatures,
    personal:
      message.isPersonalised || isTracked
        ? {
            linkBase: linkBaseOf(tools.publicUrl, domain.trackingHost),
            campaign: message.isPersonalised
              ? {
                  messageId: message.messageId,
                  senderDomain: from.domain,
                  defaults: stored.defaults ?? {},
                  unsubscribeHost: hasReturnPath(tools, domain) ? domain.returnPathHost : null,
                }
              : null,
          }
        : null,
    sharedCopy: null,
    bodyDigest: null,
    sizeBytes: measureBody(compiled.body),
    // More recipients of a campaign may still be inserted.
    facts: {
      isShared: message.isPersonalised || message.recipientCount > 1,
      hasAttachments,
      ...(repeatsUncertain(details) && { policy: repeatingPolicy }),
    },
  };
}

function measureBody({ written, reduced }: CompiledEmail['body']): number {
  let bytes = 1;
  for (const [index, piece] of written.entries()) {
    bytes += lengthOf(piece);
    const other = reduced?.[index] ?? piece;
    if (other !== piece) bytes += lengthOf(other);
  }
  return bytes;
}

function lengthOf(piece: CompiledEmail['body']['written'][number]): number {
  return typeof piece === 'string' || piece instanceof Uint8Array ? piece.length : piece.written.length;
}

function unseal(
  secrets: Secrets,
  messageId: string,
  ordinal: number,
  sealed: Buffer | undefined,
): Promise<Buffer> {
  if (sealed === undefined) throw new Error(`attachment ${ordinal} of message ${messageId} is not stored`);
  return secrets.decryptInSteps(sealed, attachmentContext(messageId, ordinal));
}

/** The copy of one recipient, signed, in chunks. */
export async function makeCopy(
  tools: { secrets: Secrets },
  built: BuiltEmail,
  job: Job,
  { isInternational }: Pick<EmailAddress, 'isInternational'>,
): Promise<Uint8Array[] | UnfitCopy> {
  const date = job.handOffAt;
  if (date === null) throw new Error('a copy is made when it is handed off');
  if (built.personal !== null) {
    const { values, headers } = describeCopy(tools.secrets, built.personal, job);
    const filled = fillEmail(built.compiled, { date, values, personal: headers, isInternational });
    return typeof filled === 'string' ? filled : signCopy(built, filled, date);
  }
  const second = Math.floor(date.getTime() / 1_000);
  if (built.sharedCopy?.second !== second || built.sharedCopy.isInternational !== isInternational) {
    const chunks = makeSharedCopy(built, date, isInternational);
    built.sharedCopy = { second, isInternational, chunks };
  }
  const { sharedCopy } = built;
  try {
    return await sharedCopy.chunks;
  } catch (cause) {
    // The next recipient tries again.
    if (built.sharedCopy === sharedCopy) built.sharedCopy = null;
    throw cause;
  }
}

async function makeSharedCopy(
  built: BuiltEmail,
  date: Date,
  isInternational: boolean,
): Promise<Uint8Array[]> {
  const filled = fillEmail(built.compiled, { date, values: {}, personal: null, isInternational });
  if (typeof filled === 'string') throw new Error('what has no values cannot become too large by them');
  return signCopy(built, filled, date);
}

async function signCopy(built: BuiltEmail, filled: FilledEmail, date: Date): Promise<Uint8Array[]> {
  const { signatures } = built;
  if (signatures === 'unreadable') throw new Error('the DKIM key cannot be read');
  if (signatures === null) return listChunks(filled);
  // Without placeholders the body is the same for all.
  if (built.compiled.body.reduced === null) {
    built.bodyDigest ??= await runInSteps(digestBodyInSteps(filled.body));
  }
  return listChunks(await signEmail(signatures, filled, date, built.bodyDigest ?? undefined));
}

/**
 * By which Gmail sums complaints up (its Feedback Loop): campaign, category, class and sender, of which it learns only
 * that they are the same as in other mail. Complaints about one organization are no other's.
 */
function feedbackIdOf({
  organizationId,
  messageId,
  category,
  isPersonalised,
}: DeliverableMessage): EmailHeader {
  const token = (text: string) =>
    createHash('sha256').update(`${organizationId}\n${text}`).digest('hex').slice(0, feedbackTokenLength);
  const parts = [
    isPersonalised ? token(`campaign ${messageId}`) : '',
    category === null ? '' : token(`category ${category}`),
    isPersonalised ? 'campaign' : 'transactional',
    token('organization'),
  ];
  return { name: 'Feedback-ID', value: parts.join(':') };
}

/** Gmail wants 5 to 15 characters of the sender. */
const feedbackTokenLength = 12;

/** The return path of this copy. */
export function envelopeSenderOf(
  tools: { secrets: Secrets; areBouncesRead: boolean },
  built: BuiltEmail,
  job: Job,
): string {
  const { envelope, domain } = built.sender;
  return hasReturnPath(tools, domain)
    ? writeReturnPath(tools.secrets, job.organizationId, job, domain.returnPathHost)
    : envelope;
}

/** Whether mail to the domain's return-path host comes to this installation. */
function hasReturnPath({ areBouncesRead }: { areBouncesRead: boolean }, domain: SendingDomain): boolean {
  // Many servers refuse mail whose return path leads nowhere.
  return areBouncesRead && domain.isReturnPathPublished;
}

export function readRecipient(job: Job): EmailAddress {
  const address = parseAddress(job.address);
  if (address === null) throw new Error('a recipient that was accepted is an address');
  return address;
}
