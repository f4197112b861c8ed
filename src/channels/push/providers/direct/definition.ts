import { definePushProvider } from '../../provider-definition.ts';
import { chooseVapidSubject } from './web-push/subject.ts';

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
  readSettings: ({ POSTILLION_VAPID_SUBJECT: setting }) => chooseVapidSubject(setting, null),
  findShortcoming: ({ POSTILLION_VAPID_SUBJECT: setting }, publicUrl) =>
    Promise.resolve(
      chooseVapidSubject(setting, publicUrl) !== null
        ? null
        : {
            found: 'Safari gets no pushes, since Apple wants to know who sends them',
            advice: 'Set POSTILLION_VAPID_SUBJECT, or POSTILLION_PUBLIC_URL to a host that others reach.',
          },
    ),
  create: async ({ publicUrl, webPushHosts, ...tools }, { POSTILLION_VAPID_SUBJECT: setting }) => {
    const { createDirectPushProvider } = await import('./direct.ts');
    return createDirectPushProvider({
      ...tools,
      hosts: webPushHosts,
      vapidSubject: chooseVapidSubject(setting, publicUrl),
    });
  },
});
