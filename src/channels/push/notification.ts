/**
 * A notification, and the form in which each platform takes it. All forms carry the same things, under names that the
 * SDKs on the devices read:
 *
 * - **Web**: JSON with `id`, `title`, `body`, `image`, `icon`, `link`, `actions` and `data`.
 * - **iOS**: JSON with Apple's `aps`, the app's own data beside it, and the rest in `postillion_message`.
 * - **Android, app with SDK**: data only, ours under keys that begin with `postillion_`. The SDK shows it.
 * - **Android, app without SDK**: the system shows title, body and image by itself; the rest is in the data.
 *
 * What a notification does not have has no key. Its category is for statistics, and is never sent.
 */

export const pushPlatforms = ['android', 'ios', 'web'] as const;

export type PushPlatform = (typeof pushPlatforms)[number];

export type PushContent = {
  title: string;
  body: string;
  imageUrl: string | null;
  iconUrl: string | null;
  deepLink: string | null;
  androidChannelId: string | null;
  /** Null leaves it to the platform. */
  priority: PushPriority | null;
  /** At most three. */
  actionButtons: readonly ActionButton[];
  /** The app's own data, under keys that are not reserved (`isReservedDataKey`). */
  dataPayload: Readonly<Record<string, string>>;
};

export const pushPriorities = ['high', 'normal'] as const;

export type PushPriority = (typeof pushPriorities)[number];

export type ActionButton = { actionId: string; label: string; deepLink: string | null };

/** FCM refuses a message with such a key; `aps` is Apple's, and what begins with `postillion_` is ours. */
const reservedPrefixes = ['postillion_', 'gcm', 'google'] as const;
const reservedKeys: readonly string[] = ['aps', 'from', 'notification', 'message_type', 'collapse_key'];

/** Whether `data_payload` may not have this key. */
export function isReservedDataKey(key: string): boolean {
  return reservedKeys.includes(key) || reservedPrefixes.some((prefix) => key.startsWith(prefix));
}

/** What a push service shows to a browser: the plaintext of RFC 8291, in UTF-8. */
export function composeForWeb(messageId: string, content: PushContent): Buffer {
  const { title, body, imageUrl, iconUrl, deepLink, dataPayload } = content;
  return encodeJson({
    id: messageId,
    title,
    body,
    ...present({ image: imageUrl, icon: iconUrl, link: deepLink }),
    ...present({ actions: listActions(content), data: isEmpty(dataPayload) ? null : dataPayload }),
  });
}

/**
 * The body of a request to APNs, in UTF-8. `mutable-content` has the app's extension run before the notification is
 * shown, which alone can add an image and buttons. There is no icon on iOS: it is always the app's.
 */
export function composeForApns(messageId: string, content: PushContent): Buffer {
  const { title, body, imageUrl, deepLink, dataPayload } = content;
  return encodeJson({
    ...dataPayload,
    aps: { alert: { title, body }, sound: 'default', 'mutable-content': 1 },
    postillion_message: {
      id: messageId,
      ...present({ image: imageUrl, link: deepLink, actions: listActions(content) }),
    },
  });
}

/** The parts of a message of FCM's HTTP v1 API that the content decides. */
export type FcmContent = {
  notification?: Readonly<Record<string, string>>;
  android: { priority: 'HIGH' | 'NORMAL'; notification?: Readonly<Record<string, string>> };
  data: Readonly<Record<string, string>>;
};

/**
 * A message with `notification` is shown by the system without running the app: good for an app without our SDK, while
 * one with it (`isInstrumented`) gets data only, since buttons, a large icon and reports need its code. No `collapse_key`
 * is ever set: FCM stores four distinct ones a device, and a hundred messages that have none.
 */
