import { type DkimKeyPair, generateDkimKeyPair } from '../channels/email/email.ts';
import type { NewId } from '../platform/ids.ts';
import type { Secrets } from '../platform/secrets.ts';
import type { SealedKeyPair } from './store.ts';

/**
 * A new pair under a new selector: a domain that was deleted and registered again, by whomever, never answers to an
 * old signature's name.
 */
export async function createSealedKeyPair(tools: { secrets: Secrets; newId: NewId }): Promise<SealedKeyPair> {
  return sealKeyPair(tools, await generateDkimKeyPair());
}

export function sealKeyPair(
  tools: { secrets: Secrets; newId: NewId },
  { privateKey, publicKey }: DkimKeyPair,
): SealedKeyPair {
  const selector = `pst${tools.newId().replaceAll('-', '').slice(-12)}`;
  return { selector, publicKey, privateKeySealed: tools.secrets.encrypt(privateKey, sealContext(selector)) };
}

/** Rejects as `decryptInSteps` does. */
export function openPrivateKey(
  secrets: Secrets,
  sealed: { selector: string; privateKeySealed: Buffer },
): Promise<Buffer> {
  return secrets.decryptInSteps(sealed.privateKeySealed, sealContext(sealed.selector));
}

function sealContext(selector: string): string {
  return `dkim key ${selector}`;
}
