import type { PushPlatform } from '../channels/push/notification.ts';
import { generateKeyPair } from 'node:crypto';
import { promisify } from 'node:util';
import { type CredentialsContent, makeVapidPair, sandboxName } from './credentials.ts';

const generate = promisify(generateKeyPair);

/** Credentials that no service knows: in the sandbox, devices can be registered and written to without any account. */
export async function makeSandboxCredentials(platform: PushPlatform): Promise<CredentialsContent> {
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
