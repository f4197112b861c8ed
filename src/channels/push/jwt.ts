import { type KeyObject, sign } from 'node:crypto';

/** Any of the three services wants one of these, a few times an hour at most: too few for threads or a library. */
export function signJwt(
  { algorithm, key, keyId }: { algorithm: 'ES256' | 'RS256'; key: KeyObject; keyId: string | null },
  claims: Readonly<Record<string, string | number>>,
): string {
  const header = { alg: algorithm, typ: 'JWT', ...(keyId === null ? {} : { kid: keyId }) };
  const signed = `${encodePart(header)}.${encodePart(claims)}`;
  // RFC 7518 §3.4: both numbers of an ECDSA signature side by side, and not in DER. RSA ignores it.
  const signature = sign('sha256', Buffer.from(signed), { key, dsaEncoding: 'ieee-p1363' });
  return `${signed}.${signature.toString('base64url')}`;
}

function encodePart(part: object): string {
  return Buffer.from(JSON.stringify(part)).toString('base64url');
}
