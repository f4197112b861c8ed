import { createHmac, randomBytes } from 'node:crypto';

/**
 * Signatures of Standard Webhooks 1.0 (github.com/standard-webhooks, spec/standard-webhooks.md): a receiver verifies with
 * any library of that standard. The symmetric kind, `v1`: HMAC-SHA256 over `id.timestamp.body`, with the octets of a secret
 * that is written as `whsec_` and base64.
 */

const secretPrefix = 'whsec_';
/** What the standard asks for at least and allows at most. */
const secretBytesMin = 24;
const secretBytesMax = 64;
/** As long as what HMAC-SHA256 gives: more adds nothing. */
const ownSecretBytes = 32;

export function createWebhookSecret(): string {
  return `${secretPrefix}${randomBytes(ownSecretBytes).toString('base64')}`;
}

export function isWebhookSecret(text: string): boolean {
  return parseWebhookSecret(text) !== null;
}

/** The octets of a secret, 24 to 64; null for what is no secret, or is not written in base64 as everybody writes it. */
export function parseWebhookSecret(text: string): Buffer | null {
  if (!text.startsWith(secretPrefix)) return null;
  const encoded = text.slice(secretPrefix.length);
  const key = Buffer.from(encoded, 'base64');
  // Node reads what it can. Libraries of receivers differ in what else they take, and would sign with other octets.
  if (key.toString('base64') !== encoded) return null;
  return key.length >= secretBytesMin && key.length <= secretBytesMax ? key : null;
}

/** In lower case, as Node writes the names of headers. */
export type SignatureHeaders = {
  'webhook-id': string;
  'webhook-timestamp': string;
  'webhook-signature': string;
};

export type SignedMessage = {
  /** The same at every attempt: by it a receiver notices what it has had. */
  id: string;
  /** Of the attempt, in seconds since 1970: receivers refuse what is older than five minutes. */
  timestampSeconds: number;
  body: Buffer;
};

/**
 * The headers that sign a message with each of the secrets: while one replaces another, receivers that have either verify.
 * Throws if there is none, or one of them is no secret.
 */
export function signWebhook(
  { id, timestampSeconds, body }: SignedMessage,
  secrets: readonly string[],
): SignatureHeaders {
  if (secrets.length === 0) throw new Error('a webhook without a secret cannot be signed');
  const timestamp = String(timestampSeconds);
  const signatures = secrets.map((secret) => {
    const key = parseWebhookSecret(secret);
    if (key === null) throw new Error('a secret of a webhook cannot be read');
    return `v1,${createHmac('sha256', key).update(`${id}.${timestamp}.`).update(body).digest('base64')}`;
  });
  return { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signatures.join(' ') };
}

const userAgent = 'Postillion';

/** The headers of a request that tells of an event, but for those that an endpoint has of its own. */
export type WebhookHeaders = SignatureHeaders & {
  'content-type': string;
  'accept-encoding': string;
  'user-agent': string;
};

/** `atMs`: of the attempt, in milliseconds since 1970. Throws as `signWebhook` does. */
export function composeHeaders(
  { id, body, atMs }: { id: string; body: Buffer; atMs: number },
  secrets: readonly string[],
): WebhookHeaders {
  return {
    'content-type': 'application/json',
    'accept-encoding': 'identity',
    'user-agent': userAgent,
    ...signWebhook({ id, timestampSeconds: Math.floor(atMs / 1_000), body }, secrets),
  };
}
