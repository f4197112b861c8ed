import {
  clickPlaceholder,
  openPlaceholder,
  type PersonalHeaders,
  unsubscribePlaceholder,
} from '../../channels/email/email.ts';
import type { Values } from '../../channels/placeholders.ts';
import type { Secrets } from '../../platform/secrets.ts';
import { type Job, writeRecipientTokens } from '../../messages/messages.ts';

/** What makes the copies of one message differ. */
export type PersonalParts = {
  /** What the addresses of tracking and unsubscribing begin with, without a slash at the end. */
  linkBase: string;
  /** Null for a transactional message, which has one header for all and is not unsubscribed from. */
  campaign: { messageId: string; senderDomain: string; defaults: Values } | null;
};

export type PersonalCopy = { values: Values; headers: PersonalHeaders | null };

/** Of what stands behind `linkBase`: whoever asks for it is answered by engagement-pages.ts. */
export const linkPaths = { open: '/o/', click: '/c/', unsubscribe: '/u/' } as const;

/**
 * The values and fields of one copy. What the contact has goes before what the campaign says for those who have
 * nothing, and what is ours goes before both. The same job gives the same copy every time.
 */
export function describeCopy(secrets: Secrets, parts: PersonalParts, job: Job): PersonalCopy {
  const { linkBase, campaign } = parts;
  const tokens = writeRecipientTokens(secrets, job);
  const own: Record<string, string> = {
    [clickPlaceholder]: linkBase + linkPaths.click + tokens.tracking,
    [openPlaceholder]: linkBase + linkPaths.open + tokens.tracking,
  };
  if (campaign === null) return { values: own, headers: null };
  const unsubscribeUrl = linkBase + linkPaths.unsubscribe + tokens.unsubscribe;
  own[unsubscribePlaceholder] = unsubscribeUrl;
  return {
    // Not by spreading, which takes 12 µs of such objects, and this 1. Texts, numbers and booleans are all there is:
    // none of them can become the prototype, whatever its name.
    values: Object.assign({}, campaign.defaults, job.variables, own),
    headers: {
      messageId: `${campaign.messageId}.${job.ordinal}@${campaign.senderDomain}`,
      to: [job.address],
      // RFC 8058 §3.1. Signed by DKIM like all fields: without that no provider shows its button.
      headers: [
        { name: 'List-Unsubscribe', value: `<${unsubscribeUrl}>` },
        { name: 'List-Unsubscribe-Post', value: 'List-Unsubscribe=One-Click' },
      ],
    },
  };
}

/** Where links lead to: the domain's own host where it is known to point here, or else the installation's address. */
export function linkBaseOf(publicUrl: string, trackingHost: string | null): string {
  const base = new URL(publicUrl);
  if (trackingHost !== null) base.hostname = trackingHost;
  return base.href.replace(/\/+$/, '');
}
