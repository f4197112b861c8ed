import { definePushProvider } from '../../provider-definition.ts';

export const direct = definePushProvider({
  settings: {
    POSTILLION_VAPID_SUBJECT: {
      type: 'text',
      default: '',
      about:
        'Whom the push services of browsers may turn to about your pushes, such as mailto:push@example.com or https://example.com. Empty: the host of POSTILLION_PUBLIC_URL. Apple takes no pushes without, and none if the host is an address or known to this network only.',
    },
  },
  requires: [],
  isChosenBy: null,
  words: {
    settings: 'hands them to FCM, APNs and the push services of browsers',
    greeting: 'pushes leave through the push services of devices',
    advice:
      'Check that this machine can reach fcm.googleapis.com, api.push.apple.com and the hosts of POSTILLION_WEB_PUSH_HOSTS on port 443, and that POSTILLION_VAPID_SUBJECT is right.',
  },
  isSandbox: false,
  findShortcoming: async ({ POSTILLION_VAPID_SUBJECT: setting }, publicUrl) => {
    const { chooseVapidSubject } = await import('./web-push/subject.ts');
    // One that is set and wrong keeps the provider from being made.
    if (setting !== '' || chooseVapidSubject('', publicUrl) !== null) return null;
    return {
      found: 'Safari gets no pushes, since Apple wants to know who sends them',
      advice: 'Set POSTILLION_VAPID_SUBJECT, or POSTILLION_PUBLIC_URL to a host that others reach.',
    };
  },
  create: async ({ publicUrl, webPushHosts, ...tools }, { POSTILLION_VAPID_SUBJECT: setting }) => {
    const [{ createDirectPushProvider }, { chooseVapidSubject }] = await Promise.all([
      import('./direct.ts'),
      import('./web-push/subject.ts'),
    ]);
    return createDirectPushProvider({
      ...tools,
      hosts: webPushHosts,
      vapidSubject: chooseVapidSubject(setting, publicUrl),
    });
  },
});
