import type { Destination } from '../platform/outbound/destination.ts';

/** What became of an attempt without an answer, in words for whoever runs the receiver. */

const secondsMax = 15;

/** What an attempt waits for. */
export type Phase = 'lookup' | 'connection' | 'answer';

type Target = Pick<Destination, 'host' | 'port'>;

export function describeTimeout(phase: Phase, { host, port }: Target): string {
  switch (phase) {
    case 'lookup':
      return `The name servers of ${host} did not answer within ${secondsMax} seconds.`;
    case 'connection':
      return `There was no connection to ${host}, port ${port}, within ${secondsMax} seconds.`;
    case 'answer':
      return `There was no answer within ${secondsMax} seconds.`;
    default:
      return phase satisfies never;
  }
}

/** By the codes of Node.js, OpenSSL and undici. */
const sentences: Readonly<Record<string, (target: Target) => string>> = {
  ECONNREFUSED: ({ host, port }) => `${host} refused the connection at port ${port}.`,
  ETIMEDOUT: unreachable,
  EHOSTUNREACH: unreachable,
  ENETUNREACH: unreachable,
  ERR_TLS_CERT_ALTNAME_INVALID: ({ host }) => `The certificate is for other names than ${host}.`,
  CERT_HAS_EXPIRED: ({ host }) => `The certificate of ${host} has expired.`,
  CERT_NOT_YET_VALID: ({ host }) => `The certificate of ${host} is not valid yet.`,
  DEPTH_ZERO_SELF_SIGNED_CERT: ({ host }) => `The certificate of ${host} is signed by itself.`,
  SELF_SIGNED_CERT_IN_CHAIN: untrusted,
  UNABLE_TO_GET_ISSUER_CERT: untrusted,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: untrusted,
  // The usual mistake: the server sends its own certificate, and not those between it and the authority.
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: untrusted,
  UND_ERR_HEADERS_OVERFLOW: () => 'The headers of the answer are larger than 16 kB.',
};

function unreachable({ host, port }: Target): string {
  return `${host} cannot be reached at port ${port}.`;
}

function untrusted({ host }: Target): string {
  return `The certificate of ${host} is from an authority that is not known, or the certificates between them are missing.`;
}

/** `isConnected`: the connection was there, and the request was being sent, or had been. */
export function describeFailure(error: Error, isConnected: boolean, target: Target): string {
  const code = 'code' in error && typeof error.code === 'string' ? error.code : '';
  const sentence = Object.hasOwn(sentences, code) ? sentences[code] : undefined;
  if (sentence !== undefined) return sentence(target);
  // undici has no codes of its own for these.
  if (error.name === 'HTTPParserError') return 'The answer is not HTTP/1.1.';
  if (isConnected) return 'The connection was closed before there was an answer.';
  if (code.startsWith('ERR_SSL_') || code === 'EPROTO')
    return `${target.host} speaks no TLS 1.2 or newer at port ${target.port}.`;
  return `There was no connection to ${target.host}, port ${target.port}.`;
}

/** What is wrong with an answer that is no success. */
export function describeStatus(status: number): string {
  if (status === 410) return 'The answer was 410: the endpoint wants no more webhooks.';
  if (status >= 300 && status < 400)
    return `The answer was ${status}: redirects are not followed. Give the URL to which it leads.`;
  return `The answer was ${status}.`;
}
