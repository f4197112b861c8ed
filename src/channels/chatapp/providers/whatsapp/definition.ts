import { systemClock } from '../../../../platform/clock.ts';
import { defineChatAppProvider } from '../../provider-definition.ts';
import { findVersionShortcoming, parseGraphVersion } from './graph-versions.ts';
import { parseWhatsAppUrl } from './url.ts';

export const whatsapp = defineChatAppProvider({
  settings: {
    POSTILLION_WHATSAPP_URL: {
      type: 'url',
      default: 'https://graph.facebook.com',
      about: "Where WhatsApp's API is. Another one than Meta's is of use for tests.",
    },
    POSTILLION_WHATSAPP_GRAPH_VERSION: {
      type: 'text',
      default: 'v25.0',
      about:
        "The version of Meta's Graph API. Each works for about two years; the doctor warns 90 days before the end.",
    },
    POSTILLION_WHATSAPP_APP_SECRET: {
      type: 'text',
      default: '',
      about:
        "The secret of the installation's own app at Meta, which signs what comes to POSTILLION_PUBLIC_URL/callbacks/whatsapp. Empty: nothing is taken there, and each organization needs an app of its own, with its secret in its credentials.",
    },
    POSTILLION_WHATSAPP_VERIFY_TOKEN: {
      type: 'text',
      default: '',
      about:
        'A word of your choice that you enter at Meta together with the address /callbacks/whatsapp, and by which Meta shows that it asks for you.',
    },
  },
  requires: [{ setting: 'POSTILLION_PUBLIC_URL', why: 'for its reports' }],
  isChosenBy: null,
  words: {
    settings: 'hands them to the WhatsApp Business Cloud API',
    greeting: 'chat-app messages leave through WhatsApp',
    advice: 'Check that this machine can reach the host of POSTILLION_WHATSAPP_URL on port 443.',
  },
  isSandbox: false,
  readSettings: ({ POSTILLION_WHATSAPP_URL: url, POSTILLION_WHATSAPP_GRAPH_VERSION: version }) => [
    parseWhatsAppUrl(url),
    parseGraphVersion(version),
  ],
  findShortcoming: ({
    POSTILLION_WHATSAPP_GRAPH_VERSION: version,
    POSTILLION_WHATSAPP_APP_SECRET: appSecret,
    POSTILLION_WHATSAPP_VERIFY_TOKEN: verifyToken,
  }) => {
    // A day more or less does not matter here, so that the clock of this machine will do.
    const shortcoming = findVersionShortcoming(version, systemClock.nowMs());
    if (shortcoming !== null || (appSecret === '') === (verifyToken === ''))
      return Promise.resolve(shortcoming);
    const missing = appSecret === '' ? 'POSTILLION_WHATSAPP_APP_SECRET' : 'POSTILLION_WHATSAPP_VERIFY_TOKEN';
    return Promise.resolve({
      found: "nothing can be taken from the installation's app at Meta",
      advice: `Set ${missing} as well.`,
    });
  },
  // A number has one pace, which is learned and slowed from its answers.
  processesMax: () => Promise.resolve(1),
  create: async (
    { clock, random, take, writeToken },
    { POSTILLION_WHATSAPP_URL: url, POSTILLION_WHATSAPP_GRAPH_VERSION: version },
  ) => {
    const { createWhatsAppProvider } = await import('./whatsapp.ts');
    return createWhatsAppProvider({
      ...{ clock, random, take, writeToken },
      origin: parseWhatsAppUrl(url),
      version: parseGraphVersion(version),
    });
  },
  callbacks: async ({
    POSTILLION_WHATSAPP_APP_SECRET: appSecret,
    POSTILLION_WHATSAPP_VERIFY_TOKEN: verifyToken,
  }) => {
    const { whatsAppCallbacks } = await import('./callbacks.ts');
    return { provider: 'WhatsApp', list: whatsAppCallbacks({ appSecret, verifyToken }) };
  },
});
