import { createDirectPushProvider } from '../src/channels/push/providers/direct/direct.ts';
import { createHttpClient } from '../src/channels/http2/client.ts';
import { readConfig } from '../src/config.ts';
import { shareApnsToken } from '../src/devices/devices.ts';
import { openInstallation } from '../src/installation/installation.ts';
import { startDelivery } from '../src/messages/messages.ts';
import { createLog } from '../src/platform/log.ts';
import { createPushDelivery } from '../src/push/push.ts';
import { messageChannels } from '../src/roles/channels.ts';
import { certificateForTests } from '../test/support/certificate-for-tests.ts';

/**
 * A worker that delivers pushes as `serve --role worker` does, but finds the services of all platforms at one origin:
 * `push-worker-process.ts DATA_DIR ORIGIN`.
 */
const [dataDirectory = '', origin = ''] = process.argv.slice(2);
const config = readConfig({ POSTILLION_DATA_DIR: dataDirectory });
const installation = await openInstallation(config, await createLog('warn', { role: 'worker' }));
const pushProvider = createDirectPushProvider({
  ...installation,
  vapidSubject: 'https://push.example.com',
  hosts: [new URL(origin).host],
  shareApnsToken: (...parameters) => shareApnsToken(installation, ...parameters),
  connect: ({ lookup: _lookup, ...options }) =>
    createHttpClient({ ...options, origin, authorities: certificateForTests }),
});
const delivery = startDelivery({
  ...installation,
  onCampaignProgress: () => undefined,
  onContactsChanged: () => undefined,
  channels: messageChannels,
  deliveries: [
    createPushDelivery({ ...installation, pushProvider, webPushHosts: installation.config.webPushHosts }),
  ],
});
process.once('SIGTERM', () => {
  void delivery
    .stop()
    .then(() => pushProvider.close())
    .then(() => installation.close())
    .finally(() => process.exit());
});
console.log(JSON.stringify({ ready: true }));
