import { defineSmsProvider } from '../../provider-definition.ts';
import { parseTwilioUrl } from './url.ts';

export const twilio = defineSmsProvider({
  settings: {
    POSTILLION_TWILIO_URL: {
      type: 'text',
      default: '',
      about:
        'The Twilio account for texts, as https://ACCOUNT_SID:AUTH_TOKEN@api.twilio.com. Its reports come to POSTILLION_PUBLIC_URL, which must be set too.',
    },
  },
  requires: [
    { setting: 'POSTILLION_TWILIO_URL' },
    { setting: 'POSTILLION_PUBLIC_URL', why: 'for its reports' },
  ],
  isChosenBy: 'POSTILLION_TWILIO_URL',
  words: {
    settings: 'hands them to the account of POSTILLION_TWILIO_URL',
    greeting: 'texts leave through Twilio',
    advice: 'Check POSTILLION_TWILIO_URL, and that the provider can be reached from this machine.',
  },
  isSandbox: false,
  readSettings: ({ POSTILLION_TWILIO_URL: url }) => parseTwilioUrl(url),
  // The account has a limit of requests under way.
  processesMax: () => Promise.resolve(1),
  create: async ({ clock, callbackUrl }, { POSTILLION_TWILIO_URL: url }) => {
    const [{ createTwilioProvider }, { statusPath }] = await Promise.all([
      import('./twilio.ts'),
      import('./callbacks.ts'),
    ]);
    return createTwilioProvider({
      url: parseTwilioUrl(url),
      clock,
      callbackUrl: (reference) => callbackUrl(statusPath, reference),
    });
  },
  callbacks: async ({ POSTILLION_TWILIO_URL: url }) => {
    const { twilioCallbacks } = await import('./callbacks.ts');
    return { provider: 'Twilio', list: twilioCallbacks(parseTwilioUrl(url).authToken) };
  },
});
