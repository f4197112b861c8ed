import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  composeForApns,
  composeForFcm,
  composeForWeb,
  fitsEveryPlatform,
  isReservedDataKey,
  payloadSize,
  type PushContent,
} from './notification.ts';

const messageId = '01934f2a-7c11-7000-8000-0123456789ab';

const smallest: PushContent = {
  title: 'T',
  body: 'B',
  imageUrl: null,
  iconUrl: null,
  deepLink: null,
  androidChannelId: null,
  priority: null,
  actionButtons: [],
  dataPayload: {},
};

const everything: PushContent = {
  title: 'Your parcel',
  body: 'It comes "today" 📦',
  imageUrl: 'https://example.test/parcel.png',
  iconUrl: 'https://example.test/icon.png',
  deepLink: 'shop://parcels/7',
  androidChannelId: 'parcels',
  priority: 'normal',
  actionButtons: [
    { actionId: 'track', label: 'Track', deepLink: 'shop://track/7' },
    { actionId: 'later', label: 'Later', deepLink: null },
  ],
  dataPayload: { parcel: '7', title: 'of the app' },
};

const actions = [
  { id: 'track', label: 'Track', link: 'shop://track/7' },
  { id: 'later', label: 'Later' },
];

const read = (json: Buffer): unknown => JSON.parse(json.toString('utf8'));

test('a browser gets all of it under plain names, and the data of the app by itself', () => {
  expect(read(composeForWeb(messageId, everything))).toEqual({
    id: messageId,
    title: 'Your parcel',
    body: 'It comes "today" 📦',
    image: 'https://example.test/parcel.png',
    icon: 'https://example.test/icon.png',
    link: 'shop://parcels/7',
    actions,
    data: { parcel: '7', title: 'of the app' },
  });
  expect(read(composeForWeb(messageId, smallest))).toEqual({ id: messageId, title: 'T', body: 'B' });
});

test('an iPhone gets the data of the app beside what is Apple’s and what is ours', () => {
  expect(read(composeForApns(messageId, everything))).toEqual({
    parcel: '7',
    title: 'of the app',
    aps: {
      alert: { title: 'Your parcel', body: 'It comes "today" 📦' },
      sound: 'default',
      'mutable-content': 1,
    },
    postillion_message: {
      id: messageId,
      image: 'https://example.test/parcel.png',
      link: 'shop://parcels/7',
      actions,
    },
  });
  expect(read(composeForApns(messageId, smallest))).toEqual({
    aps: { alert: { title: 'T', body: 'B' }, sound: 'default', 'mutable-content': 1 },
    postillion_message: { id: messageId },
  });
});

test('an Android app with the SDK gets data only, all of it texts', () => {
  expect(composeForFcm(messageId, everything, true)).toEqual({
    android: { priority: 'NORMAL' },
    data: {
      parcel: '7',
      title: 'of the app',
      postillion_message_id: messageId,
      postillion_title: 'Your parcel',
      postillion_body: 'It comes "today" 📦',
      postillion_image: 'https://example.test/parcel.png',
      postillion_icon: 'https://example.test/icon.png',
      postillion_link: 'shop://parcels/7',
      postillion_channel: 'parcels',
      postillion_actions: JSON.stringify(actions),
    },
  });
});

test('an Android app without the SDK gets what the system can show, tagged with the message, and the rest as data', () => {
  expect(composeForFcm(messageId, everything, false)).toEqual({
    notification: {
      title: 'Your parcel',
      body: 'It comes "today" 📦',
      image: 'https://example.test/parcel.png',
    },
    android: { priority: 'NORMAL', notification: { tag: messageId, channel_id: 'parcels' } },
    data: {
      parcel: '7',
      title: 'of the app',
      postillion_message_id: messageId,
      postillion_icon: 'https://example.test/icon.png',
      postillion_link: 'shop://parcels/7',
      postillion_actions: JSON.stringify(actions),
    },
  });
});

test.each([
  ['high', 'HIGH'],
  ['normal', 'NORMAL'],
  [null, 'HIGH'],
] as const)('on Android the priority %s is %s, with the SDK and without', (priority, urgency) => {
  for (const isInstrumented of [true, false]) {
    expect(composeForFcm(messageId, { ...smallest, priority }, isInstrumented).android.priority).toBe(
      urgency,
    );
  }
});

test.each([
  ...['postillion_', 'postillion_x', 'gcm', 'gcm.n', 'gcmx', 'google', 'google.c.a.e', 'googlex'],
  ...['aps', 'from', 'notification', 'message_type', 'collapse_key'],
])('the key %s is reserved', (key) => {
  expect(isReservedDataKey(key)).toBe(true);
});

