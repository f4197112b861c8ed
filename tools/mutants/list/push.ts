/** Of push: what is sent to devices, and how. */
import type { Mutant } from '../mutant.ts';

export const push: readonly Mutant[] = [
  {
    file: 'src/channels/push/notification.ts',
    from: 'reservedKeys.includes(key) ||',
    to: '',
    tests: ['src/channels/push/notification.test.ts'],
    named: 'is reserved',
    harm: 'FCM refuses every push with a key that was accepted',
  },
  {
    file: 'src/channels/push/notification.ts',
    from: 'export const webPayloadBytesMax = 3_993;',
    to: 'export const webPayloadBytesMax = 4_096;',
    tests: ['src/channels/push/notification.test.ts'],
    named: 'the web is the narrowest',
    harm: 'a push is accepted that no browser can be sent',
  },
  {
    file: 'src/channels/push/notification.ts',
    from: '.reduce((octets, text) => octets + Buffer.byteLength(text), 0)',
    to: '.reduce((octets, text) => octets + text.length, 0)',
    tests: ['src/channels/push/notification.test.ts'],
    named: 'the octets are those of what is sent',
    harm: 'a push in Chinese is accepted that FCM refuses for its size',
  },
  {
    file: 'src/channels/push/notification.ts',
    from: "const urgency = priority === 'normal' ? 'NORMAL' : 'HIGH';",
    to: "const urgency = priority === 'high' ? 'HIGH' : 'NORMAL';",
    tests: ['src/channels/push/notification.test.ts'],
    named: 'on Android the priority',
    harm: 'a push without a priority comes late to a sleeping phone whose app has the SDK',
  },
];
