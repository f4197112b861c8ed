import { defineEmailProvider } from '../../provider-definition.ts';
import { parseSmtpUrl } from './url.ts';

export const smtp = defineEmailProvider({
  settings: {
    POSTILLION_SMTP_URL: {
      type: 'text',
      default: '',
      about:
        'The relay for email, as smtp://user:password@host:587 or smtps://host:465. Options after a question mark: connections=32, tls=required|opportunistic|off, insecure=1.',
    },
  },
  requires: [{ setting: 'POSTILLION_SMTP_URL' }],
  isChosenBy: 'POSTILLION_SMTP_URL',
  words: {
    settings: 'hands it to the server of POSTILLION_SMTP_URL',
    greeting: 'Email leaves through your SMTP server',
    advice: 'Check POSTILLION_SMTP_URL, and that the relay can be reached from this machine.',
  },
  isSandbox: false,
  isDirect: false,
  readSettings: ({ POSTILLION_SMTP_URL: url }) => parseSmtpUrl(url),
  // A relay counts the connections of its customer.
  processesMax: ({ POSTILLION_SMTP_URL: url }) => Promise.resolve(parseSmtpUrl(url).connectionsMax),
  create: async ({ clock, heloName, share }, { POSTILLION_SMTP_URL: url }) =>
    (await import('./smtp.ts')).createSmtpProvider({ url, clock, heloName, share }),
});