test.each(['postillion', 'post', 'aps2', 'x_gcm', 'my_google', 'From', 'notifications', 'data', 'id', ''])(
  'the key %j is free',
  (key) => {
    expect(isReservedDataKey(key)).toBe(false);
  },
);

test('the longest title and body fit, in whatever letters', () => {
  for (const letter of ['a', 'ж', '字', '"', '\\']) {
    const content = { ...smallest, title: letter.repeat(200), body: letter.repeat(1_000) };
    expect(fitsEveryPlatform(content), letter).toBe(true);
  }
});

test('the web is the narrowest: 3,993 octets of its JSON fit, and one more does not', () => {
  const rest = 3_993 - payloadSize({ ...smallest, dataPayload: { k: '' } }).bytes;
  const filled = { ...smallest, dataPayload: { k: 'a'.repeat(rest) } };
  expect(payloadSize(filled)).toEqual({ platform: 'web', bytes: 3_993, bytesMax: 3_993 });
  expect(composeForWeb(messageId, filled)).toHaveLength(3_993);
  expect(fitsEveryPlatform(filled)).toBe(true);
  expect(fitsEveryPlatform({ ...filled, body: 'BB' })).toBe(false);
});

test('what only Android is told counts there: 4,096 octets of keys and values fit, and one more does not', () => {
  // Nothing is escaped there, and nothing of it goes to the others.
  const content = (characters: number) => ({
    ...smallest,
    androidChannelId: `渠道${'c'.repeat(characters)}`,
  });
  const rest = 4_096 - octetsOnAndroid(content(0));
  expect(payloadSize(content(rest))).toEqual({ platform: 'android', bytes: 4_096, bytesMax: 4_096 });
  expect(fitsEveryPlatform(content(rest))).toBe(true);
  expect(fitsEveryPlatform(content(rest + 1))).toBe(false);
});

/** Counted by another way than the code's: the larger of both forms, as the app sees it. */
function octetsOnAndroid(content: PushContent): number {
  const sizes = [true, false].map((isInstrumented) => {
    const { notification, android, data } = composeForFcm(messageId, content, isInstrumented);
    let text = '';
    for (const part of [notification, android.notification, data]) {
      for (const key in part) text += key + part[key]!;
    }
    return Buffer.from(text).length;
  });
  return Math.max(...sizes);
}

test('the octets are those of what is sent, whatever is in it', () => {
  const text = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 300 });
  const content: fc.Arbitrary<PushContent> = fc.record({
    title: text,
    body: text,
    imageUrl: fc.option(text),
    iconUrl: fc.option(text),
    deepLink: fc.option(text),
    androidChannelId: fc.option(text),
    priority: fc.constantFrom('high', 'normal', null),
    actionButtons: fc.array(fc.record({ actionId: text, label: text, deepLink: fc.option(text) }), {
      maxLength: 3,
    }),
    dataPayload: fc.dictionary(
      text.filter((key) => !isReservedDataKey(key)),
      text,
    ),
  });
  fc.assert(
    fc.property(content, (each) => {
      const room = [
        3_993 - composeForWeb(messageId, each).length,
        4_096 - composeForApns(messageId, each).length,
        4_096 - octetsOnAndroid(each),
      ];
      const { bytes, bytesMax } = payloadSize(each);
      expect(bytesMax - bytes).toBe(Math.min(...room));
      expect(fitsEveryPlatform(each)).toBe(Math.min(...room) >= 0);
    }),
    { numRuns: 50 },
  );
});

test('a notification fits every platform if, and only if, its narrowest form does', () => {
  const text = (maxLength: number) => fc.string({ unit: 'binary', maxLength });
  fc.assert(
    fc.property(
      fc.record({
        title: text(200),
        body: text(1_500),
        deepLink: fc.option(text(300)),
        actionButtons: fc.array(
          fc.record({ actionId: text(30), label: text(30), deepLink: fc.option(text(200)) }),
          { maxLength: 3 },
        ),
        dataPayload: fc.dictionary(text(20), text(200), { maxKeys: 20 }),
      }),
      (parts) => {
        const content = {
          ...parts,
          imageUrl: null,
          iconUrl: null,
          androidChannelId: null,
          priority: null,
        };
        const { bytes, bytesMax } = payloadSize(content);
        expect(fitsEveryPlatform(content)).toBe(bytes <= bytesMax);
      },
    ),
  );
});
