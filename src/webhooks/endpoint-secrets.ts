import type { Secrets } from '../platform/secrets.ts';

/** Secrets that sign for an endpoint, the newest first; what was replaced signs until its end, in milliseconds since 1970. */
export type EndpointSecrets = readonly { secret: string; endsAt: number | null }[];

export function sealSecrets(secrets: Secrets, webhookId: string, own: EndpointSecrets): Buffer {
  return secrets.encrypt(Buffer.from(JSON.stringify(own)), sealContext(webhookId));
}

export function openSecrets(secrets: Secrets, webhookId: string, sealed: Buffer): EndpointSecrets {
  // What `sealSecrets` wrote.
  return JSON.parse(secrets.decrypt(sealed, sealContext(webhookId)).toString()) as EndpointSecrets;
}

/** Those that sign at an instant. */
export function secretsAt(own: EndpointSecrets, at: Date): string[] {
  return own.filter(({ endsAt }) => endsAt === null || endsAt > at.getTime()).map(({ secret }) => secret);
}

function sealContext(webhookId: string): string {
  return `webhook ${webhookId}`;
}
