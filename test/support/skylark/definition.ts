import { defineEmailProvider } from '../../../src/channels/email/provider-definition.ts';

/**
 * Skylark, an invented provider of email: HTTP with JSON, an id of its own for each message, and signed reports
 * under it. This folder is all that such a provider takes, besides its line in the registry (`registered.ts`).
 */
export const skylark = defineEmailProvider({
  settings: {
    POSTILLION_SKYLARK_URL: {
      type: 'text',
      default: '',
      about: 'The Skylark account for email, as https://KEY@api.skylark.example.',
    },
  },
  requires: [
    { setting: 'POSTILLION_SKYLARK_URL' },
    { setting: 'POSTILLION_PUBLIC_URL', why: 'for its reports' },
  ],
  isChosenBy: 'POSTILLION_SKYLARK_URL',
  words: {
    settings: 'hands it to the account of POSTILLION_SKYLARK_URL',
    greeting: 'Email leaves through Skylark',
    advice: 'Check POSTILLION_SKYLARK_URL, and that the provider can be reached from this machine.',
  },
  isSandbox: false,
  isDirect: false,
  create: async ({ clock, writeToken }, { POSTILLION_SKYLARK_URL: url }) =>
    (await import('./skylark.ts')).createSkylarkProvider({ url, clock, writeToken }),
  callbacks: async ({ POSTILLION_SKYLARK_URL: url }) => ({
    provider: 'Skylark',
    list: (await import('./callbacks.ts')).skylarkCallbacks(new URL(url).username),
  }),
});
