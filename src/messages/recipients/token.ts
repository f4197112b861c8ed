import { isUuid } from '../../platform/ids.ts';
import { isEqualDigest, type Secrets } from '../../platform/secrets.ts';
import type { RecipientKey } from '../keys.ts';

/**
 * The token in links of a copy that says whose copy it is: organization, message and ordinal, and a keyed hash of them.
 * It contains no address, and cannot be forged by somebody who has seen another. Tokens for tracking and for
 * unsubscribing differ: a tracking token is passed on with every shared link, and must not unsubscribe the recipient.
 */
export type TokenPurpose = 'tracking' | 'unsubscribe';

const uuidBytes = 16;
const ordinalBytes = 4;
const namedBytes = 2 * uuidBytes + ordinalBytes;
/** 96 bits: guessing at a million a second takes longer than the sun has. */
const signatureBytes = 12;
const tokenBytes = namedBytes + signatureBytes;
/** Three bytes make four characters. No bits are left over, so each token has only one spelling. */
const tokenPattern = new RegExp(`^[A-Za-z0-9_-]{${(tokenBytes / 3) * 4}}$`);
/** PostgreSQL's largest `integer`. */
const ordinalMax = 2_147_483_647;

/** Where in the hash the signature for each purpose starts. Neither part reveals anything about the other. */
const signatureStarts: Readonly<Record<TokenPurpose, number>> = { tracking: 0, unsubscribe: signatureBytes };

/** The tokens of one copy, 64 characters of base64url (RFC 4648 §5) each. Throws if the key cannot be a recipient's. */
export function writeRecipientTokens(
  secrets: Secrets,
  recipient: RecipientKey,
): Record<TokenPurpose, string> {
  const { organizationId, messageId, ordinal } = recipient;
  if (!isUuid(organizationId) || !isUuid(messageId)) throw new Error('a token needs UUIDs');
  if (!Number.isInteger(ordinal) || ordinal < 0 || ordinal > ordinalMax)
    throw new Error('a token needs the ordinal of a recipient');
  const bytes = Buffer.allocUnsafe(tokenBytes);
  bytes.write((organizationId + messageId).replaceAll('-', ''), 'hex');
  bytes.writeUInt32BE(ordinal, 2 * uuidBytes);
  const digest = secrets.sign(signedText(recipient), hashPurpose);
  const write = (purpose: TokenPurpose) => {
    signatureOf(digest, purpose).copy(bytes, namedBytes);
    return bytes.toString('base64url');
  };
  return { tracking: write('tracking'), unsubscribe: write('unsubscribe') };
}

/**
 * The recipient that a token names, or null if the token was not made by this installation or is for another purpose.
 */
export function readRecipientToken(
  secrets: Secrets,
  purpose: TokenPurpose,
  token: string,
): RecipientKey | null {
  if (!tokenPattern.test(token)) return null;
  const bytes = Buffer.from(token, 'base64url');
  const ordinal = bytes.readUInt32BE(2 * uuidBytes);
  if (ordinal > ordinalMax) return null;
  const recipient = {
    organizationId: readUuid(bytes, 0),
    messageId: readUuid(bytes, uuidBytes),
    ordinal,
  };
  const signature = bytes.subarray(namedBytes);
  const isOurs = secrets.isSigned(signedText(recipient), hashPurpose, (digest) =>
    isEqualDigest(signature, signatureOf(digest, purpose)),
  );
  return isOurs ? recipient : null;
}

const hashPurpose = 'recipient token';

function signedText({ organizationId, messageId, ordinal }: RecipientKey): string {
  return `${organizationId}\n${messageId}\n${ordinal}`.toLowerCase();
}

function signatureOf(digest: Buffer, purpose: TokenPurpose): Buffer {
  const start = signatureStarts[purpose];
  return digest.subarray(start, start + signatureBytes);
}

function readUuid(bytes: Buffer, start: number): string {
  const hex = bytes.toString('hex', start, start + uuidBytes);
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

const contactSignatureBytes = 11;
const contactTokenBytes = uuidBytes + contactSignatureBytes;
const contactTokenPattern = new RegExp(`^[A-Za-z0-9_-]{${(contactTokenBytes / 3) * 4}}$`);

/**
 * What a link to unsubscribe says beside its token: whose contact the recipient is, and a keyed hash of both, 36 characters. By
 * it the link still works when the recipient is too old to be kept.
 */
export function writeContactToken(secrets: Secrets, recipient: RecipientKey, contactId: string): string {
  if (!isUuid(contactId)) throw new Error('a token needs UUIDs');
  const signature = secrets
    .sign(signedContact(recipient, contactId), contactPurpose)
    .subarray(0, contactSignatureBytes);
  return Buffer.concat([Buffer.from(contactId.replaceAll('-', ''), 'hex'), signature]).toString('base64url');
}

/** Null if it was not made by this installation for this recipient. */
export function readContactToken(secrets: Secrets, recipient: RecipientKey, token: string): string | null {
  if (!contactTokenPattern.test(token)) return null;
  const bytes = Buffer.from(token, 'base64url');
  const contactId = readUuid(bytes, 0);
  const signature = bytes.subarray(uuidBytes);
  const isOurs = secrets.isSigned(signedContact(recipient, contactId), contactPurpose, (digest) =>
    isEqualDigest(signature, digest.subarray(0, contactSignatureBytes)),
  );
  return isOurs ? contactId : null;
}

const contactPurpose = 'contact of a recipient';

function signedContact(recipient: RecipientKey, contactId: string): string {
  return `${signedText(recipient)}\n${contactId.toLowerCase()}`;
}

/** The token that a provider of texts is given with a text, and returns in its reports. */
export function writeReportToken(secrets: Secrets, recipient: RecipientKey): string {
  return writeRecipientTokens(secrets, recipient).tracking;
}

/** Null if the token was not made by this installation. */
export function readReportToken(secrets: Secrets, token: string): RecipientKey | null {
  return readRecipientToken(secrets, 'tracking', token);
}
