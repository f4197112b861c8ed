import { createSandboxSmsProvider } from '../channels/sms/providers/sandbox/sandbox.ts';
import { createSmppProvider } from '../channels/sms/providers/smpp/smpp.ts';
import { parseSmppUrl } from '../channels/sms/providers/smpp/url.ts';
import { createTwilioProvider } from '../channels/sms/providers/twilio/twilio.ts';
import { parseTwilioUrl, type TwilioUrl } from '../channels/sms/providers/twilio/url.ts';
import type { SmsIntake, SmsProvider } from '../channels/sms/sms.ts';
import { type Installation, publicUrlOf } from '../installation/installation.ts';
import { writeReportToken } from '../messages/messages.ts';
import type { WebPage } from '../platform/http/route.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { keepMessage } from '../sandbox/sandbox.ts';
import { createSmsIntake } from '../sms/sms.ts';
import { twilioCallbacks, twilioPaths } from './twilio-callbacks.ts';

/** The registry: a new provider of texts is a folder and a line here. */
export function createSmsProvider(installation: Installation): SmsProvider {
  const { config, clock, log, random, secrets } = installation;
  const intake = createIntake(installation);
  switch (config.smsProvider) {
    case 'sandbox':
      return createSandboxSmsProvider({
        clock,
        keep: ({ reference, ...kept }) =>
          keepMessage(installation, { ...kept, ...reference, channel: 'sms' }),
        report: intake.takeReceipt,
      });
    case 'smpp':
      if (config.smppUrl === null) throw new Error('POSTILLION_SMPP_URL is not set');
      return createSmppProvider({
        url: parseSmppUrl(config.smppUrl),
        clock,
        log,
        random,
        intake,
      });
    case 'twilio':
      return createTwilioProvider({
        url: twilioUrlOf(installation),
        clock,
        callbackUrl: (reference) =>
          `${publicUrlOf(config)}${twilioPaths.status}${writeReportToken(secrets, reference)}`,
      });
  }
}

/** Where what a provider tells goes, in whichever process it arrives. */
export function createIntake(installation: Installation): SmsIntake {
  return createSmsIntake({ ...installation, onTaken: createWaker(installation, 'sms_events') });
}

/** What the provider in use tells by requests to this installation. */
export function smsCallbacks(installation: Installation): WebPage[] {
  const { config, secrets, log } = installation;
  if (config.smsProvider !== 'twilio') return [];
  return twilioCallbacks({
    authToken: twilioUrlOf(installation).authToken,
    publicUrl: publicUrlOf(config),
    secrets,
    log,
    intake: createIntake(installation),
  });
}

function twilioUrlOf({ config }: Installation): TwilioUrl {
  if (config.twilioUrl === null) throw new Error('POSTILLION_TWILIO_URL is not set');
  return parseTwilioUrl(config.twilioUrl);
}