export function composeForFcm(messageId: string, content: PushContent, isInstrumented: boolean): FcmContent {
  const { title, body, imageUrl, androidChannelId, priority } = content;
  // FCM's default is high with `notification` and normal without; both are shown at once.
  const urgency = priority === 'normal' ? 'NORMAL' : 'HIGH';
  if (isInstrumented) {
    return {
      android: { priority: urgency },
      data: {
        ...composeFcmData(messageId, content),
        postillion_title: title,
        postillion_body: body,
        ...present({ postillion_image: imageUrl, postillion_channel: androidChannelId }),
      },
    };
  }
  return {
    notification: { title, body, ...present({ image: imageUrl }) },
    android: {
      priority: urgency,
      // Replaces what the same message has shown before, where a lost answer had it sent twice.
      notification: { tag: messageId, ...present({ channel_id: androidChannelId }) },
    },
    data: composeFcmData(messageId, content),
  };
}

/** What the system cannot show. FCM takes texts only, so that the buttons are JSON in one of them. */
function composeFcmData(messageId: string, content: PushContent): Readonly<Record<string, string>> {
  const actions = listActions(content);
  return {
    ...content.dataPayload,
    postillion_message_id: messageId,
    ...present({
      postillion_icon: content.iconUrl,
      postillion_link: content.deepLink,
      postillion_actions: actions === null ? null : JSON.stringify(actions),
    }),
  };
}

/** RFC 8291 §4: 4,096 octets of body, less its header, one octet of padding and the tag. */
export const webPayloadBytesMax = 3_993;

/** What Apple and FCM take of a notification. */
const phonePayloadBytesMax = 4_096;

export type PayloadSize = {
  /** Where the notification has the least room left, or is too large by the most. */
  platform: PushPlatform;
  bytes: number;
  bytesMax: number;
};

/**
 * How large the notification is in the narrowest of its forms. That one decides whichever devices a contact has, so
 * that all contacts get the same answer.
 */
export function payloadSize(content: PushContent): PayloadSize {
  const sizes: readonly PayloadSize[] = [
    {
      platform: 'web',
      bytes: composeForWeb(anyMessageId, content).length,
      bytesMax: webPayloadBytesMax,
    },
    {
      platform: 'ios',
      bytes: composeForApns(anyMessageId, content).length,
      bytesMax: phonePayloadBytesMax,
    },
    ...[true, false].map((isInstrumented) => ({
      platform: 'android' as const,
      bytes: countFcmOctets(composeForFcm(anyMessageId, content, isInstrumented)),
      bytesMax: phonePayloadBytesMax,
    })),
  ];
  return sizes.reduce((narrowest, size) => (roomIn(size) < roomIn(narrowest) ? size : narrowest));
}

export function fitsEveryPlatform(content: PushContent): boolean {
  return isSurelySmall(content) || roomIn(payloadSize(content)) >= 0;
}

/** No form has more than three octets for each unit of the content's JSON, and so many for its own names. */
const ownNamesBytesMax = 800;

/** Of most notifications, which then need not be composed in every form (70 µs). */
function isSurelySmall(content: PushContent): boolean {
  return 3 * JSON.stringify(content).length + ownNamesBytesMax <= webPayloadBytesMax;
}

/** All ids of messages are as long as this one. */
const anyMessageId = '00000000-0000-0000-0000-000000000000';

function roomIn({ bytes, bytesMax }: PayloadSize): number {
  return bytesMax - bytes;
}

/** FCM counts "both the keys and the values" of what the app or the system is given, as they are before JSON. */
function countFcmOctets({ notification, android, data }: FcmContent): number {
  return [notification, android.notification, data]
    .flatMap((part) => Object.entries(part ?? {}).flat())
    .reduce((octets, text) => octets + Buffer.byteLength(text), 0);
}

function listActions({ actionButtons }: PushContent): readonly Readonly<Record<string, string>>[] | null {
  if (actionButtons.length === 0) return null;
  return actionButtons.map(({ actionId, label, deepLink }) => ({
    id: actionId,
    label,
    ...present({ link: deepLink }),
  }));
}

/** The same without what is null. */
function present<Value>(values: Readonly<Record<string, Value | null>>): Record<string, Value> {
  const entries = Object.entries(values).filter((entry): entry is [string, Value] => entry[1] !== null);
  return Object.fromEntries(entries);
}

function isEmpty(values: object): boolean {
  return Object.keys(values).length === 0;
}

function encodeJson(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value), 'utf8');
}
