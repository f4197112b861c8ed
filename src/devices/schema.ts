import { type Static, Type } from 'typebox';
import { contactReferenceFields } from '../audience/audience.ts';
import { parseEndpoint } from '../channels/push/endpoint.ts';
import { readAuthSecret, readPublicKey } from '../channels/push/web-push/subscription-keys.ts';
import { instant, literals, textOrNull, itemError, itemIndex } from '../platform/http/shapes.ts';
import type { Schema } from '../platform/http/openapi.ts';
import type { TextFormat } from '../platform/http/validation.ts';

export const platforms = ['android', 'ios', 'web'] as const;

export type Platform = (typeof platforms)[number];

export const deviceStatuses = ['ACTIVE', 'EXPIRED', 'REVOKED', 'FAILED'] as const;

export type DeviceStatus = (typeof deviceStatuses)[number];

/** What a device is retired to whose token was refused: it was good once, or never can be. */
export type RetiredStatus = 'EXPIRED' | 'FAILED';

export const enablementStatuses = [
  'AUTHORIZED',
  'DENIED',
  'NOT_DETERMINED',
  'PROVISIONAL',
  'UNAUTHORIZED',
] as const;

export type EnablementStatus = (typeof enablementStatuses)[number];

/** Those that let nothing be shown. */
export const denyingStatuses = ['DENIED', 'UNAUTHORIZED'] as const satisfies readonly EnablementStatus[];

export const revocations = ['logout', 'opt_out'] as const;

/** How a device was revoked: somebody signed out on it, or wants no pushes there. */
export type Revocation = (typeof revocations)[number];

export const apnsEnvironments = ['production', 'sandbox'] as const;

export type ApnsEnvironment = (typeof apnsEnvironments)[number];

/**
 * Active devices of one contact. A push is handed off once for each of them. Nobody has so many: an app that is
 * registered more often makes a new installation id at each start.
 */
export const devicesMax = 200;

const endpointLengthMax = 2_048;

/** Text formats of this room's schemas, to be handed to `createValidation`. */
export const deviceFormats: Record<
  'device-token' | 'push-endpoint' | 'p256dh-key' | 'push-auth-key',
  TextFormat
> = {
  'device-token': {
    test: (text) => /^[\x21-\x7e]*$/.test(text),
    mustBe: 'a token as the platform gave it, without blanks',
  },
  'push-endpoint': {
    // Percent-encoding makes it longer than it was given.
    test: (text) => (parseEndpoint(text)?.href.length ?? Infinity) <= endpointLengthMax,
    mustBe: `an https URL of at most ${endpointLengthMax} characters, as PushSubscription.endpoint gives it`,
  },
  'p256dh-key': {
    test: (text) => readPublicKey(text) !== null,
    mustBe: 'a P-256 public key in base64url, 65 octets that begin with 4',
  },
  'push-auth-key': {
    test: (text) => readAuthSecret(text) !== null,
    mustBe: 'an authentication secret in base64url, 16 octets',
  },
};

/** Longer than any that is known; what says what a device is. */
const detailLengthMax = 128;

const detail = (description: string) =>
  Type.Optional(Type.String({ maxLength: detailLengthMax, format: 'single-line', description }));

export const installationIdLengthMax = 255;

const installationId = Type.String({
  minLength: 1,
  maxLength: installationIdLengthMax,
  format: 'filled-line',
  sensitive: true,
  description: 'Stays the same for one installation of an app, or one browser. Unique in the organization.',
});

const registrationFields = {
  ...contactReferenceFields,
  installation_id: installationId,
  platform: literals(platforms, { title: 'DevicePlatform' }),
  apns_environment: Type.Optional(
    literals(apnsEnvironments, { description: 'Of iOS only; `production` unless given.' }),
  ),
  device_token: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 4_096,
      format: 'device-token',
      sensitive: true,
      description:
        'Required for Android, the registration token of FCM, and for iOS, the device token of APNs in hexadecimal.',
    }),
  ),
  endpoint: Type.Optional(
    Type.String({
      maxLength: endpointLengthMax,
      format: 'push-endpoint',
      sensitive: true,
      description: 'Required for web, at one of the push services that the installation allows.',
    }),
  ),
  p256dh_key: Type.Optional(
    Type.String({
      maxLength: 255,
      format: 'p256dh-key',
      sensitive: true,
      description: 'Required for web: `p256dh` of the subscription.',
    }),
  ),
  auth_key: Type.Optional(
    Type.String({
      maxLength: 255,
      format: 'push-auth-key',
      sensitive: true,
      description: 'Required for web: `auth` of the subscription.',
    }),
  ),
  enablement_status: Type.Optional(
    literals(enablementStatuses, {
      title: 'EnablementStatus',
      description:
        'Whether notifications may be shown. `DENIED` and `UNAUTHORIZED` keep the device from getting any until a later registration says otherwise. Left out, it stays as it is.',
    }),
  ),
  sdk_version: detail(
    'Only where the SDK is part of the app: such a device shows notifications by itself, and reports on them.',
  ),
  app_version: detail('Of the app.'),
  os_version: detail('Of the system or the browser.'),
  device_model: detail('As the manufacturer calls it.'),
  device_manufacturer: detail('Who made the device.'),
  device_timezone: Type.Optional(Type.String({ format: 'timezone', description: 'An IANA zone.' })),
  device_locale: Type.Optional(Type.String({ format: 'locale', description: 'A BCP 47 tag.' })),
};

