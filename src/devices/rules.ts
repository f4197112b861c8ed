import { isPushHost, parseEndpoint } from '../channels/push/endpoint.ts';
import { defineRule, type FieldRule } from '../platform/http/validation.ts';
import type { Platform, RegistrationBody } from './schema.ts';

/** By this name the rules find the push services of browsers that endpoints may be of. */
export const pushHostsSetting = 'push-hosts';

/** Rules that this room's schemas name, to be handed to `createValidation`. */
export const deviceRules: Record<'device-fields' | 'device-address', FieldRule> = {
  'device-fields': defineRule<RegistrationBody>((fields, isGiven, { settings }) =>
    findForeignFields(fields, isGiven, settings[pushHostsSetting] ?? []),
  ),
  // Refused with 400, as a platform without credentials is.
  'device-address': defineRule<RegistrationBody>(
    ({ platform }, isGiven) => (platform === undefined ? [] : findMissingAddress(platform, isGiven)),
    { isLeftToRoute: true },
  ),
};

type AddressField = 'device_token' | 'endpoint' | 'p256dh_key' | 'auth_key';

/** What each platform is reached by. */
const fieldsOfPlatforms: Readonly<Record<Platform, readonly AddressField[]>> = {
  android: ['device_token'],
  ios: ['device_token'],
  web: ['endpoint', 'p256dh_key', 'auth_key'],
};

const addressFields = [...new Set(Object.values(fieldsOfPlatforms).flat())];

/** Without these, nothing says where a device is reached. */
export function findMissingAddress(platform: Platform, isGiven: (name: AddressField) => boolean): string[] {
  return fieldsOfPlatforms[platform]
    .filter((field) => !isGiven(field))
    .map((field) => `${field} is required for ${platform}`);
}

function findForeignFields(
  { platform, endpoint, device_token: token }: Partial<RegistrationBody>,
  isGiven: (name: string) => boolean,
  pushHosts: readonly string[],
): string[] {
  if (platform === undefined) return [];
  const issues = addressFields
    .filter((field) => isGiven(field) && !fieldsOfPlatforms[platform].includes(field))
    .map((field) => `${field} must not be given for ${platform}`);
  if (isGiven('apns_environment') && platform !== 'ios') {
    issues.push(`apns_environment must not be given for ${platform}`);
  }
  if (platform === 'ios' && token !== undefined && !/^(?:[0-9a-f]{2})+$/i.test(token)) {
    issues.push('device_token must be a token of APNs in hexadecimal');
  }
  if (platform === 'web' && endpoint !== undefined) {
    const url = parseEndpoint(endpoint);
    if (url === null || !isPushHost(url, pushHosts)) {
      issues.push('endpoint must be of a push service that this installation allows');
    }
  }
  return issues;
}
