import type { HappenedEvent } from '../../webhooks/webhooks.ts';
import type { MessageChannel } from '../channel.ts';
import type { RecipientKey } from '../keys.ts';
import type { ChangedRecipient, Happened } from './store.ts';

/** What programs may want to hear of these recipients. */
export function eventsOf(
  changed: readonly ChangedRecipient[],
  channelOf: (recipient: RecipientKey) => MessageChannel,
): HappenedEvent[] {
  return changed.flatMap((recipient) =>
    recipient.happened.flatMap((happened) => {
      const type = channelOf(recipient).eventOf(happened.what, happened.failure?.class ?? null);
      if (type === null) return [];
      const { organizationId, messageId, ordinal, contactId } = recipient;
      return [
        {
          organizationId,
          type,
          at: happened.at,
          ofCampaign: contactId !== null,
          subjectId: messageId,
          ordinal,
          facts: factsOf(happened),
        },
      ];
    }),
  );
}

/** What a recipient's row may say otherwise by the time it is told. The words of a provider may be personal: they stay there. */
export type RecipientFacts = {
  drop_reason?: string;
  actor?: 'human' | 'machine';
  failure?: {
    type: 'hard' | 'soft';
    class: string;
    smtp_code: number | null;
    enhanced_code: string | null;
  };
};

function factsOf({ dropReason, failure, actor }: Happened): RecipientFacts | null {
  const facts: RecipientFacts = {
    ...(dropReason !== undefined && { drop_reason: dropReason }),
    ...(actor !== undefined && { actor }),
    ...(failure && {
      failure: {
        type: failure.type,
        class: failure.class,
        smtp_code: failure.smtpCode,
        enhanced_code: failure.enhancedCode,
      },
    }),
  };
  return Object.keys(facts).length === 0 ? null : facts;
}
