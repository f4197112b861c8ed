import { hostname } from 'node:os';
import { acceptsInbound, takeInbound } from '../email/email.ts';
import type { Installation } from '../installation/installation.ts';
import type { RecipientListeners } from '../messages/messages.ts';
import { startListening } from './listening.ts';

/**
 * Listens for bounces, complaints, mail that unsubscribes and mail to the postmaster if a port is set. Throws a ListenError
 * if that cannot be had.
 */
export async function startBounceIntake(
  installation: Installation,
  feedback: RecipientListeners,
): Promise<{ port: number; stop: () => Promise<void> } | null> {
  const { config, hosts, clock, log } = installation;
  if (config.bounceListener === null) return null;
  // Most installations have a listener on one worker, or on none.
  const { startInboundListener } = await import('../channels/email/inbound/listener.ts');
  const hostName = hosts.bounceHost ?? hostname();
  const tools = { ...installation, ...feedback, hostName };
  const { host, port } = config.bounceListener;
  const settings = {
    hostSetting: 'POSTILLION_BOUNCE_LISTEN',
    portSetting: 'POSTILLION_BOUNCE_PORT',
  } as const;
  return startListening({ host, port, ...settings }, () =>
    startInboundListener({
      host,
      port,
      hostName,
      clock,
      log,
      accepts: (recipient) => acceptsInbound(tools, recipient),
      receive: (mail) => takeInbound(tools, mail),
    }),
  );
}
