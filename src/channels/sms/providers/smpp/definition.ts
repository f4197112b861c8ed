import { defineSmsProvider } from '../../provider-definition.ts';
import { parseSmppUrl } from './url.ts';

export const smpp = defineSmsProvider({
  settings: {
    POSTILLION_SMPP_URL: {
      type: 'text',
      default: '',
      about:
        'The SMSC for texts, as smpp://system_id:password@host:2775 or smpps:// with TLS. Its options are in docs/sms.md.',
    },
  },
  requires: [{ setting: 'POSTILLION_SMPP_URL' }],
  isChosenBy: 'POSTILLION_SMPP_URL',
  words: {
    settings: 'binds to the SMSC of POSTILLION_SMPP_URL',
    greeting: 'texts leave by SMPP',
    advice: 'Check POSTILLION_SMPP_URL, and that the provider can be reached from this machine.',
  },
  isSandbox: false,
  readSettings: ({ POSTILLION_SMPP_URL: url }) => parseSmppUrl(url),
  // The account has one window, one rate and so many binds.
  processesMax: () => Promise.resolve(1),
  create: async ({ clock, log, random, intake }, { POSTILLION_SMPP_URL: url }) => {
    const { createSmppProvider } = await import('./smpp.ts');
    return createSmppProvider({ url: parseSmppUrl(url), clock, log, random, intake });
  },
});
