import { findConsentHolder, hasOptedOutOfChannel } from '../audience/audience.ts';
import { chatAppProviders } from '../channels/chatapp/providers/registry.ts';
import { isNumericName } from '../channels/sms/sms.ts';
import { smsProviders } from '../channels/sms/providers/registry.ts';
import { hasStoppedMarketing } from '../chatapp/chatapp.ts';
import type { Installation } from '../installation/installation.ts';
import { now } from '../platform/clock.ts';
import type { AnsweredMessage, Replies } from '../sandbox/routes.ts';
import { createIntake as createChatAppIntake } from './providers/chatapp.ts';
import { createIntake as createSmsIntake } from './providers/sms.ts';

/**
 * What people say to messages of the sandbox goes into the same intakes as what providers report. The sandbox must be the
 * provider still: with another one, the number may be that of a person who has said nothing.
 */
export function createReplies(installation: Installation): Replies {
  const { config, database, clock, newId, secrets } = installation;
  const tellOfText = createSmsIntake(installation);
  const tellOfChatApp = createChatAppIntake(installation);
  const isInSandbox = {
    sms: smsProviders[config.smsProvider].isSandbox,
    chatapp: chatAppProviders[config.chatAppProvider].isSandbox,
  };

  const findObstacle = ({ channel, sender }: AnsweredMessage): string | null => {
    if (channel !== 'sms' && channel !== 'chatapp')
      return 'Only texts and chat-app messages can be answered.';
    if (!isInSandbox[channel])
      return 'The sandbox is not the provider of this channel any more, so that nothing can be said in it.';
    return channel === 'sms' && !isNumericName(sender)
      ? 'Its sender is a name, and only numbers can be answered.'
      : null;
  };

  return {
    findObstacle: (message) => Promise.resolve(findObstacle(message)),
    describe: ({ organizationId, channel, recipient: address }) => {
      const asked = channel === 'sms' ? 'sms' : 'chatapp';
      const number = { organizationId, address };
      return database.asOrganizations([organizationId], async (transaction) => {
        const holder = await findConsentHolder(transaction, asked, { organizationId, addressKey: address });
        return {
          opted_out: await hasOptedOutOfChannel(transaction, { clock, secrets }, asked, number),
          marketing_stopped: asked === 'sms' ? null : await hasStoppedMarketing(transaction, number),
          consent: holder?.consent ?? null,
        };
      });
    },
    take: async ({ organizationId, channel, recipient, sender }, said) => {
      const at = now(clock);
      if (channel === 'sms') {
        // The page lets nobody set anything else there.
        const text = said.kind === 'text' ? said.text : '';
        await tellOfText.takeInbound({ providerMessageId: null, from: recipient, senderName: sender, text });
        return;
      }
      const person = { waId: recipient.replace('+', ''), userId: null };
      // As the sandbox names the account of an organization.
      const common = { organizationId, businessAccountId: organizationId, person, at };
      await tellOfChatApp(
        said.kind === 'text'
          ? { ...common, kind: 'inbound', providerMessageId: `sandbox.${newId()}`, text: said.text }
          : { ...common, kind: 'marketing_preference', value: said.value },
      );
    },
  };
}
