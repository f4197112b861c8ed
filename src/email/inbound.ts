import { type BounceTools, returnPaths } from './bounces.ts';
import { type Mailbox, readInboundAddress, type TakeMail } from './mailbox.ts';
import { postmaster, type PostmasterTools } from './postmaster.ts';
import { unsubscribeAddresses, type UnsubscribingMailTools } from './tracking/unsubscribing-mail.ts';

export type InboundTools = BounceTools & PostmasterTools & UnsubscribingMailTools;

/** Where mail from outside goes, by the address that it is for. What none of them has is refused. */
const mailboxes: readonly Mailbox<InboundTools>[] = [returnPaths, unsubscribeAddresses, postmaster];

export async function acceptsInbound(tools: InboundTools, recipient: string): Promise<boolean> {
  return (await findMailbox(tools, recipient)) !== null;
}

/** What was accepted, but has no mailbox any more, is dropped. */
export async function takeInbound(
  tools: InboundTools,
  { recipient, source }: { recipient: string; source: Uint8Array },
): Promise<void> {
  const take = await findMailbox(tools, recipient);
  await take?.(source);
}

async function findMailbox(tools: InboundTools, recipient: string): Promise<TakeMail | null> {
  const address = readInboundAddress(recipient);
  for (const mailbox of mailboxes) {
    const take = await mailbox(tools, address);
    if (take !== null) return take;
  }
  return null;
}
