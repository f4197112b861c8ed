import { createSandboxSmsProvider } from '../channels/sms/providers/sandbox/sandbox.ts';
import type { SmsIntake, SmsProvider } from '../channels/sms/sms.ts';
import { createSmsIntake, smsEventChannel } from '../messages/messages.ts';
import { createWaker } from '../platform/queue/wake.ts';
import { keepMessage } from '../sandbox/sandbox.ts';
import type { Installation } from './installation.ts';

/** The registry: a new provider of texts is a folder and a line here. */
export function createSmsProvider(installation: Installation): SmsProvider {
  const { config, clock } = installation;
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
    case 'twilio':
      throw new Error(`${config.smsProvider} is not there yet`);
  }
}

/** Where what a provider tells goes, in whichever process it arrives. */
export function createIntake(installation: Installation): SmsIntake {
  return createSmsIntake({ ...installation, onTaken: createWaker(installation, smsEventChannel) });
}

/** Twilio answers STOP, START and HELP by itself, unless that was taken off. */
export function answersKeywords({ config }: Installation): boolean {
  return config.smsProvider !== 'twilio';
}
