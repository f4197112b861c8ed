import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import { runInSteps } from '../../../../platform/steps.ts';
import type {
  CallbackQuestion,
  CallbackReading,
  ProviderApp,
  ProviderCallback,
  RawCallbackRequest,
} from '../../../provider-callbacks.ts';
import type { ToldByCallback, ToldOfChatApp } from '../../provider.ts';
import { readWebhook } from './webhook.ts';

/**
 * What Meta tells by requests of its own (https://developers.facebook.com/docs/graph-api/webhooks/getting-started). All
 * that concerns an app comes to one address: the installation's app, which may serve many organizations, to one without a
 * token; an organization's own app to one with a token, by which its secret is found. Nothing is read before the
 * signature was checked, over the octets as they came: Meta writes JSON in a way that nobody else does.
 */

/** Meta sends no more. */
const rawBytesMax = 3_145_728;

/** Meta takes 200 alone for a success. */
const takenStatus = 200;

type InstallationApp = { appSecret: string; verifyToken: string };

export function whatsAppCallbacks(app: InstallationApp): readonly ProviderCallback<ToldByCallback>[] {
  return [
    {
      ...{ path: '', rawBytesMax, takenStatus },
      greet: (question) => Promise.resolve(greet(app.verifyToken, question)),
      read: (request) => readSigned(app.appSecret, request, null),
    },
    {
      ...{ path: ':token', rawBytesMax, takenStatus },
      greet: async (question) => greet((await question.findApp())?.verifyToken ?? '', question),
      read: async (request) => {
        const own = await request.findApp();
        return own === null ? 'forged' : readSigned(own.appSecret, request, own);
      },
    },
  ];
}

/** What Meta wants to have back is a number. */
const challengePattern = /^[A-Za-z0-9_-]{1,100}$/;

function greet(verifyToken: string, { query }: CallbackQuestion): string | null {
  const challenge = query['hub.challenge'];
  if (query['hub.mode'] !== 'subscribe' || challenge === undefined) return null;
  if (!isSameText(verifyToken, query['hub.verify_token'] ?? '')) return null;
  return challengePattern.test(challenge) ? challenge : null;
}

/** In constant time, whatever the lengths are. An empty text is the same as none: with it, anyone could ask. */
function isSameText(wanted: string, given: string): boolean {
  const digestOf = (text: string) => createHash('sha256').update(text, 'utf8').digest();
  return timingSafeEqual(digestOf(wanted), digestOf(given)) && wanted !== '';
}

async function readSigned(
  appSecret: string,
  { body, header, readToken }: RawCallbackRequest,
  own: ProviderApp | null,
): Promise<CallbackReading<ToldByCallback>> {
  if (!isSigned(appSecret, body, header('x-hub-signature-256'))) return 'forged';
  const told = await runInSteps(readWebhook(body, readToken));
  if (told === null) return 'unreadable';
  const organizationId = own?.organizationId ?? null;
  return told.filter((item) => mayTell(item, own)).map((item) => ({ ...item, organizationId }));
}

/**
 * An organization that signs for itself could otherwise say what became of another's message. An app may serve several
 * business accounts: what is told of templates and of the account itself must be of the one that the organization has.
 * What people say, and what became of its own messages, may still come from the account that it had before.
 */
function mayTell(told: ToldOfChatApp, own: ProviderApp | null): boolean {
  if (own === null) return true;
  if (told.kind === 'template' || told.kind === 'account' || told.kind === 'people_limit')
    return told.businessAccountId === own.accountId;
  const reference = told.kind === 'status' ? told.report.reference : null;
  return reference === null || reference.organizationId === own.organizationId;
}

/** `sha256=` and 64 hexadecimal digits: HMAC-SHA256 of the octets under the secret of the app. In constant time. */
export function isSigned(appSecret: string, body: Buffer, signature: string | undefined): boolean {
  const [, hex] = /^sha256=([0-9a-f]{64})$/.exec(signature ?? '') ?? [];
  // With an empty key, anyone could sign.
  if (hex === undefined || appSecret === '') return false;
  return timingSafeEqual(createHmac('sha256', appSecret).update(body).digest(), Buffer.from(hex, 'hex'));
}