/** Body of `POST /push/devices`. */
export const registrationBody = Type.Object(registrationFields, {
  title: 'RegisterDeviceRequest',
  additionalProperties: false,
  rules: ['device-fields', 'device-address'],
});

export type RegistrationBody = Static<typeof registrationBody>;

export const bulkMax = 1_000;

/**
 * Body of `POST /push/devices/bulk`. Each device is checked by itself, so that one that is wrong does not refuse the
 * others: `describeDevices` says what it may be.
 */
export const bulkBody = Type.Object(
  {
    devices: Type.Array(Type.Unsafe<unknown>({ title: 'BulkDevice' }), {
      minItems: 1,
      maxItems: bulkMax,
      description: 'Carried out in this order.',
    }),
  },
  { title: 'BulkRegisterDevicesRequest', additionalProperties: false },
);

/** By title, what stands in the place of the schemas of those titles in the description of the API. */
export function describeDevices(): Record<'BulkDevice', Schema> {
  const { type, required, properties } = registrationBody;
  return {
    BulkDevice: {
      type,
      required,
      properties,
      additionalProperties: false,
      description: 'What registers one device; its own result tells what is wrong with it.',
    },
  };
}

export const unregistrationBody = Type.Object(
  {
    installation_id: installationId,
    reason: literals(revocations, {
      description:
        '`logout`: somebody signed out; another contact who signs in there gets pushes again. `opt_out`: whoever uses the device wants none.',
    }),
  },
  { title: 'UnregisterDeviceRequest', additionalProperties: false },
);

const id = Type.String({ format: 'uuid' });

const registrationRecordFields = {
  id,
  installation_id: Type.String(),
  status: literals(deviceStatuses, { title: 'DeviceStatus' }),
  contact_id: id,
  opted_out: Type.Boolean({
    description: 'Whether it stays revoked, whatever is registered for this contact.',
  }),
  suppressed: Type.Optional(
    Type.Literal(true, {
      description: 'The token was refused for good before: the device is retired until it has another one.',
    }),
  ),
  device_secret: Type.Optional(
    Type.String({
      description: 'Opens the reports of this device. Shown only now, to the call that created it.',
    }),
  ),
};

/** What a registration answers. */
export const registrationRecord = Type.Object(registrationRecordFields, { title: 'DeviceRegistration' });

export type RegistrationRecord = Static<typeof registrationRecord>;

export const bulkRecord = Type.Object(
  {
    data: Type.Array(
      Type.Union([
        Type.Object({ index: itemIndex, ...registrationRecordFields }, { title: 'BulkDeviceRegistration' }),
        Type.Object(
          {
            index: itemIndex,
            installation_id: textOrNull,
            error: itemError,
          },
          { title: 'BulkDeviceRefusal' },
        ),
      ]),
    ),
  },
  { title: 'BulkDeviceRegistrations' },
);

export type BulkRecord = Static<typeof bulkRecord>;

/** A device as the API lists it: without its token, keys and secret. */
export const deviceRecord = Type.Object(
  {
    id,
    installation_id: Type.String(),
    contact_id: id,
    platform: literals(platforms, { title: 'DevicePlatform' }),
    apns_environment: textOrNull,
    status: literals(deviceStatuses, { title: 'DeviceStatus' }),
    opted_out: Type.Boolean(),
    enablement_status: textOrNull,
    sdk_version: textOrNull,
    app_version: textOrNull,
    os_version: textOrNull,
    device_model: textOrNull,
    device_manufacturer: textOrNull,
    device_timezone: textOrNull,
    device_locale: textOrNull,
    registered_at: instant,
    created_at: instant,
    updated_at: instant,
  },
  { title: 'Device' },
);

export type DeviceRecord = Static<typeof deviceRecord>;
