import { readStore, type Store } from './store.ts';

/** What `POST /v1/push/devices` is to be called with, beside the contact, whom only the site's own server knows. */
export type Device = {
  platform: 'web';
  installation_id: string;
  endpoint: string;
  p256dh_key: string;
  auth_key: string;
  enablement_status: EnablementStatus;
  sdk_version: string;
};

export type EnablementStatus = 'AUTHORIZED' | 'DENIED' | 'NOT_DETERMINED';

/**
 * Has the site's own server register the device, since no page may hold an API key. Resolves with what the API answered,
 * or with the `device_secret` of that; rejects if it was not registered.
 */
export type Register = (device: Device) => Promise<{ device_secret?: string | null } | null | undefined>;

const sdkVersion = 'web/1';

const statusOf: Readonly<Record<NotificationPermission, EnablementStatus>> = {
  granted: 'AUTHORIZED',
  denied: 'DENIED',
  default: 'NOT_DETERMINED',
};

export type DeviceTools = { store: Store; register: Register; permission: () => NotificationPermission };

/**
 * Registers the browser under an installation id that is made once. Rejects if `register` does; an id for which there
 * never was an answer is then given up: the answer may have been lost that had the secret, which is given only once.
 * Under another id there is another secret, and the device of the lost one ends, since its endpoint has moved.
 */
export async function registerSubscription(
  tools: DeviceTools,
  subscription: PushSubscription,
): Promise<void> {
  const { endpoint, keys } = subscription.toJSON();
  if (endpoint === undefined || keys?.p256dh === undefined || keys.auth === undefined)
    throw new Error('The subscription has no keys');
  const { installationId } = await tools.store.change('state', (state) => ({
    ...state,
    installationId: state.installationId ?? crypto.randomUUID(),
  }));
  await registerDevice(tools, {
    platform: 'web',
    installation_id: installationId ?? '', // Was made just now.
    endpoint,
    p256dh_key: keys.p256dh,
    auth_key: keys.auth,
    enablement_status: statusOf[tools.permission()],
    sdk_version: sdkVersion,
  });
}

/** Tells of a permission that was withdrawn, by the device as it was: the browser has ended its subscription. */
export async function registerPermission(tools: DeviceTools): Promise<void> {
  const { device } = await readStore(tools.store, 'state');
  const enablementStatus = statusOf[tools.permission()];
  if (device === null || device.enablement_status === enablementStatus) return;
  await registerDevice(tools, { ...device, enablement_status: enablementStatus });
}

async function registerDevice({ store, register }: DeviceTools, device: Device): Promise<void> {
  const id = device.installation_id;
  try {
    const answer = await register(device);
    await store.change('state', (state) =>
      state.installationId === id || state.installationId === null
        ? {
            ...state,
            installationId: id,
            device,
            deviceSecret: answer?.device_secret ?? state.deviceSecret,
          }
        : state,
    );
  } catch (cause) {
    await store.change('state', (state) =>
      state.installationId === id && state.device === null ? { ...state, installationId: null } : state,
    );
    throw cause;
  }
}
