import { generateKeyPair } from 'node:crypto';
import { promisify } from 'node:util';
import { type CredentialsContent, makeVapidPair } from './credentials.ts';
import type { Platform } from './schema.ts';

/** No project, team or app is called so at Google or Apple. */
const sandboxName = 'postillion-sandbox';

const generate = promisify(generateKeyPair);

/** Credentials that no service knows: in the sandbox, devices can be registered and written to without any account. */
export async function makeSandboxCredentials(platform: Platform): Promise<CredentialsContent> {
  switch (platform) {
    case 'android':
      return {
        platform,
        projectId: sandboxName,
        clientEmail: `${sandboxName}@postillion.test`,
        privateKeyId: sandboxName,
        privateKey: await generatePem('rsa'),
      };
    case 'ios':
      return {
        platform,
        keyId: 'SANDBOXKEY',
        teamId: 'SANDBOXDEV',
        topic: sandboxName,
        privateKey: await generatePem('ec'),
      };
    case 'web':
      return makeVapidPair();
  }
}

async function generatePem(type: 'rsa' | 'ec'): Promise<string> {
  const { privateKey } =
    type === 'rsa'
      ? await generate('rsa', { modulusLength: 2_048 })
      : await generate('ec', { namedCurve: 'P-256' });
  return privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
}
