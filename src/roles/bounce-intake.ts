import { hostname } from 'node:os';
import { acceptsReturnPath, takeBounce } from '../email/email.ts';
import type { Installation } from '../installation/installation.ts';
import type { FeedbackListeners } from '../messages/messages.ts';
import { startListening } from './listening.ts';

/** Listens for bounces and complaints if a port is set. Throws a ListenError if that cannot be had. */
export async function startBounceIntake(
  installation: Installation,
  feedback: FeedbackListeners,
): Promise<{ port: number; stop: () => Promise<void> } | null> {
  const { config, clock, log } = installation;
  if (config.bounceListener === null) return null;
  // Most installations have a listener on one worker, or on none.
  const { startInboundListener } = await import('../channels/email/inbound/listener.ts');
  const tools = { ...installation, ...feedback };
  const { host, port } = config.bounceListener;
  const settings = {
    hostSetting: 'POSTILLION_BOUNCE_LISTEN',
    portSetting: 'POSTILLION_BOUNCE_PORT',
  } as const;
  return startListening({ host, port, ...settings }, () =>
    startInboundListener({
      host,
      port,
      hostName: config.bounceHost ?? hostname(),
      clock,
      log,
      accepts: (recipient) => acceptsReturnPath(tools, recipient),
      receive: (mail) => takeBounce(tools, mail),
    }),
  );
}
