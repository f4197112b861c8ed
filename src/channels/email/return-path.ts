import { isUuid } from '../../platform/ids.ts';
import { isEqualDigest, type Secrets } from '../../platform/secrets.ts';
import { addressLengthMax } from './address.ts';

/**
 * Addresses of ours that belong to one copy: whatever comes to them says by its address alone which recipient it is
 * about. Each copy has a return path (a variable envelope return path), and a copy of a campaign an address at which mail
 * unsubscribes its recipient.
 *
 * The local part is `bounce-` or `unsub-` and a token: the message's UUID, the recipient's ordinal, and a keyed hash of
 * both with the organization. It holds no address, and who has seen one cannot make another, also not the one of the
 * other kind: servers show the return path to others than the recipient. The organization itself is not in the token:
 * it is found by the host.
 */

/** Which recipient of which message. `messageId` is a UUID in lower case. */
export type ReturnPathReference = { messageId: string; ordinal: number };

export type ReturnPathToken = {
  reference: ReturnPathReference;
  /** Whether the token was written for this organization by this installation; compared in constant time. */
  isSignedFor: (secrets: Secrets, organizationId: string) => boolean;
};

type Kind = { prefix: string; purpose: string };

const returnPath: Kind = { prefix: 'bounce-', purpose: 'return path' };
/** No longer than the other one, for which every host has room. */
const unsubscription: Kind = { prefix: 'unsub-', purpose: 'unsubscription by mail' };

const uuidBytes = 16;
const ordinalBytes = 4;
/** 96 bits. Fewer could be guessed by trying at the listener; more lengthen every envelope. */
const signatureBytes = 12;
const tokenBytes = uuidBytes + ordinalBytes + signatureBytes;
/** Five bits a character. With the prefix it is 59 octets of the 64 that a local part may have. */
const tokenChars = Math.ceil((tokenBytes * 8) / 5);
/** PostgreSQL's largest `integer`. */
const ordinalMax = 2_147_483_647;

/**
 * RFC 4648 §6, in lower case. Some servers change the case of a local part, which base64 would not survive; and the
 * digits that look like letters are left out.
 */
const alphabet = 'abcdefghijklmnopqrstuvwxyz234567';

/**
 * The address that bounces of one recipient go to: `bounce-<token>@<host>`.
 *
 * @throws if the reference is none, or if the host leaves no room in an address (more than 194 octets)
 */
export function writeReturnPath(
  secrets: Secrets,
  organizationId: string,
  reference: ReturnPathReference,
  host: string,
): string {
  return writeAddress(returnPath, secrets, organizationId, { ...reference, host });
}

/** The address at which mail unsubscribes one recipient of a campaign: `unsub-<token>@<host>`. Throws as above. */
export function writeUnsubscribeAddress(
  secrets: Secrets,
  organizationId: string,
  reference: ReturnPathReference,
  host: string,
): string {
  return writeAddress(unsubscription, secrets, organizationId, { ...reference, host });
}

function writeAddress(
  { prefix, purpose }: Kind,
  secrets: Secrets,
  organizationId: string,
  { messageId, ordinal, host }: ReturnPathReference & { host: string },
): string {
  if (!isUuid(messageId)) throw new Error('a return path needs the UUID of a message');
  if (!Number.isInteger(ordinal) || ordinal < 0 || ordinal > ordinalMax)
    throw new Error('a return path needs the ordinal of a recipient');

  const bytes = Buffer.alloc(tokenBytes);
  bytes.write(messageId.replaceAll('-', ''), 'hex');
  bytes.writeUInt32BE(ordinal, uuidBytes);
  const signature = secrets.sign(signedText(organizationId, { messageId, ordinal }), purpose);
  signature.copy(bytes, uuidBytes + ordinalBytes, 0, signatureBytes);
  const address = `${prefix}${encodeBase32(bytes)}@${host}`;
  if (address.length > addressLengthMax) throw new Error('the host of a return path is too long');
  return address;
}

/**
 * What a local part refers to, in whatever case it comes back, or null if it is no return path of ours. Anyone can
 * write such a token: nothing may be done for it before `isSignedFor` has said yes.
 */
export function readReturnPathToken(localPart: string): ReturnPathToken | null {
  return readToken(returnPath, localPart);
}

/** The same for an address at which mail unsubscribes. */
export function readUnsubscribeToken(localPart: string): ReturnPathToken | null {
  return readToken(unsubscription, localPart);
}

function readToken({ prefix, purpose }: Kind, localPart: string): ReturnPathToken | null {
  if (localPart.length !== prefix.length + tokenChars) return null;
  const lowered = localPart.toLowerCase();
  if (!lowered.startsWith(prefix)) return null;
  const bytes = decodeBase32(lowered.slice(prefix.length));
  if (bytes === null) return null;
  const ordinal = bytes.readUInt32BE(uuidBytes);
  if (ordinal > ordinalMax) return null;
  const reference = { messageId: writeUuid(bytes.subarray(0, uuidBytes)), ordinal };
  const signature = bytes.subarray(uuidBytes + ordinalBytes);
  return {
    reference,
    isSignedFor: (secrets, organizationId) =>
      secrets.isSigned(signedText(organizationId, reference), purpose, (digest) =>
        isEqualDigest(signature, digest.subarray(0, signatureBytes)),
      ),
  };
}

function signedText(organizationId: string, reference: ReturnPathReference): string {
  return `${organizationId}\n${reference.messageId.toLowerCase()}\n${reference.ordinal}`;
}

function writeUuid(bytes: Buffer): string {
  const hex = bytes.toString('hex');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

function encodeBase32(bytes: Buffer): string {
  let text = '';
  let pending = 0;
  let pendingBits = 0;
  for (const byte of bytes) {
    pending = (pending << 8) | byte;
    pendingBits += 8;
    while (pendingBits >= 5) {
      pendingBits -= 5;
      text += alphabet.charAt((pending >>> pendingBits) & 31);
    }
    pending &= (1 << pendingBits) - 1;
  }
  return pendingBits === 0 ? text : text + alphabet.charAt(pending << (5 - pendingBits));
}

/** Null for a character that is none, and for bits after the last octet: each token has one spelling. */
function decodeBase32(text: string): Buffer | null {
  const bytes = Buffer.alloc(Math.floor((text.length * 5) / 8));
  let length = 0;
  let pending = 0;
  let pendingBits = 0;
  for (const character of text) {
    const value = alphabet.indexOf(character);
    if (value === -1) return null;
    pending = (pending << 5) | value;
    pendingBits += 5;
    if (pendingBits >= 8) {
      pendingBits -= 8;
      bytes[length] = pending >>> pendingBits;
      length += 1;
      pending &= (1 << pendingBits) - 1;
    }
  }
  return pending === 0 ? bytes : null;
}
