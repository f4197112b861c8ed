import {
  clickPlaceholder,
  openPlaceholder,
  type PersonalHeaders,
  unsubscribePlaceholder,
  writeUnsubscribeAddress,
} from '../../channels/email/email.ts';
import type { Values } from '../../channels/placeholders.ts';
import type { Secrets } from '../../platform/secrets.ts';
import { type Job, writeContactToken, writeRecipientTokens } from '../../messages/messages.ts';

/** The parts in which the copies of one message differ. */
export type PersonalParts = {
  /** The beginning of the URLs for tracking and unsubscribing, without a slash at the end. */
  linkBase: string;
  /** Null for a transactional message: its header is the same for all, and it has no unsubscribe link. */
  campaign: CampaignParts | null;
};

export type CampaignParts = {
  messageId: string;
  senderDomain: string;
  defaults: Values;
  /** Where mail that unsubscribes is received; null if nowhere. */
  unsubscribeHost: string | null;
};

export type PersonalCopy = { values: Values; headers: PersonalHeaders | null };

/** Paths that follow `linkBase`. engagement-pages.ts answers requests for them. */
export const linkPaths = { open: '/o/', click: '/c/', unsubscribe: '/u/' } as const;

/** In the address of the unsubscribe page: see `writeContactToken`. Links in older mail are without it. */
export const contactParameter = 'c';

/**
 * The values and header fields of one copy. The contact's values take precedence over the campaign's defaults, and our
 * own values over both. The same job always gives the same copy.
 */
export function describeCopy(secrets: Secrets, parts: PersonalParts, job: Job): PersonalCopy {
  const { linkBase, campaign } = parts;
  const tokens = writeRecipientTokens(secrets, job);
  const own: Record<string, string> = {
    [clickPlaceholder]: linkBase + linkPaths.click + tokens.tracking,
    [openPlaceholder]: linkBase + linkPaths.open + tokens.tracking,
  };
  if (campaign === null) return { values: own, headers: null };
  const contact =
    job.contactId === null ? '' : `?${contactParameter}=${writeContactToken(secrets, job, job.contactId)}`;
  const unsubscribeUrl = linkBase + linkPaths.unsubscribe + tokens.unsubscribe + contact;
  own[unsubscribePlaceholder] = unsubscribeUrl;
  return {
    // Spreading such objects takes 12 µs, this takes 1. The values are only texts, numbers and booleans, so none can
    // become the prototype, whatever its name.
    values: Object.assign({}, campaign.defaults, job.variables, own),
    headers: {
      messageId: `${campaign.messageId}.${job.ordinal}@${campaign.senderDomain}`,
      to: [job.address],
      // RFC 8058 §3.1. Signed by DKIM like all fields: mailbox providers show their button only then.
      headers: [
        {
          name: 'List-Unsubscribe',
          value: `<${unsubscribeUrl}>${mailUnsubscribing(secrets, campaign, job)}`,
        },
        { name: 'List-Unsubscribe-Post', value: 'List-Unsubscribe=One-Click' },
      ],
    },
  };
}

/** For mail clients that unsubscribe by mail alone (RFC 2369 §3.2), after the link, which others take. */
function mailUnsubscribing(secrets: Secrets, { unsubscribeHost }: CampaignParts, job: Job): string {
  if (unsubscribeHost === null) return '';
  const address = writeUnsubscribeAddress(secrets, job.organizationId, job, unsubscribeHost);
  return `, <mailto:${address}?subject=unsubscribe>`;
}

/**
 * The beginning of links: the sending domain's tracking host if it is known to point here, else the installation's URL.
 */
export function linkBaseOf(publicUrl: string, trackingHost: string | null): string {
  const base = new URL(publicUrl);
  if (trackingHost !== null) base.hostname = trackingHost;
  return base.href.replace(/\/+$/, '');
}
