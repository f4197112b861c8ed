import { readUnsubscribeToken } from '../../channels/email/email.ts';
import { findCopy } from '../bounces.ts';
import type { Mailbox } from '../mailbox.ts';
import { choose, type UnsubscribingTools } from './unsubscribing.ts';

export type UnsubscribingMailTools = UnsubscribingTools & {
  /** Consents have changed. */
  onContactsChanged: () => void;
};

/**
 * The addresses in `List-Unsubscribe`, to which mail clients write when a reader unsubscribes. The address alone says whom:
 * nothing is read of the mail, which may come several times.
 */
export const unsubscribeAddresses: Mailbox<UnsubscribingMailTools> = async (tools, address) => {
  const recipient = await findCopy(tools, address, readUnsubscribeToken);
  if (recipient === null) return null;
  return async () => {
    await choose(tools, { recipient, contactId: null }, { kind: 'unsubscribe' });
    tools.onContactsChanged();
  };
};
